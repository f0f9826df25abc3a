"""Fence against older control planes: the newest epoch that this agent obeyed, on disk.

It is a file in the agent's data folder with two places, written in turn. It never grows and no other file is made, so
that a disk which jobs have filled doesn't keep a new control plane out.

Rules: F1  `keep` returns when what it was given would survive a power loss
       F2  of two places the newer whole one holds; a write that was cut short leaves the other
       F3  a file in which neither is whole is refused: an older control plane might be let back in
"""

import json
import os
from pathlib import Path
from typing import Final

from stoker.agent.ports import Obeyed
from stoker.agent.runner.files import body_of, checked_line, opened, replace_file
from stoker.brain.domain.ids import Epoch

FILE_NAME: Final = "obeyed"
PLACE_BYTES: Final = 512
"""What disks write whole."""
_CLUSTER_ID_MAX: Final = 200


class FileFence:
    """Fence port on a data folder that this process holds."""

    def __init__(self, data_dir: Path) -> None:
        """Raises: OSError when the file can't be read, or made, or is damaged."""
        self._path = data_dir / FILE_NAME
        contents = _contents(self._path)
        whole = [place for place in map(_read, contents) if place is not None]
        if any(contents) and not whole:
            raise OSError(
                f"{self._path} is damaged; remove it once no older control plane of this cluster can be alive any more"
            )
        self._turn, self._obeyed = max(whole, key=lambda place: place[0], default=(0, Obeyed()))
        if not whole:  # make both places, blank, while there is room for them
            replace_file(str(self._path), _place(0, Obeyed()) * 2)

    def read(self) -> Obeyed:
        return self._obeyed

    async def keep(self, obeyed: Obeyed) -> None:
        turn = self._turn + 1
        with opened(self._path, os.O_WRONLY) as places:
            os.pwrite(places, _place(turn, obeyed), turn % 2 * PLACE_BYTES)
            os.fsync(places)
        self._turn, self._obeyed = turn, obeyed


def _place(turn: int, obeyed: Obeyed) -> bytes:
    assert len(obeyed.cluster_id) <= _CLUSTER_ID_MAX, f"no cluster is called {obeyed.cluster_id[:80]!r}"
    body = json.dumps({"turn": turn, "cluster_id": obeyed.cluster_id, "epoch": obeyed.epoch}).encode()
    line = checked_line(body)
    assert len(line) < PLACE_BYTES, f"{len(line)} bytes don't fit"
    return line.ljust(PLACE_BYTES - 1) + b"\n"


def _contents(path: Path) -> tuple[bytes, ...]:
    try:
        content = path.read_bytes()[: 2 * PLACE_BYTES]
    except FileNotFoundError:
        return ()
    return content[:PLACE_BYTES], content[PLACE_BYTES:]


def _read(content: bytes) -> tuple[int, Obeyed] | None:
    """The turn and value of a place; None = it isn't whole (F2)."""
    body = body_of(content.rstrip())
    if body is None:
        return None
    record = json.loads(body)
    return record["turn"], Obeyed(record["cluster_id"], Epoch(record["epoch"]))
