"""Atomic and durable writes of files.

Rules: A1  a file is written under another name, synced, renamed, and its folder synced: a crash leaves the old file or
           the new one, and perhaps a leftover under the other name
       A2  only the owner can read it
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replaced(path: Path, beside: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a new file that becomes `path` when the block ends; an exception leaves `path` as it was.

    `beside`: its name until then; by default that of `half_written`. Raises: OSError.
    """
    beside = beside or half_written(path)
    beside.unlink(missing_ok=True)
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_atomic(path: Path, content: bytes) -> None:
    """Replace the content of a file. Raises: OSError."""
    with replaced(path) as file:
        file.write(content)


@contextmanager
def written_apart(folder: Path, purpose: str, content: bytes) -> Iterator[str]:
    """Yield the path of a new synced file of a name that nobody else uses, which is removed when the block ends.

    Raises: OSError.
    """
    fd, path = tempfile.mkstemp(prefix=f"writing-{purpose}", suffix=".tmp", dir=folder)  # with the mode of A2
    try:
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        yield path
    finally:
        with suppress(OSError):
            os.unlink(path)


def half_written(path: Path) -> Path:
    """Return the name under which a crash may leave a file that `write_atomic` began."""
    return path.with_name(f".{path.name}.tmp")


def make_private(path: Path) -> None:
    """Make an empty file that only its owner can read (A2); one that is there keeps its content and mode.

    Raises: OSError.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def sync(path: Path) -> None:
    """Make the content of a file durable, or the names in a folder: a new or renamed file survives a crash only then.

    Raises: OSError.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
