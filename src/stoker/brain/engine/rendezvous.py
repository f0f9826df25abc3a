"""At which port do the ranks of an attempt meet?

Rules: R1  unique per node *address*, among live attempts and within this pass: nodes may share an address
       R2  two jobs in a row start their search at different ports, so a port that just came free rests a while
       R3  the next attempt of a job starts elsewhere: its first port may be held by something we don't know of
Source: torch.distributed's `env://` rendezvous wants one TCP port at rank 0, known before any rank starts.
"""

from typing import Final

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.policy import Policy
from stoker.brain.engine.draft import Draft

_ATTEMPT_STRIDE: Final = 101
"""How far apart two attempts of one job look: past the ports of the hundred jobs submitted next to it."""


def needs_rendezvous(demand: Demand) -> bool:
    """Does an attempt need a port? One task with two GPUs does: `torchrun` starts a process for each."""
    return demand.tasks > 1 or demand.gpu_count >= 2


def choose_port(draft: Draft, address: str, job: JobId, attempt: int, policy: Policy) -> int | None:
    """A free port of `address`; None when every one is in use."""
    held, promised = draft.ports_in_use(address)
    span = policy.port_max - policy.port_min + 1
    # Shorter than the range, so that it never leads back to the same port (unless there is but one).
    stride = max(1, min(_ATTEMPT_STRIDE, span - 1))
    start = job + (attempt - 1) * stride
    for step in range(span):
        port = policy.port_min + (start + step) % span
        if port not in held and port not in promised:
            return port
    return None
