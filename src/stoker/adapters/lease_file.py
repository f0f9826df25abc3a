"""How do control planes with a disk each agree on who is active? By a folder that all of them reach.

Rules: Z1 to Z5 of the port. How versions lie in the folder, and why no writer can undo what another did, is said in
`marker_folder`; on which file systems that is right in `marker_place`, and for people in
docs/explanation/the-marker.md. Here each look and each write gets its time: a file system whose server is gone blocks
one thread, and nobody else.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from stoker.adapters.lone_thread import LoneThread, TookTooLong
from stoker.adapters.marker_folder import MarkerFolder, unreachable
from stoker.adapters.marker_place import MarkerPlace, check_folder
from stoker.adapters.marker_secret import peer_secret
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.marker import Marker
from stoker.ports import Clock, Entropy, LeaseUnreachable

START_S: Final = 10.0
"""For what is asked once, at start: a file system may have to be mounted first."""

Answer = TypeVar("Answer")


class FileLease:
    """The `Lease` port on a folder."""

    def __init__(self, folder: Path, clock: Clock, *, timeout_s: float) -> None:
        """`timeout_s`: well below the lease, or its holder can't try twice; at most 30."""
        self._path = folder.absolute()
        self._clock = clock
        self._timeout_s = timeout_s
        self._folder = MarkerFolder(self._path, clock, timeout_s)
        self._thread = LoneThread("stoker-marker", (OSError, StokerError, LeaseUnreachable))
        self._closed = False

    async def read(self) -> Marker | None:
        return await self._in_thread(self._folder.read, self._timeout_s)

    async def put(self, marker: Marker) -> bool:
        assert marker.mark, "without a mark nobody knows whose write it was"
        assert marker.version > 0, f"versions begin with 1: {marker.version}"
        return await self._in_thread(partial(self._folder.put, marker, self._clock.mono()), self._timeout_s)

    async def check_folder(self) -> MarkerPlace:
        """At start: will this folder do? Raises: StokerError `marker_unusable` if it never will, LeaseUnreachable."""
        return await self._in_thread(partial(check_folder, self._path), max(START_S, self._timeout_s))

    async def secret(self, entropy: Entropy) -> str:
        """By which peers know each other. Raises: StokerError `peer_secret_unusable`, LeaseUnreachable."""
        return await self._in_thread(partial(peer_secret, self._path, entropy), max(START_S, self._timeout_s))

    async def close(self) -> None:
        """Safe to call twice."""
        self._closed = True
        self._thread.close()

    async def _in_thread(self, work: Callable[[], Answer], within_s: float) -> Answer:
        if self._closed:
            raise LeaseUnreachable("the marker is closed")
        try:
            return await self._thread.ask(work, within_s)
        except TookTooLong as fault:
            hint = "see that the shared storage is up, and mounted on this machine"
            raise LeaseUnreachable(f"the marker folder {self._path} doesn't answer: {fault}; {hint}") from fault
        except OSError as fault:
            raise unreachable(self._path, fault) from fault
