"""A backup that becomes a log in PostgreSQL: so a queue moves there from a folder, and a database comes back."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.brain.state.admit.leadership import IDS_SKIPPED
from tests.real.agent_process import AgentProcess, job, submit, until, until_state
from tests.real.backups import backed_up, known_jobs, refused, stoker
from tests.real.control_process import ControlProcess
from tests.real.pair_process import Pair
from tests.real.postgres import Server, programs, server
from tests.real.postgres_control import Control

pytestmark = [
    pytest.mark.skipif(programs() is None, reason="no PostgreSQL is installed (Debian: apt-get install postgresql)"),
    pytest.mark.timeout(180),
]


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    with server() as made:
        yield made


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of jobs 1 to 3, which wait."""
    folder = tmp_path_factory.mktemp("kept")
    with ControlProcess(folder / "data") as control:
        for _ in range(3):
            submit(control, "true")
        backed_up(control, folder / "b.tar")
    return folder / "b.tar"


def settings_in(folder: Path, url: str) -> tuple[Path, Path]:
    """A settings file, and the data folder that it names."""
    path = folder / "control.yaml"
    path.write_text(f'data_dir: {folder / "new"}\nstore: {{url: "{url}"}}\n')
    return path, folder / "new"


def known(pair: Pair) -> set[int]:
    with pair.client() as client:
        return {int(each.id) for each in client.each_job()}


def test_a_queue_moves_from_a_folder_into_a_database_and_what_runs_runs_on(own: Server, tmp_path: Path) -> None:
    go, starts = tmp_path / "go", tmp_path / "starts"
    with ControlProcess(tmp_path / "data") as old, AgentProcess(tmp_path / "node", old):
        line = f"echo once >> {starts}; until [ -e {go} ]; do sleep 0.05; done; exit 7"
        runs = submit(old, line, gpu_count=4)
        until_state(old, runs, "running")
        waits = [submit(old, "true") for _ in range(5)]
        backed_up(old, tmp_path / "b.tar")
        old.kill()
        with Control(tmp_path / "new", own.database("moved")) as new:
            new.port, new.grpc_port = old.http_port, old.grpc_port
            config = new.write_settings()
            done = stoker("restore", tmp_path / "b.tar", "-c", config, env={"STOKER__STORE__URL": new.url})
            assert done.returncode == 0, done.stderr
            assert "and the database of store.url hold the cluster as it was" in done.stdout.decode()
            new.start()
            assert new.known() == {int(runs), *map(int, waits)}
            go.touch()
            ended = until_state(old, runs, "failed")  # the same address
            assert (ended["exit_code"], len(ended["attempts"]), starts.read_text()) == (7, 1, "once\n")
            for each in waits:
                until_state(old, each, "succeeded")
            later = new.submit()
            assert later > IDS_SKIPPED
            new.kill()
            new.start()
            assert new.known() == {int(runs), *map(int, waits), later}
            assert job(old, runs)["exit_code"] == 7


def test_of_one_that_is_stopped_the_settings_file_names_all_that_is_backed_up(own: Server, tmp_path: Path) -> None:
    with Control(tmp_path / "data", own.database("stopped")) as control:
        control.start()
        jobs = {control.submit() for _ in range(5)}
        config, url = control.write_settings(), {"STOKER__STORE__URL": control.url}
        running = stoker("backup", tmp_path / "running.tar", "-c", config, env=url)
        assert running.returncode == 0, running.stderr
        control.kill()
        assert refused(stoker("backup", tmp_path / "b.tar", "-c", config), 1) == "store_moved"
        wrong = {"STOKER__STORE__URL": own.database("wrong")}
        assert refused(stoker("backup", tmp_path / "b.tar", "-c", config, env=wrong), 1) == "store_moved"
        both = stoker("backup", tmp_path / "b.tar", "-c", config, "--data-dir", tmp_path / "data", env=url)
        assert both.returncode == 2
        assert not (tmp_path / "b.tar").exists()
        stopped = stoker("backup", tmp_path / "b.tar", "-c", config, env=url)
        assert stopped.returncode == 0, stopped.stderr
    assert stoker("restore", tmp_path / "b.tar", "--data-dir", tmp_path / "new").returncode == 0
    with ControlProcess(tmp_path / "new") as again:
        assert known_jobs(again) == jobs


def test_the_database_that_is_named_is_backed_up_with_its_own_history_and_no_other_one_is_changed(
    own: Server, backup: Path, tmp_path: Path
) -> None:
    """An older copy of its own log; another cluster's is refused."""
    with Control(tmp_path / "data", own.database("rightful")) as control:
        control.start()
        config = control.write_settings()
        first = stoker("backup", tmp_path / "monday.tar", "-c", config)
        assert first.returncode == 0, first.stderr
        for _ in range(3):
            assert control.ask("DELETE", f"/api/v1/jobs/{control.submit()}")[0] == 200
        control.stop()
        cancelled = "SELECT count(*), (SELECT position FROM stoker_history_mark) FROM stoker_history_job"
        history = own.sql("rightful", cancelled)
        assert history.startswith("3|")
        for name, kept in (("older", tmp_path / "monday.tar"), ("anothers", backup)):
            (tmp_path / name).mkdir()
            path, _ = settings_in(tmp_path / name, own.database(name))
            assert stoker("restore", kept, "-c", path).returncode == 0
            wrong = {"STOKER__STORE__URL": own.url(name)}
            done = stoker("backup", tmp_path / f"{name}.tar", "-c", config, env=wrong)
            if name == "anothers":
                assert refused(done, 1) == "store_moved"
                assert b"holds cluster " in done.stderr
                assert not (tmp_path / "anothers.tar").exists()
            else:
                assert done.returncode == 0, done.stderr
            assert own.sql("rightful", cancelled) == history
            assert own.sql(name, "SELECT to_regclass('stoker_history_job') IS NULL") == (
                "t" if name == "anothers" else "f"
            )


def test_a_folder_that_cannot_be_put_in_place_leaves_the_database_empty(
    own: Server, backup: Path, tmp_path: Path
) -> None:
    path, folder = settings_in(tmp_path, own.database("in_vain"))
    folder.write_text("no folder")
    for words in ((), ("--force",)):
        assert refused(stoker("restore", backup, "-c", path, *words), 1) == "data_dir_unusable"
    folder.unlink()
    assert stoker("restore", backup, "-c", path).returncode == 0


def test_where_it_was_cut_off_before_the_database_kept_it_nothing_begins_anew(
    own: Server, backup: Path, tmp_path: Path
) -> None:
    """The folder is in its place then, and the database empty."""
    with Control(tmp_path / "new", own.database("cut_off")) as control:
        config, url = control.write_settings(), {"STOKER__STORE__URL": control.url}
        assert stoker("restore", backup, "-c", config, env=url).returncode == 0
        own.sql("cut_off", "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        control.start()
        assert control.returncode == 1
        assert "store_moved" in control.said()
        again = stoker("restore", backup, "-c", config, "--force", env=url)
        assert again.returncode == 0, again.stderr
        control.start()
        assert control.known() == {1, 2, 3}


def test_a_database_that_holds_something_is_refused_and_neither_it_nor_the_folder_is_changed(
    own: Server, backup: Path, tmp_path: Path
) -> None:
    with Control(tmp_path / "data", own.database("used")) as control:
        control.start()
        before = control.submit()
        path, folder = settings_in(tmp_path, control.url)
        assert refused(stoker("restore", backup, "-c", path), 1) == "store_held"
        control.stop()
        for words in ((), ("--force",)):
            assert refused(stoker("restore", backup, "-c", path, *words), 4) == "store_not_empty"
        assert [each.name for each in tmp_path.iterdir() if "new" in each.name] == [], folder
        control.start()
        assert control.known() == {before}


def test_a_database_where_control_planes_have_only_begun_holds_something_too(
    own: Server, backup: Path, tmp_path: Path
) -> None:
    """Their marker: whoever had it would find another log beneath it."""
    path, _ = settings_in(tmp_path, own.database("begun"))
    own.sql("begun", "SELECT 1")
    assert stoker("restore", backup, "-c", path).returncode == 0
    own.sql("begun", "DELETE FROM stoker_event; DELETE FROM stoker_snapshot; UPDATE stoker_end SET position = 0")
    own.sql("begun", "UPDATE stoker_marker SET version = 1")
    assert refused(stoker("restore", backup, "-c", path, "--force"), 4) == "store_not_empty"


def test_a_database_where_only_a_history_is_left_holds_something_too(own: Server, backup: Path, tmp_path: Path) -> None:
    url = own.database("leftover")
    path, _ = settings_in(tmp_path, url)
    own.sql("leftover", "CREATE TABLE stoker_history_mark (cluster_id text, position bigint)")
    own.sql("leftover", "INSERT INTO stoker_history_mark VALUES ('another', 7)")
    assert refused(stoker("restore", backup, "-c", path), 4) == "store_not_empty"


def test_a_history_moves_with_its_queue_into_a_database_and_back_into_a_folder(own: Server, tmp_path: Path) -> None:
    """Where an earlier release left it in the folder, it moves at the first start, too."""
    with ControlProcess(tmp_path / "data") as old:
        cancelled = submit(old, "true", hold=True)
        assert old.ask("DELETE", f"/api/v1/jobs/{cancelled}")[0] == 200
        backed_up(old, tmp_path / "b.tar")
    with Control(tmp_path / "new", own.database("history")) as new:
        config = new.write_settings()
        assert stoker("restore", tmp_path / "b.tar", "-c", config, env={"STOKER__STORE__URL": new.url}).returncode == 0
        new.start()
        until(lambda: (tmp_path / "new" / "history.db.moved").exists(), "it has moved")
        assert own.sql("history", "SELECT id, state FROM stoker_history_job") == f"{cancelled}|cancelled"
        assert own.sql("history", "SELECT count(*) FROM stoker_history_audit WHERE action = 'cancel'") == "1"
        later = new.submit()
        assert new.ask("DELETE", f"/api/v1/jobs/{later}")[0] == 200
        new.stop()
        done = stoker("backup", tmp_path / "c.tar", "-c", config, env={"STOKER__STORE__URL": new.url})
        assert done.returncode == 0, done.stderr
    assert stoker("restore", tmp_path / "c.tar", "--data-dir", tmp_path / "back").returncode == 0
    with ControlProcess(tmp_path / "back") as again:
        status, told = again.ask("GET", "/api/v1/audit?action=cancel")
        assert (status, [row["job"] for row in told["rows"]]) == (200, [str(later), cancelled])


def test_a_database_that_cannot_be_reached_is_named_without_its_password_and_nothing_is_made(
    own: Server, backup: Path, tmp_path: Path
) -> None:
    path, folder = settings_in(tmp_path, f"postgresql://stoker:hush@/stoker?host={tmp_path}")
    done = stoker("restore", backup, "-c", path)
    assert refused(done, 1) == "store_unreachable"
    assert b"hush" not in done.stderr
    assert not folder.exists()


def test_two_control_planes_go_on_from_a_restored_database(own: Server, backup: Path, tmp_path: Path) -> None:
    pair = Pair(tmp_path, store=own.database("shared"))
    pair.a.write(pair.settings_of(pair.a))
    done = stoker("restore", backup, "-c", pair.a.settings)
    assert done.returncode == 0, done.stderr
    with pair:
        pair.start()
        first = pair.active
        assert known(pair) == {1, 2, 3}
        first.kill()
        pair.until_active(pair.other(first))
        assert known(pair) == {1, 2, 3}
