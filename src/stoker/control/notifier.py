"""Sending of notifications that are due: mails and webhooks of jobs that started, ended, failed or wait for long.

What is due, and what was tried, stands in the state (`brain/domain/notify.py`, `brain/state/notices.py`), so there is
no queue here to lose. Only the active control plane sends.

Rules: N1  a try is on disk, here and where a standby is in sync there, before it is made; how it went is told after
       N2  what another control plane, or this one before a restart, has tried and not settled is not sent again: it
           is noted as unknown. Never twice goes before at least once
       N3  of one tenant at most TENANT_SENDS_MAX are on their way at once and SENDS_MAX of all, so that a target that
           hangs holds up its own tenant alone
       N4  beyond WAITING_MAX that are due at once, a tenant's latest are dropped, and counted
       N5  a fault in here ends no scheduling: it is counted, and sending goes on after a pause
"""

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import CONTROL, JobId, TenantName
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import FAILED, JobState
from stoker.brain.domain.notify import DeliveryResult, Message, NoticeState, NotifyEvent, target_kind
from stoker.brain.domain.reason import Reason, ReasonCode, describe
from stoker.brain.domain.units import SECOND_MS
from stoker.brain.state.arrays import member_counts
from stoker.brain.state.commands import SettleNotification, TryNotification
from stoker.brain.state.events.job import NotificationSettled, NotificationTried
from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts, Messenger
from stoker.control.feed import Entry
from stoker.wire.rest.notify import message_of

SENDS_MAX: Final = 16
TENANT_SENDS_MAX: Final = 4
WAITING_MAX: Final = 1_000
"""More of one tenant than an hour of mails to people who read them."""
DROPS_MAX: Final = 250
"""Dropped in one step: some milliseconds."""
FAULT_PAUSE_S: Final = 1.0
LOOK_MAX_S: Final = 60.0
"""Longest wait for a time before the clock is read again."""


class Notifier:
    """Sender of the notifications of one control plane, while it is active."""

    def __init__(
        self, committer: Committer, ports: ControlPorts, messenger: Messenger, why: Callable[[Job], Reason | None]
    ) -> None:
        """`why` tells why a job waits or ended, as people are shown."""
        self._committer = committer
        self._clock = ports.clock
        self._telemetry = ports.telemetry
        self._messenger = messenger
        self._why = why
        self._news = asyncio.Event()
        self.fault = messenger.fault
        """Why a target can't be told anything; None = it can."""
        self._sending: dict[JobId, TenantName] = {}
        committer.on_durable(self._committed)

    async def run(self) -> None:
        """Send what is due until cancelled, or until the writer has stopped."""
        self._sending.clear()
        interrupted = list(self._committer.state.indexes.notices.trying)
        async with asyncio.TaskGroup() as group:
            while not self._committer.failed.is_set():
                try:
                    if interrupted:
                        await self._settle_interrupted(interrupted)
                        interrupted = []
                    await self._drop_surplus()
                    self._begin_due(group)
                except StokerError as fault:
                    self._telemetry.warn("notifications_refused", code=fault.refusal.code, error=fault.refusal.message)
                    await self._clock.sleep(FAULT_PAUSE_S)
                await self._wait()

    async def _settle_interrupted(self, jobs: Sequence[JobId]) -> None:
        """Note what was tried before and never settled as unknown (N2)."""
        for job_id in jobs:
            job = self._committer.state.jobs.get(job_id)
            for notice in job.notices if job else ():
                if notice.state is NoticeState.TRYING:
                    error = "the control plane ended while it was sent"
                    await self._settle(job_id, notice.event, notice.to, DeliveryResult(NoticeState.UNKNOWN, error))

    async def _drop_surplus(self) -> None:
        notices, now = self._committer.state.indexes.notices, self._committer.now()
        for tenant, _, count in list(notices.due(now, 0)):
            if count > WAITING_MAX:
                for job in notices.latest_due(tenant, now, WAITING_MAX, DROPS_MAX):
                    for event in self._committer.tell(TryNotification(by=CONTROL, job=job, drop=True)):
                        if isinstance(event, NotificationSettled):
                            self._count(event.to, NoticeState.DROPPED)
                await self._committer.settled()

    def _begin_due(self, group: asyncio.TaskGroup) -> None:
        """Begin as many sends as may be on their way, the tenants with the fewest of them first (N3)."""
        on_their_way = Counter(self._sending.values())
        now = self._committer.now()
        due = list(self._committer.state.indexes.notices.due(now, 2 * TENANT_SENDS_MAX))
        for tenant, jobs, _ in sorted(due, key=lambda each: (on_their_way[each[0]], each[0])):
            for job in jobs:
                if len(self._sending) >= SENDS_MAX or on_their_way[tenant] >= TENANT_SENDS_MAX:
                    break
                if job not in self._sending:
                    self._sending[job] = tenant
                    on_their_way[tenant] += 1
                    group.create_task(self._send_next(job))

    async def _send_next(self, job_id: JobId) -> None:
        try:
            await self._try_next(job_id)
        except StokerError as fault:
            self._telemetry.warn("notifications_refused", code=fault.refusal.code, error=fault.refusal.message)
            await self._clock.sleep(FAULT_PAUSE_S)
        except Exception as fault:  # supervisor: see N5
            self._telemetry.count("notification_faults")
            self._telemetry.warn("notification_failed", error=repr(fault), trace=traceback.format_exc())
            await self._clock.sleep(FAULT_PAUSE_S)
        finally:
            self._sending.pop(job_id, None)
            self._news.set()

    async def _try_next(self, job_id: JobId) -> None:
        """Tell the next event of a job that is due to its target, and note how that went (N1)."""
        for tried in await self._committer.ask(TryNotification(by=CONTROL, job=job_id)):
            job = self._committer.state.jobs.get(job_id)
            if not isinstance(tried, NotificationTried) or job is None:
                continue
            refusal = self._messenger.fault(tried.to)
            if refusal is not None:  # it was allowed when the job was submitted
                delivery = DeliveryResult(NoticeState.FAILED, refusal.message)
            else:
                delivery = await self._messenger.send(tried.to, self._message(job, tried.event))
            await self._settle(job_id, tried.event, tried.to, delivery)

    async def _settle(self, job: JobId, event: NotifyEvent, to: str, delivery: DeliveryResult) -> None:
        command = SettleNotification(
            by=CONTROL, job=job, event=event, to=to, outcome=delivery.outcome, error=delivery.error
        )
        while not self._committer.failed.is_set():
            try:
                for settled in await self._committer.ask(command):
                    if isinstance(settled, NotificationSettled):
                        self._count(to, settled.state)
                return
            except StokerError as fault:
                if fault.refusal.code != "overloaded":
                    raise
                await self._clock.sleep(FAULT_PAUSE_S)

    def _message(self, job: Job, event: NotifyEvent) -> Message:
        state = self._committer.state
        shown = state.shown_state(job)
        rank = _ending_rank(self._why(job))
        message = message_of(job, event, shown, self._committer.now(), self._said(job, event), rank)
        return replace(message, cluster_id=state.cluster_id)

    def _said(self, job: Job, event: NotifyEvent) -> str:
        """Return why it waits, or how it ended, in words."""
        if event is NotifyEvent.START:
            nodes = dict.fromkeys(task.placement.node for attempt in job.attempts[-1:] for task in attempt.tasks)
            return f"on {', '.join(nodes)}" if nodes else ""
        if event is NotifyEvent.FAIL and job.members is not None:
            spec, _ = job.as_array
            counts = member_counts(job, self._committer.state.indexes.arrays[job.id])
            bad = sum(count for state, count in counts.items() if state in FAILED)
            return f"{bad} of {spec.count} members failed so far" if not job.is_final else ""
        reason = self._why(job)
        if reason is None or (job.state is JobState.SUCCEEDED and job.members is None):
            return ""
        return reason_text(reason)

    def _count(self, to: str, outcome: NoticeState) -> None:
        self._telemetry.count("notifications", kind=target_kind(to), outcome=outcome)

    async def _wait(self) -> None:
        """Wait until something may be due."""
        at = self._committer.state.indexes.notices.next_at()
        wait_s = LOOK_MAX_S if at is None else (at - self._committer.now()) / SECOND_MS
        if at is not None and wait_s <= 0:
            wait_s = LOOK_MAX_S  # what is due and not begun waits for a send that ends, which is news
        try:
            async with asyncio.timeout(min(wait_s, LOOK_MAX_S)):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    def _committed(self, entries: Sequence[Entry]) -> None:
        self._news.set()


def _ending_rank(reason: Reason | None) -> str:
    """Return the rank by which a gang ended; empty = it is none, or didn't end by one."""
    facts = reason.facts if reason is not None else {}
    return str(facts["rank"]) if "tasks" in facts and "rank" in facts else ""


def reason_text(reason: Reason) -> str:
    """Return how a job ended or why it waits, with the rank and its node where one was the cause."""
    rank, node = reason.facts.get("rank"), reason.facts.get("node")
    if rank is None or node is None:
        return describe(reason)
    where = f"rank {rank} on {node}"
    if reason.code is ReasonCode.EXITED:
        return f"{where} exited with code {reason.facts.get('exit_code')}"
    if reason.code is ReasonCode.KILLED_BY_SIGNAL:
        return f"{where} was killed by signal {reason.facts.get('signal')}"
    return f"{where}: {describe(reason)}"
