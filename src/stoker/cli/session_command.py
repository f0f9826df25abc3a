"""Commands that have a session inside a job: `exec`, `attach` and an interactive `submit`."""

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import click
from msgspec.structs import replace

from stoker.brain.domain.errors import StokerError
from stoker.cli.clock import mono_s
from stoker.cli.display.safe_text import visible
from stoker.cli.job_end import exit_of, goes_on, is_over, tell_end, wait_for
from stoker.cli.server import FOLLOW_PATIENCE_S, connect, credentials_of, servers_of
from stoker.cli.session_terminal import SessionEnd, SessionTerminal, terminal_size
from stoker.wire.client.backoff import fresh_key, sleep_async
from stoker.wire.client.clients import AsyncClient, connect_to_session
from stoker.wire.client.exec_session import SessionConnection
from stoker.wire.rest.exec_session import AttachQuery, ExecQuery
from stoker.wire.rest.job import JobView

WAIT_MS: Final = 20_000
FIRST_WAIT_MS: Final = 500
"""Before the reason is told why a job waits."""
AGAIN_S: Final = 0.5
ATTEMPT_LOOK_S: Final = 2.0
"""Of waiting for a job's end, before it is seen whether it begins again."""
_WAITS: Final = frozenset({"not_running", "no_server", "no_answer", "not_active", "node_unreachable"})
"""Refusals of one who waits for a job that pass: it doesn't run yet, or another control plane takes over."""
_RANKED: Final = re.compile(r"(.+)\.([0-9]{1,6})")


async def _connected(
    client: AsyncClient,
    job: str,
    query: "ExecQuery | AttachQuery",
    tell: Callable[[AsyncClient], Awaitable[bool]] | None,
) -> SessionConnection:
    """Raises: StokerError."""
    until = mono_s() + FOLLOW_PATIENCE_S
    first = True
    while True:
        asked = replace(query, wait_ms=FIRST_WAIT_MS) if first and isinstance(query, AttachQuery) and tell else query
        try:
            return await connect_to_session(client, job, asked)
        except StokerError as fault:
            if tell is None or fault.refusal.code not in _WAITS or mono_s() > until:
                raise
            if fault.refusal.code == "not_running":
                until = mono_s() + FOLLOW_PATIENCE_S
                if not await tell(client):
                    raise
            else:
                await sleep_async(AGAIN_S)
        first = False


def split_rank(job_id: str) -> tuple[str, int]:
    """Return the job and the rank of `ID[.RANK]`."""
    found = _RANKED.fullmatch(job_id)
    return (found[1], int(found[2])) if found else (job_id, 0)


def run_session(
    ctx: click.Context,
    job: str,
    query: "ExecQuery | AttachQuery",
    *,
    sends_input: bool,
    tell: Callable[[AsyncClient], Awaitable[bool]] | None = None,
) -> SessionEnd:
    """Have a session with these standard streams until it ends. Raises: StokerError.

    `tell` is called now and then while the job doesn't run yet, and answers whether it may; None = it must run.
    """
    shown = credentials_of(ctx)
    has_terminal = isinstance(query, AttachQuery) or query.tty
    columns, rows = terminal_size() if has_terminal else (0, 0)
    query = replace(query, columns=columns, rows=rows)
    if isinstance(query, ExecQuery):
        query = replace(query, session=fresh_key().replace("-", ""))

    async def run() -> SessionEnd:
        client = AsyncClient(servers_of(ctx), token=shown.token, ca_file=shown.ca_file, insecure=shown.insecure)
        async with client:
            connection = await _connected(client, job, query, tell)
            here = SessionTerminal(client, job, query, sends_input=sends_input, detaches=isinstance(query, AttachQuery))
            return await here.run(connection)

    return asyncio.run(run())


def run_interactive(ctx: click.Context, job_id: str) -> int:
    """Wait until a job that was just submitted runs, be in its terminal, and return the exit status of the command.

    While it waits it says why, and what ends the command then cancels the job. A job that is queued anew is waited for
    and entered again.
    """
    click.echo(f"job {job_id} is submitted", err=True)
    job, seen = None, 0
    while job is None or not is_over(job):
        ended = _entered(ctx, job_id)
        if ended.detached:
            if ended.status == 0:
                click.echo(f"job {job_id} goes on; `stoker attach {job_id}` comes back", err=True)
                return 0
            job = wait_for(job_id)
            break
        job = _after_attempt(job_id, seen)
        seen = _ended_attempts(job)
        if not is_over(job):
            click.echo(f"attempt {seen} of job {job_id} has ended, and it begins again", err=True)
    tell_end(job)
    return exit_of(job)


def _entered(ctx: click.Context, job_id: str) -> SessionEnd:
    """Wait for the next attempt of an interactive job, and be in its terminal. Raises: StokerError."""
    before = {number: signal.signal(number, _leave) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        return run_session(ctx, job_id, AttachQuery(wait_ms=WAIT_MS), sends_input=True, tell=_WaitNotice(job_id))
    except (KeyboardInterrupt, SystemExit):
        with suppress(StokerError):
            connect().cancel(job_id)
        with suppress(OSError):  # the terminal may be closed
            click.echo(f"job {job_id} is cancelled", err=True)
        raise
    except StokerError as fault:
        if fault.refusal.code not in ("not_running", "session_over"):
            raise
        return SessionEnd(0)  # it ended before anybody came in, or its node was lost
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _after_attempt(job_id: str, seen: int) -> JobView:
    """Return the job once it is final, or once an attempt has ended that comes after number `seen`."""
    with goes_on(job_id):
        client = connect(FOLLOW_PATIENCE_S)
        while True:
            job = client.wait(job_id, at_most_s=ATTEMPT_LOOK_S)
            if is_over(job) or _ended_attempts(job) > seen:
                return job


def _ended_attempts(job: JobView) -> int:
    """Return the number of the newest attempt that has ended; 0 = none has."""
    return max((each.number for each in job.attempts if each.outcome is not None), default=0)


class _WaitNotice:
    """Printer of the reason why a job waits, whenever it has become another."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._said = ""

    async def __call__(self, client: AsyncClient) -> bool:
        """Return whether the job may still run. Raises: StokerError."""
        job = await client.job(self._job_id)
        if is_over(job):
            return False
        words = visible(job.reason.message) if job.reason is not None else ""
        if words and words != self._said and job.state in ("pending", "held"):
            click.echo(f"job {job.id} waits: {words}", err=True)
            self._said = words
        return True
