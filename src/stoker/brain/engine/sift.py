"""Sifting of the queue: which shapes have no capacity when a pass begins, and by which GPUs each may be served.

A pass only takes, until reservations are given back; so what doesn't fit at its start needn't come up to be placed.

Limits: about 0.5 us per bucket, and 5 us per selection of nodes.
"""

from collections.abc import Sequence

from stoker.brain.domain.demand import GpuDemand, GpusPerTask, Shape
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.partition import selection
from stoker.brain.domain.reason import Reason
from stoker.brain.domain.tenant import nodes_allowed
from stoker.brain.domain.where import ANYWHERE, Where
from stoker.brain.engine.candidate_nodes import CandidateNodes
from stoker.brain.engine.demand_cache import GpuNumbers
from stoker.brain.engine.draft import Draft
from stoker.brain.engine.explain import Deciding
from stoker.brain.engine.gpu_choices import GpuChoices
from stoker.brain.state.view import Bucket, SelectedNodes, View


class _CandidatesBySelection(dict[SelectedNodes, CandidateNodes]):
    """The candidate nodes of selections, made when one is first asked for."""

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self._draft = draft

    def __missing__(self, admitted: SelectedNodes) -> CandidateNodes:
        candidates = self[admitted] = CandidateNodes(self._draft, admitted)
        return candidates


class Sift:
    """The shapes of the queue of one pass, and the GPUs that may serve them."""

    def __init__(self, view: View, draft: Draft, deciding: Deciding) -> None:
        self._view, self._draft, self._deciding = view, draft, deciding
        self.nodes_allowed: dict[TenantName, Where] = {}
        """Of each tenant that has jobs in the queue."""
        self._known: dict[Where, dict[GpuDemand, GpuChoices]] = {}
        """By the nodes that a tenant may use, and what a shape says."""
        self._fitting_of: dict[GpuChoices, list[Shape]] = {}
        """Shapes for which there are enough GPUs at the start."""
        self._candidates_of = _CandidatesBySelection(draft)
        self._numbers: dict[GpusPerTask, tuple[GpuNumbers, dict[SelectedNodes, GpuChoices]]] = {}
        """By demand for GPUs, with the choices of each selection: demands that the same GPUs serve have the same."""

    def sift(
        self, buckets: Sequence[Bucket], blocked: dict[Shape, GpuChoices | Reason], fitting: dict[Shape, GpuChoices]
    ) -> None:
        """Add to `blocked` each shape for which there isn't enough capacity even now. The hottest loop of a long queue.

        To `fitting` is added each for which there are enough GPUs, also where CPUs or memory are short.
        """
        deciding, of_tenants = self._deciding, dict[TenantName, dict[GpuDemand, GpuChoices]]()
        fitting_of = self._fitting_of
        for bucket in buckets:
            deciding.shape = shape = bucket.shape
            known = of_tenants.get(shape.tenant)
            if known is None:
                known = of_tenants[shape.tenant] = self._known_of(shape.tenant)
            asked = shape.gpu_demand
            choices = known.get(asked)
            if choices is None:
                choices = known[asked] = self._choices_for(shape, self.nodes_allowed[shape.tenant], asked.asked)
            tasks = shape.demand.tasks
            if tasks > choices.at_most or not choices.may_have_held(tasks):
                blocked[shape] = choices
                continue
            if shape not in fitting:
                fitting[shape] = choices
                fitting_of.setdefault(choices, []).append(shape)
        for choices, shapes in fitting_of.items():
            if choices.pays_for_table(len(shapes)):
                capacity = choices.last.capacity()
                for shape in shapes:
                    deciding.shape = shape
                    if not capacity.holds(shape.demand):
                        blocked[shape] = choices

    def block_what_is_short(self, blocked: dict[Shape, GpuChoices], besides: dict[Shape, int]) -> None:
        """Add to `blocked` each shape for which there aren't enough GPUs any more, but those `besides`."""
        for choices, shapes in self._fitting_of.items():
            at_most = choices.at_most_now()
            for shape in shapes:
                if shape.demand.tasks > at_most and shape not in besides:
                    blocked.setdefault(shape, choices)

    def _known_of(self, tenant: TenantName) -> dict[GpuDemand, GpuChoices]:
        nodes = self.nodes_allowed[tenant] = nodes_allowed(self._view.tenants, tenant)
        return self._known.setdefault(nodes, {})

    def _choices_for(self, shape: Shape, nodes: Where, asked: GpusPerTask) -> GpuChoices:
        demand, where = shape.demand, shape.where
        if shape.partition or nodes is not ANYWHERE:  # a partition that is gone adds nothing (D7)
            where = selection(self._view.partitions, self._view.tenants, shape)
        admitted = self._view.admitted(where)
        if demand.gpu_memory_mb and not demand.shares:  # what a share asks for is its bound too
            memory_mb = self._candidates_of[admitted].gpu_memory(demand.gpu_model, demand.gpu_memory_mb)
            asked = asked[0], memory_mb, *asked[2:]
        known = self._numbers.get(asked)
        if known is None:
            known = self._numbers[asked] = GpuNumbers(self._draft, demand), {}
        numbers, by_selection = known
        choices = by_selection.get(admitted)
        if choices is None:
            at_most = numbers.at_most_anywhere
            choices = by_selection[admitted] = GpuChoices(admitted, numbers, at_most, demand, self._candidates_of)
        return choices
