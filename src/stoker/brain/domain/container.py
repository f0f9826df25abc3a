"""Containers that jobs run in: what a job says of its own beside the image, and what an engine says of itself.

Rules: C1  a mount is `SOURCE:TARGET`, with `:ro` behind it to be only read, both absolute paths; `SOURCE` alone is
           mounted where it is
       C2  whether a node lets a container see a path is the node's to say, when the job starts there
"""

import posixpath
import re
from enum import StrEnum
from typing import Final

import msgspec

from stoker.brain.domain.errors import StokerError, refusal_error

MOUNTS_MAX: Final = 64
SHM_MB_MAX: Final = 1 << 30
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*(?:/[A-Za-z0-9][A-Za-z0-9._:@-]*)*")
_MODES: Final = {"ro": True, "rw": False}


class Network(StrEnum):
    """Network of a container."""

    HOST = "host"
    """The node's own: ranks meet and ports are forwarded as those of processes."""
    BRIDGE = "bridge"
    """One of the engine's, behind the node's address: the ranks of a gang can't meet there."""
    NONE = "none"


class BindMount(msgspec.Struct, frozen=True):
    """Path of the node that a container sees."""

    source: str
    target: str
    read_only: bool = False


class ContainerOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Mounts, shared memory, network and entry point of a job's container; what is left out is as its node has it."""

    mounts: tuple[BindMount, ...] = ()
    shm_mb: int = 0
    """MiB of shared memory (/dev/shm). 0 = as the node's settings say."""
    network: Network = Network.HOST
    entrypoint: str | None = None
    """Program to run instead of the image's entry point; empty = none, so that the command itself is run. None = the
    image's."""


PLAIN: Final = ContainerOptions()
"""Of a job that says nothing."""


def check_image(image: str) -> None:
    """Check that a text can be the name of an image. Raises: StokerError `bad_image`.

    Source: the references of github.com/distribution/reference, which an engine checks to the letter.
    """
    if not _REFERENCE.fullmatch(image):
        hint = "write [REGISTRY/]NAME[:TAG] or NAME@sha256:..., such as ghcr.io/team/train:3"
        raise refusal_error("bad_image", f"{image[:80]!r} is not the name of an image", hint, image=image[:80])


def parse_mount(text: str) -> BindMount:
    """Return the mount that a text describes (C1). Raises: StokerError `bad_mount`."""
    parts = text.split(":")
    read_only = False
    if len(parts) > 1 and parts[-1] in _MODES:
        read_only = _MODES[parts.pop()]
    source, target = parts[0], parts[-1]
    if len(parts) > 2 or not all(part.startswith("/") for part in parts) or "\0" in text:
        hint = "write SOURCE:TARGET or SOURCE:TARGET:ro, both absolute paths, such as /data/imagenet:/data:ro"
        raise refusal_error("bad_mount", f"{text[:80]!r} is not a mount", hint, mount=text[:80])
    return BindMount(posixpath.normpath(source), posixpath.normpath(target), read_only)


def mount_text(mount: BindMount) -> str:
    """Return a mount as people write it; the inverse of `parse_mount`."""
    return f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"


def check_options(options: ContainerOptions) -> None:
    """Check bounds and targets. Raises: StokerError `bad_mount`, `bad_shm_size`."""
    if len(options.mounts) > MOUNTS_MAX:
        message = f"{len(options.mounts)} mounts are more than {MOUNTS_MAX}"
        raise refusal_error("bad_mount", message, "mount a folder that holds what is meant", mounts=len(options.mounts))
    seen: dict[str, None] = {}
    for mount in options.mounts:
        if mount.target in seen:
            hint = "give each mount a target of its own"
            raise refusal_error("bad_mount", f"two mounts have the target {mount.target[:80]!r}", hint)
        seen[mount.target] = None
    if not 0 <= options.shm_mb <= SHM_MB_MAX:
        message = f"{options.shm_mb} MiB of shared memory are not from 0 to {SHM_MB_MAX}"
        raise refusal_error("bad_shm_size", message, "give a size such as 16GiB; left out, it is the node's own")


def fault_of(image: str, options: ContainerOptions | None) -> StokerError | None:
    """Return what is wrong with these; None = nothing."""
    try:
        if image:
            check_image(image)
        if options is not None:
            check_options(options)
    except StokerError as fault:
        return fault
    return None


# --- engines of containers, as nodes see them ------------------------------------------------------------------


class EngineFault(Exception):
    """A call to a container engine that failed. The message has its words; `status` is that of HTTP, 0 = no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a container engine."""

    version: str
    architecture: str
    """As images name theirs: `amd64`, `arm64`."""
    init: bool
    """Whether it has an init process to put before a container's own."""
    in_cgroup: bool
    """Whether it takes a path as the cgroup of a container."""
    root: str
    """Folder of its images, if that is on this machine; empty = it isn't."""


class LocalImage(msgspec.Struct, frozen=True, kw_only=True):
    """Image that an engine has."""

    architecture: str
    size: int
    """Bytes."""


class PullStep(msgspec.Struct, frozen=True):
    """Progress of a pull, in bytes. `total` grows while the engine learns of layers; 0 = it knows of none yet."""

    done: int
    total: int


class ListedContainer(msgspec.Struct, frozen=True):
    """Container that an engine has."""

    id: str
    labels: dict[str, str]
