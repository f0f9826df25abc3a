"""Protobuf codec of the messages on an agent's stream.

Rules: C1  what was encoded decodes to the same value
       C2  decoding never yields half a value: a field that is missing or makes no sense raises Malformed
       C3  a kind of message that a newer neighbour invented decodes to None, and the reader skips it
       C4  text for people always goes through: bytes of no encoding are replaced, never refused
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TypeVar, assert_never

from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId, NodeName
from stoker.brain.domain.instruction import SIGNAL_MAX, Instruction, Signal, Start, Stop, TaskKey
from stoker.brain.domain.job import CommandLine, EndCause, StopCause, TaskEnd
from stoker.brain.domain.node import NODE_NAME, Inventory
from stoker.brain.domain.report import (
    Beat,
    LogChunk,
    LogRequest,
    Registration,
    Report,
    Started,
    TaskFinished,
    TaskInventory,
    TaskPhase,
    TaskStatus,
)
from stoker.brain.domain.units import Instant
from stoker.wire.gen import agent_pb2 as pb

_Word = TypeVar("_Word", bound=StrEnum)
_TEXT_SHOWN_MAX = 80
KEPT_MAX = 100_000
"""Ten times what an agent keeps."""


class Malformed(ValueError):
    """A message of a neighbour that can't be understood. The text names the field and the value."""


# --- registration -----------------------------------------------------------------------------------------------


def encode_registration(registration: Registration) -> pb.RegisterRequest:
    inventory = registration.inventory
    return pb.RegisterRequest(
        node=registration.node,
        boot_id=inventory.boot_id,
        address=inventory.address,
        gpus=[_encode_gpu(gpu) for gpu in inventory.gpus],
        cpus=inventory.cpus,
        memory_mb=inventory.memory_mb,
        labels=inventory.labels,
        executors=inventory.executors,
        simulated=inventory.simulated,
        version=inventory.version,
        agent_uid=inventory.agent_uid,
        taints=inventory.taints,
        account=inventory.account,
        allow_root=inventory.allow_root,
        keeps_leases=inventory.keeps_leases,
    )


def decode_registration(wire: pb.RegisterRequest) -> Registration:
    inventory = Inventory(
        boot_id=wire.boot_id,
        address=wire.address,
        gpus=tuple(_decode_gpu(gpu) for gpu in wire.gpus),
        cpus=_not_negative("cpus", wire.cpus),
        memory_mb=_not_negative("memory_mb", wire.memory_mb),
        labels=dict(wire.labels),
        executors=tuple(wire.executors),
        simulated=wire.simulated,
        version=wire.version,
        agent_uid=wire.agent_uid,
        taints=tuple(wire.taints),
        account=wire.account,
        allow_root=wire.allow_root,
        keeps_leases=wire.keeps_leases,
    )
    return Registration(node=_node_name(wire.node), inventory=inventory)


def _encode_gpu(gpu: Gpu) -> pb.Gpu:
    return pb.Gpu(uuid=gpu.uuid, index=gpu.index, model=gpu.model, memory_mb=gpu.memory_mb, simulated=gpu.simulated)


def _decode_gpu(wire: pb.Gpu) -> Gpu:
    return Gpu(
        uuid=GpuUuid(_not_empty("gpus.uuid", wire.uuid)),
        index=_not_negative("gpus.index", wire.index),
        model=wire.model,
        memory_mb=_not_negative("gpus.memory_mb", wire.memory_mb),
        simulated=wire.simulated,
    )


# --- reports: agent to control plane ----------------------------------------------------------------------------


def encode_report(report: Report) -> pb.AgentReport:
    match report:
        case TaskInventory():
            kept = [number for key in report.kept for number in (key.job, key.attempt, key.rank)]
            tasks = [_encode_status(task) for task in report.tasks]
            return pb.AgentReport(tasks=pb.TaskInventory(boot_id=report.boot_id, tasks=tasks, kept=kept))
        case Started():
            return pb.AgentReport(started=pb.Started(key=_encode_key(report.key), at=report.at, pid=report.pid))
        case Beat():
            ending = [_encode_key(key) for key in report.ending]
            return pb.AgentReport(beat=pb.Beat(sequence=report.sequence, ending=ending, tasks_sum=report.tasks_sum))
    assert_never(report)


def decode_report(wire: pb.AgentReport) -> Report | None:
    kind = wire.WhichOneof("report")
    if kind == "tasks":
        tasks = tuple(_decode_status(task) for task in wire.tasks.tasks)
        return TaskInventory(boot_id=wire.tasks.boot_id, tasks=tasks, kept=_decode_kept(wire.tasks.kept))
    if kind == "started":
        started = wire.started
        return Started(key=_decode_key(started.key), at=Instant(started.at), pid=started.pid)
    if kind == "beat":
        ending = tuple(_decode_key(key) for key in wire.beat.ending)
        tasks_sum = wire.beat.tasks_sum if wire.beat.HasField("tasks_sum") else None
        return Beat(sequence=wire.beat.sequence, ending=ending, tasks_sum=tasks_sum)
    return None  # C3


def _decode_kept(wire: Iterable[int]) -> tuple[TaskKey, ...]:
    numbers = tuple(wire)
    if len(numbers) % 3 or len(numbers) > 3 * KEPT_MAX or min(numbers, default=0) < 0:
        raise Malformed(f"kept can't be {len(numbers)} numbers {numbers[:6]}...: three each, none below 0")
    keys = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    return tuple(TaskKey(JobId(job), attempt, rank) for job, attempt, rank in keys)


def _encode_status(status: TaskStatus) -> pb.TaskStatus:
    return pb.TaskStatus(
        key=_encode_key(status.key), phase=status.phase.value, gpus=status.gpus, started_at=status.started_at
    )


def _decode_status(wire: pb.TaskStatus) -> TaskStatus:
    return TaskStatus(
        key=_decode_key(wire.key),
        phase=_word("phase", TaskPhase, wire.phase),
        gpus=_gpus(wire.gpus),
        started_at=Instant(wire.started_at),
    )


# --- instructions: control plane to agent -----------------------------------------------------------------------


def encode_instruction(instruction: Instruction) -> pb.ControlMessage:
    match instruction:
        case Start():
            return pb.ControlMessage(start=_encode_start(instruction))
        case Stop():
            return pb.ControlMessage(
                stop=pb.Stop(
                    key=_encode_key(instruction.key),
                    epoch=instruction.epoch,
                    grace_ms=instruction.grace_ms,
                    cause=instruction.cause.value if instruction.cause else "",
                )
            )
        case Signal():
            key = _encode_key(instruction.key)
            return pb.ControlMessage(signal=pb.Signal(key=key, epoch=instruction.epoch, signal=instruction.signal))
    assert_never(instruction)


def encode_beat_answer(sequence: int, epoch: Epoch) -> pb.ControlMessage:
    return pb.ControlMessage(beat=pb.BeatAnswer(sequence=sequence, epoch=epoch))


def decode_instruction(wire: pb.ControlMessage) -> Instruction | None:
    """None for an answer to a beat (the reader looks at `wire.beat` itself) and for C3."""
    kind = wire.WhichOneof("message")
    if kind == "start":
        return _decode_start(wire.start)
    if kind == "stop":
        stop = wire.stop
        return Stop(
            key=_decode_key(stop.key),
            epoch=Epoch(stop.epoch),
            grace_ms=_not_negative("grace_ms", stop.grace_ms),
            cause=_word("cause", StopCause, stop.cause) if stop.cause else None,
        )
    if kind == "signal":
        return _decode_signal(wire.signal)
    return None


def _decode_signal(wire: pb.Signal) -> Signal:
    if not 1 <= wire.signal <= SIGNAL_MAX:
        raise Malformed(f"signal can't be {wire.signal}")
    return Signal(key=_decode_key(wire.key), epoch=Epoch(wire.epoch), signal=wire.signal)


def _encode_start(start: Start) -> pb.Start:
    wire = pb.Start(
        key=_encode_key(start.key),
        epoch=start.epoch,
        env=start.env,
        workdir=start.workdir,
        gpus=start.gpus,
        cpus=start.cpus,
        memory_mb=start.memory_mb,
        user=start.user,
        probe_port=start.probe_port,
        output=start.output,
        error=start.error,
        append=start.append,
        lease_ms=start.lease_ms,
    )
    if isinstance(start.command, str):
        wire.shell = start.command
    else:
        wire.argv.extend(start.command)
    return wire


def _decode_start(wire: pb.Start) -> Start:
    return Start(
        key=_decode_key(wire.key),
        epoch=Epoch(wire.epoch),
        command=_command(wire),
        env=dict(wire.env),
        workdir=wire.workdir,
        gpus=_gpus(wire.gpus),
        cpus=_not_negative("cpus", wire.cpus),
        memory_mb=_not_negative("memory_mb", wire.memory_mb),
        user=wire.user,
        probe_port=_not_negative("probe_port", wire.probe_port),
        output=wire.output,
        error=wire.error,
        append=wire.append,
        lease_ms=_not_negative("lease_ms", wire.lease_ms),
    )


def _command(wire: pb.Start) -> CommandLine:
    if bool(wire.shell) == bool(wire.argv):
        raise Malformed("a start must have either `shell` or `argv`")
    return wire.shell or tuple(wire.argv)


# --- ends -------------------------------------------------------------------------------------------------------


def encode_finished(finished: TaskFinished) -> pb.TaskFinishedRequest:
    end = finished.end
    wire = pb.TaskEnd(
        cause=end.cause.value,
        at=end.at,
        signal=end.signal,
        oom=end.oom,
        peak_memory_mb=end.peak_memory_mb,
        error=_for_people(end.error),
    )
    if end.exit_code is not None:
        wire.exit_code = end.exit_code
    return pb.TaskFinishedRequest(node=finished.node, key=_encode_key(finished.key), end=wire)


def decode_finished(wire: pb.TaskFinishedRequest) -> TaskFinished:
    end = wire.end  # a missing one has no cause, which is refused below
    return TaskFinished(
        node=_node_name(wire.node),
        key=_decode_key(wire.key),
        end=TaskEnd(
            cause=_word("end.cause", EndCause, end.cause),
            at=Instant(end.at),
            exit_code=end.exit_code if end.HasField("exit_code") else None,
            signal=end.signal,
            oom=end.oom,
            peak_memory_mb=_not_negative("end.peak_memory_mb", end.peak_memory_mb),
            error=end.error,
        ),
    )


# --- logs -------------------------------------------------------------------------------------------------------


def encode_log_request(request: LogRequest) -> pb.LogRequest:
    return pb.LogRequest(
        request=request.request,
        key=_encode_key(request.key),
        offset=request.offset,
        limit=request.limit,
        wait_ms=request.wait_ms,
    )


def decode_log_request(wire: pb.LogRequest) -> LogRequest:
    return LogRequest(
        request=wire.request,
        key=_decode_key(wire.key),
        offset=wire.offset,
        limit=_not_negative("limit", wire.limit),
        wait_ms=_not_negative("wait_ms", wire.wait_ms),
    )


def encode_log_chunk(chunk: LogChunk) -> pb.LogChunk:
    return pb.LogChunk(
        request=chunk.request,
        offset=chunk.offset,
        data=chunk.data,
        size=chunk.size,
        ended=chunk.ended,
        error=_for_people(chunk.error),
    )


def decode_log_chunk(wire: pb.LogChunk) -> LogChunk:
    return LogChunk(
        request=wire.request,
        offset=_not_negative("offset", wire.offset),
        data=wire.data,
        size=_not_negative("size", wire.size),
        ended=wire.ended,
        error=wire.error,
    )


# --- parts ------------------------------------------------------------------------------------------------------


def _encode_key(key: TaskKey) -> pb.TaskKey:
    return pb.TaskKey(job=key.job, attempt=key.attempt, rank=key.rank)


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


def _not_negative(field: str, number: int) -> int:
    if number < 0:
        raise Malformed(f"{field} can't be {number}")
    return number


def _for_people(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
