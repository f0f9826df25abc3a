"""Previews of jobs for people who fill in a form: one at a time, in turns with all that a control plane does."""

import asyncio
from typing import Final

from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.reason import describe, hint_for
from stoker.brain.preview import JobPreview, preview
from stoker.brain.state.commands import Submit
from stoker.control.control_plane import ControlPlane
from stoker.control.submission import check_targets, spec_for
from stoker.wire.rest.submit import JobBody
from stoker.wire.rest.view import iso
from stoker.wire.rest.why import PreviewView

WAITING_MAX: Final = 16
"""Previews that wait for their turn; more are answered with `unknown`."""
NODES_NAMED_MAX: Final = 4
_BUSY: Final = PreviewView(outcome="unknown", message="many jobs are being tried at the moment; ask again")


class JobPreviews:
    """Previews of one control plane. After each it rests for as long as that took."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def of(self, caller: Caller, body: JobBody) -> PreviewView:
        """Return what would become of a job that the caller submitted now."""
        if self._waiting >= WAITING_MAX:
            return _BUSY
        self._waiting += 1
        try:
            async with self._turn:
                began = self._control.clock.mono()
                answer = self._try(caller, body)
                await self._control.clock.sleep(self._control.clock.mono() - began)
                return answer
        finally:
            self._waiting -= 1

    def _try(self, caller: Caller, body: JobBody) -> PreviewView:
        control = self._control
        now = control.committer.now()
        try:
            spec = spec_for(control, caller, body, now)
            check_targets(control, spec.notify)
        except StokerError as fault:
            return _refused(fault.refusal)
        found = preview(control.committer.state, Submit(by=caller.principal, specs=(spec,)), now)
        return _refused(found) if isinstance(found, Refusal) else _view(found)


def _refused(refusal: Refusal) -> PreviewView:
    return PreviewView(outcome="refused", message=refusal.message, hint=refusal.hint, code=refusal.code)


def _view(found: JobPreview) -> PreviewView:
    nodes: list[str] = list(dict.fromkeys(found.nodes))
    more = len(nodes) - NODES_NAMED_MAX
    where = ", ".join(nodes[:NODES_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    if found.victims:
        jobs = "another job has" if found.victims == 1 else f"{found.victims} other jobs have"
        return PreviewView(outcome="preempts", message=f"it would start on {where} once {jobs} given way", nodes=nodes)
    if nodes:
        return PreviewView(outcome="starts", message=f"it would start now on {where}", nodes=nodes)
    if found.reason is None:
        return PreviewView(outcome="unknown", message="the queue is too long to try it out")
    return PreviewView(
        outcome="waits",
        message=describe(found.reason),
        hint=hint_for(found.reason, job=found.job.label),
        code=found.reason.code.value,
        starts_by=iso(found.reservation.at) if found.reservation else None,
        nodes=list(found.reservation.nodes) if found.reservation else [],
    )
