"""The audit trail through a death between a command and its row, over real sockets and a real disk."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from stoker.wire.token import digest_of
from tests.real.control_process import ControlProcess


def rows(control: ControlProcess, query: str = "") -> list[dict[str, Any]]:
    status, page = control.ask("GET", f"/api/v1/audit?limit=1000&{query}")
    assert status == 200, page
    found: list[dict[str, Any]] = page["rows"]
    return found


def written(folder: Path) -> int:
    with closing(sqlite3.connect(f"{(folder / 'history.db').as_uri()}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM audit WHERE action = 'submit'").fetchone()[0])


def test_a_kill_right_after_a_command_was_acknowledged_loses_no_row_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    expected = 0
    for _ in range(3):
        with ControlProcess(folder) as control:
            for _ in range(20):
                assert control.ask("POST", "/api/v1/jobs", {"command": "true", "hold": True})[0] == 201
            control.kill()
            expected += 20
        assert written(folder) < expected, "every row was written in time: this shows nothing"
    with ControlProcess(folder) as control:
        found = rows(control, "action=submit")
        assert [int(row["job"]) for row in found] == list(range(expected, 0, -1))
        assert {row["by"] for row in found} == {f"token:{control.tokens.admin.split('_')[1]}"}
        assert control.terminate()[0] == 0
    assert written(folder) == expected


def test_tokens_that_were_made_while_nothing_ran_are_in_the_trail(tmp_path: Path) -> None:
    with ControlProcess(tmp_path / "data") as control:
        made = rows(control, "action=token_create")
        assert [(row["by"], row["details"]) for row in made] == [
            ("user:local", "role agent"),
            ("user:local", "role admin"),
        ]
        assert control.tokens.admin.split("_")[1] in {row["target"] for row in made}
        assert control.terminate()[0] == 0
    kept = b"".join(file.read_bytes() for file in control.folder.glob("history.db*"))
    assert b"role admin" in kept
    for secret in (control.tokens.admin, control.tokens.admin[-20:], digest_of(control.tokens.admin)):
        assert secret.encode() not in kept
