"""REST routes for partitions: list, show, make, replace, delete."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from starlette.requests import Request

from stoker.api.http.responses import caller_of, carry_out, read_body
from stoker.api.http.routing import BODY, CHANGE, PARTITION, Routes
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.ids import PartitionName
from stoker.brain.domain.label import labels_of, taints_of
from stoker.brain.domain.lifecycle import LIVE
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.where import admits, selector_text, toleration_text
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.cluster_counts import known_nodes
from stoker.brain.state.commands import DeletePartition, PutPartition
from stoker.brain.state.indexes import waiting_count
from stoker.brain.state.validation.lookups import find_partition
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.rest.partition import NewPartitionBody, PartitionBody, PartitionListView, PartitionView, partition_of

SLICE: Final = 1_000
"""Jobs, or nodes held against partitions, looked at before others get a turn: about a millisecond."""
_SAID: Final = (
    *("bad_selector", "bad_toleration", "bad_time", "bad_partition_name", "time_limit_too_long", "text_too_long"),
    *("too_many_terms", "unknown_node", "too_many_partitions", *BODY, *CHANGE),
)


def routes(control: ControlPlane) -> Routes:
    router = Routes()

    async def shown(partition: Partition) -> PartitionView:
        return (await _views(control, [partition]))[0]

    async def put(request: Request, partition: Partition, *, create: bool) -> PartitionView:
        command = PutPartition(by=caller_of(request).principal, partition=partition, create=create)
        await carry_out(control, request, command)
        return await shown(partition)

    @router.serve(endpoints.PARTITIONS)
    async def list_partitions(request: Request) -> PartitionListView:
        """List every partition, by name."""
        found = control.committer.state.partitions
        views = await _views(control, [found[name] for name in sorted(found)])
        return PartitionListView(partitions=views, total=len(views))

    @router.serve(endpoints.CREATE_PARTITION, "partition_exists", *_SAID)
    async def create_partition(request: Request) -> PartitionView:
        """Make a partition."""
        body = await read_body(request, NewPartitionBody)
        return await put(request, partition_of(body.name, body), create=True)

    @router.serve(endpoints.PARTITION, *PARTITION)
    async def show_partition(request: Request) -> PartitionView:
        """Show one partition."""
        return await shown(_partition_at(request, control.committer.state))

    @router.serve(endpoints.PUT_PARTITION, *_SAID)
    async def put_partition(request: Request) -> PartitionView:
        """Replace a partition whole, or make it. Jobs that are in already keep their time limits."""
        body = await read_body(request, PartitionBody)
        return await put(request, partition_of(request.path_params["name"], body), create=False)

    @router.serve(endpoints.DELETE_PARTITION, *PARTITION, "partition_in_use", *CHANGE)
    async def delete_partition(request: Request) -> PartitionView:
        """Delete a partition that no job names which hasn't ended. The answer shows what it was."""
        partition = _partition_at(request, control.committer.state)
        await carry_out(control, request, DeletePartition(by=caller_of(request).principal, name=partition.name))
        return await shown(partition)

    return router


def _partition_at(request: Request, state: ClusterState) -> Partition:
    """The partition that the path names. Raises: StokerError `partition_unknown`."""
    found = find_partition(state, PartitionName(request.path_params["name"]))
    if isinstance(found, Refusal):
        raise StokerError(found)
    return found


class _JobCounts(NamedTuple):
    pending: int = 0
    running: int = 0


class _NodeCounts(NamedTuple):
    all: int = 0
    ready: int = 0
    gpus: int = 0
    free_gpus: int = 0


async def _views(control: ControlPlane, partitions: Sequence[Partition]) -> list[PartitionView]:
    jobs = await _jobs(control)
    nodes = await _nodes(control, partitions)
    return [_view(each, jobs.get(each.name, _JobCounts()), nodes[each.name]) for each in partitions]


async def _jobs(control: ControlPlane) -> dict[PartitionName, _JobCounts]:
    found: dict[PartitionName, _JobCounts] = {}
    for looked, job in enumerate(list(control.committer.state.jobs.values()), start=1):
        if looked % SLICE == 0:
            await control.clock.sleep(0)
        if job.spec.partition and not job.is_final:
            so_far = found.get(job.spec.partition, _JobCounts())
            running = so_far.running + (job.state in LIVE)
            found[job.spec.partition] = _JobCounts(so_far.pending + waiting_count(job), running)
    return found


async def _nodes(control: ControlPlane, partitions: Sequence[Partition]) -> dict[PartitionName, _NodeCounts]:
    found = {partition.name: _NodeCounts() for partition in partitions}
    looked, state = 0, control.committer.state
    for node in list(known_nodes(state)):
        labels, taints, free = labels_of(node), taints_of(node), state.indexes.free.get(node.name)
        gpus, free_gpus = len(node.inventory.gpus), len(free.gpus) if free else 0
        for partition in partitions:
            looked += 1
            if looked % SLICE == 0:
                await control.clock.sleep(0)
            if admits(partition.where, node.name, labels, taints):
                so_far = found[partition.name]
                found[partition.name] = _NodeCounts(
                    so_far.all + 1, so_far.ready + (free is not None), so_far.gpus + gpus, so_far.free_gpus + free_gpus
                )
    return found


def _view(partition: Partition, jobs: _JobCounts, nodes: _NodeCounts) -> PartitionView:
    where = partition.where
    return PartitionView(
        name=partition.name,
        where=selector_text(where.require),
        exclude=where.exclude,
        tolerate=tuple(map(toleration_text, where.tolerate)),
        time_default_ms=partition.time_default_ms,
        time_max_ms=partition.time_max_ms,
        comment=partition.comment,
        nodes=nodes.all,
        ready_nodes=nodes.ready,
        total_gpus=nodes.gpus,
        free_gpus=nodes.free_gpus,
        pending_jobs=jobs.pending,
        running_jobs=jobs.running,
    )
