"""Small files in a data folder that say whose folder it is, how it served, and where its event log is.

Rules: M1  `replica-id` is made once with the folder: a folder that was lost and made anew, or restored, holds nothing
           of what the old one had, and must not be taken for it
       M2  `one-of-several` names the control plane among others whose folder this is: while it doesn't run, its log may
           be behind another's, so a program that opens the folder by itself looks here first
       M3  `served-tls` says that this control plane has served by the authority of several, which is in a folder that
           they share: where that one is lost, another isn't made in silence
       C2  a folder whose log is in one store isn't opened with another: the queue would seem to be empty. The file
           `log-is-in-postgresql` says that the log is in a database; to mean it, a person removes that file, or the
           store, by hand
       C3  nor with an empty database, once it was opened with one that wasn't, nor with that of another cluster: its
           agents would stop all that they run. The same file says that there was something, and of which cluster
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.adapters.atomic_file import make_private, write_atomic
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.ports import Entropy

STORE_NAME: Final = "stoker.db"
ID_NAME: Final = "replica-id"
MARK_NAME: Final = "one-of-several"
SERVED_TLS_NAME: Final = "served-tls"
ELSEWHERE_NAME: Final = "log-is-in-postgresql"
_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME_BYTES_MAX: Final = 1_024
_BEGUN: Final = "and it isn't empty\n"
_OF_CLUSTER: Final = "cluster "


def replica_id(folder: Path, entropy: Entropy) -> str:
    """Return the id of the folder (M1), which is made now if it has none, or none that can be read. Raises: OSError."""
    path = folder / ID_NAME
    found = path.read_text("utf-8", "replace").strip() if path.exists() else ""
    if _ID.fullmatch(found):
        return found
    uid = entropy.uid()
    write_atomic(path, f"{uid}\n".encode())
    return uid


def mark_member(folder: Path, name: str) -> None:
    """Note that the folder is that of control plane `name`, one of several (M2). Raises: OSError."""
    if member_in(folder) != name:
        write_atomic(folder / MARK_NAME, f"{name}\n".encode())


def unmark_member(folder: Path) -> None:
    """Note that the control plane is alone again (M2). Raises: OSError."""
    (folder / MARK_NAME).unlink(missing_ok=True)


def member_in(folder: Path) -> str:
    """Return the name of the control plane among others whose folder this is (M2); empty = it is the only one."""
    with suppress(OSError), (folder / MARK_NAME).open("rb") as file:
        return file.read(_NAME_BYTES_MAX).decode("utf-8", "replace").strip() or "?"
    return ""


def mark_served_tls(folder: Path) -> None:
    """Note that the control plane has served by the authority that it shares (M3). Raises: OSError."""
    make_private(folder / SERVED_TLS_NAME)


def has_served_tls(folder: Path) -> bool:
    """Return whether the control plane has served by the authority that it shares (M3)."""
    return (folder / SERVED_TLS_NAME).exists()


def mark_elsewhere(folder: Path, *, begun: bool, cluster_id: str = "") -> None:
    """Note that the log is in a database (C2), and once and for all that this one isn't empty, and whose it is (C3).

    Raises: OSError.
    """
    mark = folder / ELSEWHERE_NAME
    make_private(mark)
    if begun and (not mark.stat().st_size or (cluster_id and not cluster_elsewhere(folder))):
        write_atomic(mark, f"{_BEGUN}{_OF_CLUSTER}{cluster_id}\n".encode() if cluster_id else _BEGUN.encode())


def cluster_elsewhere(folder: Path) -> str:
    """Return the id of the cluster whose log was in a database; empty = none, or it isn't known. Raises: OSError."""
    mark = folder / ELSEWHERE_NAME
    lines = mark.read_text("utf-8", "replace")[:_NAME_BYTES_MAX].splitlines() if mark.exists() else []
    return next((line.removeprefix(_OF_CLUSTER) for line in lines if line.startswith(_OF_CLUSTER)), "")


def was_begun_elsewhere(folder: Path) -> bool:
    """Return whether the log was in a database that wasn't empty (C3). Raises: OSError."""
    mark = folder / ELSEWHERE_NAME
    return mark.exists() and bool(mark.stat().st_size)


def must_be_here(folder: Path) -> None:
    """Refuse to open the log of a folder in the folder when it is in a database. Raises: StokerError `store_moved`."""
    if (folder / ELSEWHERE_NAME).exists():
        raise moved(
            f"the log of {folder} is in PostgreSQL, and store.url is empty",
            f"set store.url as before; if the queue there is to be given up, remove {folder / ELSEWHERE_NAME}",
        )


def must_be_elsewhere(folder: Path) -> None:
    """Refuse to open the log of a folder in a database when it is in the folder. Raises: StokerError `store_moved`."""
    if (folder / STORE_NAME).exists():
        raise moved(
            f"{folder} has a log of its own, and store.url names a database",
            f"leave store.url empty; if the queue there is to be given up, move {folder / STORE_NAME} away",
        )


def must_not_be_lost(folder: Path) -> None:
    """Refuse an empty database when the log was in one that wasn't (C3). Raises: StokerError `store_moved`, OSError."""
    if was_begun_elsewhere(folder):
        raise moved(
            f"the database of store.url is empty, and the log of {folder} was in one that isn't",
            f"name that one; if the queue there is to be given up, remove {folder / ELSEWHERE_NAME}",
        )


def must_be_of(folder: Path, cluster_id: str) -> None:
    """Refuse the database of another cluster than the log of a folder was of (C3).

    `cluster_id`: empty = not known. Raises: StokerError `store_moved`, OSError.
    """
    known = cluster_elsewhere(folder)
    if known and cluster_id and known != cluster_id:
        raise moved(
            f"the database of store.url holds cluster {cluster_id}, and the log of {folder} was of cluster {known}",
            f"name the database of that one; if the queue there is to be given up, remove {folder / ELSEWHERE_NAME}",
        )


def moved(message: str, hint: str) -> StokerError:
    """Return the refusal of a store that isn't the one in which the log of a folder is."""
    return refusal_error("store_moved", message, hint)
