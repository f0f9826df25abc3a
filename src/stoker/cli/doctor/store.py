"""Checks of the event log's place: SQLite in the data folder, or a database.

Rules: T1  what a start would refuse is in error here: a log in the other store, a newer schema, a database that can't
           be reached or written, an empty one in the place of one that wasn't
       T2  nothing is changed: of a file its first bytes are read, a database is asked
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stoker.adapters.data_folder.marks import ELSEWHERE_NAME, STORE_NAME, was_begun_elsewhere
from stoker.adapters.sqlite.history import HISTORY_NAME, cluster_in
from stoker.adapters.sqlite.store import HISTORY_STEPS, LOG_STEPS, newer_schema
from stoker.brain.domain.errors import StokerError
from stoker.cli.doctor.finding import CheckResult, doubtful, fine, refusal, wrong
from stoker.cli.doctor.machine import account

if TYPE_CHECKING:
    from stoker.adapters.postgres.inspection import DatabaseInspection

SERVER_MIN: Final = 150_000
_FILES: Final = {STORE_NAME: LOG_STEPS, HISTORY_NAME: HISTORY_STEPS}


def store(url: str, folder: Path) -> Iterator[CheckResult]:
    """`url` empty = SQLite in the folder."""
    try:
        yield from files(folder)
        yield from database(url, folder) if url else in_folder(folder)
    except OSError as fault:
        yield doubtful(f"not looked at in {folder}: {fault.strerror}", "see what is said of data_dir")


def files(folder: Path) -> Iterator[CheckResult]:
    """Check the files that are in the folder already, whichever store has the log."""
    for name, steps in _FILES.items():
        path = folder / name
        if not path.exists():
            continue
        if not os.access(path, os.R_OK | os.W_OK):
            owner, me = account(path.stat().st_uid), account(os.geteuid())
            fix = f"run doctor as the daemon's account, or give {me} the file"
            yield wrong(f"{path} belongs to {owner}, and {me} can't write it", fix)
        elif newer := newer_schema(path, steps):
            yield wrong(newer.message, newer.hint)


def in_folder(folder: Path) -> Iterator[CheckResult]:
    if (mark := folder / ELSEWHERE_NAME).exists():
        fix = f"set store.url as before; if the queue there is to be given up, remove {mark}"
        yield wrong(f"the log of {folder} is in PostgreSQL, and store.url is empty", fix)
    else:
        known = "is there" if (folder / STORE_NAME).exists() else "will be made at the first start"
        yield fine(f"SQLite: {folder / STORE_NAME} {known}")


def database(url: str, folder: Path) -> Iterator[CheckResult]:
    if (folder / STORE_NAME).exists():
        fix = f"leave store.url empty; if the queue there is to be given up, move {folder / STORE_NAME} away"
        yield wrong(f"{folder} has a log of its own, and store.url names a database", fix)
    try:
        # Only who asks for it needs the driver.
        from stoker.adapters.postgres.inspection import inspect_database

        seen = asyncio.run(inspect_database(url))
    except StokerError as fault:
        yield refusal(fault)
        return
    faults = [*_of_server(seen), *_of_content(seen, folder)]
    yield from faults
    if not faults:
        yield fine(f"{_named(seen)}: {_content(seen)}")


def _of_server(seen: "DatabaseInspection") -> Iterator[CheckResult]:
    named = _named(seen)
    if seen.server < SERVER_MIN:
        yield wrong(f"{named} is too old", "use PostgreSQL 15 or newer")
    if seen.read_only:
        yield wrong(f"{named} takes no writes", "name the primary; of several hosts the one is used that takes writes")
    if not seen.fsync:
        yield wrong(f"{named} has fsync off: what is acknowledged can be lost", "turn fsync on, and restart the server")
    if seen.lacks:
        fix = "let the account own its database and the tables in it whose names begin with stoker_"
        yield wrong(f"{seen.account} lacks rights in {seen.database}: {', '.join(seen.lacks)}", fix)


def _of_content(seen: "DatabaseInspection", folder: Path) -> Iterator[CheckResult]:
    if seen.schema > seen.newest:
        words = f"{seen.database} has schema {seen.schema}; this Stoker knows schemas up to {seen.newest}"
        yield wrong(words, "start the version of Stoker that wrote it, or a newer one")
    elif seen.is_empty and was_begun_elsewhere(folder):
        fix = f"name that one; if the queue there is to be given up, remove {folder / ELSEWHERE_NAME}"
        yield wrong(f"{seen.database} is empty, and the log of {folder} was in a database that isn't", fix)
    elif seen.cluster_id and (known := cluster_in(folder)) not in ("", seen.cluster_id):
        fix = f"name the database of that cluster; or move {folder / HISTORY_NAME} away, if its history may go"
        yield wrong(f"{seen.database} holds cluster {seen.cluster_id}, and {folder} the history of {known}", fix)


def _named(seen: "DatabaseInspection") -> str:
    return f"PostgreSQL {seen.server // 10_000}.{seen.server % 10_000}, {seen.database} as {seen.account}"


def _content(seen: "DatabaseInspection") -> str:
    if seen.is_empty:
        return "empty; the first start begins a new cluster"
    return f"cluster {seen.cluster_id or 'without a name'}, {seen.end} events"
