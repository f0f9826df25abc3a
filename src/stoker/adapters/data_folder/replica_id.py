"""Which data folder is this?

A control plane is known to others by its name and by this: a folder that was lost and made anew, or restored, holds
nothing of what the old one had, and must not be taken for it.
"""

import re
from pathlib import Path
from typing import Final

from stoker.adapters.atomic_file import write_atomic
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
    write_atomic(path, f"{uid}\n".encode())
    return uid
