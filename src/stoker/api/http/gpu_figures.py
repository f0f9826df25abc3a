"""Figures of GPUs at the moment, for answers about nodes and jobs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.brain.domain.node import Node
from stoker.control.control_plane import ControlPlane
from stoker.control.control_ports import POINT_STEP_S, FigurePoint
from stoker.wire.rest.gpu_figures import GpuFiguresView, GpuHourView, JobGpuView, NodeHourView, gpu_figures_view
from stoker.wire.rest.job import JobDetails, JobView, job_view

GPUS_MAX: Final = 4_096
"""Of one job in an answer."""


def watch_figures(control: ControlPlane, nodes: Collection[NodeName]) -> None:
    """Note that somebody looks at the figures of these nodes, which are told more often for a while then."""
    if control.nodes is not None:
        control.nodes.watch_figures(nodes)


def figures_of(control: ControlPlane, node: NodeName) -> Mapping[GpuUuid, GpuFiguresView]:
    """Return the newest figures of each GPU of a node that has told some."""
    found = control.nodes.figures(node) if control.nodes is not None else None
    known = control.committer.state.nodes.get(node)
    if found is None or known is None:
        return {}
    instances = {gpu.uuid for gpu in known.mended.gpus if gpu.parent}
    return {
        uuid: gpu_figures_view(reading, found.age_s, is_mig=uuid in instances)
        for uuid, reading in found.readings.items()
    }


def node_hour(control: ControlPlane, node: Node) -> NodeHourView:
    """Return the last hour of a node's GPUs."""
    watch_figures(control, [node.name])
    told = control.nodes.last_hour(node.name) if control.nodes is not None else {}
    return NodeHourView(
        node=node.name,
        simulated=node.inventory.simulated,
        step_s=POINT_STEP_S,
        gpus=[_gpu_hour(gpu, told.get(gpu.uuid, ())) for gpu in node.mended.gpus],
    )


def _gpu_hour(gpu: Gpu, points: Sequence[FigurePoint]) -> GpuHourView:
    return GpuHourView(
        uuid=gpu.uuid,
        device_index=gpu.index,
        memory_mb=gpu.memory_mb,
        age_s=[each.age_s for each in points],
        utilization_percent=[each.utilization_percent for each in points],
        memory_used_mb=[each.memory_used_mb for each in points],
        temperature_c=[each.temperature_c for each in points],
        power_w=[None if each.power_mw is None else round(each.power_mw / 1_000, 1) for each in points],
    )


def job_view_with_gpus(control: ControlPlane, details: JobDetails) -> JobView:
    """Return the shape of a job, with what its GPUs do while it has some."""
    view = job_view(details)
    attempt = details.job.live_attempt if details.job.attempts else None  # people of other tenants see none
    if attempt is None:
        return view
    placements = [task.placement for task in attempt.open_tasks]
    watch_figures(control, list(dict.fromkeys(placement.node for placement in placements)))
    by_node = {placement.node: figures_of(control, placement.node) for placement in placements}
    gpus = [
        JobGpuView(rank=each.rank, node=each.node, uuid=uuid, figures=by_node[each.node].get(uuid))
        for each in placements
        for uuid in each.gpus
    ]
    return replace(view, gpus=gpus[:GPUS_MAX])
