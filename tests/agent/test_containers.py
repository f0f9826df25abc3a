"""Rules I1 to I5 of `agent/containers.py` over a simulated engine, and A23 of the daemon, on virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest

from stoker.agent.container_ports import ContainerFault
from stoker.agent.containers import LOOK_AGAIN_S, LOOK_S, NodeContainers, device_requests
from stoker.agent.runner.protocol import ENGINE_FAULT
from stoker.agent.settings import DockerSettings, ExecutorSettings
from stoker.brain.domain.container import (
    BindMount,
    ContainerOptions,
    EngineFault,
    EngineInfo,
    ListedContainer,
    LocalImage,
    Network,
    PullStep,
)
from stoker.brain.domain.instruction import Start, TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.report import Beat
from stoker.brain.domain.units import Instant
from tests.agent.twin_runner import TwinRunner
from tests.agent.twins import Node, key, on_virtual_time, start, stop
from tests.rig.sim_ports import Notes, SimClock


class SimEngine:
    """An engine in a few lines: what it has, what a registry has, and how long each takes."""

    def __init__(self) -> None:
        self.fault = ""
        self.images = {"here:1": "amd64"}
        self.registry = {"far:1": "amd64", "arm:1": "arm64"}
        self.pull_s = 10.0
        self.pulls = 0
        self.containers: dict[str, dict[str, str]] = {}
        self.free = 100 << 30

    async def info(self) -> EngineInfo:
        if self.fault:
            raise EngineFault(self.fault)
        return EngineInfo(version="1", architecture="amd64", init=True, in_cgroup=True, root="/images")

    async def image(self, name: str) -> LocalImage | None:
        if self.fault:
            raise EngineFault(self.fault)
        return LocalImage(architecture=self.images[name], size=7) if name in self.images else None

    async def pull(self, image: str) -> AsyncGenerator[PullStep, None]:
        self.pulls += 1
        if image not in self.registry:
            raise EngineFault("manifest unknown", 500)
        for done in range(4):
            yield PullStep(done << 20, 4 << 20)
            await asyncio.sleep(self.pull_s / 4)
        self.images[image] = self.registry[image]

    async def remove_image(self, name: str) -> bool:
        return self.images.pop(name, None) is not None

    async def labelled(self, name: str, value: str) -> list[ListedContainer]:
        return [ListedContainer(id, labels) for id, labels in self.containers.items() if labels.get(name) == value]

    async def remove(self, container: str) -> None:
        del self.containers[container]

    async def free_bytes(self, folder: str) -> int:
        return self.free

    async def close(self) -> None:
        return None


def node_over(engine: SimEngine, folder: Path, **docker: object) -> NodeContainers:
    settings = DockerSettings(**docker)  # type: ignore[arg-type]  # a test names them
    executor = ExecutorSettings(kinds=("process", "container"), docker=settings)
    return NodeContainers(engine, executor, folder, SimClock(), Notes(SimClock(), "node"), owner="o")


def with_image(of: TaskKey, image: str, **options: object) -> Start:
    container = ContainerOptions(**options) if options else None  # type: ignore[arg-type]  # a test names them
    return msgspec.structs.replace(start(of), image=image, container=container)


def story(test: "Callable[[NodeContainers, SimEngine], object]") -> Callable[[], None]:
    """A story of one node over one engine."""

    async def told() -> None:
        engine = SimEngine()
        with TemporaryDirectory() as folder:
            node = node_over(engine, Path(folder))
            await node.look()
            await test(node, engine)  # type: ignore[misc]  # a coroutine
            await node.close()

    told.__name__, told.__doc__ = test.__name__, test.__doc__
    return on_virtual_time(told)


async def fault(node: NodeContainers, image: str) -> ContainerFault:
    with pytest.raises(ContainerFault) as caught:
        await node.prepare(with_image(key(1), image), lambda text: None)
    return caught.value


@story
async def test_an_image_of_another_architecture_is_refused_with_both(node: NodeContainers, engine: SimEngine) -> None:
    refused = await fault(node, "arm:1")
    assert refused.cause is EndCause.START_FAILED
    assert str(refused) == "image arm:1 is for arm64, and this node is amd64"


@story
async def test_what_is_here_is_not_pulled_and_what_is_not_is_pulled_once(
    node: NodeContainers, engine: SimEngine
) -> None:
    await node.prepare(with_image(key(1), "here:1"), lambda text: None)
    assert engine.pulls == 0
    await asyncio.gather(*(node.prepare(with_image(key(job), "far:1"), lambda text: None) for job in range(1, 9)))
    assert engine.pulls == 1


@story
async def test_a_pull_that_takes_too_long_or_stalls_is_the_nodes_fault(node: NodeContainers, engine: SimEngine) -> None:
    engine.pull_s = 1e6
    late = await fault(node, "far:1")
    assert (late.cause, "its registry stalls" in str(late)) == (EndCause.NEVER_STARTED, True)
    node._settings = DockerSettings(pull_timeout_s=60, pull_stall_s=3_000)
    engine.pull_s = 200.0
    late = await fault(node, "far:1")
    assert (late.cause, "took more than 60 s" in str(late)) == (EndCause.NEVER_STARTED, True)
    engine.free, engine.pull_s = 4 << 30, 1.0
    full = await fault(node, "far:1")
    assert (full.cause, "only 4.0 GiB are free" in str(full)) == (EndCause.NEVER_STARTED, True)


@story
async def test_an_engine_is_offered_no_longer_after_two_looks_without_an_answer_and_again_after_one_with(
    node: NodeContainers, engine: SimEngine
) -> None:
    changes: list[str] = []
    watching = asyncio.ensure_future(node.watch(lambda key: True, lambda: changes.append(node.fault)))
    await asyncio.sleep(1)
    engine.fault = "no answer"
    await asyncio.sleep(LOOK_S + 2 * LOOK_AGAIN_S)
    assert len(changes) == 1
    assert "doesn't answer: no answer" in changes[0]
    assert (await fault(node, "here:1")).cause is EndCause.NEVER_STARTED
    engine.fault = ""
    await asyncio.sleep(LOOK_AGAIN_S + 1)
    assert changes[1:] == [""]
    watching.cancel()
    await asyncio.wait({watching})


@story
async def test_i6_a_start_that_finds_no_engine_has_it_offered_no_longer_at_once_and_is_never_the_jobs_fault(
    node: NodeContainers, engine: SimEngine
) -> None:
    changes: list[str] = []
    watching = asyncio.ensure_future(node.watch(lambda key: True, lambda: changes.append(node.fault)))
    await asyncio.sleep(1)
    engine.fault = "connect: permission denied, or the socket was not found"
    assert (await fault(node, "here:1")).cause is EndCause.NEVER_STARTED
    await asyncio.sleep(0)
    await asyncio.sleep(0.1)
    assert len(changes) == 1
    engine.fault = ""
    await asyncio.sleep(LOOK_AGAIN_S + 1)
    assert changes[1:] == [""]
    engine.fault = "gone"
    lost = TaskEnd(cause=EndCause.NEVER_STARTED, at=Instant(1), error=f"{ENGINE_FAULT}nobody listens")
    for _ in range(3):
        node.ended(lost)
    await asyncio.sleep(0.1)
    assert "gone" in changes[-1]
    watching.cancel()
    await asyncio.wait({watching})


@story
async def test_containers_whose_tasks_are_not_open_are_removed_and_no_others(
    node: NodeContainers, engine: SimEngine
) -> None:
    def labels(of: str, owner: str = "o") -> dict[str, str]:
        return {"stoker.io/agent": owner, "stoker.io/key": of}

    engine.containers = {
        "open": labels("1.1.0"), "orphan": labels("2.1.0"), "copied": labels("what"), "foreign": labels("2.1.0", "p")
    }  # fmt: skip
    assert await node.sweep(lambda each: each == key(1)) == 1
    assert sorted(engine.containers) == ["copied", "foreign", "open"]


@story
async def test_what_a_job_says_of_its_container_reaches_the_runner_and_the_rest_is_the_nodes(
    node: NodeContainers, engine: SimEngine
) -> None:
    mount = BindMount("/data", "/in", True)
    asked = with_image(key(1), "here:1", mounts=(mount,), shm_mb=9, network=Network.NONE, entrypoint="")
    fields = await node.prepare(asked, lambda text: None)
    assert fields["mounts"] == [{"source": "/data", "target": "/in", "read_only": True}]
    assert (fields["shm_mb"], fields["network"], fields["entrypoint"]) == (9, "none", "")
    plain = await node.prepare(with_image(key(1), "here:1"), lambda text: None)
    assert (plain["shm_mb"], plain["network"], plain["entrypoint"]) == (1_024, "host", None)


def test_gpus_are_asked_for_by_uuid_as_the_node_is_set_up() -> None:
    assert device_requests(("GPU-1",), "cdi") == [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-1"]}]
    (asked,) = device_requests(("GPU-1", "GPU-2"), "nvidia")
    assert (asked["DeviceIDs"], asked["Capabilities"]) == (["GPU-1", "GPU-2"], [["gpu"]])
    assert device_requests(("GPU-1",), "environment") == device_requests((), "nvidia") == []


# --- the daemon -----------------------------------------------------------------------------------------------------


class SlowContainers:
    """A node whose images take for ever, until they are let in."""

    contained = True

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.cancelled = 0

    def serve(self, cluster_id: str) -> None:
        return None

    def ended(self, end: TaskEnd) -> None:
        return None

    def image_of(self, start: Start) -> str:
        return start.image

    async def prepare(self, start: Start, tell: Callable[[str], None]) -> Mapping[str, object]:
        tell("pulls image x")
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return {"image": start.image}


def preparing(node: Node) -> list[TaskKey]:
    beats = [each for each in node.control.session.reports if isinstance(each, Beat)]
    return [each.key for each in beats[-1].preparing] if beats else []


@on_virtual_time
async def test_a_start_waits_for_its_image_beside_everything_else_and_says_so() -> None:
    images = SlowContainers()
    async with Node(containers=images) as node:
        await node.connected()
        node.control.tell(with_image(key(1), "x"))
        await node.until(lambda: preparing(node) == [key(1)])
        node.control.tell(start(key(2)))
        await node.until(lambda: [task.start.key for task in node.runner.starts] == [key(2)])
        images.ready.set()
        await node.until(lambda: len(node.runner.starts) == 2)
        assert node.runner.starts[1].container == {"image": "x"}
        assert "PATH" not in node.runner.starts[1].env, "the image has its own"
        await node.until(lambda: preparing(node) == [])


@on_virtual_time
async def test_a_stop_while_the_image_is_pulled_ends_the_task_which_never_reaches_the_runner() -> None:
    images = SlowContainers()
    async with Node(containers=images) as node:
        await node.connected()
        node.control.tell(with_image(key(1), "x"))
        await node.until(lambda: preparing(node) == [key(1)])
        node.control.tell(stop(key(1)))
        await node.until(lambda: node.finished() == [(key(1), EndCause.STOPPED)])
        images.ready.set()
        await asyncio.sleep(60)
        assert (node.runner.starts, images.cancelled) == ([], 1)


@on_virtual_time
async def test_a_start_that_waits_for_its_image_goes_with_its_stream_and_is_in_no_inventory() -> None:
    """A23: the control plane that sent it may have been replaced, and the job be placed elsewhere."""
    images = SlowContainers()
    async with Node(containers=images) as node:
        await node.connected()
        node.control.tell(with_image(key(1), "x"))
        await node.until(lambda: preparing(node) == [key(1)])
        node.control.break_stream()
        await node.connected(streams=2)
        assert node.control.session.reports[0].tasks == ()  # type: ignore[union-attr]  # the inventory
        images.ready.set()
        await asyncio.sleep(60)
        assert node.runner.starts == []
        node.control.tell(with_image(key(1), "x"))
        await node.until(lambda: len(node.runner.starts) == 1)


@on_virtual_time
async def test_a_node_without_containers_never_starts_one_as_a_process() -> None:
    async with Node() as node:
        await node.connected()
        node.control.tell(with_image(key(1), "x"))
        await node.until(lambda: node.finished() == [(key(1), EndCause.NEVER_STARTED)])
        assert node.runner.starts == []


@on_virtual_time
async def test_a_runner_that_is_older_than_containers_is_given_none_and_the_node_says_so() -> None:
    """A runner outlives the agent that is upgraded: it would overlook the container, and run the command as it is."""
    images = SlowContainers()
    images.ready.set()
    runner = TwinRunner()
    runner.runs_containers = False
    async with Node(runner=runner, containers=images) as node:
        await node.until(lambda: any(each.inventory.containers_fault for each in node.control.registered))
        said = node.control.registered[-1].inventory
        assert (said.executors, "of an older version" in said.containers_fault) == (("process",), True)
        await node.connected(streams=len(node.control.sessions))
        node.control.tell(with_image(key(1), "x"))
        await node.until(lambda: node.finished() == [(key(1), EndCause.NEVER_STARTED)])
        assert node.runner.starts == []


@on_virtual_time
async def test_a_node_keeps_leases_only_if_its_containers_are_in_the_cgroups_of_their_tasks() -> None:
    for contained, cgroups in ((True, True), (False, True), (True, False)):
        images, runner = SlowContainers(), TwinRunner()
        images.contained, runner.keeps_leases, runner.cgroups = contained, True, cgroups
        async with Node(runner=runner, containers=images) as node:
            await node.connected()
            assert node.control.registered[-1].inventory.keeps_leases == (contained and cgroups)
