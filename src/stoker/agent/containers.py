"""Containers of a node, as its agent looks after them: the engine that must answer, images, and orphan containers.

The runner's client makes and starts containers. What needs patience is done here, before the runner gets the task.

Rules: I1  a node says that it runs containers only while its engine answers, and else why not
       I2  an image that is asked for by many is pulled once, and no longer than somebody waits for it
       I3  a pull without progress, one that takes too long, and one for which the disk is too small end; those are
           faults of the node. An image that doesn't exist, or is of another architecture, is the job's
       I4  what the agent has pulled is bounded: the images that no job has used for the longest time go
       I5  a container of this agent whose task isn't open here is removed, when the agent starts and then every minute
       I6  a start that finds no engine has it looked at, at once: the next one isn't sent here. It is never the job's
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

import msgspec

from stoker.agent.container_ports import ContainerEngine, ContainerFault
from stoker.agent.runner.container.names import KEY_LABEL, OWNER_LABEL
from stoker.agent.runner.files import replace_file
from stoker.agent.runner.protocol import ENGINE_FAULT, BadFrame, parse_key
from stoker.agent.settings import ExecutorSettings
from stoker.brain.domain.container import PLAIN, EngineFault, EngineInfo, PullStep
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.instruction import Start, TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.ports import Clock, Telemetry

IMAGES_NAME: Final = "images.json"
LOOK_S: Final = 10.0
SWEEP_S: Final = 60.0
LOOK_AGAIN_S: Final = 5.0
"""Between two looks at an engine that doesn't answer."""
LOOKS_MAX: Final = 2
"""Looks in a row without an answer after which containers are offered no longer."""
IMAGES_MAX: Final = 10_000
_GIB: Final = 1 << 30
_JOBS_FAULT: Final = (
    "not found", "manifest unknown", "does not exist", "no matching manifest", "denied", "unauthorized",
    "invalid reference",
)  # fmt: skip
"""Words by which registries and engines say that there is no such image, or none for this job."""


class PulledImage(msgspec.Struct):
    """An image that this agent has pulled."""

    size: int
    used_at: int


class _Pull:
    """A pull on its way, with those who wait for it."""

    def __init__(self) -> None:
        self.text = ""
        self.tells: list[Callable[[str], None]] = []
        self.task: asyncio.Task[None] | None = None

    def say(self, text: str) -> None:
        if text != self.text:
            self.text = text
            for tell in tuple(self.tells):
                tell(text)


class NodeContainers:
    """The Containers port on a real node, over an engine."""

    def __init__(
        self,
        engine: ContainerEngine,
        executor: ExecutorSettings,
        data_dir: Path,
        clock: Clock,
        telemetry: Telemetry,
        *,
        owner: str,
    ) -> None:
        """`owner` is in the labels of this agent's containers."""
        self._engine = engine
        self._executor = executor
        self._settings = executor.docker
        self._data_dir = data_dir
        self._owner = owner
        self._clock = clock
        self._telemetry = telemetry
        self._cluster = ""
        self._pulls: dict[str, _Pull] = {}
        self._missed = 0
        self._doubted = asyncio.Event()
        self._info: EngineInfo | None = None
        self.fault = "its container engine hasn't been looked at yet"
        """Why nothing can be run in a container; empty = it can (I1)."""
        self.simulated = False
        """Whether the GPUs here are."""
        self._images = self._read_images()

    def serve(self, cluster_id: str) -> None:
        """Give containers the label of this cluster from now on."""
        self._cluster = cluster_id

    async def close(self) -> None:
        """End every pull, and close the connections."""
        pulls = [pull.task for pull in self._pulls.values() if pull.task is not None]
        for task in pulls:
            task.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
        await self._engine.close()

    # --- the engine ---------------------------------------------------------------------------------------------

    @property
    def contained(self) -> bool:
        """Whether the engine puts a container into the cgroup of its task, where there is one."""
        return self._info is not None and self._info.in_cgroup

    async def look(self) -> None:
        """Ask the engine how it is, and note what is known now (I1)."""
        try:
            self._info, self._missed, fault = await self._engine.info(), 0, ""
        except EngineFault as error:
            self._missed += 1
            if self._missed < LOOKS_MAX and not self.fault:
                return
            fault = f"its container engine at {self._settings.socket} doesn't answer: {str(error)[:300]}"
        if fault != self.fault:
            if fault or self._info is None:
                self._telemetry.warn("container_engine_faulty", error=fault)
            else:
                self._telemetry.event("container_engine_found", version=self._info.version)
        self.fault = fault

    def ended(self, end: TaskEnd) -> None:
        """Hear of the end of a task, which may say that the engine was gone (I6)."""
        if end.error.startswith(ENGINE_FAULT):
            self._doubt()

    def _doubt(self) -> None:
        """Look at the engine at once, since a start or a container found it gone."""
        self._missed += 1
        self._doubted.set()

    async def watch(self, may_run: Callable[[TaskKey], bool], changed: Callable[[], None]) -> None:
        """Look at the engine again and again, and remove orphan containers (I5), for ever."""
        swept_at = self._clock.mono() - SWEEP_S
        while True:
            before = (self.fault, self._info)
            await self.look()
            if (self.fault, self._info) != before:
                changed()
            if not self.fault and self._clock.mono() >= swept_at + SWEEP_S:
                swept_at = self._clock.mono()
                try:
                    await self.sweep(may_run)
                except EngineFault as error:
                    self._telemetry.warn("container_sweep_failed", error=str(error))
            await self._pause(LOOK_AGAIN_S if self.fault or self._missed else LOOK_S)

    async def _pause(self, seconds: float) -> None:
        """Wait for some time, or until the engine is doubted."""
        waits = [asyncio.ensure_future(each) for each in (self._clock.sleep(seconds), self._doubted.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        self._doubted.clear()

    async def sweep(self, may_run: Callable[[TaskKey], bool]) -> int:
        """Remove the containers of this agent whose tasks aren't open (I5), and return how many there were.

        A task is open before its container is made: what is listed first, and not open then, has no task any more.
        Raises: EngineFault.
        """
        removed = 0
        for each in await self._engine.labelled(OWNER_LABEL, self._owner):
            try:
                job, attempt, rank = parse_key(each.labels.get(KEY_LABEL, ""))
            except BadFrame:
                continue  # somebody has copied our label
            if not may_run(TaskKey(JobId(job), attempt, rank)):
                await self._engine.remove(each.id)
                self._telemetry.warn("orphan_container_removed", task_id=str(job), container=each.id[:12])
                removed += 1
        return removed

    # --- a start ------------------------------------------------------------------------------------------------

    def image_of(self, start: Start) -> str:
        """Return the image of the container that a start runs in; empty = it runs as a process."""
        return start.image or self._executor.default_image

    async def prepare(self, start: Start, tell: Callable[[str], None]) -> Mapping[str, object]:
        """Have the image of a start here, and return the container that the runner is to run. Raises: ContainerFault.

        `tell` is told, in words, how far that is.
        """
        image, policy = self.image_of(start), self._settings.pull
        try:
            if self.fault:
                await self.look()
            if self.fault or self._info is None:
                raise ContainerFault(self.fault, EndCause.NEVER_STARTED)
            if policy == "always" or await self._lacks(image, self._info):
                if policy == "never":
                    words = f"image {image[:200]} isn't on this node, which pulls none (executor.docker.pull)"
                    raise ContainerFault(words, EndCause.START_FAILED)
                await self._pulled(image, tell)
                if await self._lacks(image, self._info):
                    raise ContainerFault(f"image {image[:200]} isn't here after its pull", EndCause.NEVER_STARTED)
        except EngineFault as error:
            if not error.status:
                self._doubt()
            raise _container_fault("the container engine of this node:", error) from error
        known = self._images.get(image)
        if known is not None:
            known.used_at = self._clock.now()
        return self._fields(start, image, self._info)

    def _fields(self, start: Start, image: str, info: EngineInfo) -> dict[str, object]:
        options, settings = start.container or PLAIN, self._settings
        return {
            "socket": settings.socket,
            "owner": self._owner,
            "cluster": self._cluster,
            "epoch": start.epoch,
            "image": image,
            "entrypoint": options.entrypoint,
            "mounts": [msgspec.structs.asdict(each) for each in options.mounts],
            "allowed": list(settings.mounts_allowed),
            "hidden": [settings.socket, str(self._data_dir)],
            "shm_mb": options.shm_mb or settings.shm_mb,
            "network": options.network.value,
            "cpus": start.cpus,
            "devices": [] if self.simulated else device_requests(start.gpus, settings.gpus),
            "init": info.init,
            "in_cgroup": info.in_cgroup,
        }

    async def _lacks(self, image: str, info: EngineInfo) -> bool:
        """Return whether an image isn't here. Raises: EngineFault, ContainerFault for another architecture (I3)."""
        found = await self._engine.image(image)
        if found is None:
            return True
        if found.architecture and found.architecture != info.architecture:
            words = f"image {image[:200]} is for {found.architecture}, and this node is {info.architecture}"
            raise ContainerFault(words, EndCause.START_FAILED)
        return False

    # --- images -------------------------------------------------------------------------------------------------

    async def _pulled(self, image: str, tell: Callable[[str], None]) -> None:
        """Wait for the one pull of an image (I2). Raises: ContainerFault, EngineFault."""
        pull = self._pulls.get(image)
        if pull is None:
            pull = self._pulls[image] = _Pull()
            pull.say(f"pulls image {image[:200]}")
            pull.task = asyncio.create_task(self._pull(image, pull), name=f"pull {image[:80]}")
        assert pull.task is not None, "a pull without a task"
        pull.tells.append(tell)
        tell(pull.text)
        try:
            await asyncio.wait({pull.task})
            if pull.task.cancelled():
                raise ContainerFault(f"the pull of {image[:200]} was given up", EndCause.NEVER_STARTED)
            pull.task.result()
        finally:
            pull.tells.remove(tell)
            if not pull.tells and self._pulls.get(image) is pull:
                del self._pulls[image]
                pull.task.cancel()

    async def _pull(self, image: str, pull: _Pull) -> None:
        """Raises: ContainerFault, EngineFault."""
        short, began = image[:200], self._clock.mono()
        await self._make_room()
        try:
            async with asyncio.timeout(self._settings.pull_timeout_s), aclosing(self._engine.pull(image)) as steps:
                while (step := await self._next(steps, short)) is not None:
                    if step.total:
                        pull.say(f"pulls image {short}, {100 * step.done // step.total} % of {_size_text(step.total)}")
                    await self._check_disk(short)
        except TimeoutError as error:
            words = f"the pull of {short} took more than {self._settings.pull_timeout_s} s"
            raise ContainerFault(f"{words} (executor.docker.pull_timeout_s)", EndCause.NEVER_STARTED) from error
        except EngineFault as error:
            raise _container_fault(f"image {short} can't be pulled:", error) from error
        found = await self._engine.image(image)
        size, took_s = found.size if found else 0, round(self._clock.mono() - began, 1)
        self._images[image] = PulledImage(size, self._clock.now())
        self._write_images()
        self._telemetry.event("image_pulled", image=image, bytes=size, seconds=took_s)

    async def _next(self, steps: AsyncIterator[PullStep], image: str) -> PullStep | None:
        """Return the next step of a pull; None = it is over. Raises: ContainerFault, EngineFault."""
        stall_s = self._settings.pull_stall_s
        try:
            async with asyncio.timeout(stall_s) as waiting:
                return await anext(steps, None)
        except TimeoutError as error:
            if not waiting.expired():
                raise
            words = f"the pull of {image} made no progress for {stall_s} s: its registry stalls"
            raise ContainerFault(f"{words} (executor.docker.pull_stall_s)", EndCause.NEVER_STARTED) from error

    async def _check_disk(self, image: str) -> None:
        """Raises: ContainerFault when too little of the engine's disk is free (I3), EngineFault."""
        root, least_gb = self._info.root if self._info else "", self._settings.disk_free_min_gb
        free = await self._engine.free_bytes(root) if root and least_gb else least_gb * _GIB
        if free < least_gb * _GIB:
            raise ContainerFault(
                f"the pull of {image} was given up: only {free / _GIB:.1f} GiB are free on the disk of {root}, and "
                f"{least_gb} must stay (executor.docker.disk_free_min_gb)",
                EndCause.NEVER_STARTED,
            )

    async def _make_room(self) -> None:
        """Remove what no job has used for the longest time, until the rest is within its bound (I4)."""
        most = self._settings.images_max_gb * _GIB
        total = sum(image.size for image in self._images.values())
        for name in sorted(self._images, key=lambda each: (self._images[each].used_at, each)):
            if (not most or total <= most) and len(self._images) <= IMAGES_MAX:
                break
            with suppress(EngineFault):  # tried again with the next pull
                if name not in self._pulls and await self._engine.remove_image(name):
                    total -= self._images.pop(name).size
                    self._telemetry.event("image_removed", image=name)

    def _read_images(self) -> dict[str, PulledImage]:
        with suppress(OSError, msgspec.MsgspecError):
            return msgspec.json.decode((self._data_dir / IMAGES_NAME).read_bytes(), type=dict[str, PulledImage])
        return {}

    def _write_images(self) -> None:
        """Keep what was pulled. A lost write costs nothing but that an image is kept for longer."""
        try:
            replace_file(str(self._data_dir / IMAGES_NAME), msgspec.json.encode(self._images))
        except OSError as error:
            self._telemetry.warn("images_not_noted", error=str(error))


def device_requests(gpus: tuple[str, ...], kind: str) -> list[dict[str, object]]:
    """Return the requests by which a container gets these GPUs. Source: `DeviceRequest` of the Engine API."""
    if not gpus or kind == "environment":
        return []
    if kind == "cdi":
        return [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={uuid}" for uuid in gpus]}]
    return [{"Driver": "", "Count": 0, "DeviceIDs": list(gpus), "Capabilities": [["gpu"]], "Options": {}}]


def _container_fault(begin: str, error: EngineFault) -> ContainerFault:
    """Return the end of a start by what the engine said, and whose fault that is (I3)."""
    words = str(error)
    said_so = error.status in (400, 404) or any(each in words.lower() for each in _JOBS_FAULT)
    is_jobs = said_so and error.status != 0  # what can't be reached has said nothing of images (I6)
    return ContainerFault(f"{begin} {words[:400]}", EndCause.START_FAILED if is_jobs else EndCause.NEVER_STARTED)


def _size_text(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{max(1, size >> 20)} MiB"
