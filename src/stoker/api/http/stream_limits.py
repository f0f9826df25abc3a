"""Limits on readers that keep a request open for as long as they like, in all and for each caller.

Rules: V1  of one kind there are at most so many; one more is refused
       V2  one principal has at most a quarter of them, so that nobody keeps all others out. The owner, where no token
           is wanted, has no neighbours
       V3  a reader counts from the instant at which he is let in: of many who come at once no more are let in
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import Principal

SHARES: Final = 4


class StreamLimit:
    """Those of one kind."""

    def __init__(self, most: int, doing: str, hint: str) -> None:
        """`doing`: what they do, after their number."""
        self.most = most
        self._doing = doing
        self._hint = hint
        self._by: Counter[Principal] = Counter()

    @property
    def count(self) -> int:
        return self._by.total()

    def check(self, caller: Caller) -> None:
        """Raises: StokerError `too_many_streams`."""
        if self.count >= self.most:
            raise self._too_many(f"{self.most} readers {self._doing} already", self.most)
        each = max(1, self.most // SHARES)
        if caller.token and self._by[caller.principal] >= each:
            raise self._too_many(f"{each} readers of {caller.principal} {self._doing} already, as many as may", each)

    @contextmanager
    def counted(self, caller: Caller) -> Iterator[None]:
        """Raises: StokerError `too_many_streams`."""
        self.check(caller)
        self._by[caller.principal] += 1
        try:
            yield
        finally:
            self._by[caller.principal] -= 1
            if not self._by[caller.principal]:
                del self._by[caller.principal]

    def _too_many(self, message: str, most: int) -> StokerError:
        return refusal_error("too_many_streams", message, self._hint, streams=most)


class EndlessResponse(StreamingResponse):
    """An answer to one of them."""

    def __init__(
        self,
        readers: StreamLimit,
        caller: Caller,
        content: AsyncIterator[bytes],
        headers: dict[str, str],
        media_type: str,
    ) -> None:
        """Raises: StokerError `too_many_streams`."""
        readers.check(caller)
        super().__init__(content, headers=headers, media_type=media_type)
        self._readers = readers
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._readers.counted(self._caller):
            await super().__call__(scope, receive, send)
