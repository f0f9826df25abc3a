"""The lease of control planes with a log each, kept as a record in a folder that all of them reach.

Rules: Z1 to Z5 of the port. How versions lie in the folder, and why no writer can undo what another did, is said in
`marker_folder`; on which file systems that is right in `marker_place`, and for people in
docs/explanation/the-marker.md. Here each look and each write gets its time: a file system whose server is gone blocks
one thread, and nobody else.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from stoker.adapters.bounded_thread import BoundedThread, TookTooLong
from stoker.adapters.lease_folder.placement import LeaseFolderCheck, check_folder
from stoker.adapters.lease_folder.secret import PeerSecret, peer_secret
from stoker.adapters.lease_folder.versions import LeaseRecordFolder, unreachable
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.lease_record import LeaseRecord
from stoker.brain.domain.units import Mono
from stoker.ports import Clock, Entropy, LeaseUnreachable

START_S: Final = 10.0
"""For what is asked once, at start: a file system may have to be mounted first."""

Answer = TypeVar("Answer")


def _unheard(trouble: str) -> None:
    """Nobody wants to know."""


class FileLease:
    """The `Lease` port on a folder."""

    def __init__(self, folder: Path, clock: Clock, *, timeout_s: float) -> None:
        """`timeout_s`: well below the lease, or its holder can't try twice; at most 30."""
        self._path = folder.absolute()
        self._clock = clock
        self._timeout_s = timeout_s
        self._folder = LeaseRecordFolder(self._path, clock, timeout_s)
        self._thread = BoundedThread("stoker-marker", (OSError, StokerError, LeaseUnreachable))
        self._secret: PeerSecret | None = None
        self._noticed: Callable[[str], object] = _unheard
        self._trouble = self._told = ""
        self._closed = False

    async def read(self) -> LeaseRecord | None:
        return await self._in_thread(self._read, self._timeout_s)

    async def put(self, marker: LeaseRecord) -> bool:
        assert marker.mark, "without a mark nobody knows whose write it was"
        assert marker.version > 0, f"versions begin with 1: {marker.version}"
        return await self._in_thread(partial(self._put, marker, self._clock.mono()), self._timeout_s)

    async def check_folder(self) -> LeaseFolderCheck:
        """Check at start that this folder can hold the lease record.

        Raises: StokerError `marker_unusable` if it never can, LeaseUnreachable.
        """
        return await self._in_thread(partial(check_folder, self._path), max(START_S, self._timeout_s))

    async def secret(self, entropy: Entropy, noticed: Callable[[str], object] = _unheard) -> str:
        """Return the secret by which control planes of one cluster recognise each other.

        `noticed` is told when something is wrong with its file from then on, or something else, or nothing any more
        (empty). Raises: StokerError `peer_secret_unusable`, LeaseUnreachable.
        """
        text = await self._in_thread(partial(peer_secret, self._path, entropy), max(START_S, self._timeout_s))
        self._secret, self._noticed = PeerSecret(self._path, text), noticed
        return text

    async def close(self) -> None:
        """Safe to call twice."""
        self._closed = True
        self._thread.close()

    def _read(self) -> LeaseRecord | None:
        """In the thread. What isn't the marker's folder now shows no marker, so its secret isn't looked at either."""
        found = self._folder.read()
        self._look_at_secret(active=False)
        return found

    def _put(self, marker: LeaseRecord, began: Mono) -> bool:
        won = self._folder.put(marker, began)
        self._look_at_secret(active=won and marker.holder is not None)
        return won

    def _look_at_secret(self, *, active: bool) -> None:
        if self._secret is not None:
            self._trouble = self._secret.look(put_back=active)

    async def _in_thread(self, work: Callable[[], Answer], within_s: float) -> Answer:
        if self._closed:
            raise LeaseUnreachable("the marker is closed")
        try:
            answer = await self._thread.ask(work, within_s)
            if self._trouble != self._told:  # once for each trouble
                self._told = self._trouble
                self._noticed(self._told)
            return answer
        except TookTooLong as fault:
            hint = "see that the shared storage is up, and mounted on this machine"
            raise LeaseUnreachable(f"the marker folder {self._path} doesn't answer: {fault}; {hint}") from fault
        except OSError as fault:
            raise unreachable(self._path, fault) from fault
