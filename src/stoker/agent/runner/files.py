"""Files of the runner: opened for a block, written whole, replaced atomically, with lines that show damage.

The agent's own small files are written with these too.
"""

from __future__ import annotations

import os
from binascii import crc32
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final

_FREE_BYTES_MIN: Final = 4 * 1024 * 1024
"""Less, and nothing new should begin here: the journal, the folders and the output of tasks need some."""


@contextmanager
def opened(path: str | os.PathLike[str], flags: int) -> Iterator[int]:
    """Yield a descriptor of a file or folder, which is closed when the block ends. Raises OSError.

    A file that is made is its owner's alone. No program that is started inherits the descriptor.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, block: bytes) -> None:
    """Write the whole block. Raises OSError."""
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]


def write_file(path: str, text: str) -> None:
    """Write into a file that is there, such as one of the kernel's. Raises OSError."""
    with opened(path, os.O_WRONLY) as descriptor:
        os.write(descriptor, text.encode())


def replace_file(path: str, content: bytes) -> None:
    """Replace a file, durably: a crash leaves the old one or the new one. Raises OSError.

    Where the disk is full, the part that was written is removed again.
    """
    fresh = f"{path}.new"
    try:
        with opened(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            write_all(descriptor, content)
            os.fsync(descriptor)
        os.rename(fresh, path)
    except OSError:
        with suppress(OSError):
            os.unlink(fresh)
        raise
    with opened(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY) as folder:
        os.fsync(folder)


def publish_file(path: str, text: str) -> None:
    """Put a whole file, which every account may read, in the place of what was there. Raises OSError.

    Not durably: it is for processes that a crash of the machine ends too.
    """
    fresh = f"{path}.new"
    try:
        with opened(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            os.fchmod(descriptor, 0o644)
            write_all(descriptor, text.encode())
        os.rename(fresh, path)
    except OSError:
        with suppress(OSError):
            os.unlink(fresh)
        raise


def checked_line(body: bytes) -> bytes:
    """Return a line, without its end, of which `body_of` can tell whether it is whole: `CRC32 BODY`."""
    return b"%08x %s" % (crc32(body), body)


def body_of(line: bytes) -> bytes | None:
    """Return the body of a line that `checked_line` made; None = it isn't whole."""
    body = line[9:]
    return body if line == checked_line(body) else None


def disk_fault(folder: str, name: str) -> str:
    """Return why the disk of a folder, called `name`, takes no work; empty = it does. The same words each time."""
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return f"the {name} can't be looked at: {error.strerror}"
    if disk.f_flag & os.ST_RDONLY:
        return f"the disk of the {name} is mounted read-only"
    if disk.f_bavail * disk.f_frsize < _FREE_BYTES_MIN or (disk.f_files and not disk.f_favail):
        return f"the disk of the {name} is full"
    return ""
