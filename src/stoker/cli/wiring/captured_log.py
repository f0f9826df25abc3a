"""Captured log of a control plane for `stoker sim replay`, from its data folder or a backup, which stay as they are.

Rules: G1  a folder is read as it is, whether a control plane runs on it or not; no record, mark or snapshot in it is
           changed, and nobody who writes there waits
       G2  as far back as records are kept: from the oldest whole snapshot that they continue, or from the beginning
"""

from collections.abc import Sequence
from pathlib import Path

from stoker.adapters.data_folder.marks import ELSEWHERE_NAME, STORE_NAME
from stoker.adapters.log_policy import RecordDamaged
from stoker.adapters.sqlite.files import SnapshotFiles
from stoker.adapters.sqlite.journal import captured
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import Position
from stoker.brain.state.snapshot_format import SnapshotDamaged
from stoker.cli.wiring.restore import proved_file
from stoker.cli.wiring.token_store import as_owner, must_be_control
from stoker.ports import Snapshot, Stored
from stoker.sim.recording import Recording, recorded, recorded_state


def recording_of(path: Path) -> Recording:
    """Return the recording in a data folder, or in a file that `stoker backup` wrote.

    Raises: StokerError `data_dir_unusable`, `store_moved`, `store_too_new`, `log_damaged`; of a file `backup_foreign`,
    `backup_damaged` or `backup_too_new`; of both `bad_trace` where no job ran to its end.
    """
    if not path.is_dir():
        return recorded_state(str(path), proved_file(path).chunks)
    folder = path.absolute()
    must_be_control(folder)
    if (folder / ELSEWHERE_NAME).exists():
        message = f"the log of {folder} is in PostgreSQL"
        raise refusal_error(
            "store_moved", message, "take a backup with `stoker backup`, and replay that", path=str(path)
        )
    if not (folder / STORE_NAME).exists():
        hint = "name the data_dir of a control plane, or a file of `stoker backup`"
        raise refusal_error("data_dir_unusable", f"{folder} holds no control plane's log", hint, path=str(path))
    try:
        with as_owner(folder):
            kept = _whole_snapshots(
                folder
            )  # before the records, of which those that it needs could be trimmed meanwhile
            rows = captured(folder)
    except RecordDamaged as fault:
        where = f"record {fault.position} of the log in {folder}" if fault.position else f"the log in {folder}"
        raise _damaged(f"{where} can't be read: {fault}", path) from fault
    except OSError as fault:
        hint = "see who owns the folder, and whether its disk is well"
        message = f"the log in {folder} can't be read: {fault.strerror or fault}"
        raise refusal_error("data_dir_unusable", message, hint, path=str(path)) from fault
    return _from_oldest(path, kept, rows)


def _from_oldest(path: Path, kept: Sequence[Snapshot], rows: Sequence[Stored]) -> Recording:
    """Recording from the oldest snapshot that the rest of the log goes on from (G2)."""
    if not rows:
        raise _damaged(f"the log in {path} holds no records", path)
    first = rows[0].position
    if first == 1:
        return recorded(str(path), (), [(row.position, row.record) for row in rows])
    for snapshot in kept:
        if snapshot.position >= first - 1:
            after = [(row.position, row.record) for row in rows if row.position > snapshot.position]
            return recorded(str(path), snapshot.chunks, after)
    raise _damaged(f"the log in {path} begins at record {first}, and no whole snapshot reaches it", path)


def _whole_snapshots(folder: Path) -> list[Snapshot]:
    """The snapshots that can be read, oldest first."""
    files = SnapshotFiles(folder)
    found: list[Snapshot] = []
    for position in sorted(files.positions()):
        try:
            found.append(files.load(Position(position)))
        except SnapshotDamaged:
            continue  # another one may do
    return found


def _damaged(message: str, path: Path) -> StokerError:
    hint = "see docs/howto/recover-a-damaged-log.md, or replay a backup"
    return refusal_error("log_damaged", message, hint, path=str(path))
