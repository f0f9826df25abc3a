"""How many records a second can the event log make durable, and what does a snapshot cost those who wait?

Run: `PYTHONPATH=src python -m benchmarks.append [--seconds 2] [--dir FOLDER]`. FOLDER should be on the disk that the
log will use. The floor is a plain file with one write and one fdatasync per commit, measured in the same run, in
turns with the log, because a shared disk changes its mind within minutes.
"""

import argparse
import asyncio
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.brain.domain.ids import Epoch, Position

RECORD = b'{"t":"' + b"x" * 392 + b'"}'
ROWS_PER_COMMIT = (1, 16, 256)
JOBS = 100_000
"""So large is the snapshot, and so many rows are trimmed."""
SNAPSHOT_CHUNK = b"x" * 420_000
"""Of 1,000 jobs."""


def floor(folder: Path, rows: int, seconds: float) -> tuple[float, float]:
    """Rows a second, and CPU microseconds a row, of write + fdatasync."""
    batch = RECORD * rows
    path = folder / "floor"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    done, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        os.write(fd, batch)
        os.fdatasync(fd)
        done += rows
    took, spent = time.perf_counter() - began, time.process_time() - cpu
    os.close(fd)
    path.unlink()
    return done / took, spent / done * 1e6


async def appended(folder: Path, rows: int, seconds: float) -> tuple[float, float]:
    """The same of SqliteLog, one append at a time, as the committer calls it."""
    log = SqliteLog(folder / f"log-{rows}")
    end, batch = await log.open(), [RECORD] * rows
    done, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        await log.append(Epoch(1), end, batch)
        end = Position(end + rows)
        done += rows
    took, spent = time.perf_counter() - began, time.process_time() - cpu
    await log.close()
    return done / took, spent / done * 1e6


async def beside_a_snapshot(folder: Path, jobs: int, *, snapshot: bool, seconds: float) -> list[float]:
    """Milliseconds of each append, alone or while a snapshot of `jobs` is saved and as many records are trimmed."""
    log = SqliteLog(folder / f"stall-{snapshot}", look_back_max=0)
    end = await log.open()
    for _ in range(jobs // 256 + 1):
        await log.append(Epoch(1), end, [RECORD] * 256)
        end = Position(end + 256)
    await log.save_snapshot(end, [b"{}"])
    await log.append(Epoch(1), end, [RECORD])  # which the second snapshot is of
    saving = asyncio.create_task(_save(log, end, jobs if snapshot else 0, seconds))
    end = Position(end + 1)
    waits: list[float] = []
    while not saving.done():
        began = time.perf_counter()
        await log.append(Epoch(1), end, [RECORD])
        end = Position(end + 1)
        waits.append((time.perf_counter() - began) * 1e3)
    await saving
    await log.close()
    return waits


async def _save(log: SqliteLog, end: Position, jobs: int, seconds: float) -> None:
    if jobs:
        await log.save_snapshot(end, [b"{}"])
        await log.save_snapshot(Position(end + 1), [SNAPSHOT_CHUNK] * (jobs // 1_000 + 1))
    else:
        await asyncio.sleep(seconds)


def table(folder: Path, seconds: float, jobs: int) -> None:
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} CPUs")
    print(f"{len(RECORD)}-byte records, WAL, synchronous=FULL, {seconds:g} s each\n")
    print("| rows per commit | floor rows/s | CPU us | log rows/s | CPU us | of the floor |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for rows in ROWS_PER_COMMIT:
        low, low_cpu = floor(folder, rows, seconds)
        rate, cpu = asyncio.run(appended(folder, rows, seconds))
        print(f"| {rows} | {low:,.0f} | {low_cpu:.1f} | {rate:,.0f} | {cpu:.1f} | {rate / low:.0%} |")
    print("\n| one append, ms | median | 99 % | longest | appends |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for snapshot, name in (
        (False, "alone"),
        (True, f"beside a {jobs * 420 / 1e6:.0f} MB snapshot and a trim of {jobs:,} rows"),
    ):
        waits = sorted(asyncio.run(beside_a_snapshot(folder, jobs, snapshot=snapshot, seconds=seconds)))
        high = waits[int(len(waits) * 0.99)]
        print(f"| {name} | {statistics.median(waits):.2f} | {high:.2f} | {waits[-1]:.2f} | {len(waits):,} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--jobs", type=int, default=JOBS, help="of which the snapshot is")
    parser.add_argument("--dir", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        table(Path(folder), options.seconds, options.jobs)


if __name__ == "__main__":
    main()
