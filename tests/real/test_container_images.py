"""Images from a real registry: pulled with progress, once for many, within bounds of time and disk, and given up."""

import asyncio
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.container_engine import DockerEngine
from stoker.agent.container_ports import ContainerFault
from stoker.agent.containers import IMAGES_NAME, NodeContainers
from stoker.agent.settings import DockerSettings, ExecutorSettings
from stoker.brain.domain.ids import Epoch, JobId
from stoker.brain.domain.instruction import Start, TaskKey
from stoker.brain.domain.job import EndCause
from tests.real.agent_process import AgentProcess, job, submit, until, until_state
from tests.real.control_process import ControlProcess, free_port
from tests.real.docker_daemon import IMAGE, Daemon, docker_engine, needs_docker
from tests.rig.sim_ports import Notes, SimClock

pytestmark = [
    needs_docker,
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="NOT PROVED HERE: no docker-registry"),
]
LARGE_MB = 24


class Relay:
    """A relay before the registry, which may stop handing on what comes from it."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.open_bytes: int | None = None
        """Bytes that it still hands on; None = all."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._thread(self._accept)

    def stall_after(self, size: int | None) -> None:
        with self._lock:
            self.open_bytes = size

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def _thread(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.upstream))
                self._sockets += [client, server]
                self._thread(self._copy, client, server, False)
                self._thread(self._copy, server, client, True)

    def _copy(self, source: socket.socket, sink: socket.socket, bounded: bool) -> None:
        with suppress(OSError):
            while received := source.recv(65_536):
                while bounded and not self._may(len(received)):
                    time.sleep(0.02)
                    if source.fileno() < 0:
                        return
                sink.sendall(received)
            sink.shutdown(socket.SHUT_WR)

    def _may(self, size: int) -> bool:
        with self._lock:
            if self.open_bytes is None:
                return True
            if self.open_bytes <= 0:
                return False
            self.open_bytes -= size
            return True


class Registry:
    """A registry with a small image, a large one and one for another architecture, and a relay before it."""

    def __init__(self, docker: Daemon, folder: Path) -> None:
        self.docker = docker
        self._port = free_port()
        config = folder / "registry.yaml"
        config.write_text(
            f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder}/registry}}}}\n"
            f"http: {{addr: '127.0.0.1:{self._port}'}}\nlog: {{level: error}}\n"
        )
        with (folder / "registry.log").open("wb") as log:
            words = ["docker-registry", "serve", str(config)]
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        until(self._answers, "the registry answers")
        self.relay = Relay(self._port)
        self.small, self.large, self.other = (self._made(name) for name in ("small", "large", "other"))

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False

    def _made(self, name: str) -> str:
        """Make an image, push it, and remove it here; return its name by way of the relay."""
        base = f"FROM {IMAGE}\nLABEL name={name}\n"
        if name == "large":
            (self.docker.folder / "random").write_bytes(b"".join(random_block() for _ in range(LARGE_MB)))
            base += "COPY random /random\n"
        (self.docker.folder / "Dockerfile").write_text(base)
        direct, relayed = (f"127.0.0.1:{port}/{name}:1" for port in (self._port, self.relay.port))
        platform = ("--platform", "linux/arm64") if name == "other" else ()
        context = self.docker.folder / f"context-{name}"
        context.mkdir()
        for each in ("Dockerfile", "random"):
            if (self.docker.folder / each).exists() and (each == "Dockerfile" or name == "large"):
                shutil.copy(self.docker.folder / each, context)
        del platform
        self.docker.run("build", "-q", "--network=none", "-t", direct, str(context))
        self.docker.run("push", direct)
        self.docker.run("rmi", direct)
        return relayed

    def forget(self) -> None:
        """Remove what was pulled."""
        self.relay.stall_after(None)
        for name in (self.small, self.large, self.other):
            with suppress(AssertionError):
                self.docker.run("rmi", "-f", name)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self.relay.close()


def random_block() -> bytes:
    with open("/dev/urandom", "rb") as source:
        return source.read(1 << 20)


@pytest.fixture(scope="module")
def docker() -> Iterator[Daemon]:
    with docker_engine() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def made(docker: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    registry = Registry(docker, tmp_path_factory.mktemp("registry"))
    yield registry
    registry.close()


@pytest.fixture
def registry(made: Registry) -> Iterator[Registry]:
    yield made
    made.forget()


@asynccontextmanager
async def node(registry: Registry, folder: Path, **settings: object) -> AsyncIterator[NodeContainers]:
    docker = DockerSettings(socket=str(registry.docker.socket), disk_free_min_gb=0, **settings)  # type: ignore[arg-type]  # a test names them
    executor = ExecutorSettings(kinds=("process", "container"), docker=docker)
    notes = Notes(SimClock(), "node")
    containers = NodeContainers(DockerEngine(docker.socket), executor, folder, SystemClock(), notes, owner="o")
    await containers.look()
    assert containers.fault == ""
    try:
        yield containers
    finally:
        await containers.close()


def start(image: str, job_id: int = 1) -> Start:
    key = TaskKey(JobId(job_id), 1, 0)
    return Start(key=key, epoch=Epoch(1), command=(), env={}, workdir="", gpus=(), cpus=1, memory_mb=0, image=image)


async def fault_of(containers: NodeContainers, image: str) -> ContainerFault:
    with pytest.raises(ContainerFault) as caught:
        await containers.prepare(start(image), lambda text: None)
    return caught.value


async def test_an_image_is_pulled_once_for_all_who_wait_and_each_is_told_how_far_it_is(
    registry: Registry, tmp_path: Path
) -> None:
    said: list[list[str]] = [[], []]
    async with node(registry, tmp_path) as containers:
        both = [containers.prepare(start(registry.large, job), said[job].append) for job in range(2)]
        fields = await asyncio.gather(*both)
        assert [each["image"] for each in fields] == [registry.large] * 2
        assert said[0] == said[1]
        assert said[0][0] == f"pulls image {registry.large}"
        assert any(f"% of {LARGE_MB} MiB" in text for text in said[0]), said[0]
        assert len(containers._images) == 1
        again: list[str] = []
        await containers.prepare(start(registry.large), again.append)
        assert again == [], "it is here"


async def test_a_registry_that_stalls_ends_the_pull_with_that_reason_and_is_the_nodes_fault(
    registry: Registry, tmp_path: Path
) -> None:
    registry.relay.stall_after(4 << 20)
    async with node(registry, tmp_path, pull_stall_s=5) as containers:
        fault = await fault_of(containers, registry.large)
        assert fault.cause is EndCause.NEVER_STARTED
        assert "made no progress for 5 s: its registry stalls" in str(fault)
        registry.relay.stall_after(None)
        await containers.prepare(start(registry.large), lambda text: None)


async def test_an_image_that_does_not_exist_is_the_jobs_fault_with_the_registrys_words(
    registry: Registry, tmp_path: Path
) -> None:
    async with node(registry, tmp_path) as containers:
        fault = await fault_of(containers, registry.small.replace("small", "none"))
        assert fault.cause is EndCause.START_FAILED
        assert "can't be pulled" in str(fault)
        nobody = await fault_of(containers, f"127.0.0.1:{free_port()}/x:1")
        assert nobody.cause is EndCause.NEVER_STARTED, "a registry that isn't there may be back"


async def test_a_cancelled_start_gives_the_pull_up_unless_another_waits_for_it(
    registry: Registry, tmp_path: Path
) -> None:
    registry.relay.stall_after(4 << 20)
    async with node(registry, tmp_path) as containers:
        told = asyncio.Event()
        one, two = (
            asyncio.ensure_future(containers.prepare(start(registry.large, number), lambda text: told.set()))
            for number in (1, 2)
        )
        await told.wait()
        one.cancel()
        await asyncio.wait({one})
        registry.relay.stall_after(None)
        assert (await two)["image"] == registry.large
        registry.forget()
        registry.relay.stall_after(1 << 20)
        alone = asyncio.ensure_future(containers.prepare(start(registry.large), lambda text: None))
        await asyncio.sleep(0)
        while not containers._pulls:
            await asyncio.sleep(0.01)
        alone.cancel()
        await asyncio.wait({alone})
        assert containers._pulls == {}


async def test_a_disk_with_too_little_room_ends_the_pull(registry: Registry, tmp_path: Path) -> None:
    free_gb = shutil.disk_usage(registry.docker.folder).free >> 30
    async with node(registry, tmp_path) as containers:
        docker = DockerSettings(socket=str(registry.docker.socket), disk_free_min_gb=free_gb + 10)
        containers._settings = docker
        fault = await fault_of(containers, registry.large)
        assert fault.cause is EndCause.NEVER_STARTED
        assert "must stay (executor.docker.disk_free_min_gb)" in str(fault)


async def test_of_what_was_pulled_the_images_that_no_job_has_used_for_the_longest_time_go(
    registry: Registry, tmp_path: Path
) -> None:
    async with node(registry, tmp_path, images_max_gb=1) as containers:
        await containers.prepare(start(registry.large), lambda text: None)
        assert registry.large.encode() in (tmp_path / IMAGES_NAME).read_bytes()
        containers._images[registry.large].size = 2 << 30
        await containers.prepare(start(registry.small), lambda text: None)
        assert registry.docker.run("images", "-q", registry.large) == ""
        assert registry.docker.run("images", "-q", IMAGE) != "", "what others brought stays"
    async with node(registry, tmp_path) as again:
        assert list(again._images) == [registry.small], "the next agent knows them"


def test_who_waits_for_a_pull_is_told_how_far_it_is_and_a_cancel_ends_it(registry: Registry, tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "control") as control:
        agent = AgentProcess(tmp_path / "node-1", control)
        agent.add(f"executor: {{kinds: [process, container], docker: {{socket: {registry.docker.socket}}}}}")
        with agent:
            until(lambda: control.ask("GET", "/api/v1/nodes")[1]["nodes"], "the node is there")
            registry.relay.stall_after(8 << 20)
            one = submit(control, ["true"], image=registry.large)

            def reason() -> dict[str, Any]:
                return dict(control.ask("GET", f"/api/v1/jobs/{one}/why")[1])

            until(lambda: "%" in reason().get("message", ""), "it is told")
            assert reason()["code"] == "preparing"
            assert reason()["message"].startswith(f"its node node-1 pulls image {registry.large}, ")
            assert job(control, one)["state"] == "starting"
            agent.kill()
            agent.start()
            until(lambda: agent.output().count("agent_registered") >= 2, "the next agent is there")
            until(lambda: reason().get("code") == "preparing", "it pulls too")
            assert control.ask("DELETE", f"/api/v1/jobs/{one}")[0] == 200
            ended = until_state(control, one, "cancelled")
            assert len(ended["attempts"]) == 1
            registry.relay.stall_after(None)
            two = submit(control, ["true"], image=registry.large)
            assert until_state(control, two, "succeeded", "failed")["state"] == "succeeded"
