"""Ports of the agent to the engine of containers of its node: Docker's or Podman's, or none."""

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

from stoker.brain.domain.container import EngineInfo, ListedContainer, LocalImage, PullStep
from stoker.brain.domain.instruction import Start
from stoker.brain.domain.job import EndCause, TaskEnd


class ContainerEngine(Protocol):
    """Engine of containers on this machine. Each call is bounded in time but `pull`, and raises EngineFault."""

    async def info(self) -> EngineInfo: ...

    async def image(self, name: str) -> LocalImage | None:
        """Return an image that is here; None = it isn't."""
        ...

    def pull(self, image: str) -> AsyncGenerator[PullStep, None]:
        """Pull an image, and yield how far that is. It ends early when no more steps are taken."""
        ...

    async def remove_image(self, name: str) -> bool:
        """Remove an image; False = something here uses it."""
        ...

    async def labelled(self, key: str, value: str) -> list[ListedContainer]:
        """Return all containers with this label, also those that have ended."""
        ...

    async def remove(self, container: str) -> None:
        """Kill and remove a container; one that is gone is no fault."""
        ...

    async def free_bytes(self, folder: str) -> int:
        """Return the bytes that are free on the disk of a folder."""
        ...

    async def close(self) -> None: ...


class ContainerFault(Exception):
    """A container that can't be begun on this node. The message says why; `cause` is that of its task's end."""

    def __init__(self, message: str, cause: EndCause) -> None:
        super().__init__(message)
        self.cause = cause


class Containers(Protocol):
    """Engine of containers of this node. `container_engine.py` is the real one."""

    def serve(self, cluster_id: str) -> None:
        """Give containers the label of this cluster from now on."""
        ...

    @property
    def contained(self) -> bool:
        """Whether the engine puts a container into the cgroup of its task, where there is one."""
        ...

    def ended(self, end: TaskEnd) -> None:
        """Hear of the end of a task, which may say that the engine was gone."""
        ...

    def image_of(self, start: Start) -> str:
        """Return the image of the container that a start runs in; empty = it runs as a process."""
        ...

    async def prepare(self, start: Start, tell: Callable[[str], None]) -> Mapping[str, object]:
        """Have the image of a start here, and return the container that the runner is to run.

        `tell` is told, in words, how far that is. Cancelling it gives the image up, unless others wait for it too.

        Raises: ContainerFault.
        """
        ...


class NoContainers:
    """A node that runs processes only."""

    contained = True

    def serve(self, cluster_id: str) -> None:
        return None

    def ended(self, end: TaskEnd) -> None:
        return None

    def image_of(self, start: Start) -> str:
        return start.image

    async def prepare(self, start: Start, tell: Callable[[str], None]) -> Mapping[str, object]:
        raise ContainerFault("this node runs no containers (executor.kinds)", EndCause.NEVER_STARTED)
