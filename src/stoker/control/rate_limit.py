"""Rate limits: requests of each principal by a token bucket, wrong tokens by the minute, lists of a tenant at once.

Rules: R1  each principal has a bucket that holds `BURST_S` seconds' worth of requests and refills at the rate; an empty
           one is refused with the time after which a request fits
       R2  up to `WRONG_MAX` wrong tokens a minute are refused one by one, as what they are; from the next one on all of
           them are told to come back when the minute is over. A good token is never refused for it
       R3  of wrong tokens nothing is kept but how many there were; the log has at most one line a minute about them
       R4  of the lists that one tenant asks for, or one principal without a tenant, LISTS_MADE_MAX are made at once;
           the next ones wait for their turn. Each gives way after a millisecond or two, so that many at once would make
           everybody wait for as many
       R5  of the lists of one principal LISTS_OPEN_MAX are kept until their readers have taken them, so that slow
           readers don't fill the memory
Limits: `PRINCIPALS_MAX` buckets are kept. Beyond them the one that was used longest ago goes, and
        begins anew when it comes back.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import ceil
from typing import Final, NamedTuple

from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.units import Mono
from stoker.control.control_ports import ControlPorts

BURST_S: Final = 2.0
PRINCIPALS_MAX: Final = 20_000
WRONG_MAX: Final = 10_000
"""A script with an old token, run on every node of a large cluster, stays below it; guessing 256 bits doesn't end."""
MINUTE_S: Final = 60.0
LISTS_MADE_MAX: Final = 1
LISTS_OPEN_MAX: Final = 8
"""About 4 MiB each."""


class _TokenBucket(NamedTuple):
    left: float
    at: Mono


class RateLimit:
    """Token bucket for the requests of each principal (R1)."""

    def __init__(self, ports: ControlPorts, *, per_second: float) -> None:
        """`per_second`: requests that each principal may make; 0 = as many as come."""
        self._clock = ports.clock
        self._per_second = per_second
        self._size = max(1.0, per_second * BURST_S)
        self._buckets: dict[Principal, _TokenBucket] = {}

    def take(self, principal: Principal) -> None:
        """Count one request. Raises: StokerError `rate_limited`."""
        if not self._per_second:
            return
        now = self._clock.mono()
        # Taken out and put in again, so that the first is the one that was used longest ago.
        left, at = self._buckets.pop(principal, _TokenBucket(self._size, now))
        left = min(self._size, left + (now - at) * self._per_second)
        fits = left >= 1.0
        self._buckets[principal] = _TokenBucket(left - 1.0 if fits else left, now)
        if len(self._buckets) > PRINCIPALS_MAX:
            del self._buckets[next(iter(self._buckets))]
        if not fits:
            raise self._limited(principal, ceil((1.0 - left) / self._per_second))

    def _limited(self, principal: Principal, after_s: int) -> StokerError:
        return refusal_error(
            "rate_limited",
            f"{principal} asks more often than {self._per_second:g} times a second",
            f"wait {after_s} s, and ask for many jobs in one request; the rate is `http.rate_per_principal`",
            per_second=f"{self._per_second:g}",
            retry_after_s=after_s,
        )


class ConcurrencyLimit:
    """Limit on how much of one kind is done at once for each tenant or principal; the rest waits."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._asked: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Semaphore] = {}

    @property
    def waiting(self) -> int:
        """Number of those that are done or wait."""
        return self._asked.total()

    @asynccontextmanager
    async def taken(self, whose: str) -> AsyncIterator[None]:
        """Wait until it may be done, and do it until exit."""
        turns = self._turns.setdefault(whose, asyncio.Semaphore(self._most))
        self._asked[whose] += 1
        try:
            async with turns:
                yield
        finally:
            self._asked[whose] -= 1
            if not self._asked[whose]:
                del self._asked[whose], self._turns[whose]


class ListSlots:
    """Limits on lists that are made at once (R4), and on those that wait for their readers (R5)."""

    def __init__(self) -> None:
        self._made, self._open = ConcurrencyLimit(LISTS_MADE_MAX), ConcurrencyLimit(LISTS_OPEN_MAX)

    def made(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        return self._made.taken(caller.sharer)

    def open(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        return self._open.taken(caller.principal)


class WrongTokens:
    """Count of requests with tokens that are not known (R2, R3)."""

    def __init__(self, ports: ControlPorts, *, wrong_max: int = WRONG_MAX) -> None:
        self._clock = ports.clock
        self._telemetry = ports.telemetry
        self._wrong_max = wrong_max
        self._count = 0
        self._since = Mono(float("-inf"))

    def note(self) -> None:
        """Count one more. Raises: StokerError `too_many_wrong_tokens`."""
        now = self._clock.mono()
        if now - self._since >= MINUTE_S:
            self._since, self._count = now, 0
        self._count += 1
        self._telemetry.count("wrong_tokens")
        if self._count <= self._wrong_max:
            return
        after_s = max(1, ceil(self._since + MINUTE_S - now))
        if self._count == self._wrong_max + 1:
            self._telemetry.warn("too_many_wrong_tokens", wrong_max=self._wrong_max, for_s=after_s)
        raise refusal_error(
            "too_many_wrong_tokens",
            f"more than {self._wrong_max} wrong tokens came within a minute",
            f"wait {after_s} s; then see that the whole token is sent, and to the right control plane",
            wrong_max=self._wrong_max,
            retry_after_s=after_s,
        )
