"""Delivery of the ends of tasks to the control plane.

Rules: D1  an end is offered until the control plane answers that it has it on disk, over any number of reconnects
       D2  only then may the runner forget it
       D3  ends that wait are sent together; but one that isn't answered holds up no other, up to `WORKERS` of them:
           what wasn't acknowledged is sent again each by itself
       D4  repeating is safe: a late or repeated end is acknowledged and changes nothing
       D6  an end that is held back is offered once it no longer is
       D7  the end of a task is held back until its GPUs are clean, or the node is registered without those that aren't
       D5  an end that is asked for while it is on its way is sent once more: what is on its way may have arrived
           before the control plane had a reason to ask
Limits: ends wait in `Observed.offered`, which is bounded by what the runner keeps.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from stoker.agent.backoff import Backoff
from stoker.agent.gpu_ports import GpuCare
from stoker.agent.observed import Observed
from stoker.agent.ports import AgentPorts, LinkDown, LinkSession
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.report import TaskFinished

WORKERS: Final = 16
"""The control plane commits in groups, so sixteen in flight fill a group without crowding it."""
TOGETHER_MAX: Final = 16
"""Ends of one message."""
PAUSE_FIRST_S: Final = 1.0
PAUSE_CEILING_S: Final = 5.0
"""Shorter than the link's: while the link is down nobody tries, and once it is up GPUs wait for these."""


class Delivery:
    """Ends of tasks on their way to the control plane."""

    def __init__(
        self,
        node: NodeName,
        observed: Observed,
        ports: AgentPorts,
        gpus: GpuCare,
        session: Callable[[], Awaitable[LinkSession]],
    ) -> None:
        self._node = node
        self._observed = observed
        self._ports = ports
        self._session = session
        self._queue: asyncio.Queue[TaskKey] = asyncio.Queue()
        self._gpus = gpus
        self._releases: dict[asyncio.Future[None], None] = {}
        self._under_way: dict[TaskKey, bool] = {}
        # Queued or being sent. True = offered again since it was last sent (D5).

    def offer(self, key: TaskKey) -> None:
        """Deliver the end of `key`, which `Observed.offered` holds."""
        if key in self._observed.held_back:  # D6
            return
        if key in self._under_way:
            self._under_way[key] = True
        else:
            self._under_way[key] = False
            self._queue.put_nowait(key)

    def offer_once_clean(self, key: TaskKey, gpus: Sequence[GpuUuid], *, went_well: bool) -> None:
        """Deliver the end of `key` once these GPUs of its task are clean (D7)."""
        if key in self._observed.held_back:
            return
        self._observed.held_back[key] = None
        release = asyncio.ensure_future(self._release(key, gpus, went_well=went_well))
        self._releases[release] = None
        release.add_done_callback(lambda done: self._releases.pop(done, None))

    async def _release(self, key: TaskKey, gpus: Sequence[GpuUuid], *, went_well: bool) -> None:
        try:
            if fault := await self._gpus.released(gpus, went_well=went_well):
                self._observed.faulted(key, fault)
        finally:
            self._observed.held_back.pop(key, None)
            if key in self._observed.offered:
                self.offer(key)

    def drop(self) -> None:
        """Wait for no GPU any more, since the agent stops."""
        for release in tuple(self._releases):
            release.cancel()

    def offer_all(self) -> None:
        """Deliver every end that is offered."""
        for key in self._observed.offered:
            self.offer(key)

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                workers.create_task(self._work())

    async def _work(self) -> None:
        while True:
            keys = [await self._queue.get()]
            while len(keys) < TOGETHER_MAX and not self._queue.empty():
                keys.append(self._queue.get_nowait())
            await self._deliver(keys, Backoff(self._ports.entropy, first_s=PAUSE_FIRST_S, ceiling_s=PAUSE_CEILING_S))

    async def _deliver(self, keys: Sequence[TaskKey], backoff: Backoff) -> None:
        left = await self._send(keys)
        while left:
            await self._ports.clock.sleep(backoff.next_s())
            left = [key for still in await asyncio.gather(*(self._send([key]) for key in left)) for key in still]

    async def _send(self, keys: Sequence[TaskKey]) -> Sequence[TaskKey]:
        """Send ends once, together; return those that may not have arrived."""
        session = await self._session()
        ends = {key: over.end for key in keys if (over := self._observed.offered.get(key)) is not None}
        for key in keys:
            if key not in ends:  # a new runner's inventory no longer has it: the control plane had acknowledged it
                self._done(key)
        if not ends:
            return ()
        self._under_way.update(dict.fromkeys(ends, False))
        try:
            await session.finish(*(TaskFinished(node=self._node, key=key, end=end) for key, end in ends.items()))
        except LinkDown:
            return list(ends)
        for key in ends:
            if not self._under_way[key]:
                await self._settle(key)
            self._done(key)
        return ()

    def _done(self, key: TaskKey) -> None:
        """It is no longer under way, unless it was offered again meanwhile (D5)."""
        if self._under_way.pop(key):
            self.offer(key)

    async def _settle(self, key: TaskKey) -> None:
        in_runner = self._observed.settled(key)
        if not self._observed.has_job(key.job):
            self._ports.folders.close(key.job)
        if in_runner:
            try:
                await self._ports.runner.settle(key)
            except OSError:
                return  # the runner died; the next one's inventory offers this end once more (D4)
