"""Retry of requests that got no good answer: whether, when and at which server.

Rules: C1  servers are asked in turn, first the one that answered last as the active; one that can't be reached is
           passed over, and one that lets itself be waited for isn't asked again for a while if another answers
       C2  a request whose answer got lost may have been carried out: only one that is repeatable is sent again, once at
           once (a kept connection may have been closed meanwhile), then after pauses
       C3  a refusal that says that nothing was done, and that time may lift, is a reason to ask again for any request,
           not before the moment that it names; a token that is refused doesn't heal, and is never tried again
       C4  pauses grow from PAUSE_FIRST_S to PAUSE_MAX_S, or SHORT_PAUSE_MAX_S where there are several servers, each
           drawn by lot from around its length, so that nobody comes back later than an outage took by more than about
           a third of it; with what tries take after the first that failed they last at most as long as patience
       C5  where no server ever answered this client, that is said at once: a wrong address doesn't heal
       C6  whatever the answer is, the caller gets it whole or a StokerError
       C7  a standby refuses with `not_active`, and did nothing: the active that it names is asked next if it is one of
           the servers. If it isn't, and there is no other server, that is said at once (`servers`, S1). So does a
           standby that doesn't know the token, whose copy may be behind
       C8  where there are several servers, a read wants the active's answer; once none has come for STALE_AFTER_S, a
           standby's is taken, and for LEADERLESS_S that one is asked first and its answer taken at once
       C9  what a proxy says for a server that is away is no answer of that server: a repeatable request is repeated
       C10 where there are several servers, none is waited for as long as a single one: the next is asked meanwhile
       C12 a server that hasn't proved who it is (`trust`) isn't asked again: that doesn't heal. The others are asked
           without it; if none answers, its refusal is what is said
       C11 where there are several servers, what may not come twice is only sent after one has shown in the last VOUCH_S
           that it is active and answers: one that hangs would be asked first again and again

Repeatable are reads, submits (each carries a key of its own), and the orders that leave things as they are when they
come twice: cancel, hold, release, drain, resume, label, taint, put_partition. Not so `requeue`, which would stop what
it started, and `signal`, which would be felt twice.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult

from msgspec.structs import replace

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.wire.client import http_message as http
from stoker.wire.client.backoff import jittered, mono_s, sleep_blocking
from stoker.wire.client.servers import DEFAULT_SERVER, Servers, parsed_servers, server_label
from stoker.wire.client.staleness import (
    FRESH_ONLY,
    NOT_ACTIVE,
    STALE_HEADER,
    Notice,
    Waiting,
    ignore_notice,
    is_standby,
    stale_answer,
)
from stoker.wire.client.trust import NO_CREDENTIALS, Credentials, ServerProof
from stoker.wire.endpoints import HEALTH

PATIENCE_S: Final = 15.0
"""As long as a control plane takes to come back, and more than twice what a standby takes to take over."""
PAUSE_FIRST_S: Final = 0.05
PAUSE_GROWTH: Final = 1.3
PAUSE_MAX_S: Final = 2.0
SHORT_PAUSE_MAX_S: Final = 0.5
"""Somebody else takes over within seconds, and a refusal costs a standby little."""
STALE_AFTER_S: Final = 2.0
LEADERLESS_S: Final = 2.0
FRESH_S: Final = 5.0
"""C10, of a read that a standby could answer too."""
QUICK_CONNECT_S: Final = 1.0
"""Of one server among several: one that is switched off answers nothing at all."""
REST_S: Final = 3.0
"""C1"""
SAID_AFTER_S: Final = 1.0
"""A person is told what is waited for, if it takes longer than this."""

LOOK: Final = http.Request(HEALTH.method, HEALTH.path, repeatable=True)
"""C11. It is answered without a token, and by whoever is active."""
VOUCH_S: Final = 2.0

_NOTHING_DONE: Final = frozenset(
    {
        *("overloaded", "stopping", "not_ready", "too_many_connections", "too_many_streams", "request_too_slow"),
        *("rate_limited", NOT_ACTIVE),
    }
)
"""C3"""
_PERHAPS_DONE: Final = frozenset({"log_failed", "lease_lost"})
_NOT_KNOWN_YET: Final = frozenset({"token_unknown"})
"""C7"""
_GATEWAY_STATUSES: Final = (502, 503, 504)
"""C9"""


def wants_look(request: http.Request, servers: Servers, now_s: float) -> bool:
    """Return whether a health probe is to be answered before this request is sent (C11)."""
    return servers.several and not request.repeatable and not servers.active_since(now_s - VOUCH_S)


class SendTo(NamedTuple):
    """Ask this one now."""

    server: SplitResult
    request: http.Request
    """As it is to be sent this time."""
    connect_s: float
    answer_s: float
    """How long to wait for the beginning of its answer, at most."""


class Wait(NamedTuple):
    """Ask nobody for a while."""

    seconds: float


class RequestRetry:
    """One request on its way."""

    def __init__(
        self,
        request: http.Request,
        servers: Servers,
        patience_s: float,
        notify: Callable[[Notice], object] = ignore_notice,
        *,
        spread: Callable[[float], float] = jittered,
        now: Callable[[], float] = mono_s,
    ) -> None:
        """`notify` is told what a person may want to know beside the answer. `spread` draws a pause from around a
        length; `now` is in seconds of a clock that only runs forward."""
        self._request = request
        self._notify = notify
        self._servers = servers
        self._patience_s = patience_s
        self._spread = spread
        self._now = now
        self._left_s = patience_s if servers.answered else 0.0
        self._spent_s = 0.0
        self._asked_at = 0.0
        self._pause_s = PAUSE_FIRST_S
        self._least_s = 0.0
        self._queue: list[SplitResult] | None = None
        reads = servers.several and request.method == "GET"
        self._wants_fresh = reads and not servers.was_leaderless(now() - LEADERLESS_S)
        self._answer_s = _longest_s(request, patience_s, servers)
        self._unhurried = not servers.several
        self._heard = self._told = False
        self._lost = 0
        self._perhaps_done: Refusal | None = None
        self._said: dict[SplitResult, Refusal | str] = {}
        """What each answered last, or what was in the way."""
        self._slow: dict[SplitResult, float] = {}
        """Who let itself be waited for, and after how much of our time."""
        self._not_proved: dict[SplitResult, http.NotProved] = {}
        """C12"""

    # --- what to do next ----------------------------------------------------------------------------------------

    def next(self) -> SendTo | Wait:
        """Raises: StokerError when patience is over (C4)."""
        if self._queue is None:
            self._queue = self._awake()
        if len(self._not_proved) == len(self._servers.in_turn):
            raise next(iter(self._not_proved.values()))
        if self._queue:
            return self._turn(self._queue.pop(0))
        pause_s = max(self._spread(self._pause_s), self._least_s)
        last = pause_s > self._left_s
        if self._wants_fresh and self._heard:
            wait_s = self._stale_in_s()
            if wait_s <= 0 or last:
                return self._next_round(self._awake() or self._everybody(), stale=True)
            pause_s = min(pause_s, wait_s)
        elif last and self._slow and not self._heard and not self._unhurried:
            self._unhurried = True
            return self._next_round(list(self._slow))
        if last:
            raise StokerError(self._outcome())
        return self._pause(pause_s)

    def _next_round(self, queue: list[SplitResult], *, stale: bool = False) -> SendTo:
        """At once."""
        self._wants_fresh = self._wants_fresh and not stale
        self._queue = queue
        return self._turn(self._queue.pop(0))

    def _turn(self, server: SplitResult) -> SendTo:
        self._asked_at = self._now()
        request = self._request
        if self._wants_fresh:
            request = request._replace(headers={**request.headers, STALE_HEADER: FRESH_ONLY})
        return SendTo(server, request, http.CONNECT_S if self._unhurried else QUICK_CONNECT_S, self._answer_s)

    def _awake(self) -> list[SplitResult]:
        everybody = self._everybody()
        if not self._heard:
            return everybody
        return [each for each in everybody if each not in self._slow or self._spent_s > self._slow[each] + REST_S]

    def _everybody(self) -> list[SplitResult]:
        return [each for each in self._servers.in_turn if each not in self._not_proved]

    def _stale_in_s(self) -> float:
        """Return the seconds until a standby's answer is taken for a read (C8)."""
        return (STALE_AFTER_S if self._servers.leaderless_at is None else 0.0) - self._spent_s

    def _pause(self, pause_s: float) -> Wait:
        self._queue = None
        self._spend(pause_s)
        most_s = SHORT_PAUSE_MAX_S if self._servers.several else PAUSE_MAX_S
        self._pause_s, self._least_s = min(self._pause_s * PAUSE_GROWTH, most_s), 0.0
        # A read that wants the active's answer will have another one in a moment.
        if self._spent_s >= SAID_AFTER_S and not self._told and not self._wants_fresh:
            self._told = True
            self._notify(Waiting(self._outcome().message))
        return Wait(pause_s)

    # --- what came of it ----------------------------------------------------------------------------------------

    def unreachable(self, server: SplitResult, fault: http.Unreachable) -> None:
        self._failed(server, str(fault))
        if fault.in_vain:
            self._slow[server] = self._spent_s

    def not_proved(self, server: SplitResult, fault: http.NotProved) -> None:
        """Ask this server no more (C12)."""
        self._failed(server, fault.refusal)
        self._not_proved[server] = fault

    def lost(self, server: SplitResult, fault: http.AnswerLost) -> None:
        """Raises: StokerError `no_answer` where it may not be sent again."""
        refusal = no_answer(server, self._request, fault)
        if not self._request.repeatable:
            raise StokerError(refusal) from fault
        self._failed(server, str(fault))
        # A read that got no answer did nothing: that there is no server is all there is to say.
        if self._request.method != "GET":
            self._perhaps_done = refusal
        self._lost += 1
        late = isinstance(fault, http.AnswerLate) and self._servers.several
        if late:
            self._slow[server] = self._spent_s
        if not isinstance(fault, http.NoHttp):  # what speaks something else is a wrong address
            self._be_patient()
        if fault.elsewhere is not None:
            self._ask_next(fault.elsewhere)
        elif self._lost == 1 and not late:
            self._queue = [server, *(self._queue or ())]

    def accepts(self, server: SplitResult, reply: http.Reply) -> bool:
        """Return whether this is the answer; False: ask again. Raises: StokerError with the server's refusal."""
        try:
            refusal = http.refusal_in(reply)
        except StokerError as fault:
            if not self._is_gateways(reply):
                raise
            self._failed(server, fault.refusal)
            return False
        self._heard = self._servers.answered = True
        if refusal is None or (self._lost and refusal.code == self._request.done_code):
            self._note(server, reply)
            return True
        if self._servers.several and refusal.code in _NOT_KNOWN_YET and is_standby(reply.headers):
            refusal = replace(refusal, code=NOT_ACTIVE)
        heals = refusal.code in _NOTHING_DONE or (self._request.repeatable and refusal.code in _PERHAPS_DONE)
        if not heals:
            self._say_age(server, reply)
            raise StokerError(refusal)
        self._failed(server, refusal)
        self._be_patient()
        if refusal.code in _PERHAPS_DONE and self._request.method != "GET":
            self._perhaps_done = refusal
        after = reply.headers.get("retry-after", "")
        if after.isascii() and after.isdigit() and len(after) < 4:
            self._least_s = max(self._least_s, float(after))
        if refusal.code == NOT_ACTIVE:
            self._look_for_active(server, refusal)
        return False

    def _note(self, server: SplitResult, reply: http.Reply) -> None:
        """`servers`, S2."""
        self._say_age(server, reply)
        self._servers.prefer(server)
        self._servers.note(self._now(), standby=is_standby(reply.headers))

    def _say_age(self, server: SplitResult, reply: http.Reply) -> None:
        stale = stale_answer(server_label(server), reply.headers, len(self._servers.in_turn))
        if stale is not None:
            self._notify(stale)

    def _is_gateways(self, reply: http.Reply) -> bool:
        """C9, of a server that has answered before."""
        return reply.status in _GATEWAY_STATUSES and self._request.repeatable and self._servers.answered

    def _look_for_active(self, server: SplitResult, refusal: Refusal) -> None:
        """Ask next the active control plane that a standby named (C7)."""
        active = str(refusal.facts.get("active", ""))
        named = self._servers.named(active)
        if named is not None and named != server:
            self._ask_next(named)
        elif active and named is None and not self._servers.several:
            raise StokerError(_elsewhere(server, active, refusal))

    def _ask_next(self, server: SplitResult) -> None:
        """In this round, if it wasn't asked yet; and first in the next one."""
        self._servers.prefer(server)
        if self._queue and server in self._queue:
            self._queue = [server, *(each for each in self._queue if each != server)]

    def _failed(self, server: SplitResult, said: Refusal | str) -> None:
        took_s = self._now() - self._asked_at
        if self._said:
            self._spend(took_s)
        else:  # how long it may take is counted from here, how old an answer may be isn't
            self._spent_s += took_s
        self._said[server] = said

    def _spend(self, seconds: float) -> None:
        self._spent_s += seconds
        if self._left_s:
            # Never zero before it is over: zero would be filled anew.
            self._left_s = max(self._left_s - seconds, 1e-9)

    def _be_patient(self) -> None:
        self._left_s = self._left_s or self._patience_s

    # --- how it ended -------------------------------------------------------------------------------------------

    def _outcome(self) -> Refusal:
        """What there is to say if this was all."""
        if self._perhaps_done is not None:
            return self._perhaps_done
        refusals = [said for said in self._said.values() if isinstance(said, Refusal)]
        of_active = [each for each in refusals if each.code != NOT_ACTIVE]
        if of_active:
            return of_active[-1]
        told = "; ".join(f"{server_label(server)}: {_text(said)}" for server, said in self._said.items())
        return (
            _none_active(told, refusals, self._servers)
            if refusals
            else no_server(told, len(self._said), of_ones_own=self._servers.of_ones_own)
        )


class RequestSender:
    """The servers, the token and the retry rules of a transport, beside its connections."""

    def __init__(
        self,
        servers: str = DEFAULT_SERVER,
        *,
        credentials: Credentials = NO_CREDENTIALS,
        answer_s: float = http.ANSWER_S,
        patience_s: float = 0.0,
        pause: Callable[[float], Any] = sleep_blocking,
        notify: Callable[[Notice], object] = ignore_notice,
    ) -> None:
        """`servers` has commas between several. `answer_s`: seconds that an answer may take.

        Raises: StokerError `bad_server` or `bad_token`.
        """
        own = servers == DEFAULT_SERVER and not credentials.token
        self._servers = Servers(parsed_servers(servers), of_ones_own=own)
        self._pause = pause
        self._proof = ServerProof(credentials)
        self._answer_s = answer_s
        self.patience_s = patience_s
        """Seconds for which a request is repeated that may be."""
        self._notify = notify

    @property
    def server(self) -> str:
        """Address of the server that is asked first."""
        return self._servers.first.geturl()

    @property
    def root(self) -> bytes:
        """Certificate (DER) of the authority that the token names, once a server has presented it; empty = none."""
        return self._proof.root

    def _sending(self, request: http.Request) -> Generator[SendTo | Wait, http.Reply | None, http.Reply]:
        """Give the turns and pauses of one request, until it is answered with success. C11

        Raises: StokerError with the server's refusal, or `no_server`, `no_answer`, `not_active` or `bad_answer`.
        """
        if wants_look(request, self._servers, mono_s()):
            yield from _turns(RequestRetry(LOOK, self._servers, self.patience_s))
        return (yield from _turns(RequestRetry(request, self._servers, self.patience_s, self._notify)))

    def _watching(self, server: SplitResult, answer_s: float) -> Generator[float | SplitResult, bool, None]:
        """Wait until the answer of a server begins.

        A number asks whether it begins within so many seconds, a server whether that one says that it is active.
        Raises: AnswerLate after `answer_s`; AnswerLost as soon as another server is active.
        """
        give_up_s, look_s = mono_s() + answer_s, http.LOOK_FIRST_S
        while not (yield max(0.0, min(look_s, give_up_s - mono_s()))):
            if mono_s() >= give_up_s:
                raise http.AnswerLate(f"nothing came for {answer_s:g} s")
            for other in self._servers.others(server):
                if (yield other):
                    raise http.AnswerLost(f"{server_label(other)} is active now", elsewhere=other)
            look_s = min(look_s * 2, http.LOOK_MAX_S)


def _turns(tries: RequestRetry) -> Generator[SendTo | Wait, http.Reply | None, http.Reply]:
    while True:
        turn = tries.next()
        if isinstance(turn, Wait):
            yield turn
            continue
        try:
            reply = yield turn
        except http.Unreachable as fault:
            tries.unreachable(turn.server, fault)
        except http.NotProved as fault:
            tries.not_proved(turn.server, fault)
        except http.AnswerLost as fault:
            tries.lost(turn.server, fault)
        else:
            assert reply is not None, "who is asked answers, or raises"
            if tries.accepts(turn.server, reply):
                return reply


def _longest_s(request: http.Request, patience_s: float, servers: Servers) -> float:
    """Return the longest time that a request may take (C10)."""
    if request.waits or not request.repeatable or not servers.several:
        return http.ANSWER_S
    if request.method != "GET":
        return max(patience_s, FRESH_S)
    return FRESH_S if servers.leaderless_at is None else QUICK_CONNECT_S


def _text(said: Refusal | str) -> str:
    if isinstance(said, str):
        return said
    why = said.facts.get("why", "")
    return f"{said.message} ({why})" if why else said.message


def no_answer(server: SplitResult, request: http.Request, fault: Exception) -> Refusal:
    asked, hint = server_label(server), "it may have been carried out: look with `stoker list` before you repeat it"
    message = f"{asked} took the request {request.method} {request.target} and gave no answer: {fault}"
    return refuse("no_answer", message, hint, server=asked)


def no_server(told: str, tried: int, *, of_ones_own: bool) -> Refusal:
    hint = "see whether it runs and can be reached from here, or name another with --server or STOKER_SERVER"
    if of_ones_own:
        hint = "start a cluster of your own with `stoker up`, or name one with --server or STOKER_SERVER"
    if http.CLOSED in told:
        hint = "if one runs there, name its port of REST (`http.port`, 8080), not that of gRPC (9090)"
    return refuse("no_server", f"no control plane answers ({told})", hint, tried=tried)


def _none_active(told: str, refusals: list[Refusal], servers: Servers) -> Refusal:
    """Whoever answered is a standby."""
    foreign = [str(each.facts["active"]) for each in refusals if each.facts.get("active")]
    foreign = [each for each in foreign if servers.named(each) is None]
    if foreign:
        hint = f"{foreign[0]} is said to be active, and isn't asked because you didn't name it: add it to --server"
    else:
        hint = "a standby that may take over does so within seconds; `stoker control status` says what keeps it from it"
    return refuse(NOT_ACTIVE, f"no control plane is active ({told})", hint, active=foreign[0] if foreign else "")


def _elsewhere(server: SplitResult, active: str, refusal: Refusal) -> Refusal:
    message = f"{server_label(server)} is a standby ({refusal.message}); the active control plane is {active}"
    if server.scheme == "unix":
        hint = f"ask that one, on its own machine or with `--server {active}`"
    else:
        hint = f"name it, or both: `--server {server.geturl()},{active}`. What you don't name is never asked"
    return refuse(NOT_ACTIVE, message, hint, active=active)
