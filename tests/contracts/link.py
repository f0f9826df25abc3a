"""What must every Link do? Each rule is a coroutine over a bench: a link, and a real control plane behind it.

The real gRPC link and the simulated one of the rig are held to the same rules, so that the simulator can't lie.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

import pytest

from stoker.agent.ports import BeatAnswered, Link, LinkDown, LinkRefused, LinkSession
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.gpu_telemetry import FigureWatch
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName, Principal
from stoker.brain.domain.instruction import Instruction, Signal, Start, Stop, TaskKey
from stoker.brain.domain.job import EndCause, JobSpec, TaskEnd
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.report import Beat, LogChunk, Registration, Started, TaskFinished, TaskInventory
from stoker.brain.domain.units import Instant
from stoker.brain.state.commands import Cancel, SignalJob, Submit
from stoker.brain.state.events.job import JobSubmitted
from stoker.control.control_ports import LogPlace
from stoker.live.control_plane import LiveControlPlane
from stoker.live.node_figures import WATCH

T = TypeVar("T")
NODE: Final = NodeName("node-1")
ALICE: Final = Principal("user:alice")
EMPTY: Final = TaskInventory(boot_id="boot-1", tasks=())
WAIT_S_MAX: Final = 20.0


class Bench(Protocol):
    """A link to a control plane that runs."""

    @property
    def link(self) -> Link: ...

    @property
    def control(self) -> LiveControlPlane: ...

    async def go_away(self) -> None:
        """The control plane's process ends; its address answers nobody."""
        ...


def registration(node: NodeName = NODE, gpus: Sequence[str] = ("GPU-1", "GPU-2")) -> Registration:
    devices = tuple(Gpu(uuid=GpuUuid(uuid), index=i, model="V100", memory_mb=16_384) for i, uuid in enumerate(gpus))
    inventory = Inventory(boot_id="boot-1", address="127.0.0.1", gpus=devices, cpus=8, memory_mb=32_768, agent_uid=node)
    return Registration(node=node, inventory=inventory)


async def submit(bench: Bench, *, gpus: int = 1) -> JobId:
    demand = Demand(gpu_count=gpus)
    spec = JobSpec(name="j", demand=demand, command=("true", "ü"), priority=500, time_limit_ms=60_000, env={"A": "ä\n"})
    events = await bench.control.committer.ask(Submit(by=ALICE, specs=(spec,)))
    (submitted,) = (event for event in events if isinstance(event, JobSubmitted))
    return submitted.job


async def opened(bench: Bench) -> LinkSession:
    session = await bench.link.connect(registration())
    await session.send(EMPTY)
    return session


async def first(of: AsyncIterator[T]) -> T:
    async with asyncio.timeout(WAIT_S_MAX):
        return await anext(aiter(of))


async def started(
    bench: Bench, session: LinkSession
) -> tuple[AsyncIterator[Instruction | BeatAnswered | FigureWatch], TaskKey]:
    """A job that runs as far as the control plane knows."""
    instructions = session.instructions()
    await submit(bench)
    start = await first(instructions)
    assert isinstance(start, Start)
    await session.send(Started(key=start.key, at=Instant(5), pid=77))
    return instructions, start.key


def finished(key: TaskKey, code: int = 0) -> TaskFinished:
    end = TaskEnd(cause=EndCause.EXITED, at=Instant(7), exit_code=code, peak_memory_mb=12, error="ß")
    return TaskFinished(node=NODE, key=key, end=end)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not true():
            await asyncio.sleep(0.005)


# --- rules ------------------------------------------------------------------------------------------------------


async def a_session_tells_the_epoch_and_the_heartbeat_of_its_control_plane(bench: Bench) -> None:
    session = await bench.link.connect(registration())
    assert session.epoch == bench.control.committer.state.epoch > 0
    assert session.heartbeat_s == bench.control.nodes.settings.agents.heartbeat_s
    await session.close()


async def a_start_arrives_whole_and_only_after_the_inventory(bench: Bench) -> None:
    session = await bench.link.connect(registration())
    instructions = session.instructions()
    job = await submit(bench)
    waiting = asyncio.ensure_future(anext(instructions))
    await asyncio.sleep(0.2)
    assert not waiting.done(), "a start came before the inventory"
    await session.send(EMPTY)
    async with asyncio.timeout(WAIT_S_MAX):
        start = await waiting
    assert isinstance(start, Start)
    assert start.key == TaskKey(job, 1, 0)
    assert (start.command, start.env["A"], start.epoch) == (("true", "ü"), "ä\n", session.epoch)
    assert start.gpus in ((GpuUuid("GPU-1"),), (GpuUuid("GPU-2"),))
    await session.close()


async def a_stop_is_pushed_without_waiting_for_a_heartbeat(bench: Bench) -> None:
    session = await opened(bench)
    instructions, key = await started(bench, session)
    await bench.control.committer.ask(Cancel(by=ALICE, target=JobRef(key.job)))
    stop = await first(instructions)
    assert isinstance(stop, Stop)
    assert stop.key == key
    await session.close()


async def a_signal_is_pushed_once_for_each_wish(bench: Bench) -> None:
    session = await opened(bench)
    instructions, key = await started(bench, session)
    await until(lambda: bench.control.committer.state.jobs[key.job].state is JobState.RUNNING)
    for number in (10, 12):
        await bench.control.committer.ask(SignalJob(by=ALICE, target=JobRef(key.job), signal=number))
    await bench.control.committer.ask(Cancel(by=ALICE, target=JobRef(key.job)))
    told = [await first(instructions) for _ in range(3)]
    assert told[:2] == [Signal(key=key, epoch=session.epoch, signal=number) for number in (10, 12)]
    assert isinstance(told[2], Stop)
    await session.close()


async def a_session_names_its_cluster(bench: Bench) -> None:
    session = await bench.link.connect(registration())
    assert session.cluster_id == bench.control.committer.state.cluster_id != ""
    await session.close()


async def beats_are_answered_under_the_epoch_in_order_and_a_later_answer_may_stand_for_an_earlier(bench: Bench) -> None:
    session = await opened(bench)
    messages = session.instructions()
    for sequence in (4, 5, 6):
        await session.send(Beat(sequence=sequence))
    heard = [await first(messages)]
    while heard[-1] != BeatAnswered(sequence=6, epoch=session.epoch):
        heard.append(await first(messages))
    assert heard == sorted(heard, key=lambda answer: answer.sequence if isinstance(answer, BeatAnswered) else 0)
    assert all(answer.epoch == session.epoch for answer in heard)
    await session.close()


async def a_watch_of_figures_is_pushed_without_waiting_for_a_heartbeat(bench: Bench) -> None:
    session = await opened(bench)
    instructions, _ = await started(bench, session)
    bench.control.sessions.watch_figures([NODE])
    assert await first(instructions) == WATCH
    await session.close()


async def what_is_sent_arrives_in_order(bench: Bench) -> None:
    """The start is confirmed before its task is said to be ending; the other way round it would be neither."""
    session = await opened(bench)
    _, key = await started(bench, session)
    await session.send(Beat(sequence=1, ending=(key,)))
    await until(lambda: bench.control.committer.state.jobs[key.job].state is JobState.STOPPING)
    assert bench.control.committer.state.jobs[key.job].attempts[0].all_started
    await session.close()


async def the_answer_to_an_end_means_that_it_is_durable(bench: Bench) -> None:
    session = await opened(bench)
    _, key = await started(bench, session)
    await session.finish(finished(key, code=3))
    committer = bench.control.committer
    job = committer.state.jobs[key.job]
    assert (job.state, job.exit_code) == (JobState.FAILED, 3)
    end = job.attempts[0].tasks[0].end
    assert end is not None
    assert (end.cause, end.exit_code, end.peak_memory_mb, end.error) == (EndCause.EXITED, 3, 12, "ß")
    assert committer.durable >= committer.state.position
    await session.close()


async def a_repeated_end_is_answered_like_the_first(bench: Bench) -> None:
    session = await opened(bench)
    _, key = await started(bench, session)
    for _ in range(3):
        await session.finish(finished(key))
    assert bench.control.committer.state.jobs[key.job].state is JobState.SUCCEEDED
    await session.close()


async def many_ends_may_be_under_way_at_once(bench: Bench) -> None:
    session = await opened(bench)
    instructions = session.instructions()
    keys = []
    for _ in range(8):
        await submit(bench, gpus=0)
        keys.append((await first(instructions)).key)
    await asyncio.gather(*(session.finish(finished(key)) for key in keys))
    assert {bench.control.committer.state.jobs[key.job].state for key in keys} == {JobState.SUCCEEDED}
    await session.close()


async def what_is_sent_together_arrives_whole_and_in_order(bench: Bench) -> None:
    session = await opened(bench)
    jobs = [await submit(bench, gpus=0) for _ in range(3)]
    instructions = session.instructions()
    keys = [(await first(instructions)).key for _ in jobs]
    assert [key.job for key in keys] == jobs
    said = (Started(key=key, at=Instant(5), pid=77) for key in keys)
    await session.send(*said, Beat(sequence=1, ending=(keys[2],)))
    state = bench.control.committer.state
    await until(lambda: state.jobs[jobs[2]].state is JobState.STOPPING)
    assert [state.jobs[job].state for job in jobs[:2]] == [JobState.RUNNING] * 2
    await session.finish(*(finished(key, code=code) for code, key in enumerate(keys)))
    assert [state.jobs[job].exit_code for job in jobs] == [0, 1, 2]
    assert bench.control.committer.durable >= state.position
    await session.close()


async def giving_up_on_an_end_leaves_the_stream_alone(bench: Bench) -> None:
    session = await opened(bench)
    _, key = await started(bench, session)
    given_up = asyncio.ensure_future(session.finish(finished(key)))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await session.finish(finished(key))
    assert bench.control.committer.state.jobs[key.job].state is JobState.SUCCEEDED
    await session.close()


async def a_refused_agent_learns_why(bench: Bench) -> None:
    session = await opened(bench)
    with pytest.raises(LinkRefused, match="node-1"):
        await bench.link.connect(registration(NodeName("thief"), ("GPU-1",)))
    await session.close()


async def a_stream_that_begins_without_inventory_is_ended(bench: Bench) -> None:
    session = await bench.link.connect(registration())
    instructions = session.instructions()
    await session.send(Beat(sequence=1))
    await broken(anext(instructions))
    await session.close()


async def the_newest_session_of_a_node_ends_the_older_one(bench: Bench) -> None:
    older = await opened(bench)
    instructions = older.instructions()
    newer = await opened(bench)
    await broken(anext(instructions))
    await older.close()
    _, key = await started(bench, newer)
    await newer.finish(finished(key))
    await newer.close()


async def when_the_control_plane_goes_every_wait_ends_and_every_call_says_so(bench: Bench) -> None:
    session = await opened(bench)
    instructions, key = await started(bench, session)
    waits = [asyncio.ensure_future(anext(instructions)), asyncio.ensure_future(anext(session.log_requests()))]
    await asyncio.sleep(0.05)
    await bench.go_away()
    for wait in waits:
        await broken(wait)
    await broken(session.finish(finished(key)))
    await broken(session.send(Beat(sequence=1)))
    await session.close()
    with pytest.raises(LinkDown):
        await bench.link.connect(registration())


async def after_close_every_call_says_that_it_is_down(bench: Bench) -> None:
    session = await opened(bench)
    _, key = await started(bench, session)
    await session.close()
    await broken(session.send(Beat(sequence=1)))
    await broken(session.finish(finished(key)))
    await broken(session.send_log(LogChunk(request=1, offset=0, data=b"", size=0, ended=True)))
    await broken(anext(session.instructions()))
    await session.close()


async def closing_while_an_end_is_under_way_is_no_cancellation_of_who_waits(bench: Bench) -> None:
    """A worker that took it for its own would die, and with it the delivery of every later end."""
    session = await opened(bench)
    _, key = await started(bench, session)
    under_way = asyncio.ensure_future(session.finish(finished(key)))
    await asyncio.sleep(0)
    await session.close()
    async with asyncio.timeout(WAIT_S_MAX):
        await asyncio.wait({under_way})
    assert not under_way.cancelled()
    assert under_way.exception() is None or isinstance(under_way.exception(), LinkDown)


async def output_is_read_through_the_stream_byte_for_byte(bench: Bench) -> None:
    session = await opened(bench)
    _, key = await started(bench, session)
    read = asyncio.ensure_future(bench.control.sessions.read_log(LogPlace(NODE, key), -100, 4_096))
    request = await first(session.log_requests())
    assert (request.key, request.offset, request.limit) == (key, -100, 4_096)
    output = bytes(range(256))
    await session.send_log(LogChunk(request=request.request, offset=9, data=output, size=265, ended=True))
    async with asyncio.timeout(WAIT_S_MAX):
        chunk = await read
    assert (chunk.offset, chunk.data, chunk.size, chunk.ended) == (9, output, 265, True)
    await session.close()


async def reads_that_wait_do_not_wait_for_each_other(bench: Bench) -> None:
    """The first is answered last."""
    session = await opened(bench)
    _, key = await started(bench, session)
    place, read = LogPlace(NODE, key), bench.control.sessions.read_log
    reads = [asyncio.ensure_future(read(place, offset, 4_096, 20_000)) for offset in (1, 2, 3)]
    requests = [await first(session.log_requests()) for _ in reads]
    assert [(request.offset, request.wait_ms) for request in requests] == [(1, 20_000), (2, 20_000), (3, 20_000)]
    for request, asked in reversed(list(zip(requests, reads, strict=True))):
        assert not asked.done()
        chunk = LogChunk(request=request.request, offset=request.offset, data=b"x", size=9, ended=False)
        await session.send_log(chunk)
        async with asyncio.timeout(WAIT_S_MAX):
            assert (await asked).offset == request.offset
    await session.close()


async def broken(call: Awaitable[object]) -> None:
    """It ends soon, with LinkDown (or, for a stream of messages, by ending)."""
    with pytest.raises((LinkDown, StopAsyncIteration)):
        async with asyncio.timeout(WAIT_S_MAX):
            await call


RULES: Final[tuple[Callable[[Bench], Awaitable[None]], ...]] = (
    a_session_tells_the_epoch_and_the_heartbeat_of_its_control_plane,
    a_start_arrives_whole_and_only_after_the_inventory,
    a_stop_is_pushed_without_waiting_for_a_heartbeat,
    a_signal_is_pushed_once_for_each_wish,
    a_watch_of_figures_is_pushed_without_waiting_for_a_heartbeat,
    a_session_names_its_cluster,
    beats_are_answered_under_the_epoch_in_order_and_a_later_answer_may_stand_for_an_earlier,
    what_is_sent_arrives_in_order,
    the_answer_to_an_end_means_that_it_is_durable,
    a_repeated_end_is_answered_like_the_first,
    many_ends_may_be_under_way_at_once,
    what_is_sent_together_arrives_whole_and_in_order,
    giving_up_on_an_end_leaves_the_stream_alone,
    a_refused_agent_learns_why,
    a_stream_that_begins_without_inventory_is_ended,
    the_newest_session_of_a_node_ends_the_older_one,
    when_the_control_plane_goes_every_wait_ends_and_every_call_says_so,
    after_close_every_call_says_that_it_is_down,
    closing_while_an_end_is_under_way_is_no_cancellation_of_who_waits,
    output_is_read_through_the_stream_byte_for_byte,
    reads_that_wait_do_not_wait_for_each_other,
)
