"""The history in its file: through a death between its write and the next snapshot, and when the file is no store."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from tests.real.control_process import ControlProcess

MANY: Final = 700
"""Twice as many are more than the state remembers of those that ended, and than one page holds."""
REMEMBERED: Final = 1_000


def until(holds: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it doesn't come true"
        time.sleep(0.05)


def every_row(control: ControlProcess, query: str = "") -> Iterator[dict[str, Any]]:
    after = ""
    while True:
        status, page = control.ask("GET", f"/api/v1/jobs?limit=1000&after={after}{query}")
        assert status == 200, page
        yield from page["jobs"]
        if page["next"] is None:
            return
        after = page["next"]


def end_many(control: ControlProcess) -> None:
    """Jobs that wait for one that can't succeed any more end at once."""
    assert control.ask("POST", "/api/v1/jobs", {"command": "true", "hold": True})[0] == 201
    assert control.ask("DELETE", "/api/v1/jobs/1")[0] == 200
    for _ in range(2):
        jobs = [{"command": "true", "after": ["ok:1"]}] * MANY
        assert control.ask("POST", "/api/v1/jobs", {"jobs": jobs})[0] == 201
    until(lambda: control.ask("GET", "/api/v1/cluster/status")[1]["total_jobs"] <= 1.1 * REMEMBERED)


def written(folder: Path) -> int:
    with closing(sqlite3.connect(f"{(folder / 'history.db').as_uri()}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM job").fetchone()[0])


def test_a_kill_between_a_write_of_the_history_and_the_snapshot_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data", ended_max=REMEMBERED) as control:
        before = set(control.folder.glob("snapshot-*"))
        end_many(control)
        until(lambda: written(control.folder) == 2 * MANY + 1)
        assert set(control.folder.glob("snapshot-*")) == before, "a snapshot came first: this shows nothing"
        control.kill()
    for _ in range(2):
        with ControlProcess(tmp_path / "data", ended_max=REMEMBERED) as control:
            rows = [int(job["id"]) for job in every_row(control)]
            assert rows == list(range(2 * MANY + 1, 0, -1))
            status, forgotten = control.ask("GET", "/api/v1/jobs/2")
            assert (status, forgotten["reason"]["code"]) == (200, "dependency_never_satisfied")
            control.kill()
        assert written(control.folder) == 2 * MANY + 1


def test_a_kill_before_anything_was_written_loses_nothing_of_the_history(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data", ended_max=REMEMBERED) as control:
        end_many(control)
        control.kill()
        for file in control.folder.glob("history.db*"):
            file.unlink()
    with ControlProcess(tmp_path / "data", ended_max=REMEMBERED) as control:
        until(lambda: written(control.folder) == 2 * MANY + 1)
        assert len(list(every_row(control))) == 2 * MANY + 1


def test_a_history_that_is_no_store_stops_nothing_and_is_begun_anew_once_it_is_moved_away(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "history.db").write_bytes(b"this is no database" * 500)
    with ControlProcess(folder) as control:
        assert control.ask("POST", "/api/v1/jobs", {"command": "true", "hold": True})[0] == 201
        assert control.ask("DELETE", "/api/v1/jobs/1")[0] == 200
        status, refused = control.ask("GET", "/api/v1/usage")
        assert (status, refused["code"]) == (503, "history_unavailable")
        until(lambda: "To recover: move it away" in control.output())
        assert control.ask("GET", "/api/v1/jobs")[1]["total"] == 1
        (folder / "history.db").rename(folder / "aside")
        until(lambda: control.ask("GET", "/api/v1/usage")[0] == 200, within_s=60)
        until(lambda: written(folder) == 1)
