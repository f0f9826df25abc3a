"""Which outputs and folders of ended tasks are kept, and which go?

They go with the record of their end. Beyond `spool_bytes_max` the oldest large outputs go earlier; small ones are
bounded by the number of ends. Folders go by way of the trash, because a job may leave a million files.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress

from stoker.agent.runner.output import spool
from stoker.agent.runner.output.trash import Trash
from stoker.agent.runner.protocol import SPOOL_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

_WORK_NAME: Final = "work"
_TRASH_NAME: Final = "trash"
_LARGE_BYTES: Final = 256 * 1024
_ENTRIES_PER_TURN: Final = 200


class OutputRetention:
    def __init__(self, data_dir: str, bytes_max: int) -> None:
        """Raises OSError."""
        self._outputs = f"{data_dir}/{SPOOL_NAME}"
        self._work = f"{data_dir}/{_WORK_NAME}"
        self._bytes_max = bytes_max
        self._large: deque[tuple[str, int]] = deque()
        self._bytes = 0
        for folder in (self._outputs, self._work):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            os.chmod(self._work, 0o711)  # jobs of other users reach theirs, and see no other
        self._trash = Trash(f"{data_dir}/{_TRASH_NAME}")

    def output(self, key: str) -> str:
        """Base path for the spool of a task."""
        return f"{self._outputs}/{key}"

    def workdir(self, key: str) -> str:
        """The attempt's own folder, made when missing. Raises OSError."""
        folder = f"{self._work}/{_attempt(key)}"
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        return folder

    def ended(self, key: str, live: Iterable[str]) -> None:
        """Its writer is done. Most jobs leave nothing in the attempt's folder: then it goes at once."""
        size = _kept_bytes(self.output(key))
        if size >= _LARGE_BYTES:
            self._large.append((key, size))
            self._bytes += size
        if all(_attempt(other) != _attempt(key) for other in live):
            with suppress(OSError):  # it was never made, or isn't empty
                os.rmdir(f"{self._work}/{_attempt(key)}")
        while self._bytes > self._bytes_max and self._large:
            oldest, dropped = self._large.popleft()
            self._bytes -= dropped
            _drop(self.output(oldest))

    def forget(self, keys: Iterable[str], live: Iterable[str]) -> None:
        """Their ends are forgotten."""
        gone = set(keys)
        for key, size in self._large:
            if key in gone:
                self._bytes -= size
        self._large = deque(entry for entry in self._large if entry[0] not in gone)
        busy = {_attempt(key) for key in live}
        for key in gone:
            _drop(self.output(key))
        for attempt in {_attempt(key) for key in gone} - busy:
            self._discard(attempt)

    def recount(self, known: Iterable[str]) -> None:
        """After a restart: count what is there, and drop what no record speaks of."""
        kept = set(known)
        for name in os.listdir(self._outputs):
            key = name.rpartition(".")[0]
            if key not in kept:
                _drop(self.output(key))
            elif name.endswith(".out"):
                self.ended(key, kept)
        attempts = {_attempt(key) for key in kept}
        for name in os.listdir(self._work):
            if name not in attempts:
                self._discard(name)

    @property
    def busy(self) -> bool:
        return self._trash.busy

    def tidy(self) -> None:
        """One turn's share of removing folders."""
        self._trash.empty(_ENTRIES_PER_TURN)

    def _discard(self, attempt: str) -> None:
        with suppress(OSError):  # it was never made, or has gone
            self._trash.take(f"{self._work}/{attempt}")


def _attempt(key: str) -> str:
    return key.rpartition(".")[0]


def _kept_bytes(base: str) -> int:
    """0 when the disk won't say: an output that can't be counted can't be a reason to stop the runner."""
    with suppress(OSError):
        return spool.kept_bytes(base)
    return 0


def _drop(base: str) -> None:
    """What can't be removed now goes when the next runner counts anew."""
    with suppress(OSError):
        spool.drop(base)
