"""Placement of a whole gang: its nodes, the GPUs of each rank, and the port at which the ranks meet.

Rules: G1  all tasks or none
       G2  one node if any holds them all (the tightest such node)
       G3  else the fewest nodes: those that hold most come first, and the rest of the gang goes to its tightest fit
       G4  several tasks may share a node, unless the job says how many at most (`tasks_per_node`)
       G5  ranks count from 0 in (node name, device order)
       U1  a task gets GPUs of one model while any model has enough of them; the mix is the last resort
       U2  of several models with enough, the one with the fewest to spare, then the least memory, then by name
       U3  within a model the first free in device order, so that what is left stays together
       U5  GPUs of which something odd is seen are left where the others of their model suffice (thermal headroom)
       U4  tasks are in device order: by the first GPU they hold
       R1  a port is unique per node *address*, among live attempts and within this pass: nodes may share an address
       R2  two jobs in a row start their search at different ports, so a port that just came free rests a while
       R3  the next attempt of a job starts elsewhere: its first port may be held by an unknown process
Source: torch.distributed's `env://` rendezvous wants one TCP port at rank 0, known before any rank starts.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import one_model_slots, suitable_gpus
from stoker.brain.domain.gpu import WHOLE_GPU, Gpu
from stoker.brain.domain.ids import GpuUuid, JobId, NodeName
from stoker.brain.domain.policy import Policy
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.fit import NodeFit, Search
from stoker.brain.engine.shares import choose_shares
from stoker.brain.state.view import View

NO_MEETING: Final[tuple[str, int] | None] = ("", 0)
"""Of an attempt whose ranks needn't meet."""
_ATTEMPT_STRIDE: Final = 101
"""How far apart two attempts of one job look: past the ports of the hundred jobs submitted next to it."""


def fit_gang(search: Search) -> list[NodeFit] | None:
    """Return nodes for every task of the demand that is searched for; None when it doesn't fit whole."""
    tasks = search.demand.tasks
    if tasks == 1 <= search.cache.at_most():
        found = search.tightest(1)
        if found is not None:
            return [found]
    if not search.cache.may_hold(tasks) or tasks == 1:
        return None
    return _spread(search, tasks)


def _spread(search: Search, tasks: int) -> list[NodeFit] | None:
    chosen: dict[NodeName, NodeFit] = {}
    for each in search.largest_first():
        if each.tasks >= tasks:
            # This node would do; a tighter one may. When the very first does, one node holds the whole gang (G2).
            tail = search.tightest(tasks, besides=chosen)
            assert tail is not None, f"{each.node} holds {tasks} tasks and was not found"
            return [*chosen.values(), tail]
        chosen[each.node] = each
        tasks -= each.tasks
    return None


def number_ranks(draft: Draft, fits: Sequence[NodeFit], demand: Demand) -> list[TaskPlacement]:
    """Return what each rank holds, in rank order. Nothing is taken from the draft yet."""
    if len(fits) == 1 == demand.tasks and demand.gpu_share == WHOLE_GPU:  # most often
        node = fits[0].node
        uuids = _gpus_of_one(draft, node, demand)
        return [TaskPlacement(rank=0, node=node, gpus=uuids, cpus=demand.cpus, memory_mb=demand.memory_mb)]
    placements: list[TaskPlacement] = []
    for each in sorted(fits) if len(fits) > 1 else fits:
        if demand.shares:
            taken = choose_shares(draft.free[each.node], demand, each.node, each.tasks, draft.gpu_sharers_max)
            placements += [replace(share, rank=rank) for rank, share in enumerate(taken, start=len(placements))]
            continue
        gpus = without_suspects(suitable_gpus(draft.free[each.node].gpus, demand), demand.gpu_count, each.tasks)
        chosen = choose_gpus(gpus, demand.gpu_count, each.tasks)
        placements += [
            TaskPlacement(rank=rank, node=each.node, gpus=uuids, cpus=demand.cpus, memory_mb=demand.memory_mb)
            for rank, uuids in enumerate(chosen, start=len(placements))
        ]
    return placements


def _gpus_of_one(draft: Draft, node: NodeName, demand: Demand) -> tuple[GpuUuid, ...]:
    """The GPUs of one task on a node."""
    gpus, count = draft.free[node].gpus, demand.gpu_count
    if draft.has_like_gpus(node):
        assert len(gpus) >= count, f"{len(gpus)} GPUs for a task of {count}"
        return tuple([gpu.uuid for gpu in gpus[:count]])
    (uuids,) = choose_gpus(without_suspects(suitable_gpus(gpus, demand), count, 1), count, 1)
    return uuids


def without_suspects(suitable: Sequence[Gpu], gpu_count: int, tasks: int) -> Sequence[Gpu]:
    """Return those of the suitable GPUs that are chosen from, in the order given, enough for all `tasks` (U5)."""
    trusted = [gpu for gpu in suitable if not gpu.suspect]
    if len(trusted) == len(suitable):
        return suitable
    if len({gpu.model for gpu in suitable}) > 1:
        return trusted if one_model_slots(trusted, gpu_count or 1) >= tasks else suitable
    missing = max(0, gpu_count * tasks - len(trusted))
    taken = {gpu.uuid for gpu in [gpu for gpu in suitable if gpu.suspect][:missing]}
    return [gpu for gpu in suitable if not gpu.suspect or gpu.uuid in taken]


def choose_gpus(suitable: Sequence[Gpu], gpu_count: int, tasks: int) -> list[tuple[GpuUuid, ...]]:
    """Return the GPUs of each task. `suitable` are those that may serve, in device order, enough for all `tasks`."""
    assert len(suitable) >= gpu_count * tasks, f"{len(suitable)} GPUs for {tasks} tasks of {gpu_count}"
    if not gpu_count:
        return [()] * tasks
    if len({gpu.model for gpu in suitable}) == 1:
        if tasks == 1:
            return [tuple([gpu.uuid for gpu in suitable[:gpu_count]])]
        uuids = [gpu.uuid for gpu in suitable[: gpu_count * tasks]]
        return [tuple(uuids[at : at + gpu_count]) for at in range(0, len(uuids), gpu_count)]
    return _of_several_models(suitable, gpu_count, tasks)


def _of_several_models(suitable: Sequence[Gpu], gpu_count: int, tasks: int) -> list[tuple[GpuUuid, ...]]:
    place = {gpu.uuid: at for at, gpu in enumerate(suitable)}
    by_model: dict[str, list[Gpu]] = {}
    for gpu in suitable:
        by_model.setdefault(gpu.model, []).append(gpu)
    chosen = []
    for _ in range(tasks):
        group = _tightest(by_model, gpu_count) or sorted(
            (gpu for group in by_model.values() for gpu in group), key=lambda gpu: place[gpu.uuid]
        )
        taken = group[:gpu_count]
        chosen.append(tuple(gpu.uuid for gpu in taken))
        for gpu in taken:
            by_model[gpu.model].remove(gpu)
    return sorted(chosen, key=lambda uuids: place[uuids[0]])


def _tightest(by_model: dict[str, list[Gpu]], gpu_count: int) -> list[Gpu]:
    enough = [(len(group), group[0].memory_mb, model) for model, group in by_model.items() if len(group) >= gpu_count]
    return by_model[min(enough)[2]] if enough else []


def needs_rendezvous(demand: Demand) -> bool:
    """Return whether an attempt needs a port. One task with two GPUs does: `torchrun` starts a process for each."""
    return demand.tasks > 1 or demand.gpu_count >= 2


def choose_port(draft: Draft, address: str, job: JobId, attempt: int, policy: Policy) -> int | None:
    """Return a free port of `address`; None when every one is in use."""
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


def promise_port(
    draft: Draft, view: View, policy: Policy, job: JobId, attempt: int, node: NodeName
) -> tuple[str, int] | None:
    """Return the address of a node and a port there at which the ranks of an attempt meet; None = no port is left."""
    address = view.nodes[node].inventory.address
    port = choose_port(draft, address, job, attempt, policy)
    if port is None:
        return None
    draft.take_port(address, port)
    return address, port
