"""Scheduling loop: runs a pass when one is due, and keeps the reasons that the last one gave.

One pass: look (`propose`), then commit what still stands (`settle`). Between passes the loop waits for a durable fact
that can change a decision, for the next deadline in the state, or for its period.

Rules: P1  wakes coalesce: whatever arrives while a pass is being committed is answered by one more pass
       P2  a plan that ran out of budget is followed by another pass at once
       P3  an exception in a pass is logged and counted, and the loop goes on after a pause (and shows in `stuck`)
       P4  the reasons of the last plan are kept here and nowhere else
       P5  a fault while one shape is decided on doesn't end scheduling for the others: that shape is set aside, its
           jobs wait with the reason `set_aside`, and the next pass decides without it; it is tried again after a pause
           that doubles from SET_ASIDE_S_MIN to SET_ASIDE_S_MAX while it keeps failing
       P6  a fault of the deadlines, or while a moved clock is noted, doesn't keep jobs from being placed
Limits: after a long pass the loop rests as long as that took, up to REST_S_MAX, so that it never takes more than half
        of the process from those who submit.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.brain import cycle
from stoker.brain.domain.demand import Shape
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import CONTROL, JobId
from stoker.brain.domain.plan import Reservation, UndecidableShape
from stoker.brain.domain.reason import AWAITING_PASS, Reason, ReasonCode
from stoker.brain.domain.units import SECOND_MS
from stoker.brain.state.commands import RunDeadlines
from stoker.brain.state.events.union import row_of
from stoker.brain.state.state_view import StateView
from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts
from stoker.control.feed import Entry

FAULT_PAUSE_S: Final = 1.0
"""After an exception in a pass: short for the jobs that wait, long enough not to fill the log."""
SET_ASIDE_S_MIN: Final = 1.0
SET_ASIDE_S_MAX: Final = 300.0
REST_S_MIN: Final = 0.002
REST_S_MAX: Final = 0.1
STUCK_PERIODS: Final = 3
ERROR_MAX: Final = 300
"""Characters of an error that a reason repeats."""


@dataclass(slots=True)
class _SetAside:
    """A shape that the scheduler failed on: until when it isn't tried, in seconds of the monotonic clock, and why."""

    until: float
    pause_s: float
    reason: Reason


class Loop:
    """The scheduling loop of one control plane."""

    def __init__(self, committer: Committer, ports: ControlPorts, *, period_s: float) -> None:
        assert period_s > 0, f"a loop without a pause: {period_s=}"
        self._committer = committer
        self._clock = ports.clock
        self._entropy = ports.entropy
        self._telemetry = ports.telemetry
        self.period_s = period_s
        self._news = asyncio.Event()
        self._wanted = True
        self._last_pass = ports.clock.mono()
        self._reasons: dict[Shape, Reason] = {}
        self._reservations: dict[JobId, Reservation] = {}
        self._set_aside: dict[Shape, _SetAside] = {}
        self.passes = 0
        committer.on_durable(self._committed)

    def planned_reason(self, shape: Shape) -> Reason:
        """Return what the last plan says of jobs of this shape that wait for nothing else."""
        set_aside = self._set_aside.get(shape)
        return set_aside.reason if set_aside is not None else self._reasons.get(shape, AWAITING_PASS)

    def reservation(self, job: JobId) -> Reservation | None:
        """Return when and where the last plan says that a waiting job starts at the latest; None = it has none."""
        return self._reservations.get(job)

    def reservations(self) -> Sequence[Reservation]:
        """Return the reservations of the last plan, in the order of the queue."""
        return list(self._reservations.values())

    def last_pass_age_s(self) -> float:
        """Seconds since a pass was last done (decided and durable), or since the start."""
        return self._clock.mono() - self._last_pass

    @property
    def stuck(self) -> bool:
        return self.last_pass_age_s() > STUCK_PERIODS * self.period_s

    async def run(self) -> None:
        """Decide until cancelled, or until the writer has stopped."""
        while not self._committer.failed.is_set():
            await self._contained(self._wait)
            await self._contained(self._follow_clock)  # before what seems to have fallen due is taken for it
            await self._contained(self._run_due_deadlines)
            if self._wanted or self.last_pass_age_s() >= self.period_s:
                await self._contained(self._pass)

    async def _contained(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take one step of which a fault must not end the loop (P3, P5, P6)."""
        try:
            await step()
        except StokerError as fault:
            self._telemetry.warn("pass_refused", code=fault.refusal.code, error=fault.refusal.message)
            await self._pause()
        except UndecidableShape as fault:
            self._put_aside(fault)
            await self._clock.sleep(REST_S_MAX)
        except Exception as fault:  # supervisor: see P3
            self._telemetry.count("pass_faults")
            self._telemetry.warn("pass_failed", error=repr(fault), trace=traceback.format_exc())
            await self._pause()

    def _put_aside(self, fault: UndecidableShape) -> None:
        """Decide without the shape that a pass failed on (P5)."""
        failed_before = self._set_aside.get(fault.shape)
        pause_s = min(2 * failed_before.pause_s, SET_ASIDE_S_MAX) if failed_before else SET_ASIDE_S_MIN
        reason = Reason(ReasonCode.SET_ASIDE, {"error": fault.error[:ERROR_MAX], "pause_s": int(pause_s)})
        self._set_aside[fault.shape] = _SetAside(self._clock.mono() + pause_s, pause_s, reason)
        self._telemetry.count("pass_faults")
        self._telemetry.warn("shape_set_aside", error=str(fault), pause_s=pause_s, trace=traceback.format_exc())
        self._wanted = True  # for the others, at once

    async def _pause(self) -> None:
        self._wanted = True  # what the broken pass was wanted for hasn't been decided
        await self._clock.sleep(FAULT_PAUSE_S)

    async def watch(self) -> None:
        """Warn when the loop hangs, which it can't do itself."""
        while True:
            if self.stuck:
                age_s = round(self.last_pass_age_s(), 1)
                self._telemetry.warn("loop_stuck", last_pass_age_s=age_s, waiting=self._committer.waiting)
            await self._clock.sleep(self.period_s)

    async def _wait(self) -> None:
        """Wait until something is to be done."""
        due_s = self.period_s - self.last_pass_age_s()
        while not self._wanted:
            wait_s = min(due_s, self._deadline_s())
            if wait_s <= 0:
                return
            self._news.clear()
            began = self._clock.mono()
            try:
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            except TimeoutError:
                return
            due_s -= self._clock.mono() - began

    def _deadline_s(self) -> float:
        """Seconds until the state's next deadline; at most one period."""
        state = self._committer.state
        at = state.indexes.next_deadline(state.clock_moved_ms)
        if at is None:
            return self.period_s
        return min((at - self._committer.now()) / SECOND_MS, self.period_s)

    async def _follow_clock(self) -> None:
        self._committer.follow_clock()

    async def _run_due_deadlines(self) -> None:
        if self._deadline_s() > 0:
            return
        events = await self._committer.ask(RunDeadlines(by=CONTROL))
        if not events:
            # Due, yet nothing to do: a defect of the brain. Don't spin on it; the period comes round anyway.
            self._telemetry.count("deadlines_without_effect")
            await self._clock.sleep(FAULT_PAUSE_S)

    async def _pass(self) -> None:
        self._wanted = False
        state, seed = self._committer.state, self._entropy.seed()
        began, decided_at = self._clock.mono(), state.position
        set_aside = {shape for shape, each in self._set_aside.items() if each.until > began}
        view = StateView(state, set_aside)
        plan = cycle.propose(view, state.policy, self._committer.now(), seed, state.policy.placements_per_pass_max)
        self._reasons = plan.reasons
        self._reservations = {each.job: each for each in plan.reservations}
        took_s = self._clock.mono() - began
        accepted = await self._committer.settle(plan, decided_at=decided_at, seed=seed)
        self._last_pass = self._clock.mono()
        self._set_aside = {shape: each for shape, each in self._set_aside.items() if shape in set_aside}
        self.passes += 1
        self._telemetry.observe("pass", took_s)
        self._telemetry.count("placements", accepted)
        self._telemetry.count("placements_refused", len(plan.actions) - accepted)
        # A refused action left its job without placement and without reason; look again at once, but not for ever:
        # what was refused for a fault of ours is looked at again only after the period.
        self._wanted = self._wanted or plan.more or 0 < accepted < len(plan.actions)
        if took_s >= REST_S_MIN:
            await self._clock.sleep(min(took_s, REST_S_MAX))

    def _committed(self, entries: Sequence[Entry]) -> None:
        if not self._wanted and any(row_of(fact.event).wakes for _, fact in entries):
            self._wanted = True
        # Any fact may bring a deadline forward, so the wait is always measured anew.
        self._news.set()
