"""Copy of a task's output to stdout, once or as it is written.

Rules: O1  bytes go out as they were written, valid text or not
       O2  following ends with the attempt asked for, or else with the job, after its last byte
       O3  what a node has dropped between head and tail is said on stderr, never papered over
       O4  while the control plane or the node is away, or another control plane takes over, following waits and goes on
           where it was: nothing comes twice. How long it waits for a control plane is its client's patience
"""

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stoker.cli.clock import mono_s, sleep_blocking
from stoker.cli.display.messages import refused
from stoker.cli.display.safe_text import visible
from stoker.cli.job_end import EXIT_OF_STATE, LOOK_S, LimitNotice

if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker.brain.domain.errors import StokerError
    from stoker.wire.client import Client, LogPart
    from stoker.wire.rest.job import JobView

PART_BYTES: Final = 256 * 1024
WAIT_S: Final = 20
"""How long the server may wait for more before it answers; below what proxies take for a dead connection."""
POLL_S: Final = 0.2
POLL_MAX_S: Final = 2.0
UNREACHABLE_S_MAX: Final = 60.0
"""How long a node is waited for that has the output of an attempt which is over."""
_NO_NODE: Final = "node_unreachable"
_YET_TO_COME: Final = frozenset({"log_unavailable", _NO_NODE})
"""Refusals that time may lift, while the attempt isn't over."""
_UNBORN: Final = "not_started"
_YET_TO_BEGIN: Final = frozenset({_UNBORN, "attempt_unknown"})
FINAL_WORDS: Final = frozenset(EXIT_OF_STATE)

Answer = TypeVar("Answer")


class LogReader:
    """Reader of one rank's output, which it copies to stdout."""

    def __init__(self, client: "Client", job_id: str, rank: int) -> None:
        self._client = client
        self._job_id = job_id
        self._rank = rank
        self._out = sys.stdout.buffer
        self._said_away = False
        self._notice = LimitNotice()
        self._looked_s = mono_s()

    def copy(self, attempt: int, tail: int | None) -> None:
        """Everything there is now, or its last lines."""
        part = self._first(attempt, tail)
        while part.data and part.end < part.size:
            part = self._ask(attempt, part.end)

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
        if first:
            self._say_why_not(number)

    def _say_why_not(self, attempt: int) -> None:
        """A job that ended unborn has nothing to show; any other reason is a refusal."""
        try:
            self._logs(attempt, limit=1)
        except refused() as fault:
            if fault.refusal.code != _UNBORN:
                raise

    def _first_attempt(self, *, newest: bool) -> int:
        """With a tail the newest: earlier attempts lie before it. A member's first may have a higher number than 1."""
        self._comes(1)
        numbers = [each.number for each in self._job().attempts] or [1]
        return numbers[-1] if newest else numbers[0]

    def _comes(self, number: int) -> bool:
        """Wait for an attempt. False when the job ended without it."""
        while True:
            job = self._job()
            if job.attempts and job.attempts[-1].number >= number:
                return True
            if job.state in FINAL_WORDS:
                return False
            self._await_beginning(number)

    def _await_beginning(self, number: int) -> None:
        """The server answers as soon as the attempt has begun, or can't any more."""
        try:
            self._logs(number, limit=1, wait_s=WAIT_S)
        except refused() as fault:
            if fault.refusal.code not in _YET_TO_BEGIN:
                self._check_heals(fault, number, waited_s=0.0)
            _pause(POLL_S)

    def _follow_attempt(self, attempt: int, tail: int | None) -> None:
        part = self._patiently(lambda: self._first(attempt, tail, WAIT_S), attempt)
        was_over = False
        while not part.ended or (part.data and part.end < part.size):
            if mono_s() - self._looked_s > LOOK_S:
                self._job()
            if not part.data:
                if was_over:  # all that it wrote is here, although its node never said that it ended
                    return
                was_over = self._is_over(attempt)
            part = self._patiently(partial(self._ask, attempt, part.end, 0 if was_over else WAIT_S), attempt)

    def _is_over(self, attempt: int) -> bool:
        return all(each.outcome is not None for each in self._job().attempts if each.number == attempt)

    def _job(self) -> "JobView":
        job = self._patiently(lambda: self._client.job(self._job_id))
        self._looked_s = mono_s()
        self._notice.look(job)
        return job

    # --- patience -----------------------------------------------------------------------------------------------

    def _patiently(self, ask: "Callable[[], Answer]", attempt: int = 0) -> "Answer":
        """O4. The answer, once it is given."""
        began_s, delay_s = mono_s(), POLL_S
        while True:
            try:
                return ask()
            except refused() as fault:
                self._check_heals(fault, attempt, mono_s() - began_s)
            delay_s = _pause(delay_s)

    def _check_heals(self, fault: "StokerError", attempt: int, waited_s: float) -> None:
        """Raises: the fault, unless time may lift it."""
        code = fault.refusal.code
        waits_long = code == _NO_NODE and waited_s <= UNREACHABLE_S_MAX
        if code not in _YET_TO_COME or (self._is_over(attempt) and not waits_long):
            raise fault
        if code == _NO_NODE and not self._said_away:  # once, until it is back
            click.echo(f"({visible(fault.refusal.message)}; waiting for it)", err=True)
            self._said_away = True

    # --- parts --------------------------------------------------------------------------------------------------

    def _first(self, attempt: int, tail: int | None, wait_s: int = 0) -> "LogPart":
        if tail is None:
            return self._ask(attempt, wait_s=wait_s)
        if tail == 0:  # begin at the end: the last byte is asked for and kept back
            return self._logs(attempt, offset=-1, limit=1)
        return self._write(self._logs(attempt, tail=tail, wait_s=wait_s))

    def _ask(self, attempt: int, offset: int = 0, wait_s: int = 0) -> "LogPart":
        asked_s = mono_s()
        part = self._logs(attempt, offset=offset, wait_s=wait_s)
        if offset < part.offset:
            click.echo(f"({part.offset - offset} bytes were not kept)", err=True)  # O3
        if wait_s and not part.data and not part.ended and mono_s() - asked_s < POLL_S:
            _pause(POLL_S)  # a server that has no time to wait
        return self._write(part)

    def _logs(self, attempt: int, limit: int = PART_BYTES, **asked: Any) -> "LogPart":  # noqa: ANN401  # of LogQuery
        from stoker.wire.client import LogQuery

        query = LogQuery(rank=self._rank, attempt=attempt, limit=limit, **asked)
        return self._client.logs(self._job_id, query)

    def _write(self, part: "LogPart") -> "LogPart":
        self._said_away = False
        self._out.write(part.data)
        self._out.flush()
        return part


def _pause(delay_s: float) -> float:
    """Wait, and answer how long to wait next time."""
    sleep_blocking(delay_s)
    return min(delay_s * 1.3, POLL_MAX_S)
