"""ContainerEngine port of agents through aiodocker: Docker's Engine API, which Podman's service speaks too.

aiodocker and the HTTP client beneath it take 20 MiB, so they are imported when an engine is first spoken to: only a
node that is set up for containers ever does that. Source: docs.docker.com/reference/api/engine.
"""

import asyncio
import base64
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stoker.brain.domain.container import EngineFault, EngineInfo, ListedContainer, LocalImage, PullStep

if TYPE_CHECKING:
    from aiodocker import Docker
    from aiohttp import UnixConnector

ASK_S: Final = 20.0
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
"""As an engine names its machine, and as images name it."""
_INIT: Final = "docker-init"
_UNBOUNDED: Final = None
"""Time of a pull, which whoever takes its steps bounds."""
_LATEST: Final = "latest"
_UNREACHABLE: Final = 900
"""Status by which the library says that it got no answer at all."""
_IN_AN_ANSWER: Final = 500
"""What went wrong after an engine had begun to answer is told as if it hadn't."""
_DONE: Final = ("Verifying Checksum", "Download complete", "Extracting", "Pull complete")


def is_installed() -> bool:
    """Return whether the library is there."""
    return find_spec("aiodocker") is not None


class DockerEngine:
    """The engine that listens at a Unix socket."""

    def __init__(self, socket: str, registry_auth: str = "") -> None:
        """`registry_auth`: file with credentials, as `docker login` writes it; empty = none."""
        self._socket = socket
        self._registry_auth = registry_auth
        self._docker: Docker | None = None
        self._connector: UnixConnector | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._docker is not None:
            await self._docker.close()
        if self._connector is not None:
            await self._connector.close()

    async def info(self) -> EngineInfo:
        """Return what the engine says of itself. Raises: EngineFault."""
        async with _asking():
            info, version = await self._api.system.info(), await self._api.version()
        if info.get("OSType", "linux") != "linux":
            raise EngineFault("it runs no Linux containers")
        machine, root = str(info.get("Architecture", "")), str(info.get("DockerRootDir", ""))
        return EngineInfo(
            version=str(info.get("ServerVersion", "")),
            architecture=_ARCHITECTURES.get(machine, machine),
            init=any(each.get("Name") == _INIT for each in version.get("Components") or ()),
            in_cgroup=info.get("CgroupDriver") == "cgroupfs",
            root=root if os.path.isdir(root) else "",
        )

    async def image(self, name: str) -> LocalImage | None:
        """Return an image that is here; None = it isn't. Raises: EngineFault."""
        try:
            async with _asking():
                found = await self._api.images.inspect(name)
        except EngineFault as fault:
            if fault.status == 404:
                return None
            raise
        return LocalImage(architecture=str(found.get("Architecture", "")), size=int(found.get("Size", 0)))

    async def pull(self, image: str) -> AsyncGenerator[PullStep, None]:
        """Pull an image, and yield how far that is; it goes on for as long as steps are taken. Raises: EngineFault."""
        try:
            credentials = await asyncio.to_thread(credentials_for, image, self._registry_auth)
        except (OSError, ValueError) as error:
            raise EngineFault(f"the credentials in {self._registry_auth} can't be read: {error}") from error
        name, tag = named(image)
        headers = {"X-Registry-Auth": credentials} if credentials else {}
        layers: dict[str, tuple[int, int]] = {}
        async with (
            _translated(),
            # The library's own `images.pull` leaves the connection open when it isn't taken to its end; the engine
            # would go on with what nobody waits for.
            self._api._query(
                "images/create", "POST", params={"fromImage": name} | tag, headers=headers, timeout=_UNBOUNDED
            ) as response,
        ):
            try:
                async for line in response.content:
                    yield _counted(_step(line), layers)
            finally:
                response.close()

    async def remove_image(self, name: str) -> bool:
        """Remove an image; False = something here uses it. Raises: EngineFault."""
        try:
            async with _asking():
                await self._api.images.delete(name)
        except EngineFault as fault:
            if fault.status not in (404, 409):
                raise
            return fault.status == 404
        return True

    async def labelled(self, key: str, value: str) -> list[ListedContainer]:
        """Return all containers, also those that have ended, with this label. Raises: EngineFault."""
        async with _asking():
            listed = await self._api.containers.list(all=1, filters={"label": [f"{key}={value}"]})
        return [ListedContainer(each.id, dict(each._container.get("Labels") or {})) for each in listed]

    async def remove(self, container: str) -> None:
        """Kill and remove a container; one that is gone is no fault. Raises: EngineFault."""
        try:
            async with _asking():
                await self._api.containers.container(container).delete(force=True, v=True)
        except EngineFault as fault:
            if fault.status not in (404, 409):  # gone, or on its way
                raise

    async def free_bytes(self, folder: str) -> int:
        """Return the bytes that are free on the disk of a folder. Raises: EngineFault."""
        try:
            disk = await asyncio.to_thread(os.statvfs, folder)
        except OSError as error:
            raise EngineFault(f"the disk of {folder} can't be looked at: {error.strerror}") from error
        return disk.f_bavail * disk.f_frsize

    @property
    def _api(self) -> "Docker":
        if self._docker is None:
            from aiodocker import Docker
            from aiohttp import UnixConnector

            # No connection is kept: it would still be answered when nobody else can reach the engine any more.
            self._connector = UnixConnector(self._socket, force_close=True)
            self._docker = Docker(url="unix://localhost", connector=self._connector)
        return self._docker


@asynccontextmanager
async def _asking() -> AsyncIterator[None]:
    """Bound what is asked within. Raises: EngineFault."""
    try:
        async with asyncio.timeout(ASK_S), _translated():
            yield
    except TimeoutError as error:
        raise EngineFault(f"no answer within {ASK_S:.0f} s") from error


@asynccontextmanager
async def _translated() -> AsyncIterator[None]:
    """Raises: EngineFault for what aiodocker and the HTTP client beneath it raise."""
    from aiodocker.exceptions import DockerError
    from aiohttp import ClientError

    try:
        yield
    except DockerError as error:
        if error.status != _UNREACHABLE:
            raise EngineFault(" ".join(str(error.message).split()), error.status) from error
        cause = error.__context__
        words = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error.message)
        raise EngineFault(words) from error
    except (ClientError, OSError, ValueError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise EngineFault(str(error) or repr(error)) from error


def named(image: str) -> tuple[str, dict[str, str]]:
    """Return the name of an image, and its tag as the API has it; none where the name has a digest."""
    if "@" in image:
        return image, {}
    name, colon, tag = image.rpartition(":")
    return (name, {"tag": tag}) if colon and "/" not in tag else (image, {"tag": _LATEST})


def registry_of(image: str) -> str:
    """Return the registry that an image comes from, as credentials name it."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first
    return "https://index.docker.io/v1/"


def credentials_for(image: str, path: str) -> str:
    """Return the header with user and password for the registry of an image; empty = the file has none.

    `path`: a file of `docker login`; empty = there is none. Source: `Authentication` of the Engine API.

    Raises: OSError, ValueError for a file that can't be read.
    """
    if not path:
        return ""
    content = msgspec.json.decode(Path(path).read_bytes())
    registry = registry_of(image)
    entry = (content.get("auths") or {}).get(registry) if isinstance(content, dict) else None
    if not entry:
        return ""
    user, _, password = base64.b64decode(entry.get("auth", "")).decode().partition(":")
    said = {"username": user, "password": password, "serveraddress": registry}
    return base64.urlsafe_b64encode(msgspec.json.encode(said)).decode()


def _step(line: bytes) -> Mapping[str, Any]:
    """Return one step of a pull. Raises: EngineFault for one that says that it failed."""
    step: dict[str, Any] = msgspec.json.decode(line) if line.strip() else {}
    if "error" in step:
        detail = step.get("errorDetail")
        words = detail.get("message") if isinstance(detail, dict) else None
        raise EngineFault(" ".join(str(words or step["error"]).split()), _IN_AN_ANSWER)
    return step


def _counted(step: Mapping[str, Any], layers: dict[str, tuple[int, int]]) -> PullStep:
    """Note a step of a pull, and return how far the whole is. An engine tells the size of a layer once it begins it."""
    layer, status, detail = str(step.get("id", "")), str(step.get("status", "")), step.get("progressDetail") or {}
    if status == "Downloading" and detail.get("total"):
        layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
    elif layer in layers and status in _DONE:
        layers[layer] = (layers[layer][1], layers[layer][1])
    return PullStep(sum(done for done, _ in layers.values()), sum(size for _, size in layers.values()))
