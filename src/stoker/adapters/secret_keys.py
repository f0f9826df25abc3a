"""Keys of a cluster's secrets, kept in a file that is neither in the data folder nor in the log nor in a backup.

One line for each key, the newest first: that one seals, and all of them open. Values are sealed by AES-SIV, which needs
no dice: a value that is set twice gives the same text, and different ones never help to read each other.

Rules: Y1  the file is made where there is none and nothing was sealed yet; one that was lost is told, never replaced
       Y2  a file that others may read is refused
       Y3  keys are only ever added, by a peer or by a person; of several who make the file at once all end up with one
       Y4  neither a key nor a value is in an error text
       Y5  the file is read again when it has changed, so that one that was mended counts at once
Source: RFC 5297 (AES-SIV).
"""

import hashlib
import os
import stat
from base64 import b64decode, b64encode
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from stoker.adapters.atomic_file import sync, write_atomic, written_apart
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.secret import SealedValue

KEYS_MAX: Final = 16
"""In one file; older ones have to be taken out by hand."""
_WORD: Final = "stoker-secret-key"
_KEY_BITS: Final = 512
_BYTES_MAX: Final = 16_384


class SecretKeys:
    """The keys in one file, which lies on a disk of this machine. Reading it takes as long as that disk does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._keys: dict[str, bytes] = {}

    def seal(self, label: str, value: bytes, *, first: bool) -> SealedValue:
        """Encrypt a value, bound to a label. `first`: nothing was sealed before, so the file may be made (Y1).

        Raises: StokerError `secret_key_unusable`.
        """
        if first:
            self.make()
        name, key = next(iter(self._known().items()))
        sealed = AESSIV(key).encrypt(value, [label.encode()])
        return SealedValue(key=name, text=b64encode(sealed).decode())

    def open(self, label: str, sealed: SealedValue) -> bytes:
        """Decrypt what was sealed under this label. Raises: StokerError `secret_key_unusable`."""
        key = self._known().get(sealed.key)
        if key is None:
            known = f"it lacks the key {sealed.key[:20]}, under which a secret was sealed"
            raise self._unusable(known, "add the line of that key from a copy of the file")
        try:
            return AESSIV(key).decrypt(b64decode(sealed.text), [label.encode()])
        except (InvalidTag, ValueError):
            hint = "set that secret anew; its record was changed outside Stoker"
            raise self._unusable("a secret does not open with the key that sealed it", hint) from None

    def lacking(self, names: set[str]) -> set[str]:
        """Return those of these keys that the file lacks, all of them where it isn't there.

        Raises: StokerError `secret_key_unusable` for a file that can't be used.
        """
        return names - self._known().keys() if os.path.lexists(self._path) else names

    def exported(self) -> bytes:
        """Return the content of the file, for a peer; empty where there is none. Raises: StokerError."""
        return _text(self._known()) if os.path.lexists(self._path) else b""

    def add(self, content: bytes) -> None:
        """Add the keys that a peer has exported, before those that are here (Y3). Raises: StokerError."""
        given = self._parsed(content)
        known = self._known() if os.path.lexists(self._path) else {}
        keys = {**given, **known}
        if len(keys) > KEYS_MAX:
            raise self._unusable(f"with those of a peer it would hold {len(keys)} keys", f"keep {KEYS_MAX} at most")
        if list(keys) == list(known):
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self._path, _text(keys))
        except OSError as fault:
            raise self._unwritable(fault) from fault

    def make(self) -> None:
        """Make the file with a first key, where there is none (Y1). Raises: StokerError `secret_key_unusable`."""
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.path.lexists(self._path):
                return
            with written_apart(folder, "key-", _text(_named(AESSIV.generate_key(_KEY_BITS)))) as temporary:
                with suppress(FileExistsError):
                    os.link(temporary, self._path)  # Y3
                sync(folder)
        except OSError as fault:
            raise self._unwritable(fault) from fault

    def _known(self) -> dict[str, bytes]:
        """Return the keys by their names, the newest first; there is at least one. Raises: StokerError."""
        try:
            seen = _look(self._path)
            if seen != self._seen:
                self._keys, self._seen = self._read(), seen
        except FileNotFoundError as fault:
            hint = "put a copy of it back; without one every secret has to be deleted and set anew"
            raise self._unusable("it isn't there, and secrets were sealed with it", hint) from fault
        except OSError as fault:
            raise self._unusable(f"{fault.strerror or fault}", "let the control plane's account own it") from fault
        return self._keys

    def _read(self) -> dict[str, bytes]:
        # Without O_NONBLOCK a pipe would wait for a writer, and everybody with it.
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise self._unusable("it isn't a file", "put a copy of the file there")
            content = os.read(fd, _BYTES_MAX)
        finally:
            os.close(fd)
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:  # Y2
            hint = f"chmod 600 {self._path}; whoever read it can read every secret of a log or backup that he has: "
            raise self._unusable(f"others may read it (mode {mode:04o})", f"{hint}set those anew that matter")
        return self._parsed(content)

    def _parsed(self, content: bytes) -> dict[str, bytes]:
        keys: dict[str, bytes] = {}
        for number, line in enumerate(content.decode("ascii", "replace").splitlines(), start=1):
            word, _, text = line.partition(" ")
            if not line or line.startswith("#"):
                continue
            try:
                key = b64decode(text, validate=True)
            except ValueError:
                key = b""
            if word != _WORD or len(key) * 8 != _KEY_BITS:
                raise self._unusable(f"line {number} is no key", f"wanted are lines `{_WORD} BASE64`, the newest first")
            keys |= _named(key)
        if not keys:
            raise self._unusable("no key is in it", "put a copy of it back; without one remove it")
        return keys

    def _unwritable(self, fault: OSError) -> StokerError:
        hint = "let the control plane's account write that folder, or name another file (`secrets.key_file`)"
        return self._unusable(f"it can't be written: {fault.strerror or fault}", hint)

    def _unusable(self, known: str, hint: str) -> StokerError:
        message = f"the key of the secrets in {self._path} can't be used: {known}"
        return refusal_error("secret_key_unusable", message, hint, path=str(self._path))


def _look(path: Path) -> tuple[int, ...]:
    seen = path.stat()
    return seen.st_ino, seen.st_mtime_ns, seen.st_size, seen.st_mode


def _named(key: bytes) -> dict[str, bytes]:
    return {hashlib.sha256(key).hexdigest()[:16]: key}


def _text(keys: dict[str, bytes]) -> bytes:
    return "".join(f"{_WORD} {b64encode(key).decode()}\n" for key in keys.values()).encode()
