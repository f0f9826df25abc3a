"""What a restore puts into a data folder, and where what was there goes: rules of `data_folder/restored_folder.py`."""

from contextlib import suppress
from pathlib import Path

import pytest

from stoker.adapters.data_folder.folder_swap import INCOMING_NAME, LOCK_NAME
from stoker.adapters.data_folder.ownership import hold_folder
from stoker.adapters.data_folder.restored_folder import restored_folder
from stoker.brain.domain.errors import StokerError
from tests.adapters.test_log_sqlite_crashes import STEPS_MAX, Died, dying_at


def restored(path: Path, name: str = "new") -> None:
    with restored_folder(path, replace=True) as folder:
        (folder / INCOMING_NAME).mkdir()
        (folder / INCOMING_NAME / name).write_text(name)


def fill_the_disk(path: Path) -> None:
    with restored_folder(path, replace=True) as folder:
        (folder / INCOMING_NAME).mkdir()
        raise OSError(28, "No space left on device")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name != "lock")


def begun(path: Path) -> Path:
    path.mkdir(parents=True)
    for name in ("log-is-in-postgresql", "old", "replica-id"):
        (path / name).touch()
    (path / "replaced-1").mkdir()
    return path


OLD = ["log-is-in-postgresql", "old", "replaced-1", "replica-id"]


def test_f2_all_that_was_there_is_kept_beside_what_takes_its_place(tmp_path: Path) -> None:
    data = begun(tmp_path / "data")
    data.chmod(0o750)
    restored(data)
    assert names(data) == ["new"]
    assert names(tmp_path) == ["data", "data.before-restore-1"]
    assert names(tmp_path / "data.before-restore-1") == OLD
    assert (tmp_path / "data.before-restore-1").stat().st_mode == data.stat().st_mode
    restored(data, "newer")
    assert names(data) == ["newer"]
    assert names(tmp_path / "data.before-restore-2") == ["new"]


def test_f4_the_authority_that_was_there_stays(tmp_path: Path) -> None:
    """Nodes and people know the control plane by it; with another one all of them would be locked out."""
    data = begun(tmp_path / "data")
    (data / "ca").mkdir(mode=0o700)
    (data / "ca" / "ca.pem").write_text("key")
    (data / "ca" / "ca.pem").chmod(0o600)
    restored(data)
    assert names(data) == ["ca", "new"]
    assert (data / "ca" / "ca.pem").read_text() == "key"
    assert [(data / "ca" / name).stat().st_mode & 0o777 for name in (".", "ca.pem")] == [0o700, 0o600]
    assert (tmp_path / "data.before-restore-1" / "ca" / "ca.pem").exists(), "what was there is kept as a whole"


def test_f1_a_death_at_any_step_leaves_to_who_takes_the_folder_next_all_of_the_old_or_all_of_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there was neither, a control plane that was started just then began a new cluster."""
    seen: list[bool] = []
    for step in range(1, STEPS_MAX):
        data = begun(tmp_path / str(step) / "data")
        with dying_at(step, monkeypatch) as died, suppress(Died):
            restored(data)
        hold_folder(data).release()
        assert names(data) in (OLD, ["new"])
        seen.append(names(data) == ["new"])
        restored(data, "again")
        assert names(data) == ["again"]
        assert OLD in [names(folder) for folder in data.parent.iterdir()], "it is kept, whole"
        if not died():
            break
    assert seen == sorted(seen), "once it is the new one it stays so"
    assert {*seen} == {False, True}
    assert 10 < step < STEPS_MAX - 1


def test_f1_what_fails_on_the_way_leaves_what_was_there_and_no_folder_where_none_was(tmp_path: Path) -> None:
    data = begun(tmp_path / "data")
    for path in (data, tmp_path / "none"):
        with pytest.raises(StokerError, match="No space left"):
            fill_the_disk(path)
    assert names(tmp_path) == ["data"]
    assert names(data) == OLD
    assert (data / LOCK_NAME).exists(), "a folder that was there keeps its lock, which others may be waiting for"


def test_f1_what_fails_before_anything_was_put_together_leaves_no_folder_where_none_was(tmp_path: Path) -> None:
    with pytest.raises(StokerError, match="No space left"), restored_folder(tmp_path / "none", replace=True):
        raise OSError(28, "No space left on device")
    assert names(tmp_path) == []
