"""Copy of a task's output to stdout, once or as it is written; of one task, or of several at once.

Rules: O1  bytes go out as they were written, valid text or not
       O2  following ends with the attempt asked for, or else with the job, after its last byte
       O3  what a node has dropped between head and tail is said on stderr, never papered over
       O4  while the control plane or the node is away, or another control plane takes over, following waits and goes on
           where it was: nothing comes twice. How long it waits for a control plane is its client's patience
       O5  of several tasks each line goes out whole, with its rank before it or under the heading of its job
       O6  of a task that wrote nothing it is said why
Limits: `STREAMS_MAX` tasks are followed at once, each asked in turn; a line longer than `LINE_BYTES_MAX` goes out in
pieces.
"""

import sys
from collections.abc import Callable, Generator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from stoker.cli.clock import mono_s, sleep_blocking
from stoker.cli.display.messages import refused
from stoker.cli.display.safe_text import visible
from stoker.cli.job_end import EXIT_OF_STATE, LOOK_S, LimitNotice

if TYPE_CHECKING:
    from stoker.brain.domain.errors import StokerError
    from stoker.wire.client import Client, LogPart
    from stoker.wire.rest.job import JobView

PART_BYTES: Final = 256 * 1024
WAIT_S: Final = 20
"""How long the server may wait for more before it answers; below what proxies take for a dead connection."""
POLL_S: Final = 0.2
POLL_MAX_S: Final = 2.0
UNREACHABLE_S_MAX: Final = 60.0
"""How long a node is waited for that has the output of an attempt which is over."""
STREAMS_MAX: Final = 64
LINE_BYTES_MAX: Final = 64 * 1024
_NO_NODE: Final = "node_unreachable"
_YET_TO_COME: Final = frozenset({"log_unavailable", _NO_NODE})
"""Refusals that time may lift, while the attempt isn't over."""
_UNBORN: Final = "not_started"
_YET_TO_BEGIN: Final = frozenset({_UNBORN, "attempt_unknown"})
_NEVER_HAD_A_PROCESS: Final = frozenset({"start_failed", "never_started", "account_refused", "port_taken"})
FINAL_WORDS: Final = frozenset(EXIT_OF_STATE)

Answer = TypeVar("Answer")
Write = Callable[[bytes], None]
Pauses = Generator[float, None, Answer]
"""Work that yields how many seconds it would like to wait, and then answers."""


class Source(NamedTuple):
    """A task whose output is asked for."""

    job_id: str
    rank: int


class LogReader:
    """Reader of one rank's output, which it copies to stdout, or hands on by `write`.

    `alone`: nobody else waits, so that the server may be asked to wait for more.
    """

    def __init__(
        self, client: "Client", job_id: str, rank: int, write: Write | None = None, *, alone: bool = True
    ) -> None:
        self._client = client
        self._job_id = job_id
        self._rank = rank
        self._out = write or _to_stdout
        self._wait_s = WAIT_S if alone else 0
        self._said_away = False
        self._wrote = False
        self._notice = LimitNotice()
        self._looked_s = mono_s()

    def copy(self, attempt: int, tail: int | None) -> None:
        """Everything there is now, or its last lines."""
        part = _at_once(self._first(attempt, tail))
        while part.data and part.end < part.size:
            part = _at_once(self._ask(attempt, part.end))
        if not self._wrote and tail != 0:
            click.echo(self._why_nothing(self._client.job(self._job_id), attempt), err=True)

    def _why_nothing(self, job: "JobView", attempt: int) -> str:
        """Return why a task has written nothing (O6)."""
        found = next((each for each in reversed(job.attempts) if attempt in (0, each.number)), None)
        task = found.tasks[self._rank] if found is not None and self._rank < len(found.tasks) else None
        whose = f"job {job.id}" if job.tasks == 1 else f"rank {self._rank} of job {job.id}"
        if task is not None and task.cause is not None and task.cause.value in _NEVER_HAD_A_PROCESS:
            why = f": {visible(task.error)}" if task.error else ""
            return f"({whose} never had a process: {task.cause.value} on {task.node}{why})"
        return f"({whose} has written nothing{'' if task is not None and task.ended_at else ' yet'})"

    def follow(self, attempt: int | None, tail: int | None) -> None:
        """Everything there will be (O2)."""
        for delay_s in self.steps(attempt, tail):
            sleep_blocking(delay_s)

    def steps(self, attempt: int | None, tail: int | None) -> Pauses[None]:
        """Follow, with a pause yielded where others may be asked (O2)."""
        number = attempt or (yield from self._first_attempt(newest=tail is not None))
        first = True
        while (yield from self._comes(number)):
            if not first:
                click.echo(f"(attempt {number} of job {self._job_id})", err=True)
            yield from self._follow_attempt(number, tail if first else None)
            if attempt is not None:
                return
            number, first = number + 1, False
        if first:
            self._say_why_not(number)

    def _say_why_not(self, attempt: int) -> None:
        """A job that ended unborn has nothing to show; any other reason is a refusal."""
        try:
            self._logs(attempt, limit=1)
        except refused() as fault:
            if fault.refusal.code != _UNBORN:
                raise

    def _first_attempt(self, *, newest: bool) -> Pauses[int]:
        """With a tail the newest: earlier attempts lie before it. A member's first may have a higher number than 1."""
        yield from self._comes(1)
        job = yield from self._job()
        numbers = [each.number for each in job.attempts] or [1]
        return numbers[-1] if newest else numbers[0]

    def _comes(self, number: int) -> Pauses[bool]:
        """Wait for an attempt. False when the job ended without it."""
        while True:
            job = yield from self._job()
            if job.attempts and job.attempts[-1].number >= number:
                return True
            if job.state in FINAL_WORDS:
                return False
            yield from self._await_beginning(number)

    def _await_beginning(self, number: int) -> Pauses[None]:
        """The server answers as soon as the attempt has begun, or can't any more."""
        try:
            self._logs(number, limit=1, wait_s=self._wait_s)
        except refused() as fault:
            if fault.refusal.code not in _YET_TO_BEGIN:
                yield from self._check_heals(fault, number, waited_s=0.0)
            yield POLL_S if self._wait_s else POLL_MAX_S

    def _follow_attempt(self, attempt: int, tail: int | None) -> Pauses[None]:
        part = yield from self._patiently(lambda: self._first(attempt, tail, self._wait_s), attempt)
        was_over = False
        delay_s = POLL_S
        while not part.ended or (part.data and part.end < part.size):
            delay_s = POLL_S if part.data else min(delay_s * 1.3, POLL_MAX_S)
            if mono_s() - self._looked_s > LOOK_S:
                yield from self._job()
            if not part.data:
                if was_over:  # all that it wrote is here, although its node never said that it ended
                    return
                was_over = yield from self._is_over(attempt)
            if not self._wait_s:
                yield 0.0 if part.data or was_over else delay_s  # the others' turn
            wait_s = 0 if was_over else self._wait_s
            part = yield from self._patiently(partial(self._ask, attempt, part.end, wait_s), attempt)

    def _is_over(self, attempt: int) -> Pauses[bool]:
        job = yield from self._job()
        return all(each.outcome is not None for each in job.attempts if each.number == attempt)

    def _job(self) -> Pauses["JobView"]:
        def ask() -> Pauses["JobView"]:
            yield from ()
            return self._client.job(self._job_id)

        job = yield from self._patiently(ask)
        self._looked_s = mono_s()
        self._notice.look(job)
        return job

    # --- patience -----------------------------------------------------------------------------------------------

    def _patiently(self, ask: "Callable[[], Pauses[Answer]]", attempt: int = 0) -> "Pauses[Answer]":
        """O4. The answer, once it is given."""
        began_s, delay_s = mono_s(), POLL_S
        while True:
            try:
                return (yield from ask())
            except refused() as fault:
                yield from self._check_heals(fault, attempt, mono_s() - began_s)
            yield delay_s
            delay_s = min(delay_s * 1.3, POLL_MAX_S)

    def _check_heals(self, fault: "StokerError", attempt: int, waited_s: float) -> Pauses[None]:
        """Raises: the fault, unless time may lift it."""
        code = fault.refusal.code
        waits_long = code == _NO_NODE and waited_s <= UNREACHABLE_S_MAX
        if code not in _YET_TO_COME or (not waits_long and (yield from self._is_over(attempt))):
            raise fault
        if code == _NO_NODE and not self._said_away:  # once, until it is back
            click.echo(f"({visible(fault.refusal.message)}; waiting for it)", err=True)
            self._said_away = True

    # --- parts --------------------------------------------------------------------------------------------------

    def _first(self, attempt: int, tail: int | None, wait_s: int = 0) -> "Pauses[LogPart]":
        if tail is None:
            return (yield from self._ask(attempt, wait_s=wait_s))
        if tail == 0:  # begin at the end: the last byte is asked for and kept back
            return self._logs(attempt, offset=-1, limit=1)
        return self._write(self._logs(attempt, tail=tail, wait_s=wait_s))

    def _ask(self, attempt: int, offset: int = 0, wait_s: int = 0) -> "Pauses[LogPart]":
        asked_s = mono_s()
        part = self._logs(attempt, offset=offset, wait_s=wait_s)
        if offset < part.offset:
            click.echo(f"({part.offset - offset} bytes were not kept)", err=True)  # O3
        if wait_s and not part.data and not part.ended and mono_s() - asked_s < POLL_S:
            yield POLL_S  # a server that has no time to wait
        return self._write(part)

    def _logs(self, attempt: int, limit: int = PART_BYTES, **asked: Any) -> "LogPart":  # noqa: ANN401  # of LogQuery
        from stoker.wire.client import LogQuery

        query = LogQuery(rank=self._rank, attempt=attempt, limit=limit, **asked)
        return self._client.logs(self._job_id, query)

    def _write(self, part: "LogPart") -> "LogPart":
        self._said_away = False
        self._wrote = self._wrote or bool(part.data)
        self._out(part.data)
        return part


def _to_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _at_once(work: "Pauses[Answer]") -> Answer:
    """Return the answer of work that is done without a long wait."""
    while True:
        try:
            sleep_blocking(next(work))
        except StopIteration as done:
            answer: Answer = done.value
            return answer


# --- several tasks ------------------------------------------------------------------------------------------------


class RankPrefix:
    """Writer of lines with the rank that wrote them before each (O5)."""

    def __init__(self, rank: int) -> None:
        self._prefix = b"%d| " % rank
        self._begun = b""

    def __call__(self, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        if len(self._begun) > LINE_BYTES_MAX:
            lines, self._begun = [*lines, self._begun], b""
        if lines:
            _to_stdout(b"".join(self._prefix + line + b"\n" for line in lines))

    def close(self) -> None:
        """Write the beginning of a line that nothing ended."""
        if self._begun:
            self(b"\n")


class Headings:
    """Writers of several jobs' output, with a heading wherever it goes on with another one, as tail(1) does (O5)."""

    def __init__(self) -> None:
        self._last: object = None

    def writer(self, source: Source, name: str) -> Write:
        """Return the writer of one task, whom its heading names so."""

        def write(data: bytes) -> None:
            if data and self._last != source:
                head = f"==> job {name} <==\n"
                _to_stdout((head if self._last is None else f"\n{head}").encode())
                self._last = source
            _to_stdout(data)

        return write


def follow_together(readers: Sequence[LogReader], attempt: int | None, tail: int | None) -> None:
    """Follow several tasks, each asked when it wants to be, until the last has ended."""
    # In turn, where several are due: one that writes on and on leaves room for the others.
    due: list[tuple[float, int, int]] = [(0.0, place, place) for place in range(len(readers))]
    following = [reader.steps(attempt, tail) for reader in readers]
    turn = len(readers)
    while due:
        at_s, _, place = heappop(due)
        sleep_blocking(max(0.0, at_s - mono_s()))
        try:
            pause_s = next(following[place])
        except StopIteration:
            continue
        turn += 1
        heappush(due, (mono_s() + pause_s, turn, place))
