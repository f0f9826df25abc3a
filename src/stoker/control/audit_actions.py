"""Rows of the audit trail: one is made for each command of a person.

A command that left events is read from those, so that a start reads the same row from the log again; one that left none
is read from the command itself. What each kind of event and command says is in its `row`.

Rules: D1  a command's row is made from all of its events; what only followed from it (a task that ended, a key that
           was kept) doesn't name its action
       D2  operations on members are filed under their array
       D3  what a row holds is copied word by word, never a whole record: specs have environments, tokens have digests
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, assert_never, get_args

from stoker.brain.domain.array import JobRef, count_of, spans_of
from stoker.brain.domain.audit import UNCHANGED, AuditRow, members_text
from stoker.brain.domain.errors import Refusal
from stoker.brain.domain.ids import CONTROL, JobId, Position, Principal, TenantName
from stoker.brain.domain.tenant import NO_TENANT
from stoker.brain.domain.units import Instant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.commands import Command, command_row
from stoker.brain.state.events.row import JobNote, MembersNote, SubjectNote, SubmitNote
from stoker.brain.state.events.union import Event, row_of
from stoker.wire.token import without_secrets

TEXT_MAX: Final = 200
"""Letters of a target or of details; what is cut off ends in dots."""

ACTIONS: Final[Mapping[type, str]] = {kind: kind.row.action for kind in get_args(Command) if kind.row is not None}
"""Commands of people, and the action of each. The other commands are those of nodes and of the control plane itself."""


def is_person(by: Principal) -> bool:
    """Return whether this is neither a node's report nor a decision of the control plane."""
    return by != CONTROL and not by.startswith("node:")


class AuditRowBuilder:
    """Builder of the row of one command from its events, read one by one right after each was applied."""

    __slots__ = ("_indexes", "_weight", "_whole", "_words", "at", "by", "position")

    def __init__(self, by: Principal, at: Instant) -> None:
        self.by, self.at = by, at
        self.position = Position(0)
        self._words: dict[str, Any] = {}
        self._weight = 0
        self._whole = False
        self._indexes: list[int] = []

    def read(self, state: ClusterState, position: Position, event: Event) -> None:
        """Take in the next event of the command."""
        self.position = position
        audit = row_of(event).audit
        match note := audit(event) if audit is not None else None:
            case None:
                pass
            case SubmitNote():
                self._submitted(note.job, note.tenant)
            case JobNote():
                self._job(state, note)
            case MembersNote():
                weight = _WEAK if note.weak else _USUAL
                self._say(note.action, weight, job=note.array, tenant=state.jobs[note.array].spec.tenant)
                self._indexes.extend(note.indexes)
            case SubjectNote():
                # It says what the command was, whatever else followed.
                self._indexes.clear()
                self._words = {}
                target, details = short(note.target), short(note.details)
                self._say(note.action, _STRONG, target=target, details=details, tenant=note.tenant)
            case _:
                assert_never(note)

    def row(self) -> AuditRow | None:
        """Return the row of the command; None when its events tell of none."""
        if not self._weight:
            return None
        if self._indexes and not self._whole:
            spans = spans_of(sorted(dict.fromkeys(self._indexes)))
            self._words["members"], self._words["count"] = members_text(spans), count_of(spans)
        return AuditRow(position=self.position, at=self.at, by=self.by, **self._words)

    def _submitted(self, job: JobId, tenant: TenantName) -> None:
        if self._weight:
            self._words["last_job"] = job
            self._words["count"] += 1
        else:
            self._say("submit", _STRONG, job=job, tenant=tenant, count=1)

    def _job(self, state: ClusterState, note: JobNote) -> None:
        """Say the action on a job, which may be an array, or a member of one (D2)."""
        record = state.jobs[note.job]
        job = record.array_of or record.id
        self._say(note.action, _USUAL, job=job, tenant=record.spec.tenant, count=1, details=note.details)
        if record.array_of:
            self._indexes.append(record.array_index)
        if note.whole and record.members is not None and record.spec.array is not None:
            self._whole = True
            self._words["count"] = record.spec.array.count

    def _say(self, action: str, weight: int, **words: object) -> None:
        if weight >= self._weight and not self._whole:
            self._weight = weight
            self._words = {"action": action, **words}


_WEAK, _USUAL, _STRONG = 1, 2, 3
"""Which of several events names the action."""


def unchanged_row(state: ClusterState, command: Command, now: Instant, refusal: Refusal | None) -> AuditRow | None:
    """Return the row, without a number, of a person's command without events.

    It was refused or, with None, changed nothing.
    """
    row = command_row(command)
    if row is None:
        return None
    told: Any = command  # fields as its row says
    words = _of_target(state, told.target) if row.about is None else _shortened(row.about(told))
    outcome = refusal.code if refusal else UNCHANGED
    return AuditRow(position=state.position, at=now, by=command.by, action=row.action, outcome=outcome, **words)


class AuditAction(NamedTuple):
    """Action that a request asks for, in the words of the audit trail."""

    action: str
    target: str = ""
    job: JobRef | None = None


def denied_row(state: ClusterState, by: Principal, asked: AuditAction, now: Instant, refusal: Refusal) -> AuditRow:
    """Return the row, without a number, of a request that its caller may not make."""
    words = {"target": short(asked.target)} if asked.job is None else _of_target(state, asked.job)
    action = asked.action
    return AuditRow(position=state.position, at=now, by=by, action=action, outcome=refusal.code, **words)


def _shortened(words: Mapping[str, Any]) -> dict[str, Any]:
    return {name: short(value) if isinstance(value, str) else value for name, value in words.items()}


def _of_target(state: ClusterState, ref: JobRef) -> dict[str, Any]:
    ref = state.locate(ref.job) if ref.members is None else ref
    record = state.jobs.get(ref.job)
    words: dict[str, Any] = {"job": ref.job, "tenant": record.spec.tenant if record else NO_TENANT, "count": 1}
    if record is not None and record.array_of:
        words |= {"job": record.array_of, "members": str(record.array_index)}
    elif ref.members is not None:
        words |= {"members": members_text(ref.members), "count": count_of(ref.members)}
    return words


def short(text: str) -> str:
    """Return a text for a row: cut short, and without the secret of a token that was typed in place of its id."""
    text = without_secrets(text[: 2 * TEXT_MAX])
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}..."
