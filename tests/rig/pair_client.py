"""People who ask several control planes: the rules of `wire.client.retry`, without HTTP.

Rules: a control plane that refuses with `not_active` did nothing, and the other is asked; a request whose answer got
lost is asked again only if it may come twice; the last one that answered as the active is asked first.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum, auto
from typing import Any, Final

from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.state.commands import Command
from stoker.brain.state.events.union import Event
from stoker.live.control_plane import LiveControlPlane
from tests.rig.pair_control import PairControl
from tests.rig.process import within
from tests.rig.sim_network import SimNetwork

PEOPLE: Final = "people"
ANSWER_S: Final = 8.0
PATIENCE_S: Final = 60.0
_NOTHING_DONE: Final = frozenset({"not_active", "overloaded", "stopping"})
_PERHAPS_DONE: Final = frozenset({"log_failed", "lease_lost"})

Answered = tuple[LiveControlPlane, tuple[Event, ...]]


class _Lost(Enum):
    UNREACHABLE = auto()
    """It was never asked."""
    ANSWER = auto()
    """It may have done it."""


class PairClient:
    """Everybody who asks."""

    def __init__(self, controls: Sequence[PairControl], network: SimNetwork) -> None:
        self._controls = list(controls)
        self._network = network
        self.lossy = 0.0
        """Chance that an answer gets lost."""
        self.on_ask: Callable[[PairControl], None] | None = None

    async def ask(self, command: Command, *, repeatable: bool) -> Answered | Refusal | None:
        """The answer of whoever is active; its refusal; None = nobody gave one."""
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + PATIENCE_S, 0.05
        while loop.time() < until:
            for control in tuple(self._controls):
                heard = await self._ask(control, command)
                if isinstance(heard, tuple):
                    self._controls.sort(key=lambda each: each is not control)
                    return heard
                if heard is _Lost.ANSWER and not repeatable:
                    return None
                if isinstance(heard, Refusal) and heard.code not in _NOTHING_DONE | _PERHAPS_DONE:
                    return heard
                if isinstance(heard, Refusal) and heard.code in _PERHAPS_DONE and not repeatable:
                    return None
            await asyncio.sleep(self._network.entropy.jitter(0.7, 1.3) * pause_s)
            pause_s = min(2.0, pause_s * 1.3)
        return None

    async def _ask(self, control: PairControl, command: Command) -> Answered | Refusal | _Lost:
        network = self._network
        await network.delay()
        life, process = control.life, control.process
        if life is None or not network.passes(PEOPLE, control.name):
            return _Lost.UNREACHABLE
        asked = within(process, _asked(life.control, command))
        await asyncio.wait((asked,), timeout=ANSWER_S)
        if not asked.done() or asked.cancelled():
            return _Lost.ANSWER
        heard: Answered | Refusal = asked.result()
        await network.delay()
        if not network.passes(control.name, PEOPLE) or network.entropy.jitter(0, 1) < self.lossy:
            return _Lost.ANSWER
        return heard


async def _asked(control: LiveControlPlane, command: Command) -> Answered | Refusal:
    try:
        return control, await control.committer.ask(command)
    except StokerError as fault:
        return fault.refusal


Work = Coroutine[Any, Any, None]
