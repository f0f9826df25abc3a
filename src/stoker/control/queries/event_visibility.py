"""Visibility of events: which facts of the feed a caller may hear, and with what left out.

Rules: H1  facts about jobs are heard by those who see the job in full or, without what it runs, in outline. Of a fact
           about several jobs everyone hears what concerns those
       H2  facts about tokens are heard by admins, without the digests
       H3  everything else - nodes, partitions, tenants, shares, policy - is heard by all who may read; whom to write to
           of a tenant, and what it is, only by its own people
Limits: what the state has forgotten of a job is looked up in the history; where that can't be read, who doesn't see
everything hears nothing of it. That jobs were forgotten is heard only by those who see everything.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from msgspec.structs import replace

from stoker.brain.domain.access import Caller, Role
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import JobId, Position, TenantName, account_of
from stoker.brain.domain.sight import Sight
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.row import Audience
from stoker.brain.state.events.union import row_of
from stoker.control.access import is_of, sight_of, sight_of_all
from stoker.control.control_plane import ControlPlane
from stoker.control.feed import Entry
from stoker.control.queries.job_lookup import record_of

SLICE: Final = 500
"""Facts looked at before others get a turn: about a millisecond."""


class VisibleEvents:
    """The facts of the feed as one caller hears them."""

    def __init__(self, control: ControlPlane, caller: Caller, entries: AsyncIterator[Entry]) -> None:
        # Whose a tenant is, is looked up anew for each fact: tenants come and go while somebody listens.
        self._control, self._caller = control, caller
        self._of_all = sight_of_all(caller)
        self._entries = entries
        self.passed: Position | None = None
        """The newest fact that was looked at, heard or not."""

    async def next(self) -> Entry | None:
        """Return the next fact that the caller hears; None = there will be no more. Raises: FeedLost."""
        looked = 0
        async for position, fact in self._entries:
            self.passed = position
            heard = await self._heard(fact)
            if heard is not None:
                return position, _without_secrets(heard)
            looked += 1
            if looked % SLICE == 0:
                await self._control.clock.sleep(0)
        return None

    async def _heard(self, fact: Fact) -> Fact | None:
        """Return what the caller is told of a fact; None = nothing."""
        event: Any = fact.event  # fields as its audience says
        audience = row_of(fact.event).audience
        if self._caller.role is Role.ADMIN:
            return fact
        match audience:
            case Audience.TENANT:
                if is_of(self._control.committer.state, self._caller, event.tenant.name):
                    return fact
                return replace(fact, event=replace(event, tenant=event.tenant.without_contact()))
            case Audience.EVERYONE:
                return fact
            case Audience.NEW_JOB:
                return _as_seen(fact, self._sight_of(event.spec.tenant, account_of(event.spec.user, fact.by)))
            case Audience.JOB:
                return _as_seen(fact, await self._sight(event.job))
            case Audience.ARRAY:
                return _as_seen(fact, await self._sight(event.array))
            case Audience.JOBS:
                sights = {job: await self._sight(job) for job in event.jobs}
                jobs = tuple([job for job, sight in sights.items() if sight >= Sight.OUTLINE])
                least = min((sights[job] for job in jobs), default=Sight.REDUCED)
                return _as_seen(replace(fact, event=replace(event, jobs=jobs)), least)
            case Audience.ORPHANS:
                strays = tuple([stray for stray in event.strays if await self._sight(stray.job) >= Sight.OUTLINE])
                return replace(fact, event=replace(event, strays=strays))
            case Audience.ALL_JOBS:
                return None if self._of_all is None else _as_seen(fact, self._of_all)
            case Audience.ADMINS:
                return None

    def _sight_of(self, tenant: TenantName, account: str) -> Sight:
        return sight_of(self._control.committer.state, self._caller, tenant, account)

    async def _sight(self, job: JobId) -> Sight:
        if self._of_all is not None:
            return self._of_all
        try:
            record = await record_of(self._control, self._control.committer.state.locate(job).job)
        except StokerError:
            return Sight.REDUCED
        return Sight.REDUCED if record is None else self._sight_of(record.spec.tenant, record.account)


def drop(upcoming: "asyncio.Future[Any]") -> None:
    """Cancel a future that nobody waits for any more, whatever came of it."""
    if not upcoming.done():
        upcoming.cancel()
    elif not upcoming.cancelled():
        upcoming.exception()  # looked at, or asyncio would complain that nobody did


def _as_seen(fact: Fact, sight: Sight) -> Fact | None:
    """Return what somebody hears of a fact about a job of which he sees so much; None = nothing."""
    outline = row_of(fact.event).outline
    if sight is Sight.OUTLINE and outline is not None:
        return replace(fact, event=outline(fact.event))
    return None if sight is Sight.REDUCED else fact


def _without_secrets(fact: Fact) -> Fact:
    """Return the fact without what nobody has to know, administrators neither."""
    public = row_of(fact.event).public
    return fact if public is None else replace(fact, event=public(fact.event))
