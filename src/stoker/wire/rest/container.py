"""REST shapes of containers: what a submit says of one, and what is shown of it."""

from collections.abc import Sequence
from typing import Any

from stoker.brain.domain.container import PLAIN, ContainerOptions, Network, mount_text, parse_mount
from stoker.brain.domain.job import JobSpec


def options_of(
    mounts: Sequence[str], shm_mb: int, network: Network | None, entrypoint: str | None
) -> ContainerOptions | None:
    """Return what a submit says of its container; None = nothing. Raises: StokerError `bad_mount`."""
    if not (mounts or shm_mb or network or entrypoint is not None):
        return None
    options = ContainerOptions(
        mounts=tuple(map(parse_mount, mounts)), shm_mb=shm_mb, network=network or Network.HOST, entrypoint=entrypoint
    )
    return None if options == PLAIN and network is None else options


def container_fields(spec: JobSpec) -> dict[str, Any]:
    """Return the fields of JobView that a container has; none without an image."""
    if not spec.image:
        return {}
    options = spec.container or PLAIN
    return {
        "mounts": [mount_text(each) for each in options.mounts],
        "shm_mb": options.shm_mb,
        "network": options.network.value,
        "entrypoint": options.entrypoint,
    }
