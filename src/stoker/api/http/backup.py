"""REST routes for a backup of the whole cluster. Admins only; the table of roles says so.

Rules: D1  an answer that can't go on is broken off and not ended, so that nobody takes a part for the whole
       D2  whose token is revoked, or expires, is sent no more at once (by D1)
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from stoker.api.http.connections import break_off
from stoker.api.http.guard import is_head
from stoker.api.http.responses import caller_of
from stoker.api.http.routing import Content, Routes
from stoker.brain.domain.access import Caller
from stoker.brain.domain.ids import Position
from stoker.control.backup import Backup, Backups
from stoker.control.control_plane import ControlPlane
from stoker.ports import HistoryFailed
from stoker.wire import endpoints
from stoker.wire.backup import MEDIA_TYPE

_TAR: Final[Content] = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
_REFUSALS: Final = ("backup_running", "history_unavailable", "log_failed")
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Accel-Buffering": "no"}


def routes(control: ControlPlane) -> Routes:
    router = Routes()
    backups = Backups(control)

    @router.serve(endpoints.BACKUP, *_REFUSALS, content=_TAR)
    async def backup(request: Request) -> Response:
        """Send all that the cluster is as a tar file: its state, the digests of its tokens, its history. One at a
        time."""
        caller = caller_of(request)
        if is_head(request):
            return Response(media_type=MEDIA_TYPE, headers=_HEADERS)
        taken = await backups.take()
        control.audit_trail.backed_up(caller.principal, Position(taken.head.position), control.committer.now())
        control.telemetry.event(
            "backup_taken", principal=caller.principal, position=taken.head.position, size_bytes=taken.size
        )
        return _Sent(control, caller, taken)

    return router


class _Sent(StreamingResponse):
    """The answer, which closes its backup."""

    def __init__(self, control: ControlPlane, caller: Caller, taken: Backup) -> None:
        headers = {**_HEADERS, "Content-Length": str(taken.size)}
        super().__init__(self._pieces(), media_type=MEDIA_TYPE, headers=headers)
        self._control, self._caller, self._taken = control, caller, taken
        self._scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._taken.close()

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self._taken.pieces():
                if not self._control.access.holds(self._caller):  # D2
                    break
                yield piece
            else:
                return
        except HistoryFailed as fault:
            self._control.telemetry.warn("backup_broken_off", error=str(fault))
        break_off(self._scope)  # D1
        await asyncio.Event().wait()  # until the reader is gone, which ends this
