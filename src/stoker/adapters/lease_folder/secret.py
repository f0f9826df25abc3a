"""The secret file by which control planes of one cluster recognise each other.

It lies as `secret` in the marker's folder: 64 hex digits that the first of them draws and the others read. Whoever can
read that folder may take part, and nobody else.

Rules: E1  of several that make it at once all end up with the same one: link(2) lets the first one's stand
       E2  it is whole or not there, and never changes while control planes run
       E3  one that others can read, or that isn't what was written, is refused and never replaced in silence
       E4  who runs goes on with what it has read, and says what has become of the file since: it looks whenever it
           looks at the marker, and reads again only what has changed
       E5  a file that was removed is put back by whoever is active. Otherwise the next one that starts would draw
           another secret, and neither would listen to the other; who wants a new one stops all of them first
"""

import errno
import hashlib
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.adapters.atomic_file import sync, written_apart
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.ports import Entropy

NAME: Final = "secret"
_DRAWS: Final = 5
"""Of seeds of 63 bits: more than the 256 bits of a secret."""
_TEXT: Final = re.compile(rb"([0-9a-f]{64})\n")
_BYTES_MAX: Final = 1_024
_GOES_ON: Final = "this control plane goes on with what it read at its start"


def peer_secret(folder: Path, entropy: Entropy) -> str:
    """The secret, made if there is none. Blocking.

    Raises: StokerError `peer_secret_unusable`, OSError.
    """
    path = folder / NAME
    if not os.path.lexists(path):
        drawn = b"".join(entropy.seed().to_bytes(8) for _ in range(_DRAWS))
        _make(path, hashlib.sha256(drawn).hexdigest())
    return _read(path)


class PeerSecret:
    """E4 and E5: what one that runs has read, and its file. Every look may block."""

    def __init__(self, folder: Path, text: str) -> None:
        self._path = folder / NAME
        self._text = text
        self._seen: tuple[int, ...] = ()
        """The file, and when it, its owner or its mode changed last."""
        self._trouble = ""

    def look(self, *, put_back: bool) -> str:
        """Return what is wrong with the file now; empty = nothing."""
        try:
            held = os.lstat(self._path)
            seen = (held.st_dev, held.st_ino, held.st_mtime_ns, held.st_ctime_ns)
            if seen != self._seen:
                self._trouble = self._changed()
                self._seen = seen
        except FileNotFoundError:
            self._seen = ()
            self._trouble = self._gone(put_back=put_back)
        except OSError as fault:
            self._seen = ()
            self._trouble = f"the secret in {self._path} can't be read: {fault.strerror}; {_GOES_ON}"
        return self._trouble

    def _changed(self) -> str:
        try:
            found = _read(self._path)
        except StokerError as fault:
            return f"{fault.refusal.message}; {_GOES_ON}. {fault.refusal.hint}"
        if found == self._text:
            return ""
        return f"the secret in {self._path} has become another one; {_GOES_ON}. Stop every control plane and start them"

    def _gone(self, *, put_back: bool) -> str:
        removed = f"the secret in {self._path} was removed"
        if not put_back:
            return f"{removed}; {_GOES_ON}, and the active one puts it back"
        try:
            _make(self._path, self._text)
        except OSError as fault:
            return f"{removed}, and can't be put back: {fault.strerror}; {_GOES_ON}"
        return f"{removed}; it was put back"


def _make(path: Path, secret: str) -> None:
    """Make the secret; of several that do it at once, the first one's stands (E1, E2)."""
    with written_apart(path.parent, "secret-", f"{secret}\n".encode()) as temporary:
        with suppress(FileExistsError):
            os.link(temporary, path)
        sync(path.parent)


def _read(path: Path) -> str:
    """Read the secret; one that others can read is refused, never replaced (E3)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as fault:
        if fault.errno == errno.EACCES:
            raise _unusable(path, "this account may not read it", "run all control planes as one account") from fault
        if fault.errno == errno.ELOOP:
            raise _unusable(path, "it is a symbolic link", _anew(path)) from fault
        raise
    try:
        held = os.fstat(fd)
        text = os.read(fd, _BYTES_MAX) if stat.S_ISREG(held.st_mode) else b""
    finally:
        os.close(fd)
    if held.st_mode & 0o077:
        known = f"others may read it (mode {stat.S_IMODE(held.st_mode):04o})"
        raise _unusable(path, known, f"it is no secret any more: {_anew(path)}")
    found = _TEXT.fullmatch(text)
    if found is None:
        raise _unusable(path, "it isn't the 64 hex digits that were written", _anew(path))
    return found[1].decode()


def _anew(path: Path) -> str:
    return f"stop every control plane, remove {path}, and start them: the first one makes another"


def _unusable(path: Path, known: str, hint: str) -> StokerError:
    return refusal_error("peer_secret_unusable", f"the secret in {path} can't be used: {known}", hint)
