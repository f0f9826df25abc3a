"""`stoker logs`: what has a task written?

Rules: O1  bytes go out as they were written, valid text or not
       O2  following ends with the attempt asked for, or else with the job, after its last byte
       O3  what a node has dropped between head and tail is said on stderr, never papered over
"""

import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.job_end import EXIT_OF_STATE, goes_on
from stoker.cli.problem import refused
from stoker.cli.server import connect, server_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker.wire.client import Client, LogPart, LogQuery

PART_BYTES: Final = 256 * 1024
POLL_S: Final = 0.2
POLL_MAX_S: Final = 1.0
_YET_TO_COME: Final = frozenset({"log_unavailable", "node_unreachable"})
"""Refusals that time may lift, while the attempt isn't over."""
FINAL_WORDS: Final = frozenset(EXIT_OF_STATE)


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on as the task writes, until the job ends.")
@click.option("--tail", type=click.IntRange(0, 1_000_000), help="Begin with the last N lines.", metavar="N")
@click.option("--rank", type=click.IntRange(0), default=0, show_default=True, help="Which task of the gang.")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt. [default: the newest]")
@server_option
def logs(job_id: str, follow: bool, tail: int | None, rank: int, attempt: int | None) -> None:
    """Print what a task wrote to stdout and stderr.

    \b
    Examples:
      stoker logs 7
      stoker logs -f --tail 20 7
      stoker logs --rank 3 --attempt 1 7
    """
    reader = LogReader(connect(), job_id, rank)
    if not follow:
        reader.copy(attempt or 0, tail)
        return
    with goes_on(job_id):
        reader.follow(attempt, tail)


class LogReader:
    """Copies one rank's output to stdout."""

    def __init__(self, client: "Client", job_id: str, rank: int) -> None:
        self._client = client
        self._job_id = job_id
        self._rank = rank
        self._out = sys.stdout.buffer

    def copy(self, attempt: int, tail: int | None) -> None:
        """Everything there is now, or its last lines."""
        part = self._first(attempt, tail)
        while part.data and part.end < part.size:
            part = self._ask(attempt=attempt, offset=part.end)

    def follow(self, attempt: int | None, tail: int | None) -> None:
        """Everything there will be (O2)."""
        number = attempt or self._first_attempt(newest=tail is not None)
        first = True
        while self._comes(number):
            if not first:
                click.echo(f"(attempt {number} of job {self._job_id})", err=True)
            self._follow_attempt(number, tail if first else None)
            if attempt is not None:
                return
            number, first = number + 1, False

    def _first_attempt(self, *, newest: bool) -> int:
        """With a tail the newest: earlier attempts lie before it."""
        numbers = [each.number for each in self._client.job(self._job_id).attempts] or [1]
        return numbers[-1] if newest else numbers[0]

    def _comes(self, number: int) -> bool:
        """Wait for an attempt. False when the job ended without it."""
        delay_s = POLL_S
        while True:
            job = self._client.job(self._job_id)
            if job.attempts and job.attempts[-1].number >= number:
                return True
            if job.state in FINAL_WORDS:
                return False
            delay_s = _pause(delay_s)

    def _follow_attempt(self, attempt: int, tail: int | None) -> None:
        part = self._patiently(attempt, lambda: self._first(attempt, tail))
        delay_s = POLL_S
        while not part.ended or (part.data and part.end < part.size):
            if not part.data:
                delay_s = _pause(delay_s)
            part = self._patiently(attempt, partial(self._ask, attempt=attempt, offset=part.end))
            delay_s = POLL_S if part.data else delay_s

    def _patiently(self, attempt: int, ask: "Callable[[], LogPart]") -> "LogPart":
        """The answer, once the node gives it. A refusal that time may lift stands only when the attempt is over."""
        delay_s = POLL_S
        while True:
            try:
                return ask()
            except refused() as fault:
                if fault.refusal.code not in _YET_TO_COME or self._is_over(attempt):
                    raise
            delay_s = _pause(delay_s)

    def _is_over(self, attempt: int) -> bool:
        attempts = self._client.job(self._job_id).attempts
        return all(each.outcome is not None for each in attempts if each.number == attempt)

    def _first(self, attempt: int, tail: int | None) -> "LogPart":
        if tail is None:
            return self._ask(attempt=attempt)
        if tail == 0:  # begin at the end: the last byte is asked for and kept back
            return self._client.logs(self._job_id, self._query(attempt, offset=-1, limit=1))
        part = self._client.logs(self._job_id, self._query(attempt, tail=tail))
        return self._write(part)

    def _ask(self, *, attempt: int, offset: int = 0) -> "LogPart":
        part = self._client.logs(self._job_id, self._query(attempt, offset=offset))
        if offset < part.offset and part.data:
            click.echo(f"({part.offset - offset} bytes were not kept)", err=True)  # O3
        return self._write(part)

    def _query(self, attempt: int, *, offset: int = 0, limit: int = PART_BYTES, tail: int = 0) -> "LogQuery":
        from stoker.wire.client import LogQuery

        return LogQuery(rank=self._rank, attempt=attempt, offset=offset, limit=limit, tail=tail)

    def _write(self, part: "LogPart") -> "LogPart":
        self._out.write(part.data)
        self._out.flush()
        return part


def _pause(delay_s: float) -> float:
    """Wait, and answer how long to wait next time."""
    from stoker.cli.pause import pause

    pause(delay_s)
    return min(delay_s * 1.3, POLL_MAX_S)
