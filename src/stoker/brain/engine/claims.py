"""Start of a job on the places that others gave up for it, and the port at which the ranks of a placement meet."""

from msgspec.structs import replace

from stoker.brain.domain.allocation import Claim
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.job import Job
from stoker.brain.domain.plan import Place
from stoker.brain.domain.policy import Policy
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.gang import choose_port, needs_rendezvous
from stoker.brain.state.view import View


def is_coming(draft: Draft, view: View, claim: Claim) -> bool:
    """Return whether all GPUs of a claim are free, or held by jobs that are ending."""
    for task in claim.tasks:
        free = draft.free.get(task.node)
        if free is None:
            return False
        here = {gpu.uuid for gpu in free.gpus}
        if not here.issuperset(task.gpus) and not (here | view.coming_free(task.node)).issuperset(task.gpus):
            return False
    return True


def start_on(draft: Draft, view: View, policy: Policy, job: Job, claim: Claim) -> Place | None:
    """Take the places of a claim and return the start there; None = some of it isn't free yet."""
    mark = draft.checkpoint()
    for task in claim.tasks:
        free = draft.free[task.node]
        here = {gpu.uuid for gpu in free.gpus}
        if not here.issuperset(task.gpus) or free.cpus < task.cpus or free.memory_mb < task.memory_mb:
            draft.rollback(mark)
            return None
        draft.take(task)
    place = meeting(
        draft, view, policy, Place(job=job.id, attempt=job.newest_attempt + 1, tasks=claim.tasks), job.spec.demand
    )
    if place is None:
        draft.rollback(mark)
    return place


def meeting(draft: Draft, view: View, policy: Policy, place: Place, demand: Demand) -> Place | None:
    """Return the placement with a port at which its ranks meet, if they need one; None = there is none."""
    if not needs_rendezvous(demand):
        return place
    address = view.nodes[place.tasks[0].node].inventory.address
    port = choose_port(draft, address, place.job, place.attempt, policy)
    if port is None:
        return None
    draft.take_port(address, port)
    return replace(place, master_addr=address, master_port=port)
