"""A marker's folder as the contract of the Lease port wants a place, and a way in between two system calls of a writer.

With a clock that is moved by hand: what happens in a minute is tested in a moment.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stoker.adapters.clock import SystemClock
from stoker.adapters.lease_folder.lease import FileLease
from stoker.adapters.lease_folder.versions import LeaseRecordFolder
from stoker.brain.domain.lease_record import LeaseRecord
from stoker.brain.domain.units import Instant, Mono
from stoker.ports import LeaseUnreachable
from tests.contracts.lease import lease_record
from tests.disk_calls import calls_replaced

CALLS: Final = ("listdir", "open", "fsync", "link", "unlink")
"""Of `os`: whatever a writer does to its folder goes through one of these."""
MANY: Final = 170
"""So many versions, one second each, that everything around the first of them is pruned."""


class HandClock:
    """It stands still unless somebody moves it."""

    def __init__(self, step_s: float = 0.0) -> None:
        """`step_s`: how far it goes on with each reading."""
        self.at_s = 1_000.0
        self._step_s = step_s

    def now(self) -> Instant:
        return Instant(0)

    def mono(self) -> Mono:
        self.at_s += self._step_s
        return Mono(self.at_s)

    def awake(self) -> Mono:
        return Mono(self.at_s)

    async def sleep(self, seconds: float) -> None:
        self.at_s += seconds


class FolderPlace:
    """A folder, in which each `lease()` is another control plane's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    def lease(self, *, timeout_s: float = 5.0) -> FileLease:
        return FileLease(self.folder, SystemClock(), timeout_s=timeout_s)

    def damage(self) -> None:
        newest = self.newest
        data = bytearray(newest.read_bytes())
        data[-20] ^= 1
        newest.write_bytes(data)

    @property
    def versions(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("[0-9]" * 16 + ".marker"))

    @property
    def newest(self) -> Path:
        return self.file(self.versions[-1])

    def file(self, version: int) -> Path:
        return self.folder / f"{version:016d}.marker"

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.suffix != ".marker")

    def goes_on(self, through: int, *, by: str = "busy") -> None:
        """Another writer renews once a second until that version."""
        clock = HandClock()
        writer = LeaseRecordFolder(self.folder, clock, 5.0)
        for version in range((self.versions or [0])[-1] + 1, through + 1):
            assert writer.put(lease_record(version, by=by), clock.mono()) is True
            clock.at_s += 1


@contextmanager
def between_calls(step: int, act: Callable[[], None]) -> Iterator[list[str]]:
    """Before the `step`th system call of whoever runs in the block, `act` happens. Gives the names of those made."""
    made: list[str] = []
    acting = False

    def wrapped(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def instead(*args: object, **named: object) -> object:
            nonlocal acting
            if not acting:
                made.append(name)
                if len(made) == step:
                    acting = True
                    try:
                        act()
                    finally:
                        acting = False
            return call(*args, **named)

        return instead

    with calls_replaced(CALLS, wrapped):
        yield made


def calls_of_a_put(folder: Path) -> list[str]:
    """What a put does to its folder, one name for each call."""
    with between_calls(0, lambda: None) as made:
        clock = HandClock()
        assert LeaseRecordFolder(folder, clock, 5.0).put(lease_record(1), clock.mono())
    return made


def folder(place: FolderPlace, clock: HandClock | None = None, timeout_s: float = 5.0) -> LeaseRecordFolder:
    return LeaseRecordFolder(place.folder, clock or HandClock(), timeout_s)


def put(at: LeaseRecordFolder, what: LeaseRecord) -> bool | str:
    """What becomes of it, in one word."""
    try:
        return at.put(what, HandClock().mono())
    except (OSError, LeaseUnreachable):
        return "unreachable"


def newest(place: FolderPlace) -> LeaseRecord | None:
    return folder(place).read()
