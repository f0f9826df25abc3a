"""Text about a node, as a row of a list or as `key  value` lines, for `stoker node` and `stoker top`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from stoker.cli.clock import local_text
from stoker.cli.display.formatting import local_times
from stoker.cli.display.gpu_figures import figures_text
from stoker.cli.display.table import Column, fields

if TYPE_CHECKING:
    from stoker.wire.rest.node import GpuLinkView, GpuView, NodeView


def node_columns() -> "list[Column[NodeView]]":
    """Return the columns of a list of nodes."""
    return [
        Column("NAME", lambda node: node.name),
        Column("STATE", lambda node: node.state.value, coloured=True),
        Column("GPUS", lambda node: f"{node.free.gpus}/{len(node.gpus)} free", right=True),
        Column("MODEL", models_of, elastic=True),
        Column("CPUS", lambda node: f"{node.free.cpus}/{node.cpus} free", right=True),
        Column("MEMORY", lambda node: f"{node.free.memory_mb >> 10}/{node.memory_mb >> 10} GiB free", right=True),
        Column("JOBS", lambda node: len(node.jobs), right=True),
        Column("NOTE", lambda node: local_times(note_of(node)), elastic=True),
        Column("LABELS", labels_line, wide=True),
        Column("TAINTS", taints_line, wide=True),
        *fields("ADDRESS", "VERSION", wide=True),
        Column("REGISTERED", lambda node: node.registered_at, wide=True, instant=True),
        Column("JOB IDS", lambda node: ",".join(node.jobs), wide=True),
        Column("GPU UUIDS", lambda node: ",".join(gpu.uuid for gpu in node.gpus), wide=True),
    ]


def labels_line(node: "NodeView") -> str:
    """Return the node's labels as one line; labels that Stoker made stand last."""
    own = {key for key, by in node.labels_by.items() if by == "stoker"}
    ordered = sorted(node.labels.items(), key=lambda label: (label[0] in own, label[0]))
    return ", ".join(f"{key}={value}" for key, value in ordered)


def taints_line(node: "NodeView") -> str:
    """Return the node's taints as one line."""
    return ", ".join(node.taints)


def models_of(node: "NodeView") -> str:
    """Return the models of its GPUs, each once."""
    return ", ".join(dict.fromkeys(gpu.model for gpu in node.gpus)) + (" (simulated)" if node.simulated else "")


def note_of(node: "NodeView") -> str:
    """Return what is unusual about a node: fault, low limits, drain, pause, silence, orphan tasks; empty = nothing."""
    parts = [node.fault, drain_of(node)]
    parts.append(node.limits)
    parts.append(f"GPUs get no work: {node.gpu_fault}" if node.gpu_fault else "")
    parts += [reason for reason in node.health.reasons if reason.startswith("its clock is")]
    parts.append(
        f"starts failed, no new work until {local_text(node.pause.until)}: {node.pause.error}" if node.pause else ""
    )
    parts.append(f"silent since {local_text(node.silent_since)}" if node.silent_since else "")
    waits_for_it = node.state.value == "ready" and not node.schedulable
    parts.append("no new work before it has reported to this control plane" if waits_for_it else "")
    waits = [orphan for orphan in node.strays if orphan.quarantined_since]
    parts.append(f"{sum(len(orphan.gpus) for orphan in waits)} GPUs in quarantine" if waits else "")
    parts.append(f"{len(node.strays) - len(waits)} tasks to clear away" if len(node.strays) > len(waits) else "")
    return "; ".join(filter(None, parts))


def drain_of(node: "NodeView") -> str:
    """Return who drains a node, and why; empty = nobody."""
    if node.drain is None:
        return ""
    by = f" by {node.drained_by.removeprefix('user:')}" if node.drained_by else ""
    return f"drained{by}" + (f": {node.drain}" if node.drain else "")


def account_of(node: "NodeView") -> str:
    """Return the account that jobs run as there."""
    if node.account != "root":
        return node.account
    return "their own users" + (", or root where none is named" if node.allow_root else "")


def _labels_and_taints(node: "NodeView") -> "Iterator[tuple[str, object]]":
    """Labels and taints, and those of them that people set or took off."""
    yield "labels", labels_line(node)
    yield from _changed_by_people(node.labels_by, node.labels_off)
    yield "taints", taints_line(node)
    yield from _changed_by_people(node.taints_by, node.taints_off)


def _changed_by_people(by: "Mapping[str, str]", off: "Sequence[str]") -> "Iterator[tuple[str, object]]":
    if "people" in by.values():
        yield "  set by people", ", ".join(sorted(key for key, who in by.items() if who == "people"))
    if off:
        yield "  taken off", ", ".join(off)


def node_pairs(node: "NodeView") -> "Iterator[tuple[str, object]]":
    """Yield (key, value) lines about one node, its GPUs and its orphan tasks."""
    from stoker.brain.domain.gpu import index_text

    yield "node", node.name
    yield "state", node.state.value
    yield "health", "; ".join((node.health.state.value, *node.health.reasons))
    yield "note", local_times(note_of(node))
    if node.drained_at:
        yield "drained at", local_times(node.drained_at)
    yield "address", node.address
    yield "cpus", f"{node.free.cpus} of {node.cpus} free"
    yield "memory", f"{node.free.memory_mb} of {node.memory_mb} MiB free"
    yield from _labels_and_taints(node)
    yield "runs", ", ".join(node.executors)
    yield "containers", node.containers_fault
    yield "jobs run as", account_of(node)
    yield "sharing", f"MPS at {node.mps}" if node.mps else "cooperative: without MPS only programs keep to their shares"
    if node.unenforced:
        yield "not enforced", node.unenforced
    yield "leases", "kept" if node.keeps_leases else "not kept: its jobs wait for it, however long it is silent"
    yield "version", node.version
    yield "registered", local_text(node.registered_at)
    yield "boot id", node.boot_id
    yield "jobs", ", ".join(node.jobs)
    for gpu in node.gpus:
        holder = f", job {holder_text(gpu)}" if gpu.current_task or gpu.sharers else ""
        simulated = ", simulated" if gpu.simulated else ""
        where, what = index_text(gpu.device_index), f"{gpu.uuid} {gpu.model}, {gpu.memory_mb} MiB{_place_of(gpu)}"
        yield f"gpu {where}", f"{what}{simulated}: {gpu.status}{holder}"
        if gpu.health.state != "healthy":
            yield "", health_text(gpu)
        if gpu.figures is not None:
            yield "", figures_text(gpu.figures)
    yield "nvlink", links_text(node.links)
    for orphan in node.strays:
        what = f"job {orphan.job} attempt {orphan.attempt} rank {orphan.rank} on {len(orphan.gpus)} GPUs"
        if orphan.quarantined_since:
            yield (
                "in quarantine",
                f"{what}, lost {local_text(orphan.quarantined_since)}; until the agent here says that it is gone",
            )
        else:
            yield "to clear away", what


def links_text(links: "Sequence[GpuLinkView]") -> str:
    """Return which GPUs NVLink joins; those that have as many lanes to the same others are told once."""
    joined: dict[int, dict[int, int]] = {}
    for link in links:
        joined.setdefault(link.first, {})[link.second] = link.lanes
        joined.setdefault(link.second, {})[link.first] = link.lanes
    lanes = {count for others in joined.values() for count in others.values()}
    if len(lanes) == 1 and all(len(others) == len(joined) - 1 for others in joined.values()):
        return f"GPUs {', '.join(map(str, sorted(joined)))}: each to each, {lanes.pop()} lanes"
    return ", ".join(f"{link.first}-{link.second} x{link.lanes}" for link in links)


def _place_of(gpu: "GpuView") -> str:
    """Return where in its machine a GPU is; empty = it isn't told."""
    numa = "" if gpu.numa_node is None else f", NUMA node {gpu.numa_node}"
    return f", PCI {gpu.bus}{numa}" if gpu.bus else numa


def health_text(gpu: "GpuView") -> str:
    """Return what ails a GPU, and since when; empty = nothing."""
    health = gpu.health
    if health.state == "healthy":
        return ""
    since = f", since {local_text(health.since)}" if health.since else ""
    return f"{health.state.value}: {health.reason}{since}"


def holder_text(gpu: "GpuView") -> str:
    """Return the job that holds a GPU, or those that share it, each with its share."""
    if not gpu.sharers:
        return gpu.current_task or ""
    return ", ".join(f"{sharer.job or '-'} ({sharer.share:g})" for sharer in gpu.sharers)
