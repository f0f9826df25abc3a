"""Which data folder is this?

A control plane is known to others by its name and by this: a folder that was lost and made anew, or restored, holds
nothing of what the old one had, and must not be taken for it.
"""

import os
import re
from pathlib import Path
from typing import Final

from stoker.adapters.data_folder import sync_folder
from stoker.ports import Entropy

ID_NAME: Final = "replica-id"
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def replica_id(folder: Path, entropy: Entropy) -> str:
    """The folder's own, made now if it has none; one that can't be read is made anew, which makes it a folder that
    nobody relies on. Raises: OSError."""
    path = folder / ID_NAME
    try:
        found = path.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        found = ""
    if _ID.fullmatch(found):
        return found
    uid = entropy.uid()
    write_whole(path, f"{uid}\n".encode())
    return uid


def write_whole(path: Path, content: bytes) -> None:
    """Durable, readable by its owner alone, and there whole or as it was before. Raises: OSError."""
    beside = half_written(path)
    beside.unlink(missing_ok=True)
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def half_written(path: Path) -> Path:
    """What a crash may leave of it."""
    return path.with_name(f".{path.name}.tmp")
