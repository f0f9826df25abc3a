"""How does a small file come to be there whole, or stay as it was?

Written beside, made durable, and renamed.
"""

import os
from pathlib import Path

from stoker.adapters.data_folder.ownership import sync_folder


def write_atomic(path: Path, content: bytes) -> None:
    """Durable, and readable by its owner alone. Raises: OSError."""
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
