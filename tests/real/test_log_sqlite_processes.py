"""The SQLite log and the operating system: kills, second processes, folders and disks that refuse."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Position

# Appends one record per line of output, so that what was acknowledged can be read from the pipe.
APPENDER = """
import asyncio, sys
from pathlib import Path
from stoker.adapters.sqlite.event_log import SqliteLog

async def main():
    log = SqliteLog(Path(sys.argv[1]), look_back_max=10)
    end = await log.open()
    epoch = end + 1
    while True:
        await log.append(epoch, end, [b'{"n":%d}' % (end + 1), b'{"n":%d}' % (end + 2)])
        end += 2
        print(end, flush=True)
        if end % 50 == 0:
            await log.save_snapshot(end, [b"x" * 300_000] * 20)

asyncio.run(main())
"""

OPENER = """
import asyncio, os, sys
from pathlib import Path
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.brain.domain.errors import StokerError
if len(sys.argv) > 2:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)

async def main():
    log = SqliteLog(Path(sys.argv[1]))
    try:
        await log.open()
        print("opened")
    except StokerError as fault:
        print(fault.refusal.code, fault.refusal.message, "|", fault.refusal.hint)
    await log.close()

asyncio.run(main())
"""

FILLER = """
import asyncio, sys
from pathlib import Path
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.brain.domain.errors import StokerError
from stoker.ports import LogFailed

async def main():
    log = SqliteLog(Path(sys.argv[1]))
    end = await log.open()
    try:
        await log.save_snapshot(end, [b"x" * 1_000_000] * 8)
    except StokerError as fault:
        print("snapshot", fault.refusal.message)
    for _ in range(2):
        try:
            while True:
                await log.append(1, end, [b"x" * 100_000])
                end += 1
        except LogFailed as fault:
            print("append", fault)
    await log.close()
    print("acknowledged", end)

asyncio.run(main())
"""


@contextmanager
def running(program: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as out:
        try:
            yield process, out
        finally:
            process.kill()
            process.wait()


def run(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def stored(folder: Path) -> tuple[int, list[int]]:
    log = SqliteLog(folder)
    end = await log.open()
    try:
        found = await log.snapshot()
        first = found.position if found is not None else Position(0)
        return end, [position async for position, _ in log.follow(first)]
    finally:
        await log.close()


def test_what_was_acknowledged_survives_kill_minus_nine_again_and_again(tmp_path: Path) -> None:
    """Each round kills at another moment, also while a snapshot is written and the log is trimmed."""
    before = 0
    for turn in range(6):
        with running(APPENDER, str(tmp_path)) as (process, out):
            for _ in range(20 + turn * 13):
                last = out.readline()
            process.send_signal(signal.SIGKILL)
            acknowledged = max(map(int, [last, *out.read().split()]))
        end, positions = asyncio.run(stored(tmp_path))
        assert end >= acknowledged > before
        assert end % 2 == 0  # two records of one append are there together or not at all
        assert positions == list(range(end - len(positions) + 1, end + 1))
        before = end


def test_a_second_process_is_refused_with_the_pid_of_the_first_until_that_one_is_gone(tmp_path: Path) -> None:
    with running(APPENDER, str(tmp_path)) as (process, out):
        out.readline()
        said = run(OPENER, str(tmp_path))
        assert said.startswith("data_dir_held")
        assert f"process {process.pid}" in said
    assert run(OPENER, str(tmp_path)) == "opened\n"


def test_a_folder_without_write_permission_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o555)
    as_nobody = ["as nobody"] if os.geteuid() == 0 else []
    for parent in (tmp_path, *list(tmp_path.parents)[:-2]):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/tmp"):
            parent.chmod(0o755)
    said = run(OPENER, str(folder), *as_nobody)
    assert said.startswith(f"data_dir_unusable can't use the data folder {folder}: Permission denied")
    assert "write permission" in said


def test_a_parent_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    async def attempt() -> str:
        log = SqliteLog(Path("/proc/stoker/data"))
        try:
            await log.open()
        except StokerError as fault:
            return fault.refusal.code
        finally:
            await log.close()
        return "opened"

    assert asyncio.run(attempt()) == "data_dir_unusable"


def test_on_a_full_disk_appends_fail_loudly_and_what_was_acknowledged_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        snapshot, first, again, acknowledged = run(FILLER, str(disk)).splitlines()
        assert snapshot.startswith("snapshot can't use the data folder")
        assert "No space left on device" in snapshot
        assert "append can't append to" in first
        assert "No space left on device" in first
        assert "already refused" in again
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-r", str(disk), str(copy)], check=True)
        end, positions = asyncio.run(stored(copy))
        assert end == int(acknowledged.split()[1]) == len(positions) > 5
        assert run(OPENER, str(disk / "new")).startswith("data_dir_unusable")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
