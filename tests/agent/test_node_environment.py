"""What a job finds on its node."""

from stoker.agent.instructions import complete_environment
from stoker.agent.machine import account_variables


def test_what_the_control_plane_gave_is_never_overridden() -> None:
    env = complete_environment(
        {"PATH": "/job", "STOKER_CHECKPOINT_DIR": "/mine"}, {"PATH": "/node", "HOME": "/h"}, "/c"
    )
    assert env == {"PATH": "/job", "HOME": "/h", "STOKER_CHECKPOINT_DIR": "/mine"}


def test_a_job_without_anything_has_a_path_and_a_home_and_no_tmpdir() -> None:
    env = complete_environment({}, account_variables(), "")
    assert {"PATH", "HOME"} <= env.keys()
    assert "TMPDIR" not in env
    assert "STOKER_CHECKPOINT_DIR" not in env
