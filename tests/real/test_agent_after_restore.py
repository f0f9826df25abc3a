"""A control plane comes back from a backup, and lacks ends that the agent had delivered: nothing runs again."""

import shutil
from pathlib import Path

import pytest

from tests.real.agent_process import AgentProcess, job, submit, until, until_state
from tests.real.backups import backed_up, restored
from tests.real.control_process import ControlProcess

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("restarts", [False, True], ids=["same agent", "agent started again"])
def test_an_end_that_came_after_the_backup_is_given_again_and_the_job_keeps_its_exit_code(
    tmp_path: Path, restarts: bool
) -> None:
    backup, go, starts = tmp_path / "b.tar", tmp_path / "go", tmp_path / "starts"
    with ControlProcess(tmp_path / "data") as old, AgentProcess(tmp_path / "node", old) as agent:
        line = "echo $STOKER_JOB_ID >> {}; until [ -e {} ]; do sleep 0.05; done; exit {}"
        jobs = [submit(old, line.format(starts, go, code)) for code in (7, 0)]
        for each in jobs:
            until_state(old, each, "running")
        backed_up(old, backup)
        go.touch()
        assert until_state(old, jobs[0], "failed")["exit_code"] == 7
        until_state(old, jobs[1], "succeeded")
        journal = agent.data_dir / "journal"
        until(lambda: journal.read_bytes().count(b'"settled"') == 2, "the node knows that both ends were delivered")
        old.kill()
        if restarts:
            agent.kill()
        control = restored(backup, tmp_path / "new")
        control.http_port, control.grpc_port = old.http_port, old.grpc_port
        with control:
            assert job(control, jobs[0])["state"] in ("running", "failed"), "its log is older than the end"
            if restarts:
                agent.start()
            ended = [until_state(control, each, "succeeded", "failed") for each in jobs]
            assert [(one["exit_code"], len(one["attempts"])) for one in ended] == [(7, 1), (0, 1)]
            until_state(control, submit(control, "true", gpu_count=4), "succeeded")
        assert sorted(starts.read_text().split()) == sorted(jobs), "each was started once"
        until(lambda: agent.output().count("end_offered_again") >= 2, "the agent says what it did")


def test_an_agent_that_was_restarted_refuses_a_control_plane_of_an_older_epoch_and_takes_one_of_another_cluster(
    tmp_path: Path,
) -> None:
    """The older one is a copy of the folder from before a restart."""
    with ControlProcess(tmp_path / "data") as control, AgentProcess(tmp_path / "node", control) as agent:
        until_state(control, submit(control, "true"), "succeeded")
        control.kill()
        older = tmp_path / "older"
        _copy(control.folder, older)
        for _ in range(2):
            control.start()
            until_state(control, submit(control, "true"), "succeeded")
            control.kill()
        agent.kill()
        stale = _on_the_ports_of(control, ControlProcess(older))
        with stale:
            agent.start()
            ran = tmp_path / "ran"
            waits = submit(stale, f"touch {ran}")
            until(lambda: agent.output().count("stale_epoch_ignored") >= 2, "it is refused, and refused again")
            assert job(stale, waits)["state"] in ("pending", "starting")
            assert not ran.exists()
            stale.kill()
        with _on_the_ports_of(control, ControlProcess(tmp_path / "another" / "data")) as another:
            agent.environ["STOKER__CONTROL__TOKEN_FILE"] = str(another.tokens.agent_file)
            agent.kill()
            agent.start()
            until(lambda: "cluster_changed" in agent.output(), "it begins anew")
            first = submit(another, "exit 9")
            assert first == "1", "as the first job of the former cluster, which succeeded"
            ended = until_state(another, first, "failed", "succeeded")
            assert (ended["exit_code"], len(ended["attempts"])) == (9, 1)


def test_job_1_of_a_new_cluster_finds_no_checkpoint_of_job_1_of_the_former(tmp_path: Path) -> None:
    """The control plane's folder was made anew; the agents' weren't."""
    save = "echo $STOKER_CHECKPOINT_DIR; cat $STOKER_CHECKPOINT_DIR/weights; echo {} > $STOKER_CHECKPOINT_DIR/weights"
    with ControlProcess(tmp_path / "data") as control, AgentProcess(tmp_path / "node", control) as agent:
        assert submit(control, save.format("mine")) == "1"
        until_state(control, "1", "succeeded")
        control.kill()
        with _on_the_ports_of(control, ControlProcess(tmp_path / "another" / "data")) as another:
            agent.kill()
            agent.environ["STOKER__CONTROL__TOKEN_FILE"] = str(another.tokens.agent_file)
            agent.start()
            said = tmp_path / "said"
            assert submit(another, f"{{ {save.format('theirs')}; }} > {said}") == "1"
            until_state(another, "1", "succeeded")
            assert "mine" not in said.read_text()
            kept = sorted((agent.data_dir / "checkpoints").iterdir())
            assert sorted((each / "weights").read_text() for each in kept) == ["mine\n", "theirs\n"]


def _copy(folder: Path, to: Path) -> None:
    """With its tokens."""
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.sock"))
    shutil.copytree(folder.parent / f"{folder.name}.tokens", to.parent / f"{to.name}.tokens")


def _on_the_ports_of(other: ControlProcess, control: ControlProcess) -> ControlProcess:
    control.http_port, control.grpc_port = other.http_port, other.grpc_port
    return control
