"""How is a submit whose answer got lost repeated without making a second job?

Every submit carries a key of its own (the header `Idempotency-Key`); the control plane answers a key that it has seen
with the job that it made then.

Rules: K1  only a request that may have arrived is repeated; where no server was reached nothing was sent, and that is
           said at once
       K2  repeated with the same key and body, for about fifteen seconds: as long as a control plane takes to come back
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from stoker.cli.problem import refused

if TYPE_CHECKING:
    from stoker.wire.client import Client, JobBody
    from stoker.wire.rest.job import JobView

PAUSES_S: Final = (0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0, 3.0)
_MAY_HEAL: Final = frozenset({"no_answer", "no_server", "not_ready", "stopping"})


def new_key() -> str:
    """Nobody else draws this one."""
    return os.urandom(16).hex()


def submit_once(client: "Client", body: "JobBody", key: str, pause: Callable[[float], object]) -> "JobView":
    """Raises: StokerError as the server refuses; `no_answer` when it stayed away (K2)."""
    pauses_s = iter(PAUSES_S)
    lost = None
    while True:
        try:
            return client.submit(body, key=key)
        except refused() as fault:
            code = fault.refusal.code
            if code == "no_answer":
                lost = fault
            if lost is None or code not in _MAY_HEAL:
                raise
        delay_s = next(pauses_s, None)
        if delay_s is None:
            raise lost
        pause(delay_s)
