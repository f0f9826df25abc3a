"""Each kind of event, and each kind of command that people give, has its row: who must know of it, and how."""

from typing import Any, get_args

import msgspec
import pytest

from stoker.brain.state.commands import Command
from stoker.brain.state.events.row import Audience, CommandRow, JobMetric, Row
from stoker.brain.state.events.union import Event

EVENTS = get_args(Event)
COMMANDS = get_args(Command)
FIELD_OF: dict[Audience, str] = {
    Audience.JOB: "job",
    Audience.NEW_JOB: "spec",
    Audience.ARRAY: "array",
    Audience.JOBS: "jobs",
    Audience.ORPHANS: "strays",
    Audience.TENANT: "tenant",
}
SLEEPS = """
    JobPlaced TaskStarted AttemptStopping CapacityClaimed JobHeld JobSignalled TimeLimitNear AttemptWarned JobForwarded
    JobEntered
    MemberMade MembersCancelled SubmitKeyed
    NotificationTried NotificationSettled JobsPruned
    StartFailed NodeDropped NodeLost LeaseBroken PartitionDeleted TenantDeleted TokenCreated TokenRevoked NodeJoined
    NodeKeyReplaced SecretSet SecretDeleted ClusterCreated
    EpochBegan ClusterRestored ClockMoved
"""
"""Events that free nothing and let nothing go: a pass after them would decide as the one before. A lost node, or a
stopped attempt, is followed by the ends of its tasks, which wake."""


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_kind_of_event_has_a_row_whose_audience_can_be_found_from_its_fields(kind: type[Event]) -> None:
    row: Row[Any] | None = getattr(kind, "row", None)
    assert isinstance(row, Row), f"{kind.__name__} needs `row: ClassVar = Row(...)`, as the events beside it have"
    field = FIELD_OF.get(row.audience)
    assert field is None or field in kind.__struct_fields__


def test_every_event_that_may_change_a_decision_wakes_the_loop() -> None:
    assert [kind.__name__ for kind in EVENTS if not kind.row.wakes] == SLEEPS.split()


def test_what_makes_jobs_eligible_names_them() -> None:
    letting_go = [kind for kind in EVENTS if kind.row.metric is JobMetric.ELIGIBLE]
    assert letting_go
    for kind in letting_go:
        assert {"job", "jobs"} & set(kind.__struct_fields__), kind


def test_no_two_kinds_of_event_share_a_log_line() -> None:
    names = [kind.row.log.name for kind in EVENTS if kind.row.log is not None]
    assert len(names) == len(dict.fromkeys(names)) > 20


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_command_has_a_row_or_is_no_command_of_people(kind: type[Command]) -> None:
    row: CommandRow[Any] | None = getattr(kind, "row", ...)
    assert row is not ..., f"{kind.__name__} needs `row: ClassVar = CommandRow(...)`, or None if people never give it"
    assert row is None or row.about is not None or "target" in kind.__struct_fields__


def test_what_says_what_a_job_runs_has_an_outline_for_those_who_may_not_know() -> None:
    for kind in EVENTS:
        _, parts = msgspec.json.schema_components([kind])
        says = {"JobSpec", "TaskEnd", "Reason"} & parts.keys() and kind.row.audience is not Audience.TENANT
        assert not says or kind.row.outline is not None, kind
    assert [kind.__name__ for kind in EVENTS if kind.row.outline is not None] == [
        *("JobSubmitted", "JobPlaced", "TaskEnded", "JobRequeued", "JobFinished", "JobUpdated", "JobEntered"),
        *("SubmitKeyed", "NotificationTried", "NotificationSettled"),
    ]


def test_a_secret_of_an_event_is_taken_out_for_every_reader_and_so_is_a_script() -> None:
    assert [kind.__name__ for kind in EVENTS if kind.row.public is not None] == [
        *("JobSubmitted", "NodeRegistered", "TokenCreated", "NodeJoined", "NodeKeyReplaced", "SecretSet")
    ]
