"""REST for `why`: what keeps a job from running, or what ended it."""

from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import json_response, lookup_own_job_at
from stoker.api.http.routing import LOOKUP, Routes
from stoker.brain.engine.queue_order import queue_position
from stoker.brain.state.quota_report import LentGuarantee, lent_guarantees
from stoker.brain.state.state_view import StateView
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_details import job_details
from stoker.wire import endpoints
from stoker.wire.rest.job import HolderView, LentView, QueuePlace, why_view

NAMED_MAX: Final = 5
"""Holders in the sentence; the answer has them all."""


def routes(control: ControlPlane) -> Routes:
    router = Routes("jobs")

    @router.serve(endpoints.WHY, *LOOKUP)
    async def why(request: Request) -> Response:
        """Say why a job waits, and where in the queue, or why it ended."""
        state = control.committer.state
        job = await lookup_own_job_at(request, control)
        now = job_details(control, job)
        position = queue_position(StateView(state), state.policy, job, control.committer.now())
        place = QueuePlace(**position._asdict()) if position else None
        return json_response(why_view(now, place, lent_view(lent_guarantees(state, job, now.reason))))

    return router


def lent_view(lent: Sequence[LentGuarantee]) -> LentView | None:
    """Say which guarantees cover the job and who holds their GPUs; None where none is lent."""
    if not lent:
        return None
    holders = [HolderView(**holder._asdict()) for each in lent for holder in each.holders]
    within = " and ".join(
        f"{f'{each.name} jobs' if each.kind == 'class' else f'tenant {each.name}'} "
        f"({each.used} of {each.guaranteed} GPU(s) used)"
        for each in lent
    )
    return LentView(
        message=f"it is within the guarantee of {within}, and GPUs of it are lent: {_named(holders)}. This version "
        "takes none back by force: they come as those jobs end, and to it before whoever would borrow, whatever the "
        "place in the queue",
        guarantees=[f"{each.kind} {each.name}" for each in lent],
        holders=holders,
    )


def _named(holders: Sequence[HolderView]) -> str:
    words = [
        f"{holder.name} jobs hold {holder.gpus} beyond theirs"
        if holder.kind == "class"
        else f"tenant {holder.name} holds {holder.gpus} beyond its own"
        for holder in holders[:NAMED_MAX]
    ]
    more = len(holders) - NAMED_MAX
    return ", ".join(words) + (f", {more} other tenant(s) the rest" if more > 0 else "")
