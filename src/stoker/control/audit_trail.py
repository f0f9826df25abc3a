"""Audit trail: a row for every command of a person, noted here until the recorder of the history has written it.

Rows are written under its rules: never ahead of the log, and before a snapshot lets the log forget. So a crash between
a command and its row loses none that was acknowledged: the next start reads it from the log again.

Rules: A1  a command that left facts has one row, made from those
       A2  a command that was refused by the brain, or changed nothing, has one row, made from itself. So has one that
           never came that far because its caller may not give it
       A3  a caller that shows no good token, or asks too often, costs one row a minute, which counts
       A4  what doesn't fit is dropped, counted and told by a row of its own once there is room again
       A5  rows that stand on no fact are numbered behind those that the history has of the same position, and where
           several control planes write one trail each numbers within a slot of its own: no row replaces another
Limits: `rows_max` rows wait, about 15 MiB; a row of A3 for each of `counted_max` callers, then one for all others.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.audit import NOBODY, NUMBERS, SLOTS, UNCHANGED, AuditQuery, AuditRow
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import CONTROL, Position, Principal
from stoker.brain.domain.units import SECOND_MS, Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.commands import Command
from stoker.control.audit_actions import AuditAction, AuditRowBuilder, denied_row, is_person, unchanged_row
from stoker.ports import History, Telemetry

ROWS_MAX: Final = 50_000
COUNTED_MAX: Final = 1_000
COUNT_MS: Final = 60 * SECOND_MS
SLOT_NUMBERS: Final = NUMBERS // SLOTS
"""Rows without a fact that one of several control planes may have under one position."""
COUNTED: Final = frozenset(
    {"token_missing", "token_unknown", "too_many_wrong_tokens", "rate_limited", "foreign_origin", "foreign_user"}
)
"""Refusals that are only counted (A3)."""
DENIED: Final = frozenset({"not_allowed", "user_not_yours"})
"""Refusals that have a row each (A2). The brain refuses nothing by these codes, so that nothing is noted twice."""
ASK: Final = "ask"
"""The action of a request that nobody may make, or that was only counted."""
BACKUP: Final = "backup"
"""The action of a copy of all that there is."""
DROPPED: Final = "rows_dropped"
"""The action of the row that tells how many were dropped (A4)."""


class AuditTrail:
    """Rows that aren't in the history yet."""

    def __init__(
        self, state: ClusterState, telemetry: Telemetry, *, rows_max: int = ROWS_MAX, counted_max: int = COUNTED_MAX
    ) -> None:
        self.news = asyncio.Event()
        """There may be rows to write."""
        self.slot: int | None = None
        """Of this control plane among several that write one trail (A5). None = it is the only one."""
        self.replaying = True
        """Facts come in slices that may end within a command."""
        self._state = state
        self._telemetry = telemetry
        self._rows_max = rows_max
        self._counted_max = counted_max
        self._rows: deque[AuditRow] = deque()
        self._row_builder: AuditRowBuilder | None = None
        self._numbered = Position(0)
        self._number = 0
        self._counts: dict[tuple[Principal, str], AuditRow] = {}
        self._risen: dict[tuple[Principal, str], None] = {}
        """Those of `_counts` that the history doesn't know as they are."""
        self._dropped = 0

    # -- noting ----------------------------------------------------------------------------------------------------

    def note(self, state: ClusterState, position: Position, fact: Fact) -> None:
        """Add a fact, right after it was applied, to the row of its command (A1)."""
        by = fact.by
        if self._row_builder is not None and (fact.joined is not True or by != self._row_builder.by):
            self.finish_row()
        if self._row_builder is None:
            if not is_person(by):
                return
            self._row_builder = AuditRowBuilder(by, fact.at)
        self._row_builder.read(state, position, fact.event)

    def finish_row(self) -> None:
        """Close the row of a command of which no more facts will come."""
        row_builder, self._row_builder = self._row_builder, None
        row = row_builder.row() if row_builder else None
        if row is not None:
            self._add(row)

    def unheeded(self, command: Command, now: Instant, refusal: Refusal | None) -> None:
        """Add the row of a command that left no fact, as the writer says (A2)."""
        if is_person(command.by) and (number := self._next_number()):
            row = unchanged_row(self._state, command, now, number, refusal)
            if row is not None:
                self._add(row)
                self.news.set()

    def refused(self, by: Principal, asked: AuditAction, refusal: Refusal, now: Instant) -> None:
        """Add or count a request that never became a command, since its caller may not make it (A2, A3)."""
        if refusal.code in COUNTED:
            self._count(by, refusal.code, now)
        elif refusal.code in DENIED and (number := self._next_number()):
            self._add(denied_row(self._state, by, asked, now, number, refusal))
        self.news.set()

    def backed_up(self, by: Principal, position: Position, now: Instant) -> None:
        """Add the row of a backup, which changes nothing, and has everything in it that one may not see (A2)."""
        if number := self._next_number():
            self._add(
                AuditRow(
                    position=self._state.position,
                    number=number,
                    at=now,
                    by=by,
                    action=BACKUP,
                    outcome=UNCHANGED,
                    details=f"of position {position}",
                )
            )
        self.news.set()

    def _count(self, by: Principal, code: str, now: Instant) -> None:
        key = (by, code)
        row = self._counts.get(key)
        if row is None or now - row.at >= COUNT_MS:
            if row is None and len(self._counts) >= self._counted_max:
                self._forget_counts(now)
                if len(self._counts) >= self._counted_max:
                    key = (NOBODY, code)
                    row = self._counts.get(key)
            if row is None or now - row.at >= COUNT_MS:
                number = self._next_number()
                if not number:
                    return
                row = AuditRow(
                    position=self._state.position, number=number, at=now, by=key[0], action=ASK, outcome=code, times=0
                )
        self._counts[key] = replace(row, times=row.times + 1)
        self._risen[key] = None

    def _forget_counts(self, now: Instant) -> None:
        over = [key for key, row in self._counts.items() if now - row.at >= COUNT_MS and key not in self._risen]
        for key in over:
            del self._counts[key]

    def _next_number(self) -> int:
        """Return the number of a row without a fact of its own; 0 when none is left."""
        self.finish_row()
        if self._numbered != self._state.position:
            self._numbered, self._number = self._state.position, 0
        if self._number + 1 >= (NUMBERS if self.slot is None else SLOT_NUMBERS):
            self._drop(1)
            return 0
        self._number += 1
        return self._number

    def _add(self, row: AuditRow) -> None:
        if len(self._rows) >= self._rows_max:
            self._drop(1)
            return
        self._rows.append(row)

    def _drop(self, rows: int) -> None:
        """Count rows that didn't fit, to be told once there is room again (A4)."""
        if not self._dropped:
            self._telemetry.warn("audit_trail_full", waiting=len(self._rows))
        self._dropped += rows
        self._telemetry.count("audit_rows_dropped", rows)

    # -- writing ---------------------------------------------------------------------------------------------------

    def waits_through(self, through: Position) -> bool:
        """Return whether a row is to be written that stands at or before this position."""
        if not self.replaying:
            self.finish_row()
            self._settle_counts()
        return bool(self._rows) and self._rows[0].position <= through

    def _settle_counts(self) -> None:
        for key in self._risen:
            self._rows.append(self._counts[key])
        self._risen.clear()
        if self._dropped and len(self._rows) < self._rows_max and (number := self._next_number()):
            rows, self._dropped = self._dropped, 0
            at = max(self._state.last_at, self._rows[-1].at if self._rows else Instant(0))
            self._rows.append(
                AuditRow(
                    position=self._state.position,
                    number=number,
                    at=at,
                    by=CONTROL,
                    action=DROPPED,
                    count=rows,
                    details=f"{rows} rows before this one are missing: the history couldn't be written for too long",
                )
            )

    def next_rows(self, most: int, through: Position) -> list[AuditRow]:
        """Return the oldest rows up to `through`, at most `most`; they stay until they are `written`."""
        return [self._shown(row) for row in islice(self._rows, most) if row.position <= through]

    def refusals(self, most: int) -> list[AuditRow]:
        """Return rows that stand on no fact, at most `most`; they stay until they are `added`."""
        self._settle_counts()
        return [self._shown(row) for row in islice((row for row in self._rows if row.number), most)]

    def added(self, rows: Sequence[AuditRow]) -> None:
        """Drop what `refusals` returned: it is written."""
        keys = {row.key for row in rows}
        self._rows = deque(row for row in self._rows if not row.number or self._shown(row).key not in keys)

    def told_through(self, position: Position) -> bool:
        """Return whether a row of facts waits that stands at or before this position."""
        return any(not row.number and row.position <= position for row in self._rows)

    async def number_on(self, store: History) -> None:
        """Number behind the rows that the history has of this position (A5). Raises: HistoryFailed."""
        position, base = self._state.position, (self.slot or 0) * SLOT_NUMBERS
        last = NUMBERS if self.slot is None else base + SLOT_NUMBERS
        for row in await store.audit(AuditQuery(), position * NUMBERS + last, 1):
            if row.position == position and row.number > base:
                self._numbered, self._number = position, max(self._number, row.number - base)

    def _shown(self, row: AuditRow) -> AuditRow:
        """Return a row with its number among those of all control planes (A5)."""
        return replace(row, number=self.slot * SLOT_NUMBERS + row.number) if row.number and self.slot else row

    def reach(self, rows: int, through: Position) -> Position:
        """Return up to which position, at most `through`, all is told once the first `rows` rows are written."""
        left = next((row for row in islice(self._rows, rows, None) if not row.number), self._row_builder)
        return through if left is None else min(through, Position(left.position - 1))

    def written(self, rows: int) -> None:
        for _ in range(rows):
            self._rows.popleft()

    def drop_known(self, position: Position) -> None:
        """Drop rows of facts that the history knows. Commands without a fact aren't in the log, so they stay."""
        self._rows = deque(row for row in self._rows if row.number or row.position > position)

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def is_half_full(self) -> bool:
        return len(self._rows) >= self._rows_max // 2

    @property
    def waiting(self) -> int:
        return len(self._rows) + len(self._risen) + (self._row_builder is not None)

    def unwritten(self, query: AuditQuery) -> Iterator[AuditRow]:
        """Return the rows of now that match and may not be in the history yet."""
        self.finish_row()
        rows = (*self._rows, *(self._counts[key] for key in self._risen))
        return (self._shown(row) for row in rows if query.matches(row))
