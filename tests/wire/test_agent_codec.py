"""Rules C1 to C4 of `wire/agent_codec.py`."""

from typing import TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.container import BindMount, ContainerOptions, Network
from stoker.brain.domain.gpu import Gpu, GpuLink
from stoker.brain.domain.gpu_telemetry import FigureWatch, GpuReading
from stoker.brain.domain.health import GpuCondition, HealthKind, HealthState
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId, NodeName
from stoker.brain.domain.instruction import SIGNAL_MAX, Instruction, Signal, Start, Stop, StopNotice, TaskKey, Warn
from stoker.brain.domain.job import EndCause, StopCause, TaskEnd, TextEncoding
from stoker.brain.domain.node import NODE_NAME, Inventory
from stoker.brain.domain.report import (
    Beat,
    FrameKind,
    LogChunk,
    LogRequest,
    Preparation,
    Registration,
    Report,
    SessionOpening,
    Started,
    TaskFinished,
    TaskInventory,
    TaskPhase,
    TaskStatus,
    TunnelFrame,
)
from stoker.brain.domain.units import Instant
from stoker.wire import agent_codec as codec
from stoker.wire.gen import agent_pb2 as pb

T = TypeVar("T")

INT32, INT64 = 2**31 - 1, 2**63 - 1
text = st.text(st.characters(codec="utf-8"), max_size=30)
word = text.filter(bool)
count = st.integers(0, INT32)
big = st.integers(0, INT64)
instant = big.map(Instant)
epoch = big.map(Epoch)
uuids = st.lists(word.map(GpuUuid), max_size=4).map(tuple)
keys = st.builds(TaskKey, st.integers(1, INT64).map(JobId), st.integers(1, INT32), count)
gpus = st.builds(
    Gpu,
    uuid=word.map(GpuUuid),
    index=count,
    model=text,
    memory_mb=big,
    simulated=st.booleans(),
    parent=text.map(GpuUuid),
    suspect=st.booleans(),
    numa_node=st.integers(-1, 8),
    bus=st.text(max_size=12),
)
conditions = st.builds(
    GpuCondition,
    uuid=word.map(GpuUuid),
    index=count,
    state=st.sampled_from(HealthState),
    kind=st.sampled_from(HealthKind),
    reason=text,
    since=instant,
)
inventories = st.builds(
    Inventory,
    boot_id=text,
    address=text,
    gpus=st.lists(gpus, max_size=3).map(tuple),
    cpus=count,
    memory_mb=big,
    labels=st.dictionaries(text, text, max_size=3),
    executors=st.lists(text, max_size=2).map(tuple),
    simulated=st.booleans(),
    version=text,
    agent_uid=text,
    taints=st.lists(text, max_size=2).map(tuple),
    account=text,
    allow_root=st.booleans(),
    keeps_leases=st.booleans(),
    fault=text,
    limits=text,
    gpu_fault=text,
    withheld=st.lists(gpus, max_size=3).map(tuple),
    links=st.lists(st.builds(GpuLink, st.integers(0, 9), st.integers(10, 20), st.integers(1, 36)), max_size=3).map(
        tuple
    ),
    conditions=st.lists(conditions, max_size=3).map(tuple),
    reads_latin_1=st.booleans(),
    keeps_scripts=st.booleans(),
    shares_gpus=st.booleans(),
    mps=text,
    unenforced=text,
    containers_fault=text,
    opens_no_stream=st.booleans(),
)
nodes = st.from_regex(NODE_NAME, fullmatch=True).map(NodeName)
shares = st.integers(1, 1_000)
registrations = st.builds(Registration, node=nodes, inventory=inventories)
phases = st.sampled_from(TaskPhase)
readings = st.builds(
    GpuReading,
    uuid=text.map(GpuUuid),
    utilization_percent=st.none() | count,
    memory_used_mb=st.none() | big,
    temperature_c=st.none() | count,
    power_mw=st.none() | big,
    sm_clock_mhz=st.none() | count,
    memory_clock_mhz=st.none() | count,
    clock_events=big,
    quiet_ms=big,
)
statuses = st.builds(TaskStatus, key=keys, phase=phases, gpus=uuids, gpu_share=shares, started_at=instant)
reports: st.SearchStrategy[Report] = st.one_of(
    st.builds(
        TaskInventory,
        boot_id=text,
        tasks=st.lists(statuses, max_size=3).map(tuple),
        kept=st.lists(keys, max_size=3).map(tuple),
    ),
    st.builds(Started, key=keys, at=instant, pid=big),
    st.builds(
        Beat,
        sequence=big,
        ending=st.lists(keys, max_size=3).map(tuple),
        tasks_sum=st.none() | st.integers(0, 2**32 - 1),
        at=instant,
        gpus=st.lists(readings, max_size=3).map(tuple),
        gpus_age_ms=big,
        preparing=st.lists(st.builds(Preparation, key=keys, text=text), max_size=3).map(tuple),
    ),
)
containers = st.builds(
    ContainerOptions,
    mounts=st.lists(st.builds(BindMount, text, text, st.booleans()), max_size=3).map(tuple),
    shm_mb=big,
    network=st.sampled_from(Network),
    entrypoint=st.none() | text,
)
notices = st.builds(
    StopNotice,
    cause=st.sampled_from(StopCause),
    lead_ms=big,
    signal=st.integers(0, SIGNAL_MAX),
    for_job=text,
)
instructions: st.SearchStrategy[Instruction] = st.one_of(
    st.builds(
        Start,
        key=keys,
        epoch=epoch,
        command=st.one_of(word, st.lists(text, min_size=1, max_size=4).map(tuple)),
        env=st.dictionaries(text, text, max_size=3),
        workdir=text,
        gpus=uuids,
        gpu_share=shares,
        tty=st.booleans(),
        stays=st.booleans(),
        cpus=count,
        memory_mb=big,
        user=text,
        probe_port=count,
        output=text,
        error=text,
        append=st.booleans(),
        lease_ms=big,
        gang_port_min=count,
        gang_port_max=count,
        host_file=text,
        tenant=text,
        encoding=st.sampled_from(TextEncoding),
        script=text,
        image=text,
        container=st.none() | containers,
    ),
    st.builds(Stop, key=keys, epoch=epoch, grace_ms=big, cause=st.none() | st.sampled_from(StopCause)),
    notices.flatmap(
        lambda notice: st.builds(
            Stop, key=keys, epoch=epoch, grace_ms=big, cause=st.just(notice.cause), notice=st.just(notice)
        )
    ),
    st.builds(Warn, key=keys, epoch=epoch, notice=notices, grace_ms=big, limit_ms=big),
    st.builds(Signal, key=keys, epoch=epoch, signal=st.integers(1, SIGNAL_MAX)),
)
ends = st.builds(
    TaskEnd,
    cause=st.sampled_from(EndCause),
    at=instant,
    exit_code=st.none() | st.integers(-INT32 - 1, INT32),
    signal=count,
    oom=st.booleans(),
    peak_memory_mb=big,
    error=text,
    node_fault=text,
    gpu_fault=text,
    hung_up=st.booleans(),
)
finishes = st.builds(TaskFinished, node=nodes, key=keys, end=ends)
log_requests = st.builds(LogRequest, request=big, key=keys, offset=st.integers(-INT64, INT64), limit=big, wait_ms=big)
log_chunks = st.builds(
    LogChunk, request=big, offset=big, data=st.binary(max_size=50), size=big, ended=st.booleans(), error=text
)


@given(registrations)
def test_a_registration_survives_the_wire(registration: Registration) -> None:
    sent = codec.encode_registration(registration).SerializeToString()
    assert codec.decode_registration(pb.RegisterRequest.FromString(sent)) == registration


@given(reports)
def test_a_report_survives_the_wire(report: Report) -> None:
    sent = codec.encode_report(report).SerializeToString()
    assert codec.decode_report(pb.AgentReport.FromString(sent)) == report


@given(instructions)
def test_an_instruction_survives_the_wire(instruction: Instruction) -> None:
    sent = codec.encode_instruction(instruction).SerializeToString()
    assert codec.decode_instruction(pb.ControlMessage.FromString(sent)) == instruction


@given(finishes)
def test_an_end_survives_the_wire(finished: TaskFinished) -> None:
    sent = codec.encode_finished(finished).SerializeToString()
    assert codec.decode_finished(pb.TaskFinishedRequest.FromString(sent)) == finished


@given(log_requests, log_chunks)
def test_log_messages_survive_the_wire(request: LogRequest, chunk: LogChunk) -> None:
    sent = codec.encode_log_request(request).SerializeToString()
    assert codec.decode_log_request(pb.LogRequest.FromString(sent)) == request
    answered = codec.encode_log_chunk(chunk).SerializeToString()
    assert codec.decode_log_chunk(pb.LogChunk.FromString(answered)) == chunk


@pytest.mark.parametrize(
    "frame",
    [
        TunnelFrame(tunnel=1, what=FrameKind.OPEN, key=TaskKey(JobId(7), 2, 1), port=8888, kind="tcp"),
        TunnelFrame(
            tunnel=7,
            what=FrameKind.OPEN,
            key=TaskKey(JobId(7), 2, 1),
            kind="session",
            opening=SessionOpening(
                session="x1", argv=("sh", "", "ü"), tty=True, columns=80, rows=24, term="xterm", at=7
            ),
        ),
        TunnelFrame(tunnel=2, what=FrameKind.OPENED),
        TunnelFrame(tunnel=3, what=FrameKind.DATA, data=b"\0\xff"),
        TunnelFrame(tunnel=4, what=FrameKind.CREDIT, credit=1 << 20),
        TunnelFrame(tunnel=5, what=FrameKind.END),
        TunnelFrame(tunnel=6, what=FrameKind.BROKEN, error="why"),
    ],
    ids=lambda frame: frame.what,
)
def test_a_frame_of_a_tunnel_survives_the_wire(frame: TunnelFrame) -> None:
    sent = codec.encode_frame(frame).SerializeToString()
    assert codec.decode_frame(pb.TunnelFrame.FromString(sent)) == frame


def test_a_frame_that_a_newer_neighbour_invented_is_skipped() -> None:
    assert codec.decode_frame(pb.TunnelFrame(tunnel=1)) is None


def test_an_agent_of_an_older_version_says_nothing_of_latin_1_and_so_reads_none() -> None:
    older = pb.RegisterRequest(node="n1", boot_id="b", address="a")
    assert not codec.decode_registration(older).inventory.reads_latin_1
    assert not codec.decode_registration(older).inventory.keeps_scripts


def test_exit_code_zero_is_not_the_same_as_no_exit_code() -> None:
    key = TaskKey(JobId(1), 1, 0)
    for code in (None, 0):
        end = TaskEnd(cause=EndCause.EXITED, at=Instant(5), exit_code=code, signal=0 if code == 0 else 9)
        finished = TaskFinished(node=NodeName("n"), key=key, end=end)
        assert codec.decode_finished(codec.encode_finished(finished)).end.exit_code == code


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.TaskFinishedRequest(node="n", end=pb.TaskEnd(cause="exited")), "job 0, attempt 0"),
        (pb.TaskFinishedRequest(node="n", key=pb.TaskKey(job=1, attempt=1)), "end.cause"),
        (pb.TaskFinishedRequest(node="n", key=pb.TaskKey(job=1, attempt=1, rank=-1)), "rank -1"),
        (pb.TaskFinishedRequest(key=pb.TaskKey(job=1, attempt=1), end=pb.TaskEnd(cause="exited")), "node can't be ''"),
    ],
    ids=["no key", "no end", "negative rank", "no node"],
)
def test_half_an_end_is_refused_by_name(message: pb.TaskFinishedRequest, field: str) -> None:
    with pytest.raises(codec.Malformed, match=field):
        codec.decode_finished(message)


def test_a_start_with_two_commands_or_none_is_refused() -> None:
    key = pb.TaskKey(job=1, attempt=1)
    for start in (pb.Start(key=key), pb.Start(key=key, shell="true", argv=["true"])):
        with pytest.raises(codec.Malformed, match="`shell` or `argv`"):
            codec.decode_instruction(pb.ControlMessage(start=start))


def test_an_unknown_phase_is_refused_with_its_name() -> None:
    status = pb.TaskStatus(key=pb.TaskKey(job=1, attempt=1), phase="dreaming")
    with pytest.raises(codec.Malformed, match="dreaming"):
        codec.decode_report(pb.AgentReport(tasks=pb.TaskInventory(tasks=[status])))


@pytest.mark.parametrize("kept", [[1, 1], [1, 1, -1], [1] * (3 * codec.KEPT_MAX + 3)])
def test_keys_of_kept_ends_that_make_no_sense_are_refused(kept: list[int]) -> None:
    with pytest.raises(codec.Malformed, match="kept"):
        codec.decode_report(pb.AgentReport(tasks=pb.TaskInventory(kept=kept)))


def test_a_message_of_a_kind_from_the_future_is_skipped() -> None:
    """Field 99, length-delimited: what a newer neighbour's new branch of the union looks like."""
    future = b"\x9a\x06\x02hi"
    assert codec.decode_report(pb.AgentReport.FromString(future)) is None
    assert codec.decode_instruction(pb.ControlMessage.FromString(future)) is None


@pytest.mark.parametrize("cause", [StopCause.PREEMPTED, StopCause.RECLAIMED])
def test_an_agent_that_knows_no_preemption_reads_a_word_that_it_knows(cause: StopCause) -> None:
    """An unknown word would break off its stream, and with it every other instruction."""
    stop = Stop(key=TaskKey(JobId(1), 1, 0), epoch=Epoch(1), grace_ms=1, cause=cause, notice=StopNotice(cause=cause))
    assert codec.encode_instruction(stop).stop.cause == "requeued"


def test_a_notice_with_a_signal_that_is_none_is_refused() -> None:
    key, notice = pb.TaskKey(job=1, attempt=1), pb.StopNotice(cause="preempted", signal=SIGNAL_MAX + 1)
    stop, warn = pb.Stop(key=key, notice=notice), pb.Warn(key=key, notice=notice)
    for message in (pb.ControlMessage(stop=stop), pb.ControlMessage(warn=warn)):
        with pytest.raises(codec.Malformed, match="signal"):
            codec.decode_instruction(message)


def test_a_watch_of_figures_is_no_instruction_and_to_an_older_agent_nothing() -> None:
    watch = FigureWatch(every_ms=1_000, for_ms=10_000)
    assert codec.decode_figure_watch(codec.encode_figure_watch(watch)) == watch
    assert codec.decode_instruction(codec.encode_figure_watch(watch)) is None
    with pytest.raises(codec.Malformed, match=r"figures.for_ms can't be -1"):
        codec.decode_figure_watch(pb.ControlMessage(figures=pb.FigureWatch(for_ms=-1)))


def test_an_answer_to_a_beat_is_not_an_instruction() -> None:
    answer = codec.encode_beat_answer(7, Epoch(3))
    assert codec.decode_instruction(answer) is None
    assert (answer.beat.sequence, answer.beat.epoch) == (7, 3)


def test_an_error_with_undecodable_bytes_still_reaches_people() -> None:
    """A file name of no encoding comes out of the operating system as lone surrogates."""
    end = TaskEnd(cause=EndCause.START_FAILED, at=Instant(1), error="no folder '/data/\udcff'")
    finished = TaskFinished(node=NodeName("n"), key=TaskKey(JobId(1), 1, 0), end=end)
    assert "no folder '/data/\\udcff'" in codec.decode_finished(codec.encode_finished(finished)).end.error


def test_every_field_of_every_noun_is_on_the_wire() -> None:
    """A field added to a noun and forgotten here would be dropped in silence: the strategies name them all."""
    drawn: dict[type[msgspec.Struct], int] = {
        Inventory: 27,
        GpuCondition: 6,
        Gpu: 9,
        GpuLink: 3,
        TaskStatus: 5,
        TaskInventory: 3,
        Started: 3,
        Beat: 7,
        GpuReading: 9,
        Start: 25,
        Stop: 5,
        StopNotice: 4,
        Warn: 5,
        Signal: 3,
        TaskEnd: 10,
        LogRequest: 5,
        LogChunk: 6,
    }
    assert {noun: len(msgspec.structs.fields(noun)) for noun in drawn} == drawn
