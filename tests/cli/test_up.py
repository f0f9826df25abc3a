"""Which folders does `stoker up` leave alone?"""

from pathlib import Path

import pytest

from stoker.adapters.data_folder.marks import ELSEWHERE_NAME, STORE_NAME
from stoker.adapters.data_folder.ownership import hold_folder
from stoker.brain.domain.errors import StokerError
from stoker.cli.wiring.up import _held


@pytest.mark.parametrize("log", [STORE_NAME, ELSEWHERE_NAME])
def test_a_folder_of_a_control_plane_is_refused_wherever_its_log_is(tmp_path: Path, log: str) -> None:
    """The queue there would seem to be gone: a second one would begin below it."""
    (tmp_path / log).touch()
    with pytest.raises(StokerError) as caught, _held(tmp_path):
        pass
    assert caught.value.refusal.code == "data_dir_unusable"
    assert "`stoker control`" in caught.value.refusal.hint
    hold_folder(tmp_path).release()


def test_a_folder_that_another_process_holds_is_refused(tmp_path: Path) -> None:
    held = hold_folder(tmp_path)
    with pytest.raises(StokerError) as caught, _held(tmp_path):
        pass
    held.release()
    assert caught.value.refusal.code == "data_dir_held"
    assert "--data-dir" in caught.value.refusal.hint


def test_a_folder_of_ones_own_may_be_used_again(tmp_path: Path) -> None:
    for _ in range(2):
        with _held(tmp_path / "cluster"):
            (tmp_path / "cluster" / "control").mkdir(exist_ok=True)
            (tmp_path / "cluster" / "control" / STORE_NAME).touch()
