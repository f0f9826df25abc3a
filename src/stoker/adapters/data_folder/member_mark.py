"""Is this data folder that of one of several control planes?

While such a one doesn't run, its log may be behind another's, and what somebody wrote into it would be a history of its
own, under an epoch that another one goes on writing in. So whoever opens a folder by itself looks here first.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.adapters.atomic_file import write_atomic

MARK_NAME: Final = "one-of-several"
_NAME_BYTES_MAX: Final = 1_024


def mark_member(folder: Path, name: str) -> None:
    """From now on it is, under this name. Raises: OSError."""
    if member_in(folder) != name:
        write_atomic(folder / MARK_NAME, f"{name}\n".encode())


def unmark_member(folder: Path) -> None:
    """It is alone again: whoever starts it so says that no other one goes on. Raises: OSError."""
    (folder / MARK_NAME).unlink(missing_ok=True)


def member_in(folder: Path) -> str:
    """Its name; empty = it is the only one, as far as is known."""
    with suppress(OSError), (folder / MARK_NAME).open("rb") as file:
        return file.read(_NAME_BYTES_MAX).decode("utf-8", "replace").strip() or "?"
    return ""
