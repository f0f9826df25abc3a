"""Figures of GPUs at the moment, for answers about nodes and jobs."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.control.control_plane import ControlPlane
from stoker.wire.rest.gpu_figures import GpuFiguresView, JobGpuView, gpu_figures_view
from stoker.wire.rest.job import JobDetails, JobView, job_view

GPUS_MAX: Final = 4_096
"""Of one job in an answer."""


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


def job_view_with_gpus(control: ControlPlane, details: JobDetails) -> JobView:
    """Return the shape of a job, with what its GPUs do while it has some."""
    view = job_view(details)
    attempt = details.job.live_attempt if details.job.attempts else None  # people of other tenants see none
    if attempt is None:
        return view
    placements = [task.placement for task in attempt.open_tasks]
    by_node = {placement.node: figures_of(control, placement.node) for placement in placements}
    gpus = [
        JobGpuView(rank=each.rank, node=each.node, uuid=uuid, figures=by_node[each.node].get(uuid))
        for each in placements
        for uuid in each.gpus
    ]
    return replace(view, gpus=gpus[:GPUS_MAX])
