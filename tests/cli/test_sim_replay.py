"""`stoker sim replay` on data folders and backups: what it prints, that it only reads, and what it refuses."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.state.codec import decode_fact
from stoker.cli.main import root
from tests.control.stage import stage
from tests.rig.virtual_loop import run_virtual
from tests.sim.test_replay import joined, run_for


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    """The log of a node with one GPU on which three jobs ran, one after the other."""
    found: list[bytes] = []

    async def live() -> None:
        async with stage() as s:
            player = await joined(s, "n")
            for job in [await s.submit() for _ in range(3)]:
                await run_for(s, player, job, 20)
        found.extend(s.disk.records)

    run_virtual(live)
    return found


def written(folder: Path, records: list[bytes]) -> Path:
    """A data folder with this log, of a control plane that doesn't run."""

    async def write() -> None:
        log = SqliteLog(folder)
        await log.open()
        await log.append(Epoch(1), Position(0), records)
        await log.close()

    asyncio.run(write())
    return folder


@contextmanager
def open_log(folder: Path, records: list[bytes]) -> Iterator[None]:
    """The same while a control plane has it open, with the newest records still in the WAL."""
    log = SqliteLog(folder)
    with asyncio.Runner() as runner:
        runner.run(log.open())
        runner.run(log.append(Epoch(1), Position(0), records))
        yield
        runner.run(log.close())


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def asked(*words: str) -> tuple[int, str]:
    said = CliRunner().invoke(root, list(words))
    return said.exit_code, said.output


def replayed(path: Path, *words: str) -> tuple[int, str]:
    return asked("sim", "replay", "--log", str(path), *words)


def test_a_replay_of_a_stopped_folder_compares_then_and_now_and_changes_no_byte(
    tmp_path: Path, records: list[bytes]
) -> None:
    folder = written(tmp_path / "data", records)
    before = content(folder)
    code, said = replayed(folder, "-o", "json")
    told = json.loads(said)
    assert code == 0
    assert (told["jobs"], told["compared"], told["facts"]) == (3, 3, len(records))
    assert told["now"]["jct_mean_s"] == pytest.approx(told["then"]["jct_mean_s"], abs=1)
    assert content(folder) == before
    table = replayed(folder)[1]
    assert table.splitlines()[0].split() == ["FIGURE", "THEN", "NOW", "CHANGE"]
    assert "3, of which 3 are compared" in table


def test_the_folder_of_a_running_control_plane_is_read_beside_it(tmp_path: Path, records: list[bytes]) -> None:
    with open_log(tmp_path / "data", records):
        code, said = replayed(tmp_path / "data", "-o", "json")
    assert (code, json.loads(said)["compared"]) == (0, 3)


def test_a_backup_is_replayed_like_the_folder_it_is_of(tmp_path: Path, records: list[bytes]) -> None:
    folder, file = written(tmp_path / "data", records), tmp_path / "stoker.tar"
    assert asked("backup", "--data-dir", str(folder), str(file))[0] == 0
    code, said = replayed(file, "--policy", "aging_per_hour=0", "-o", "json")
    assert (code, json.loads(said)["compared"]) == (0, 3)


def test_what_is_no_captured_log_is_one_error_with_a_hint(tmp_path: Path, records: list[bytes]) -> None:
    folder, file = written(tmp_path / "data", records), tmp_path / "stoker.tar"
    asked("backup", "--data-dir", str(folder), str(file))
    short, packed, text, empty, away = (tmp_path / name for name in ("short", "packed", "text", "empty", "away"))
    short.write_bytes(file.read_bytes()[:-700])
    packed.write_bytes(gzip.compress(file.read_bytes()))
    text.write_text("id,submit_s\n")
    empty.mkdir()
    away.mkdir()
    (away / "log-is-in-postgresql").write_text("")
    words = {short: "[backup_damaged]", packed: "unpack it", text: "[backup_foreign]", empty: "no control plane's log"}
    for path, word in (words | {away: "is in PostgreSQL"}).items():
        code, said = replayed(path)
        assert code in (1, 2), said
        assert word in said
        assert "hint: " in said


def test_a_log_is_a_trace_too_whose_jobs_run_on_other_nodes(tmp_path: Path, records: list[bytes]) -> None:
    folder = written(tmp_path / "data", records)
    words = ("--format", "log", "--workload", str(folder), "--policy", "engine", "-o", "json")
    one, three = (json.loads(asked("sim", "run", "--nodes", nodes, *words)[1]) for nodes in ("1x1", "3x1"))
    assert (one["jobs"], three["jobs"]) == (3, 3)
    assert three["wait_mean_s"] == 0
    assert one["makespan_s"] == pytest.approx(60, abs=1)
    code, said = asked("sim", "run", "--format", "csv", "--workload", str(folder), "--gpus", "1", "--policy", "fifo")
    assert (code, "can't be read" in said) == (2, True)


def test_a_log_that_ends_early_or_was_written_by_a_newer_version_is_refused_with_the_record(
    tmp_path: Path, records: list[bytes]
) -> None:
    newer = json.loads(records[5]) | {"v": 99}
    code, said = replayed(written(tmp_path / "newer", [*records[:5], json.dumps(newer).encode()]))
    assert (code, "record 6" in said, "[store_too_new]" in said) == (1, True, True)
    assert decode_fact(records[5]).v < 99
    code, said = replayed(written(tmp_path / "early", records[:6]))
    assert (code, "no job in it ran to its end" in said) == (2, True)
    cut = written(tmp_path / "cut", records) / "stoker.db"
    cut.write_bytes(cut.read_bytes()[: 3 * 4_096])
    code, said = replayed(tmp_path / "cut")
    assert (code, "[log_damaged]" in said, "hint: " in said) == (1, True, True)


@pytest.mark.parametrize(
    ("word", "says"),
    [("agin_max=1", "nearest: policy.aging_max"), ("aging_max=x", "aging_max"), ("aging_max", "isn't KEY=VALUE")],
)
def test_a_policy_that_cannot_be_is_refused_before_the_log_is_read(tmp_path: Path, word: str, says: str) -> None:
    code, said = replayed(tmp_path, "--policy", word)
    assert code in (1, 2)
    assert says in said
