"""J1 to J3 of `wire.job_codec`: JobService says what REST says."""

import msgspec
import pytest

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.job import EndCause, StopCause, TextEncoding, Visible
from stoker.brain.domain.lifecycle import JobState, Outcome
from stoker.brain.domain.notify import NoticeState, NotifyEvent
from stoker.brain.domain.reason import ReasonCode
from stoker.wire.gen import job_pb2 as pb
from stoker.wire.job_codec import ANSWER_BYTES_MAX, check_known, encode_job, job_body, job_list_query
from stoker.wire.rest.job import AttemptView, JobListQuery, JobView, MembersView, ReasonView, TaskRunView
from stoker.wire.rest.notify import NoticeView
from stoker.wire.rest.submit import JobBody

ALIASES = {"tenant_id", "cpu_cores", "args", "environment", "max_runtime_minutes", "gang_scheduling"}
"""Words of other dialects for what a request can say otherwise."""
SHOWN_TWICE = {"job_id", "tenant_id", "cpu_cores", "status", "message", "gpus"}
"""What views have for the clients of other dialects, and figures of the moment, which only REST shows."""

TASK = TaskRunView(
    rank=1,
    node="n1",
    gpus=("a", "b"),
    cpus=2,
    memory_mb=3,
    started_at="2026-01-01T00:00:00Z",
    ended_at="2026-01-01T00:00:01Z",
    cause=EndCause.EXITED,
    exit_code=4,
    signal=9,
    oom=True,
    peak_memory_mb=5,
    error="ü",
)
ATTEMPT = AttemptView(
    number=1,
    epoch=2,
    outcome=Outcome.FAILED,
    exit_code=3,
    placed_at="2026-01-01T00:00:00Z",
    started_at="2026-01-01T00:00:01Z",
    ended_at="2026-01-01T00:00:02Z",
    stopping=StopCause.CANCELLED,
    master_addr="n1",
    master_port=4,
    tasks=[TASK],
    lease_ms=12,
    for_job="17",
)
NOTICE = NoticeView(
    event=NotifyEvent.END,
    to="mail:ada@example.org",
    state=NoticeState.RETRYING,
    at="2026-01-01T00:00:00Z",
    tries=2,
    next_at="2026-01-01T00:02:00Z",
    error="e",
)
VIEW = JobView(
    id="7_1",
    job_id="7_1",
    uid="u",
    name="ä",
    tenant="vision",
    tenant_id="vision",
    user="anna",
    submitted_by="user:anna",
    state=JobState.FAILED,
    reason=ReasonView(ReasonCode.AWAITING_PASS, "m", "h", {"text": "t", "number": 3, "flag": True}),
    exit_code=3,
    priority=-5,
    job_class=JobClass.ONLINE,
    gpu_count=1,
    gpu_memory_mb=2,
    gpu_model="V100",
    gpu_share=0.25,
    cpus=3,
    cpu_cores=3,
    memory_mb=4,
    tasks=5,
    total_gpus=5,
    command=("a", "b"),
    image="i",
    env={"K": "V"},
    workdir="/w",
    time_limit_ms=6,
    retries=7,
    requeue=True,
    tty=True,
    detached=True,
    visible=Visible.INDEX,
    retries_used=8,
    requeues_used=9,
    submitted_at="2026-01-01T00:00:00Z",
    started_at="2026-01-01T00:00:01Z",
    ended_at="2026-01-01T00:00:02Z",
    attempts=[ATTEMPT],
    reduced=True,
    outline=True,
    array="0-9",
    members=MembersView(
        total=9, pending=1, held=1, starting=1, running=1, stopping=1, succeeded=1, failed=2, cancelled=1
    ),
    array_of="7",
    array_index=1,
    after=["ok:3"],
    begin="2026-01-01T00:00:00Z",
    comment="c",
    output="o",
    error="e",
    where="zone=a",
    preemptible=True,
    checkpoint_ms=10,
    signal="USR1@90",
    mounts=["/data:/data:ro"],
    shm_mb=7,
    network="host",
    entrypoint="",
    preemptions=11,
    planned_start="2026-01-01T03:00:00Z",
    planned_nodes=["n3"],
    exclude=("n2",),
    tolerate=["*"],
    partition="p",
    tasks_per_node=10,
    lost_after_ms=11,
    encoding=TextEncoding.LATIN_1,
    secrets={"HF_TOKEN": "TEAM_TOKEN"},
    script_bytes=12,
    notify=["end"],
    notify_to=["mail:ada@example.org"],
    notices=[NOTICE],
    labels={"team": "nlp"},
    time_limit_at="2026-01-01T02:00:00Z",
    time_limit_near=True,
)


def refusal_of(job: pb.NewJob) -> str:
    with pytest.raises(StokerError) as refused:
        job_body(job)
    return refused.value.refusal.code


# --- requests ---------------------------------------------------------------------------------------------------


def test_whatever_a_body_of_rest_can_say_a_message_can_say_too() -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(JobBody)} - ALIASES
    said = {
        {"job_class": "class", "shell": "command", "argv": "command", "priority_word": "priority"}.get(name, name)
        for name in pb.NewJob.DESCRIPTOR.fields_by_name
    }
    assert said == fields


def test_whatever_a_list_of_rest_can_ask_for_a_message_can_ask_for_too() -> None:
    fields = {field.name for field in msgspec.structs.fields(JobListQuery)} - ALIASES
    assert set(pb.ListRequest.DESCRIPTOR.fields_by_name) == fields


def test_j2_what_is_left_out_is_left_out_of_the_body() -> None:
    assert job_body(pb.NewJob(shell="true")) == JobBody(command="true")
    assert job_list_query(pb.ListRequest()) == JobListQuery()


def test_every_field_of_a_message_arrives_under_its_name_in_rest() -> None:
    job = pb.NewJob(
        name="n", tenant="t", user="u", job_class="online", priority=7, gpu_count=1, gpu_memory_mb=2, gpu_model="m",
        cpus=3, memory_mb=4, tasks=5, tasks_per_node=6, image="i", argv=["a", "b"], env={"K": "V"}, workdir="/w",
        time_limit="2h", retries=8, requeue=False, visible="index", array="0-3", after=["ok:1"], hold=True,
        begin="now+2h", comment="c", output="o", error="e", where="z=a", exclude=["n1"], tolerate=["*"], partition="p",
        script="echo", tty=True, detached=True,
    )  # fmt: skip
    assert job_body(job) == JobBody(
        name="n", tenant="t", user="u", job_class=JobClass.ONLINE, priority=7, gpu_count=1, gpu_memory_mb=2,
        gpu_model="m", cpus=3, memory_mb=4, tasks=5, tasks_per_node=6, image="i", command=["a", "b"], env={"K": "V"},
        workdir="/w", time_limit="2h", retries=8, requeue=False, visible=Visible.INDEX, array="0-3", after=["ok:1"],
        hold=True, begin="now+2h", comment="c", output="o", error="e", where="z=a", exclude=["n1"], tolerate=["*"],
        partition="p", script="echo", tty=True, detached=True,
    )  # fmt: skip
    assert job_body(pb.NewJob(shell="x", priority_word="high")) == JobBody(command="x", priority="high")


def test_a_list_is_asked_for_as_in_rest() -> None:
    request = pb.ListRequest(
        state="running", since="7d", until="now", members=True, tenant="t", job_class="batch", user="u", name="n",
        limit=3, offset=4, after="12",
    )  # fmt: skip
    assert job_list_query(request) == JobListQuery(
        state="running", since="7d", until="now", members=True, tenant="t", job_class="batch", user="u", name="n",
        limit=3, offset=4, after="12",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (pb.NewJob(shell="a", argv=["b"]), "conflicting_fields"),
        (pb.NewJob(shell="", argv=["b"]), "conflicting_fields"),
        (pb.NewJob(shell="a", job_class="gold"), "bad_field"),
        (pb.NewJob(shell="a", gpu_count=-1), "bad_field"),
        (pb.NewJob(shell="a", gpu_count=2**60), "bad_field"),
        (pb.NewJob(shell="a", visible="none"), "bad_field"),
    ],
)
def test_what_rest_would_not_read_is_refused_in_the_same_words(job: pb.NewJob, code: str) -> None:
    assert refusal_of(job) == code


@pytest.mark.parametrize(("limit", "offset"), [(0, 0), (-1, 0), (1, -1)])
def test_a_page_that_cannot_be_is_refused(limit: int, offset: int) -> None:
    with pytest.raises(StokerError) as refused:
        job_list_query(pb.ListRequest(limit=limit, offset=offset))
    assert refused.value.refusal.code == "bad_parameter"


def test_j1_a_field_of_a_newer_program_is_refused_wherever_it_lies() -> None:
    later = b"\xf8\x07\x01"  # field 127, a number
    known = pb.NewJob(shell="a")
    check_known(pb.SubmitRequest(jobs=[known]))
    for message in (
        pb.SubmitRequest.FromString(later),
        pb.SubmitRequest(jobs=[known, pb.NewJob.FromString(later)]),
        pb.GetRequest.FromString(later),
        pb.ListRequest.FromString(later),
        pb.CancelRequest.FromString(later),
    ):
        with pytest.raises(StokerError) as refused:
            check_known(message)
        assert refused.value.refusal.code == "unknown_field"
        assert "127" in refused.value.refusal.message


# --- answers ----------------------------------------------------------------------------------------------------


def test_whatever_rest_shows_of_a_job_a_message_shows_too() -> None:
    fields = {field.name for field in msgspec.structs.fields(JobView)} - SHOWN_TWICE - {"command"}
    assert set(pb.Job.DESCRIPTOR.fields_by_name) == fields | {"shell", "argv"}
    for view, message in (
        (AttemptView, pb.JobAttempt),
        (TaskRunView, pb.AttemptTask),
        (MembersView, pb.ArrayMembers),
        (NoticeView, pb.JobNotice),
    ):
        assert [field.name for field in msgspec.structs.fields(view)] == [
            field.name for field in message.DESCRIPTOR.fields
        ]


def test_a_job_arrives_with_every_field_as_rest_shows_it() -> None:
    shown = msgspec.json.decode(msgspec.json.encode(VIEW))
    job = encode_job(VIEW)
    for field in pb.Job.DESCRIPTOR.fields:
        assert field.has_presence is False or job.HasField(field.name) or field.name == "shell"
        if field.name in ("reason", "attempts", "members", "notices", "shell", "argv", "job_class"):
            continue
        value = getattr(job, field.name)
        plain = (
            dict(value) if field.name in ("env", "secrets", "labels") else list(value) if field.is_repeated else value
        )
        assert plain == shown[field.name], field.name
    assert job.job_class == "online"
    assert list(job.argv) == ["a", "b"]
    assert (job.reason.code, job.reason.message, job.reason.hint) == (shown["reason"]["code"], "m", "h")
    facts = job.reason.facts
    assert (facts["text"].text, facts["number"].number, facts["flag"].flag) == ("t", 3, True)
    assert job.members == pb.ArrayMembers(**shown["members"])
    assert list(job.notices) == [pb.JobNotice(**shown["notices"][0])]
    (attempt,) = job.attempts
    (task,) = attempt.tasks
    assert task == pb.AttemptTask(**shown["attempts"][0]["tasks"][0])
    assert attempt.outcome == "failed"
    assert attempt.exit_code == 3
    assert attempt.stopping == "cancelled"
    assert pb.Job.FromString(job.SerializeToString()) == job


def test_a_line_for_the_shell_is_told_from_a_program_with_arguments() -> None:
    job = encode_job(msgspec.structs.replace(VIEW, command="echo a"))
    assert (job.shell, list(job.argv)) == ("echo a", [])


def test_what_there_is_not_yet_is_left_empty() -> None:
    waiting = msgspec.structs.replace(
        VIEW, reason=None, exit_code=None, started_at=None, ended_at=None, attempts=[], members=None, array_index=None
    )
    job = encode_job(waiting)
    assert (job.started_at, job.ended_at, list(job.attempts)) == ("", "", [])
    assert not any(job.HasField(name) for name in ("reason", "exit_code", "members", "array_index"))


def test_j3_a_job_that_does_not_fit_loses_its_oldest_attempts() -> None:
    attempts = [
        msgspec.structs.replace(ATTEMPT, number=number, tasks=[msgspec.structs.replace(TASK, error="x" * 1_000)] * 500)
        for number in range(1, 11)
    ]
    job = encode_job(msgspec.structs.replace(VIEW, attempts=attempts))
    assert job.ByteSize() <= ANSWER_BYTES_MAX
    assert job.attempts[-1].number == 10
    assert 1 < len(job.attempts) < 10
