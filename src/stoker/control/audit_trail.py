"""Audit trail: a row for every command of a person, noted here until the recorder of the history has written it.

Rows are written under its rules: never ahead of the log, and before a snapshot lets the log forget. So a crash between
a command and its row loses none that was acknowledged: the next start reads it from the log again.

Rules: A1  a command that left facts has one row, made from those
       A2  a command that was refused by the brain, or changed nothing, has one row, made from itself. So has one that
           never came that far because its caller may not give it. The same again within a minute is counted there
       A3  a caller that shows no good token, or asks too often, costs one row a minute, which counts
       A4  what doesn't fit is dropped, counted and told by rows of their own once there is room again
       A5  rows that stand on no fact are numbered behind those that the history has of the same position, and where
           several control planes write one trail each numbers within a slot of its own: no row replaces another
       A6  nobody has more than `counted_of_one_max` rows of A2 a minute: what is refused beyond them is counted in one
           row for each code. While half of the places are taken, who has a quarter of all gets no further one
       A7  of whom the history drops rows for its bound, and how many, is told by one row a day
Limits: `rows_max` rows wait, about 15 MiB; rows that count are `counted_max` a minute, then one a code for all others.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.audit import NOBODY, NUMBERS, SLOTS, UNCHANGED, AuditQuery, AuditRow
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import CONTROL, JobId, Position, Principal, TenantName
from stoker.brain.domain.units import DAY_MS, SECOND_MS, Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.commands import Command
from stoker.brain.state.events.node import NodeDrained
from stoker.control.audit_actions import AuditAction, AuditRowBuilder, denied_row, is_person, unchanged_row
from stoker.ports import History, Telemetry

ROWS_MAX: Final = 50_000
COUNTED_MAX: Final = 1_000
COUNTED_OF_ONE_MAX: Final = 100
"""Far more different refusals than a person meets in a minute; a script that goes through the jobs of others has no
more."""
COUNT_MS: Final = 60 * SECOND_MS
TOLD_OF_MAX: Final = 20
"""Principals of whom it is told each that rows of theirs are missing; the others are told together."""
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
"""The action of a row that tells how many rows of a principal are missing (A4, A7)."""

_Subject = tuple[Principal, str, str, JobId, str, TenantName, str]
"""Principal, action, outcome, job, members, tenant and target of what is counted in one row."""


class AuditTrail:
    """Rows that aren't in the history yet."""

    def __init__(
        self,
        state: ClusterState,
        telemetry: Telemetry,
        *,
        rows_max: int = ROWS_MAX,
        counted_max: int = COUNTED_MAX,
        counted_of_one_max: int = COUNTED_OF_ONE_MAX,
    ) -> None:
        self.news = asyncio.Event()
        """There may be rows to write."""
        self.slot: int | None = None
        """Of this control plane among several that write one trail (A5). None = it is the only one."""
        self.ship: Callable[[AuditRow], None] = _kept
        """Takes each row as it is made, to send it elsewhere."""
        self.replaying = True
        """Facts come in slices that may end within a command."""
        self._state = state
        self._telemetry = telemetry
        self._rows_max = rows_max
        self._counted_max = counted_max
        self._counted_of_one_max = counted_of_one_max
        self._rows: deque[AuditRow] = deque()
        self._rows_of: Counter[Principal] = Counter()
        self._row_builder: AuditRowBuilder | None = None
        self._numbered = Position(0)
        self._number = 0
        self._counts: dict[_Subject, AuditRow] = {}
        """Those of the last minute; the oldest first."""
        self._counts_of: Counter[Principal] = Counter()
        self._risen: dict[_Subject, None] = {}
        """Those of `_counts` that the history doesn't know as they are."""
        self._dropped: Counter[Principal] = Counter()
        self._left_out: dict[Principal, AuditRow] = {}

    # -- noting ----------------------------------------------------------------------------------------------------

    def note(self, state: ClusterState, position: Position, fact: Fact) -> None:
        """Add a fact, right after it was applied, to the row of its command (A1)."""
        by = fact.by
        if self._row_builder is not None and (fact.joined is not True or by != self._row_builder.by):
            self.finish_row()
        if self._row_builder is None:
            # What a node says of itself follows from work, but for a drain, which a person has to end.
            if not is_person(by) and not isinstance(fact.event, NodeDrained):
                return
            self._row_builder = AuditRowBuilder(by, fact.at)
        self._row_builder.read(state, position, fact.event)

    def finish_row(self) -> None:
        """Close the row of a command of which no more facts will come."""
        row_builder, self._row_builder = self._row_builder, None
        row = row_builder.row() if row_builder else None
        if row is not None:
            self.ship(row)
            self._add(row)

    def unheeded(self, command: Command, now: Instant, refusal: Refusal | None) -> None:
        """Add the row of a command that left no fact, as the writer says (A2)."""
        row = unchanged_row(self._state, command, now, refusal) if is_person(command.by) else None
        if row is not None:
            self._count(row)
            self.news.set()

    def refused(self, by: Principal, asked: AuditAction, refusal: Refusal, now: Instant) -> None:
        """Count a request that never became a command, since its caller may not make it (A2, A3)."""
        if refusal.code in COUNTED:
            self._count(self._summary(by, refusal.code, now))
        elif refusal.code in DENIED:
            self._count(denied_row(self._state, by, asked, now, refusal))
        self.news.set()

    def backed_up(self, by: Principal, position: Position, now: Instant) -> None:
        """Add the row of a backup, which changes nothing, and has everything in it that one may not see (A2)."""
        details = f"of position {position}"
        row = AuditRow(position=self._state.position, at=now, by=by, action=BACKUP, outcome=UNCHANGED, details=details)
        if (numbered := self._numbered_row(row)) is not None:
            self.ship(self._shown(numbered))
            self._add(numbered)
        self.news.set()

    def _summary(self, by: Principal, code: str, now: Instant) -> AuditRow:
        return AuditRow(position=self._state.position, at=now, by=by, action=ASK, outcome=code)

    def _count(self, row: AuditRow) -> None:
        """Count a row without a number in the one of this minute that says the same, or as there is room (A6)."""
        self.forget_counts(row.at)
        others = self._summary(row.by, row.outcome, row.at), self._summary(NOBODY, row.outcome, row.at)
        for each in (row, *others):
            key = _subject_of(each)
            known = self._counts.get(key)
            if known is None and (each is not others[-1] and self._has_no_room_to_count(each)):
                continue
            if known is None or row.at - known.at >= COUNT_MS:
                known = self._numbered_row(replace(each, times=0))
                if known is None:
                    return
                self._forget_count(key)
                self._counts_of[each.by] += 1
                self.ship(self._shown(replace(known, times=row.times)))
            self._counts[key] = replace(known, times=known.times + row.times)
            self._risen[key] = None
            return

    def _has_no_room_to_count(self, row: AuditRow) -> bool:
        if len(self._counts) >= self._counted_max:
            return True
        return row.action != ASK and self._counts_of[row.by] >= self._counted_of_one_max

    def forget_counts(self, now: Instant) -> None:
        """Forget those whose minute is over and that the history knows."""
        over = []
        for key, row in self._counts.items():
            if now - row.at < COUNT_MS or key in self._risen:
                break
            over.append(key)
        for key in over:
            self._forget_count(key)

    def _forget_count(self, key: _Subject) -> None:
        row = self._counts.pop(key, None)
        if row is not None:
            _take_one(self._counts_of, key[0])
            if row.times > 1:
                self.ship(self._shown(row))

    def _numbered_row(self, row: AuditRow) -> AuditRow | None:
        number = self._next_number()
        return replace(row, position=self._state.position, number=number) if number else None

    def _next_number(self) -> int:
        """Return the number of a row without a fact of its own; 0 when none is left."""
        self.finish_row()
        if self._numbered != self._state.position:
            self._numbered, self._number = self._state.position, 0
        if self._number + 1 >= (NUMBERS if self.slot is None else SLOT_NUMBERS):
            self._drop(NOBODY)
            return 0
        self._number += 1
        return self._number

    def _add(self, row: AuditRow) -> None:
        if not self._has_room(row.by):
            self._drop(row.by)
            return
        self._rows.append(row)
        self._rows_of[row.by] += 1

    def _has_room(self, by: Principal) -> bool:
        if len(self._rows) >= self._rows_max:
            return False
        return not self.is_half_full or self._rows_of[by] < self._rows_max // 4

    def _drop(self, by: Principal) -> None:
        """Count a row that didn't fit, to be told once there is room again (A4)."""
        if not self._dropped:
            self._telemetry.warn("audit_trail_full", waiting=len(self._rows))
        self._dropped[by] += 1
        self._telemetry.count("audit_rows_dropped")

    # -- writing ---------------------------------------------------------------------------------------------------

    def waits_through(self, through: Position) -> bool:
        """Return whether a row is to be written that stands at or before this position."""
        if not self.replaying:
            self.finish_row()
            self._settle_counts()
        return bool(self._rows) and self._rows[0].position <= through

    def _settle_counts(self) -> None:
        for key in self._risen:
            self._add(self._counts[key])
        self._risen.clear()
        if self._dropped and not self.is_half_full:
            at = max(self._state.last_at, self._rows[-1].at if self._rows else Instant(0))
            dropped, self._dropped = self._dropped, Counter()
            for by, count in _most(dropped):
                details = f"{count} rows before this one are missing: the history couldn't be written for too long"
                row = self._missing(by, count, at, details)
                if row is not None:
                    self._add(row)

    def left_out(self, beyond: Mapping[Principal, int], now: Instant) -> None:
        """Tell of rows that the history has dropped to keep within its bound (A7)."""
        for by, count in _most(beyond):
            known = self._left_out.get(by)
            if known is not None and now - known.at < DAY_MS:
                row: AuditRow | None = replace(known, count=known.count + count)
            else:
                row = self._missing(by, count, now, "the oldest rows went: there were more than history.audit_rows_max")
            if row is not None:
                self._left_out[by] = row
                self._add(row)
        self._left_out = {by: row for by, row in self._left_out.items() if now - row.at < DAY_MS}
        self.news.set()

    def _missing(self, by: Principal, count: int, at: Instant, details: str) -> AuditRow | None:
        row = AuditRow(position=self._state.position, at=at, by=CONTROL, action=DROPPED, target=by, details=details)
        return self._numbered_row(replace(row, count=count))

    def next_rows(self, most: int, through: Position) -> list[AuditRow]:
        """Return the oldest rows up to `through`, at most `most`; they stay until they are `written`."""
        oldest = islice(self._rows, most)
        return [self._shown(row) for row in takewhile(lambda row: row.position <= through, oldest)]

    def refusals(self, most: int) -> list[AuditRow]:
        """Return rows that stand on no fact, at most `most`; they stay until they are `added`."""
        self._settle_counts()
        return [self._shown(row) for row in islice((row for row in self._rows if row.number), most)]

    def added(self, rows: Sequence[AuditRow]) -> None:
        """Drop what `refusals` returned: it is written."""
        keys = {row.key for row in rows}
        self._keep(row for row in self._rows if not row.number or self._shown(row).key not in keys)

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
            _take_one(self._rows_of, self._rows.popleft().by)

    def drop_known(self, position: Position) -> None:
        """Drop rows of facts that the history knows. Commands without a fact aren't in the log, so they stay."""
        self._keep(row for row in self._rows if row.number or row.position > position)

    def _keep(self, rows: Iterable[AuditRow]) -> None:
        self._rows = deque(rows)
        self._rows_of = Counter(row.by for row in self._rows)

    @property
    def newest(self) -> tuple[Position, Instant]:
        """Position and time of the newest fact."""
        return self._state.position, self._state.last_at

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def is_half_full(self) -> bool:
        return len(self._rows) >= self._rows_max // 2  # until then nobody's share is counted (A6)

    @property
    def waiting(self) -> int:
        return len(self._rows) + len(self._risen) + (self._row_builder is not None)

    def unwritten(self, query: AuditQuery) -> Iterator[AuditRow]:
        """Return the rows of now that match and may not be in the history yet."""
        self.finish_row()
        rows = (*self._rows, *(self._counts[key] for key in self._risen))
        return (self._shown(row) for row in rows if query.matches(row))


def _kept(row: AuditRow) -> None:
    """It is sent nowhere."""


def _subject_of(row: AuditRow) -> _Subject:
    return row.by, row.action, row.outcome, row.job, row.members, row.tenant, row.target


def _take_one(counter: Counter[Principal], by: Principal) -> None:
    counter[by] -= 1
    if not counter[by]:
        del counter[by]


def _most(rows: Mapping[Principal, int]) -> Iterator[tuple[Principal, int]]:
    """Yield those that have the most rows, and the others together, under the name of nobody."""
    sorted_rows = sorted(rows.items(), key=lambda each: (-each[1], each[0]))
    yield from sorted_rows[:TOLD_OF_MAX]
    if len(sorted_rows) > TOLD_OF_MAX:
        yield NOBODY, sum(count for _, count in sorted_rows[TOLD_OF_MAX:])
