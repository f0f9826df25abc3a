"""Authentication of callers by their tokens, and authorisation by role and tenant.

REST and gRPC hand in what came as `Authorization`, and get a Caller. A token that is revoked or has expired stops at
once: an open stream watches its caller, and what changes something looks once more right before it does.

Rules: K1  a token that was never made, was revoked or has expired is refused with one text, which doesn't repeat it
       K2  where none is wanted, what is no token of Stoker's is overlooked; a token that is sent still says who asks
       K3  a token bound to a tenant reads and changes only jobs of that tenant and of those beneath it; of all others
           it sees that they are there (`Sight.REDUCED`)
       K4  a tenant's e-mail, organisation and comment are shown to admins and to those bound to it or above it
       K5  where no tier bounds the priority of a tenant's jobs, only an admin asks for more than `high`
       K6  within them a person's jobs are that person's, an admin's and a lead's, unless their tenant's visibility says
           `tenant`: others see the outline, and change nothing; so does a viewer of the whole cluster
       K7  the text of a session of the web pages is good in its cookie alone, and that of a token never there
Costs: one SHA-256 and two look-ups for each request with a token.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.access import OWNER, PROGRAMS, SUBMITTERS, Caller, Role, Token
from stoker.brain.domain.errors import Refusal, StokerError, refusal_error, refuse
from stoker.brain.domain.ids import NodeName, Position, TenantName
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.sight import Sight
from stoker.brain.domain.tenant import NO_TENANT, PRIORITY_UNTIERED_MAX, Visibility, is_within, priority_cap
from stoker.brain.domain.units import NEVER, SECOND_MS, Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.access import NodeKeyReplaced, TokenRevoked
from stoker.brain.state.events.leadership import ClockMoved
from stoker.control.committer import Committer
from stoker.control.rate_limit import WrongTokens
from stoker.wire.token import digest_of, token_in

LOOK_MAX_S: Final = 60.0
"""Longest wait for an expiry before the clock is read again."""


class Access:
    """Tokens of the cluster, from which the caller of each request is told."""

    def __init__(self, committer: Committer, wrong: WrongTokens, *, open_to_owner: bool) -> None:
        """`open_to_owner`: a request without a token is the owner's, since nobody else gets this far."""
        self.open_to_owner = open_to_owner
        self.fingerprint: Callable[[], str] = str
        """Of the authority that certifies this control plane, which new tokens name; empty = there is none."""
        self._committer = committer
        self._wrong = wrong
        self._news = asyncio.Event()
        committer.on_applied(self._applied)

    def caller(self, authorization: str | None) -> Caller:
        """Return the caller that sent this header.

        Raises: StokerError `token_missing`, `token_unknown` or `too_many_wrong_tokens`.
        """
        text = token_in(authorization) if authorization else ""
        if not text:
            if self.open_to_owner:  # K2
                return OWNER
            raise self._unknown() if _is_bearer(authorization) else _token_missing()
        token = self._token(digest_of(text))
        if token is None or self._is_over(token) or (token.session_of and not token.for_commands):  # K7
            raise self._unknown()
        return _caller_of(token)

    def session(self, text: str) -> Caller | None:
        """Return the caller whose browser sent this text in the cookie of a session; None = that is over (K7)."""
        token = self._token(digest_of(text))
        if token is None or self._is_over(token) or not token.session_of or token.for_commands:
            return None
        return _caller_of(token)

    def node(self, name: NodeName, key_digest: str, proved_until: Instant) -> Caller:
        """Return the node that showed a certificate for this key. Raises: StokerError `node_key_unknown`."""
        token = self._token(key_digest)
        if token is None or token.node != name or token.role is not Role.AGENT:
            raise node_key_unknown(name)
        return Caller(principal=token.principal, role=token.role, token=token.id, proved_until=proved_until)

    def holds(self, caller: Caller) -> bool:
        """Return whether what this caller showed is still good; a caller that was let in without it may stay."""
        if not caller.token:
            return True
        token = self._committer.state.tokens.get(caller.token)
        return token is not None and not self._is_over(token) and not self.is_unproved(caller)

    def is_unproved(self, caller: Caller) -> bool:
        """Return whether the certificate of this caller has expired since it showed it."""
        return caller.proved_until != NEVER and self._committer.now() >= caller.proved_until

    def check(self, caller: Caller) -> None:
        """Refuse a caller for whom `holds` is over since the request came. Raises: StokerError `token_unknown`."""
        if not self.holds(caller):
            raise token_unknown()

    async def watch(self, caller: Caller) -> None:
        """Wait until `holds` is over for this caller: at once when its token is revoked, for ever without one."""
        while self.holds(caller):
            try:
                async with asyncio.timeout(self._left_s(caller)):
                    await self._news.wait()
            except TimeoutError:
                continue

    def _token(self, digest: str) -> Token | None:
        state = self._committer.state
        token_id = state.token_of_digest.get(digest)
        return state.tokens.get(token_id) if token_id is not None else None

    def _unknown(self) -> StokerError:
        """Raises: StokerError `too_many_wrong_tokens`."""
        self._wrong.note()
        return token_unknown(none_wanted=self.open_to_owner)

    def _is_over(self, token: Token) -> bool:
        return token.expires_at != NEVER and token.is_expired(self._committer.now())

    def _left_s(self, caller: Caller) -> float | None:
        """Seconds until it may be worth a look again; None = there is nothing to wait for."""
        token = self._committer.state.tokens.get(caller.token)
        ends = [each for each in (token.expires_at if token else NEVER, caller.proved_until) if each != NEVER]
        if not ends:
            return None
        return min(LOOK_MAX_S, max(0.001, (min(ends) - self._committer.now()) / SECOND_MS))

    def _applied(self, _state: ClusterState, _position: Position, fact: Fact) -> None:
        if isinstance(fact.event, TokenRevoked | NodeKeyReplaced | ClockMoved):
            # Watchers of now hold the old event; later ones wait for the next news.
            self._news.set()
            self._news = asyncio.Event()


def _caller_of(token: Token) -> Caller:
    return Caller(principal=token.principal, role=token.role, tenant=token.tenant, user=token.user, token=token.id)


def reaches(state: ClusterState, caller: Caller, tenant: TenantName) -> bool:
    """Return whether the caller sees more of the jobs of this tenant than that they are there (K3)."""
    of_all = sight_of_all(caller)
    return is_within(state.tenants, tenant, caller.tenant) if of_all is None else of_all > Sight.REDUCED


def sight_of(state: ClusterState, caller: Caller, tenant: TenantName, account: str) -> Sight:
    """Return how much the caller sees of a job of this person in this tenant (K3, K6)."""
    of_all = sight_of_all(caller)
    if of_all is not None:
        return of_all
    if not is_within(state.tenants, tenant, caller.tenant):
        return Sight.REDUCED
    if caller.role is Role.LEAD or (caller.role is Role.USER and account == caller.account):
        return Sight.FULL
    theirs = state.tenants.get(tenant)
    is_shared = theirs is not None and theirs.visibility is Visibility.TENANT
    return Sight.FULL if is_shared else Sight.OUTLINE


def sight_of_all(caller: Caller) -> Sight | None:
    """Return how much the caller sees of every job, also of a forgotten one; None = that depends on the job."""
    if caller.role is Role.ADMIN:
        return Sight.FULL
    if caller.role in PROGRAMS:
        return Sight.REDUCED
    return None if caller.tenant else Sight.OUTLINE


def may_submit(state: ClusterState, caller: Caller, tenant: TenantName) -> bool:
    """Return whether the caller submits jobs to this tenant."""
    if caller.role is Role.ADMIN:
        return True
    return caller.role in SUBMITTERS and is_within(state.tenants, tenant, caller.tenant)


def is_of(state: ClusterState, caller: Caller, tenant: TenantName) -> bool:
    """Return whether the caller is an admin or one of the tenant's own people, to whom its contact is shown (K4)."""
    return caller.role is Role.ADMIN or (bool(caller.tenant) and reaches(state, caller, tenant))


class Sights:
    """Sight of each job that a caller has, for one look at many."""

    def __init__(self, state: ClusterState, caller: Caller) -> None:
        self._state, self._caller = state, caller
        self._known: dict[tuple[TenantName, bool], Sight] = {}
        self.of_all = sight_of_all(caller)

    def __call__(self, job: Job) -> Sight:
        """Return what the caller sees of this job."""
        if self.of_all is not None:
            return self.of_all
        tenant, account = job.spec.tenant, job.account
        kind = tenant, account == self._caller.account
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = sight_of(self._state, self._caller, tenant, account)
        return known

    def tenants(self) -> frozenset[TenantName] | None:
        """Return the tenants of whose jobs it sees the outline at least; None = all.

        It costs a step or two for each tenant that there is.
        """
        if self.of_all is not None:
            return None if self.of_all >= Sight.OUTLINE else frozenset()
        tenants, known = self._state.tenants, {self._caller.tenant: True, NO_TENANT: False}
        for name in tenants:
            path = []
            while name not in known:
                path.append(name)
                name = tenants[name].parent  # on its way up
            known.update(dict.fromkeys(path, known[name]))
        return frozenset(name for name, within in known.items() if within)


def check_read(state: ClusterState, caller: Caller, job: Job, least: Sight) -> Sight:
    """Return what the caller sees of a job; refuse one who doesn't see as much as that. Raises: `not_allowed`."""
    sight = sight_of(state, caller, job.spec.tenant, job.account)
    if sight < least:
        raise _not_his(caller, job) if sight is Sight.REDUCED else _not_his_own(caller, job)
    return sight


def check_change(state: ClusterState, caller: Caller, job: Job) -> None:
    """Refuse to change a job of another tenant, or of somebody else. Raises: StokerError `not_allowed`."""
    if caller.role is not Role.ADMIN and caller.role not in SUBMITTERS:
        raise not_allowed(f"a token of role {caller.role} changes no jobs", _ADMIN_HINT)
    check_read(state, caller, job, Sight.FULL)


def check_owner(state: ClusterState, caller: Caller, job: Job) -> None:
    """Refuse a caller that is neither the job's owner nor an admin, leads too. Raises: `not_allowed`."""
    check_change(state, caller, job)
    if caller.role is not Role.ADMIN and caller.account != job.account:
        raise not_allowed(
            f"job {job.label} is of {job.account}, and only its owner is let through to its ports; your token is of "
            f"{caller.account}, with the role {caller.role}",
            f"ask {job.account}, or an admin",
        )


def check_enter(state: ClusterState, caller: Caller, job: Job) -> None:
    """Refuse a caller that is neither the job's owner, nor a lead above it, nor an admin. Raises: `not_allowed`.

    Whoever comes into a task acts as its account, so the visibility of its tenant lets nobody in.
    """
    check_change(state, caller, job)
    if caller.role not in (Role.ADMIN, Role.LEAD) and caller.account != job.account:
        raise not_allowed(
            f"job {job.label} is of {job.account}, and only its owner and leads are let into it; your token is of "
            f"{caller.account}, with the role {caller.role}",
            f"ask {job.account}, a lead of {job.spec.tenant} or an admin",
        )


def owned(state: ClusterState, caller: Caller, spec: JobSpec) -> JobSpec:
    """Return the job that this caller submits by `spec`: under an account and in a tenant of the caller.

    Raises: StokerError `not_allowed`, `priority_above_tier` or `user_not_yours`.
    """
    is_admin = caller.role is Role.ADMIN
    if spec.tenant not in state.tenants:
        return spec  # which the brain refuses
    if not is_admin and not may_submit(state, caller, spec.tenant):
        raise not_allowed(
            f"your token submits to tenant {caller.home} and those beneath it, and the job names {spec.tenant}",
            "leave the tenant out, or ask an admin for a token of that tenant",
        )
    check_priority(state, caller, spec.tenant, spec.priority)
    if spec.user == caller.user or (is_admin and spec.user):
        return spec
    if spec.user:
        raise StokerError(_not_his_account(caller, spec.user))
    return replace(spec, user=caller.user)


def check_priority(state: ClusterState, caller: Caller, tenant: TenantName, priority: int) -> None:
    """Refuse a priority that only an admin gives where no tier bounds it (K5). Raises: `priority_above_tier`."""
    if (
        caller.role is Role.ADMIN
        or priority <= PRIORITY_UNTIERED_MAX
        or priority_cap(state.tenants, tenant) is not None
    ):
        return
    raise StokerError(_above_untiered(tenant, priority))


def _not_his(caller: Caller, job: Job) -> StokerError:
    return not_allowed(
        f"job {job.label} is of tenant {job.spec.tenant}, and your token is for {caller.home} and those beneath it",
        "ask somebody of that tenant, or an admin; `stoker list` shows what may be seen of it",
    )


def _above_untiered(tenant: TenantName, priority: int) -> Refusal:
    most = PRIORITY_UNTIERED_MAX
    return refuse(
        "priority_above_tier",
        f"priority {priority} is above {most}, the most in a tenant without a tier, as {tenant} is",
        f"ask for at most {most} (`high`), or let an admin submit it or give the tenant a tier "
        f"(`stoker tenant set {tenant} --priority critical`)",
        priority=priority,
        priority_max=most,
        tenant=tenant,
    )


def _not_his_own(caller: Caller, job: Job) -> StokerError:
    tenant = job.spec.tenant
    if caller.role is Role.VIEWER:
        return not_allowed(
            f"job {job.label} is of {job.account}, and a viewer sees neither what jobs run nor their output",
            f"ask {job.account} or an admin; a viewer that is bound to {tenant} sees both if that has the visibility "
            "`tenant`",
        )
    return not_allowed(
        f"job {job.label} is of {job.account}, and tenant {tenant} keeps what each of its people runs to that person; "
        f"your token is of {caller.account}, with the role {caller.role}",
        f"ask {job.account}, a lead of {tenant} or an admin; `stoker tenant set {tenant} --visibility tenant` lets its "
        "people see and change each other's jobs",
    )


def _not_his_account(caller: Caller, user: str) -> Refusal:
    own = f"runs jobs as {caller.user}" if caller.user else "names no account"
    return refuse(
        "user_not_yours",
        f"the job names the account {user[:80]!r}, and your token {own}",
        "leave `user` out, or ask an admin for a token with that account (`stoker token create --user`)",
        user=user[:80],
    )


def require_admin(caller: Caller) -> None:
    """Refuse a caller that is no admin. Raises: StokerError `not_allowed`."""
    if caller.role is not Role.ADMIN:
        raise not_allowed(f"this is for admins, and your token has the role {caller.role}", _ADMIN_HINT)


def not_allowed(message: str, hint: str) -> StokerError:
    return refusal_error("not_allowed", message, hint)


def node_key_unknown(name: NodeName) -> StokerError:
    """Return the refusal of a node whose key was revoked or replaced."""
    return refusal_error(
        "node_key_unknown",
        f"the key of node {name} isn't known here: it was revoked, or another machine has joined under this name since",
        f"join again with a new token: `stoker token create --role join --nodes {name}`, `stoker agent join`",
        node=name,
    )


def certificate_expired(name: NodeName) -> StokerError:
    """Return the refusal of a node whose certificate expired while its stream was open."""
    return refusal_error(
        "certificate_expired",
        f"the certificate of node {name} has expired",
        "an agent asks for another one well before that, and comes back with it by itself; if it has none, join again",
        node=name,
    )


def token_unknown(*, none_wanted: bool = False) -> StokerError:
    """Return the one refusal of a token that was never made, was revoked or has expired (K1)."""
    hint = (
        "this control plane wants no token: leave STOKER_TOKEN, --token and the token of the config file out"
        if none_wanted
        else "ask an admin for a new one (`stoker token create`), and see that the whole of it is sent, to the right "
        "control plane"
    )
    message = "the token is not known here: it was never made, was revoked or has expired"
    return refusal_error("token_unknown", message, hint)


def _token_missing() -> StokerError:
    return refusal_error(
        "token_missing",
        "no token was sent, and one is wanted here",
        "set STOKER_TOKEN or give --token; over HTTP send `Authorization: Bearer TOKEN`",
    )


def _is_bearer(authorization: str | None) -> bool:
    """Return whether a token was sent, though none of Stoker's."""
    return authorization is not None and authorization.strip().lower().startswith("bearer ")


_ADMIN_HINT: Final = "ask an admin to do it, or for a token with the role admin"
