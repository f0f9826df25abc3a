"""Shipping of the audit trail: each row is sent elsewhere as it happens, to a file or a syslog server.

Rules: H1  nothing waits for it: rows queue here, and a target that is down or full holds up no command and no history
       H2  only what is durable is sent: a row of facts is never ahead of the log
       H3  a row is sent at least once while the target takes rows; after a start or a take-over those of the last
           OVERLAP_MS are sent again, and `id` tells which
       H4  beyond `rows_max` the oldest go; they are counted, and told by a row `rows_dropped` once rows are taken again
       H5  what is counted by the minute is sent when it is first met, and once more, with its number, when the minute
           is over
       H6  of several control planes the active one sends what happened, and each one what it has refused
Limits: `rows_max` rows wait, about 6 MiB. What waits when the process is killed is lost here, and is in the history.
"""

from collections import deque
from itertools import islice
from typing import Final

import msgspec

from stoker.brain.domain.audit import AuditRow
from stoker.brain.domain.ids import CONTROL
from stoker.brain.domain.units import SECOND_MS, Instant
from stoker.control.audit_trail import DROPPED, AuditTrail
from stoker.control.committer import Committer
from stoker.control.control_ports import AuditSink, ControlPorts
from stoker.wire.rest.audit import row_view

ROWS_MAX: Final = 20_000
BATCH_MAX: Final = 500
PERIOD_S: Final = 0.25
AGAIN_MAX_S: Final = 30.0
OVERLAP_MS: Final = 10 * SECOND_MS


class AuditShipper:
    """The queue of rows that are to be sent. `run` must be running for them to go."""

    def __init__(self, trail: AuditTrail, sink: AuditSink, ports: ControlPorts, *, rows_max: int = ROWS_MAX) -> None:
        self._trail = trail
        self._sink = sink
        self._clock = ports.clock
        self._telemetry = ports.telemetry
        self._rows_max = rows_max
        self._facts: deque[AuditRow] = deque()
        self._refusals: deque[AuditRow] = deque()
        self._lost = 0
        self._fault = ""
        trail.ship = self._add

    def _add(self, row: AuditRow) -> None:
        queue = self._refusals if row.number else self._facts
        queue.append(row)
        if len(queue) > self._rows_max // 2:
            queue.popleft()
            if not self._trail.replaying:
                self._lost += 1
                self._telemetry.count("audit_rows_unshipped")

    async def run(self, committer: Committer) -> None:
        """Send what is durable until cancelled, with pauses that grow while the target takes nothing."""
        pause_s = PERIOD_S
        while True:
            await self._clock.sleep(pause_s)
            self._trail.forget_counts(self._clock.now())
            if committer.following is not None:
                self._forget_before(self._clock.now() - OVERLAP_MS)
            pause_s = PERIOD_S if await self._send(committer) else min(2 * pause_s, AGAIN_MAX_S)

    async def flush(self, committer: Committer) -> None:
        """Send what waits, once, before a clean stop."""
        await self._send(committer)

    def begin(self, at: Instant) -> None:
        """Forget what was sent before the start; the newest fact of the log is of `at` (H3)."""
        self._forget_before(at - OVERLAP_MS)

    def _forget_before(self, at: int) -> None:
        """Forget rows of facts that another control plane, or this one before it was started, has sent (H3, H6)."""
        while self._facts and self._facts[0].at < at:
            self._facts.popleft()

    async def _send(self, committer: Committer) -> bool:
        """Send one batch of each queue after the other; return whether the target takes rows."""
        queues = [self._refusals] if committer.following is not None else [self._facts, self._refusals]
        for queue in queues:
            while rows := [row for row in islice(queue, BATCH_MAX) if row.position <= committer.durable]:
                if not await self._sent([self._told_lost(), *rows] if self._lost else rows):
                    return False
                gone = {id(row) for row in rows}
                while queue and id(queue[0]) in gone:
                    queue.popleft()
        return True

    async def _sent(self, rows: list[AuditRow]) -> bool:
        lost = self._lost
        fault = await self._sink.send([(row, msgspec.json.encode(row_view(row))) for row in rows])
        self._telemetry.gauge("audit_ship_ok", 0 if fault else 1)
        if fault:
            self._telemetry.count("audit_ship_faults")
            if not self._fault:
                self._telemetry.warn("audit_not_shipped", error=fault)
        else:
            if self._fault:
                self._telemetry.event("audit_shipped_again", lost=lost)
            self._lost -= lost
            self._telemetry.count("audit_rows_shipped", len(rows))
        self._fault = fault
        return not fault

    def _told_lost(self) -> AuditRow:
        details = f"{self._lost} rows before this one weren't sent here: the target took none for too long"
        position, at = self._trail.newest
        return AuditRow(position=position, at=at, by=CONTROL, action=DROPPED, count=self._lost, details=details)
