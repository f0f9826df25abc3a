"""The Unix socket by which commands on the control plane's own machine reach it without a token.

Over a socket in its data folder that only its account can open. A socket's address holds 107 bytes of a path; a longer
one is reached by way of its folder, which the kernel shows under a short name.

Source: unix(7), proc(5).
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # what a command imports that only asks a server is counted in milliseconds
    from pathlib import Path

SOCKET_NAME: Final = "control.sock"
PATH_BYTES_MAX: Final = 107


@contextmanager
def address_of(path: "Path") -> Iterator[str]:
    """Yield the address to bind or connect to, for as long as the block lasts.

    Raises: OSError where the folder can't be opened.
    """
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connected(path: "Path", timeout_s: float) -> socket.socket:
    """Raises: OSError where nobody listens, or who asks may not."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(timeout_s)
    try:
        with address_of(path) as address:
            made.connect(address)
    except OSError:
        made.close()
        raise
    return made


def is_served(path: "Path") -> bool:
    """Return whether a server listens there that this account may ask."""
    try:
        connected(path, 1.0).close()
    except OSError:
        return False
    return True
