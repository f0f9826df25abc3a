"""Metrics of the state: jobs, queue, GPUs, nodes, quota and disk.

Written at each scrape: these are read from the state, which is their only keeper. Counters and durations come from the
telemetry. Names are the seeds' (`gpu_total`, `agent_count{status}`) under the prefix `stoker_`, also where Prometheus
would keep `_total` for counters: dashboards that exist ask for them. `METERS` is the whole list.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from stoker.api.http.tenants import pools_view
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.node_health import CLOCK_OFF_MS
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.domain.units import SECOND_MS
from stoker.brain.state.cluster_counts import GpuCounts, count_gpus, count_jobs, count_nodes, count_running
from stoker.brain.state.quota_report import TenantUsage, tenant_usage
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_details import queue_by_reason
from stoker.wire.endpoints import PRODUCT
from stoker.wire.rest.quota import QuotaView

_A_GAUGE: Final = "A gauge, in spite of the name, which dashboards expect."


class ScrapeCounts(NamedTuple):
    """Counts of one scrape that several metrics read."""

    control: ControlPlane
    gpus: GpuCounts
    jobs: Mapping[str, int]
    nodes: Mapping[str, int]
    queue: Mapping[ReasonCode, int]
    quota: QuotaView
    tenants: Mapping[str, TenantUsage]


Read = Callable[[ScrapeCounts], "float | Mapping[str, float] | None"]
"""One value, or one for each value of the label; None where there is nothing to say."""


class Meter(NamedTuple):
    name: str
    words: str
    read: Read
    label: str = ""


def _leads(control: ControlPlane) -> bool:
    return control.committer.following is None and not control.committer.failed.is_set()


def _free_bytes(scene: ScrapeCounts) -> float | None:
    try:
        seen = os.statvfs(scene.control.settings.data_dir)
    except OSError:
        return None
    return seen.f_bavail * seen.f_frsize


def _running(scene: ScrapeCounts) -> float:
    return count_running(scene.control.committer.state)


def _waiting(scene: ScrapeCounts) -> float:
    return scene.control.committer.state.indexes.pending_count


def _unread(scene: ScrapeCounts) -> float:
    nodes = scene.control.committer.state.nodes.values()
    return sum(bool(node.inventory.gpu_fault) and not node.forgotten for node in nodes)


def _drained_gpus(scene: ScrapeCounts) -> float:
    nodes = [node for node in scene.control.committer.state.nodes.values() if not node.forgotten]
    return sum(not each.offered for node in nodes for each in node.inventory.conditions)


def _clocks_off(scene: ScrapeCounts) -> float:
    nodes = scene.control.nodes
    if nodes is None:
        return 0
    known = [node.name for node in scene.control.committer.state.nodes.values() if node.reachable]
    return sum(abs(nodes.clock_ahead_ms(name)) > CLOCK_OFF_MS for name in known)


def _by_tenant(scene: ScrapeCounts, read: Callable[[TenantUsage], float | None]) -> Mapping[str, float]:
    said = {name: read(figure) for name, figure in scene.tenants.items()}
    return {name: value for name, value in said.items() if value is not None}


_IN_ALL: Final = "with all beneath it; of the 100 that hold most, and of all others together as _others"

METERS: Final = (
    Meter("task_pending_total", f"Jobs and members of arrays that wait or are held. {_A_GAUGE}", _waiting),
    Meter("task_running_total", f"Jobs and members of arrays that run or are ending. {_A_GAUGE}", _running),
    Meter("queue_size", "The same as task_pending_total.", _waiting),
    Meter(
        "pending_jobs",
        "Jobs and members of arrays that wait, by why; docs/reference/reasons.md explains each.",
        lambda scene: {code.value: count for code, count in scene.queue.items()},
        "reason",
    ),
    Meter(
        "jobs",
        "Jobs remembered, by state. An array is one, and each of its members that began is one more.",
        lambda scene: scene.jobs,
        "state",
    ),
    Meter("gpu_total", f"GPUs of nodes that weren't forgotten. {_A_GAUGE}", lambda scene: scene.gpus.total),
    Meter("gpu_idle_total", f"Of those: offered and not held. {_A_GAUGE}", lambda scene: scene.gpus.idle),
    Meter("gpu_busy_total", f"Of those: held by a job. {_A_GAUGE}", lambda scene: scene.gpus.busy),
    Meter("gpu_offline_total", f"Of those: of no use now. {_A_GAUGE}", lambda scene: scene.gpus.offline),
    Meter(
        "gpu_quarantined_total",
        f"Of those: not offered, since a silent node may not have ended the job that had it. {_A_GAUGE}",
        lambda scene: scene.gpus.quarantined,
    ),
    Meter(
        "gpus",
        "The same GPUs by status.",
        lambda scene: {word: count for word, count in scene.gpus._asdict().items() if word != "total"},
        "status",
    ),
    Meter("gpus_drained", f"GPUs that get no work, since they are lost, sick or not clean. {_A_GAUGE}", _drained_gpus),
    Meter("nodes_clock_off", "Reachable nodes whose clock is more than 5 s off.", _clocks_off),
    Meter("nodes_gpus_unread", "Nodes, not forgotten ones, that can't read all of their GPUs.", _unread),
    Meter("quota_total", f"GPUs in service, which the classes share. {_A_GAUGE}", lambda scene: scene.quota.total_gpus),
    Meter("quota_online_limit", "GPUs that online jobs are guaranteed.", lambda scene: scene.quota.online.guaranteed),
    Meter("quota_online_used", "GPUs that online jobs hold.", lambda scene: scene.quota.online.used),
    Meter("quota_batch_limit", "GPUs that batch jobs are guaranteed.", lambda scene: scene.quota.batch.guaranteed),
    Meter("quota_batch_used", "GPUs that batch jobs hold.", lambda scene: scene.quota.batch.used),
    Meter("tenants", "Tenants there are.", lambda scene: len(scene.control.committer.state.tenants)),
    Meter(
        "tenant_gpus",
        f"GPUs that jobs of a tenant hold, {_IN_ALL}.",
        lambda scene: _by_tenant(scene, lambda figure: figure.gpu_milli / WHOLE_GPU),
        "tenant",
    ),
    Meter(
        "tenant_guaranteed_gpus",
        "GPUs that a tenant is guaranteed; the same tenants.",
        lambda scene: _by_tenant(scene, lambda figure: figure.guaranteed),
        "tenant",
    ),
    Meter(
        "tenant_limit_gpus",
        "GPUs that a tenant may hold at most; the same tenants, those that have such a limit.",
        lambda scene: _by_tenant(scene, lambda figure: figure.limit),
        "tenant",
    ),
    Meter(
        "tenant_running_jobs",
        "Jobs of a tenant that hold something; the same tenants.",
        lambda scene: _by_tenant(scene, lambda figure: figure.running),
        "tenant",
    ),
    Meter(
        "tenant_pending_jobs",
        "Jobs, and members of arrays, of a tenant that wait; the same tenants.",
        lambda scene: _by_tenant(scene, lambda figure: figure.pending),
        "tenant",
    ),
    Meter("agent_count", "Nodes ever registered, by state.", lambda scene: scene.nodes, "status"),
    Meter("nodes", "The same as agent_count.", lambda scene: scene.nodes, "state"),
    Meter(
        "scheduler_is_master",
        "1 while this control plane decides and acknowledges.",
        lambda scene: float(_leads(scene.control)),
    ),
    Meter(
        "last_pass_age_seconds",
        "Since the scheduling loop last finished a pass, or since the start.",
        lambda scene: scene.control.loop.last_pass_age_s(),
    ),
    Meter(
        "loop_period_seconds",
        "Longest time between two passes, as set by loop.period_s.",
        lambda scene: scene.control.loop.period_s,
    ),
    Meter(
        "snapshot_age_seconds",
        "Since the last snapshot was saved, while there are facts that it doesn't hold; else 0.",
        lambda scene: scene.control.snapshots.age_s(),
    ),
    Meter(
        "clock_ahead_seconds",
        "How far the time of the log is ahead of the wall clock, which was set back. Should be 0.",
        lambda scene: scene.control.committer.ahead_ms / SECOND_MS,
    ),
    Meter("data_dir_free_bytes", "Left on the file system of data_dir.", _free_bytes),
    Meter("log_position", "Number of the newest durable fact.", lambda scene: scene.control.committer.durable),
    Meter(
        "log_waiting",
        "Facts that are applied and not yet durable.",
        lambda scene: scene.control.committer.state.position - scene.control.committer.durable,
    ),
    Meter("epoch", "Of this control plane; it rises at each start.", lambda scene: scene.control.committer.state.epoch),
    Meter("build_info", "1, with the version.", lambda _: {PRODUCT: 1}, "version"),
)


OWN: Final = frozenset(
    {
        *("scheduler_is_master", "snapshot_age_seconds", "data_dir_free_bytes"),
        *("log_position", "epoch", "build_info"),
    }
)
"""What a standby says too. The rest is of the cluster, and would be counted twice when both are scraped."""


async def gauges(control: ControlPlane) -> bytes:
    """Prometheus text, ending with a line feed."""
    state = control.committer.state
    queue = await queue_by_reason(control)
    counts = count_gpus(state), count_jobs(state), count_nodes(state)
    scene = ScrapeCounts(control, *counts, queue, pools_view(state), tenant_usage(state))
    told = METERS if control.committer.following is None else [each for each in METERS if each.name in OWN]
    return "".join(_family(meter, meter.read(scene)) for meter in told).encode()


def _family(meter: Meter, said: float | Mapping[str, float] | None) -> str:
    values = said if isinstance(said, Mapping) else {} if said is None else {"": said}
    if not values:
        return ""
    lines = [f"# HELP stoker_{meter.name} {meter.words}", f"# TYPE stoker_{meter.name} gauge"]
    for key, value in values.items():
        labels = f'{{{meter.label}="{key}"}}' if meter.label else ""
        lines.append(f"stoker_{meter.name}{labels} {value}")
    return "\n".join(lines) + "\n"
