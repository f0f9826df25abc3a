"""Protobuf codec of the messages on an agent's stream.

Rules: C1  what was encoded decodes to the same value
       C2  decoding never yields half a value: a field that is missing or makes no sense raises Malformed
       C3  a kind of message that a newer neighbour invented decodes to None, and the reader skips it
       C4  text for people always goes through: bytes of no encoding are replaced, never refused
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, TypeVar, assert_never

import msgspec

from stoker.brain.domain.container import BindMount, ContainerOptions, Network
from stoker.brain.domain.gpu import WHOLE_GPU, Gpu, GpuLink
from stoker.brain.domain.gpu_telemetry import READING_FIELDS, FigureWatch, GpuReading
from stoker.brain.domain.health import GpuCondition, HealthKind, HealthState
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId, NodeName
from stoker.brain.domain.instruction import SIGNAL_MAX, Instruction, Signal, Start, Stop, StopNotice, TaskKey, Warn
from stoker.brain.domain.job import EndCause, StopCause, TaskEnd, TextEncoding
from stoker.brain.domain.node import NODE_NAME, Inventory
from stoker.brain.domain.preemption import TAKEN_BACK
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
from stoker.wire.gen import agent_pb2 as pb

_Word = TypeVar("_Word", bound=StrEnum)
_Noun = TypeVar("_Noun", bound=msgspec.Struct)
_TEXT_SHOWN_MAX = 80
KEPT_MAX = 100_000
"""Ten times what an agent keeps."""
READINGS_MAX = 1_024
"""GPUs of a node of which figures are taken; the rest are passed over."""
PREPARING_MAX = 1_000
"""Tasks of one beat that wait for something; of more only so many are told."""
LINKS_MAX = 4_096
"""Pairs of GPUs of a node; the rest are passed over."""
BUS_MAX = 40
"""Letters of a PCI address."""
FAULT_MAX = 400
"""Characters of a node's fault that are kept."""


class Malformed(ValueError):
    """A message of a neighbour that can't be understood. The text names the field and the value."""


# --- registration -----------------------------------------------------------------------------------------------


def encode_registration(registration: Registration) -> pb.RegisterRequest:
    return pb.RegisterRequest(node=registration.node, **_fields(registration.inventory))


def decode_registration(wire: pb.RegisterRequest) -> Registration:
    inventory = _decoded(
        Inventory,
        wire,
        "cpus",
        "memory_mb",
        gpus=tuple(_decode_gpu(gpu) for gpu in wire.gpus),
        links=tuple(_decode_link(link) for link in wire.links[:LINKS_MAX]),
        withheld=tuple(_decode_gpu(gpu) for gpu in wire.withheld[:READINGS_MAX]),
        labels=dict(wire.labels),
        executors=tuple(wire.executors),
        taints=tuple(wire.taints),
        fault=wire.fault[:FAULT_MAX],
        limits=wire.limits[:FAULT_MAX],
        gpu_fault=wire.gpu_fault[:FAULT_MAX],
        unenforced=wire.unenforced[:FAULT_MAX],
        conditions=tuple(_decode_condition(each) for each in wire.conditions[:READINGS_MAX]),
        containers_fault=wire.containers_fault[:FAULT_MAX],
    )
    return Registration(node=_node_name(wire.node), inventory=inventory)


def _decode_condition(wire: pb.GpuCondition) -> GpuCondition:
    state, kind = _word("state", HealthState, wire.state), _word("kind", HealthKind, wire.kind)
    uuid, reason = GpuUuid(_not_empty("conditions.uuid", wire.uuid)), wire.reason[:FAULT_MAX]
    return GpuCondition(uuid=uuid, index=wire.index, state=state, kind=kind, reason=reason, since=Instant(wire.since))


def _decode_gpu(wire: pb.Gpu) -> Gpu:
    numa_node = wire.numa_node if wire.HasField("numa_node") else -1
    uuid, bus = _not_empty("gpus.uuid", wire.uuid), wire.bus[:BUS_MAX]
    return _decoded(Gpu, wire, "index", "memory_mb", within="gpus.", uuid=uuid, numa_node=max(numa_node, -1), bus=bus)


def _decode_link(wire: pb.GpuLink) -> GpuLink:
    if not (0 <= wire.first < wire.second and wire.lanes > 0):
        raise Malformed(f"links can't join GPUs {wire.first} and {wire.second} by {wire.lanes}")
    return GpuLink(wire.first, wire.second, wire.lanes)


# --- reports: agent to control plane ----------------------------------------------------------------------------


def encode_report(report: Report) -> pb.AgentReport:
    match report:
        case TaskInventory():
            kept = [number for key in report.kept for number in (key.job, key.attempt, key.rank)]
            tasks = [pb.TaskStatus(**_fields(task)) for task in report.tasks]
            return pb.AgentReport(tasks=pb.TaskInventory(boot_id=report.boot_id, tasks=tasks, kept=kept))
        case Started():
            return pb.AgentReport(started=pb.Started(**_fields(report)))
        case Beat():
            return pb.AgentReport(beat=pb.Beat(**_fields(report)))
    assert_never(report)


def decode_report(wire: pb.AgentReport) -> Report | None:
    kind = wire.WhichOneof("report")
    if kind == "tasks":
        tasks = tuple(_decode_status(task) for task in wire.tasks.tasks)
        return TaskInventory(boot_id=wire.tasks.boot_id, tasks=tasks, kept=_decode_kept(wire.tasks.kept))
    if kind == "started":
        return _decoded(Started, wire.started, key=_decode_key(wire.started.key))
    if kind == "beat":
        ending = tuple(_decode_key(key) for key in wire.beat.ending)
        tasks_sum = wire.beat.tasks_sum if wire.beat.HasField("tasks_sum") else None
        gpus = tuple(_decode_reading(gpu) for gpu in wire.beat.gpus[:READINGS_MAX])
        preparing = tuple(
            Preparation(key=_decode_key(each.key), text=each.text[:FAULT_MAX])
            for each in wire.beat.preparing[:PREPARING_MAX]
        )
        beat = _decoded(Beat, wire.beat, "at", "gpus_age_ms", ending=ending, tasks_sum=tasks_sum, gpus=gpus)
        return msgspec.structs.replace(beat, preparing=preparing)
    return None  # C3


def _decode_reading(wire: pb.GpuReading) -> GpuReading:
    told: dict[str, int | None] = {
        name: getattr(wire, name) if wire.HasField(name) else None for name in READING_FIELDS
    }
    for name, number in told.items():
        if number is not None and number < 0:
            raise Malformed(f"gpus.{name} can't be {number}")
    return _decoded(GpuReading, wire, "quiet_ms", "clock_events", within="gpus.", uuid=GpuUuid(wire.uuid), **told)


def _decode_kept(wire: Iterable[int]) -> tuple[TaskKey, ...]:
    numbers = tuple(wire)
    if len(numbers) % 3 or len(numbers) > 3 * KEPT_MAX or min(numbers, default=0) < 0:
        raise Malformed(f"kept can't be {len(numbers)} numbers {numbers[:6]}...: three each, none below 0")
    keys = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    return tuple(TaskKey(JobId(job), attempt, rank) for job, attempt, rank in keys)


def _decode_status(wire: pb.TaskStatus) -> TaskStatus:
    phase = _word("phase", TaskPhase, wire.phase)
    gpus, share = _gpus(wire.gpus), _share(wire.gpu_share)
    return _decoded(TaskStatus, wire, key=_decode_key(wire.key), phase=phase, gpus=gpus, gpu_share=share)


# --- instructions: control plane to agent -----------------------------------------------------------------------


def encode_instruction(instruction: Instruction) -> pb.ControlMessage:
    fields = _fields(instruction)
    match instruction:
        case Start():
            command = fields.pop("command")
            fields["shell" if isinstance(command, str) else "argv"] = command
            return pb.ControlMessage(start=pb.Start(**fields))
        case Stop():
            if instruction.notice is not None and instruction.cause in TAKEN_BACK:
                fields["cause"] = StopCause.REQUEUED  # an agent of an older version would break off at another word
            return pb.ControlMessage(stop=pb.Stop(**fields))
        case Signal():
            return pb.ControlMessage(signal=pb.Signal(**fields))
        case Warn():
            return pb.ControlMessage(warn=pb.Warn(**fields))
    assert_never(instruction)


def encode_beat_answer(sequence: int, epoch: Epoch) -> pb.ControlMessage:
    return pb.ControlMessage(beat=pb.BeatAnswer(sequence=sequence, epoch=epoch))


def encode_figure_watch(watch: FigureWatch) -> pb.ControlMessage:
    return pb.ControlMessage(figures=pb.FigureWatch(**_fields(watch)))


def decode_figure_watch(wire: pb.ControlMessage) -> FigureWatch:
    return _decoded(FigureWatch, wire.figures, "every_ms", "for_ms", within="figures.")


def decode_instruction(wire: pb.ControlMessage) -> Instruction | None:
    """None for an answer to a beat and a watch (their reader looks at the kind itself) and for C3."""
    kind = wire.WhichOneof("message")
    if kind == "start":
        return _decode_start(wire.start)
    if kind == "stop":
        cause = _word("cause", StopCause, wire.stop.cause) if wire.stop.cause else None
        notice = _decode_notice(wire.stop.notice) if wire.stop.HasField("notice") else None
        cause = notice.cause if notice else cause
        return _decoded(Stop, wire.stop, "grace_ms", key=_decode_key(wire.stop.key), cause=cause, notice=notice)
    if kind == "signal":
        if not 1 <= wire.signal.signal <= SIGNAL_MAX:
            raise Malformed(f"signal can't be {wire.signal.signal}")
        return _decoded(Signal, wire.signal, key=_decode_key(wire.signal.key))
    if kind == "warn":
        key, notice = _decode_key(wire.warn.key), _decode_notice(wire.warn.notice)
        return _decoded(Warn, wire.warn, "grace_ms", "limit_ms", key=key, notice=notice)
    return None


def _decode_notice(wire: pb.StopNotice) -> StopNotice:
    if not 0 <= wire.signal <= SIGNAL_MAX:
        raise Malformed(f"signal can't be {wire.signal}")
    return _decoded(StopNotice, wire, "lead_ms", within="notice.", cause=_word("cause", StopCause, wire.cause))


def _decode_start(wire: pb.Start) -> Start:
    if bool(wire.shell) == bool(wire.argv) and (wire.shell or not wire.image):
        raise Malformed("a start must have either `shell` or `argv`, or an image alone")
    return _decoded(
        Start,
        wire,
        *("cpus", "memory_mb", "probe_port", "lease_ms", "gang_port_min", "gang_port_max"),
        key=_decode_key(wire.key),
        command=wire.shell or tuple(wire.argv),
        env=dict(wire.env),
        gpus=_gpus(wire.gpus),
        gpu_share=_share(wire.gpu_share),
        container=_decode_container(wire.container) if wire.HasField("container") else None,
        encoding=_word("encoding", TextEncoding, wire.encoding or TextEncoding.UTF_8),
    )


def _decode_container(wire: pb.Container) -> ContainerOptions:
    entrypoint = wire.entrypoint if wire.HasField("entrypoint") else None
    mounts = tuple(BindMount(each.source, each.target, each.read_only) for each in wire.mounts)
    network = _word("network", Network, wire.network)
    return _decoded(
        ContainerOptions, wire, "shm_mb", within="container.", mounts=mounts, network=network, entrypoint=entrypoint
    )


def _share(wire: int) -> int:
    """The share of each GPU; an older neighbour, which knows only whole ones, says nothing. Raises: Malformed."""
    if not 0 <= wire <= WHOLE_GPU:
        raise Malformed(f"gpu_share can't be {wire}: it is from 1 to {WHOLE_GPU}")
    return wire or WHOLE_GPU


# --- ends -------------------------------------------------------------------------------------------------------


def encode_finished(finished: TaskFinished) -> pb.TaskFinishedRequest:
    texts = {name: _for_people(getattr(finished.end, name)) for name in ("error", "node_fault", "gpu_fault")}
    end = pb.TaskEnd(**{**_fields(finished.end), **texts})
    return pb.TaskFinishedRequest(node=finished.node, key=pb.TaskKey(**_fields(finished.key)), end=end)


def decode_finished(wire: pb.TaskFinishedRequest) -> TaskFinished:
    node, key = _node_name(wire.node), _decode_key(wire.key)
    cause = _word("end.cause", EndCause, wire.end.cause)  # an end that is missing has none
    exit_code = wire.end.exit_code if wire.end.HasField("exit_code") else None
    end = _decoded(TaskEnd, wire.end, "peak_memory_mb", within="end.", cause=cause, exit_code=exit_code)
    return TaskFinished(node=node, key=key, end=end)


# --- logs -------------------------------------------------------------------------------------------------------


def encode_log_request(request: LogRequest) -> pb.LogRequest:
    return pb.LogRequest(**_fields(request))


def decode_log_request(wire: pb.LogRequest) -> LogRequest:
    return _decoded(LogRequest, wire, "limit", "wait_ms", key=_decode_key(wire.key))


def encode_log_chunk(chunk: LogChunk) -> pb.LogChunk:
    return pb.LogChunk(**{**_fields(chunk), "error": _for_people(chunk.error)})


def decode_log_chunk(wire: pb.LogChunk) -> LogChunk:
    return _decoded(LogChunk, wire, "offset", "size")


def encode_frame(frame: TunnelFrame) -> pb.TunnelFrame:
    match frame.what:
        case FrameKind.OPEN:
            assert frame.key is not None, f"no task: {frame}"
            opening = None if frame.opening is None else pb.SessionOpening(**_fields(frame.opening))
            key = pb.TaskKey(**_fields(frame.key))
            wire = pb.TunnelOpen(key=key, port=frame.port, kind=frame.kind, session=opening)
            return pb.TunnelFrame(tunnel=frame.tunnel, open=wire)
        case FrameKind.OPENED:
            return pb.TunnelFrame(tunnel=frame.tunnel, opened=True)
        case FrameKind.DATA:
            return pb.TunnelFrame(tunnel=frame.tunnel, data=frame.data)
        case FrameKind.CREDIT:
            return pb.TunnelFrame(tunnel=frame.tunnel, credit=frame.credit)
        case FrameKind.END:
            return pb.TunnelFrame(tunnel=frame.tunnel, end=True)
        case FrameKind.BROKEN:
            return pb.TunnelFrame(tunnel=frame.tunnel, broken=_for_people(frame.error))
        case _:
            assert_never(frame.what)


def decode_frame(wire: pb.TunnelFrame) -> TunnelFrame | None:
    """None = a frame of a kind that is not known here. Raises: Malformed."""
    what = wire.WhichOneof("what")
    if what is None:
        return None
    fields: dict[str, Any] = {"tunnel": wire.tunnel, "what": FrameKind(what)}
    if what == "open":
        fields |= {"key": _decode_key(wire.open.key), "port": wire.open.port, "kind": wire.open.kind}
        if wire.open.HasField("session"):
            fields["opening"] = _decoded(SessionOpening, wire.open.session, argv=tuple(wire.open.session.argv))
    elif what in ("data", "credit"):
        fields[what] = getattr(wire, what)
    elif what == "broken":
        fields["error"] = wire.broken
    return TunnelFrame(**fields)


# --- parts ------------------------------------------------------------------------------------------------------


def _fields(noun: msgspec.Struct) -> dict[str, Any]:
    """The fields of a message that has those of the noun, by the same names."""
    fields: dict[str, Any] = msgspec.to_builtins(noun, builtin_types=(bytes,))
    fields.pop("type", None)
    return fields


def _decoded(kind: type[_Noun], wire: object, *counts: str, within: str = "", **given: object) -> _Noun:
    """The noun with the fields that are `given`; all others are those of the message of the same names.

    Raises: Malformed where one of `counts` is negative; `within` says where the message stands.
    """
    for name in counts:
        if (number := getattr(wire, name)) < 0:
            raise Malformed(f"{within}{name} can't be {number}")
    return kind(**{name: getattr(wire, name) for name in kind.__struct_fields__ if name not in given}, **given)


def _decode_key(wire: pb.TaskKey) -> TaskKey:
    if wire.job < 1 or wire.attempt < 1 or wire.rank < 0:
        raise Malformed(f"no task is called job {wire.job}, attempt {wire.attempt}, rank {wire.rank}")
    return TaskKey(JobId(wire.job), wire.attempt, wire.rank)


def _gpus(uuids: Iterable[str]) -> tuple[GpuUuid, ...]:
    return tuple(GpuUuid(_not_empty("gpus", uuid)) for uuid in uuids)


def _word(field: str, words: Callable[[str], _Word], text: str) -> _Word:
    try:
        return words(text)
    except ValueError:
        raise Malformed(f"{field} can't be {text[:_TEXT_SHOWN_MAX]!r}") from None


def _not_empty(field: str, text: str) -> str:
    if not text:
        raise Malformed(f"{field} is empty")
    return text


def _node_name(text: str) -> NodeName:
    """Names stand in paths, tables and the log: an agent may not choose just any."""
    if not NODE_NAME.fullmatch(text):
        raise Malformed(f"node can't be {text[:_TEXT_SHOWN_MAX]!r}: 1 to 63 letters, digits, dots, dashes, underscores")
    return NodeName(text)


def _for_people(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
