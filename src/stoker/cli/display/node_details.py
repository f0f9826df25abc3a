"""What is there to tell about a node, in a row of a list or as `key  value` lines?

The same for `stoker node` and for `stoker top`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from stoker.cli.commands.label import labels_line, taints_line
from stoker.cli.display.table import Column

if TYPE_CHECKING:
    from stoker.wire.rest.node import NodeView


def node_columns() -> "list[Column[NodeView]]":
    return [
        Column("NAME", lambda node: node.name),
        Column("STATE", lambda node: node.state.value, coloured=True),
        Column("GPUS", lambda node: f"{node.free.gpus}/{len(node.gpus)} free", right=True),
        Column("MODEL", models_of, elastic=True),
        Column("CPUS", lambda node: f"{node.free.cpus}/{node.cpus} free", right=True),
        Column("MEMORY", lambda node: f"{node.free.memory_mb >> 10}/{node.memory_mb >> 10} GiB free", right=True),
        Column("JOBS", lambda node: len(node.jobs), right=True),
        Column("NOTE", note_of, elastic=True),
        Column("LABELS", labels_line, wide=True),
        Column("TAINTS", taints_line, wide=True),
        Column("ADDRESS", lambda node: node.address, wide=True),
        Column("VERSION", lambda node: node.version, wide=True),
        Column("REGISTERED", lambda node: node.registered_at, wide=True),
        Column("JOB IDS", lambda node: ",".join(node.jobs), wide=True),
        Column("GPU UUIDS", lambda node: ",".join(gpu.uuid for gpu in node.gpus), wide=True),
    ]


def models_of(node: "NodeView") -> str:
    return ", ".join(dict.fromkeys(gpu.model for gpu in node.gpus)) + (" (simulated)" if node.simulated else "")


def note_of(node: "NodeView") -> str:
    parts = [f"drained: {node.drain}" if node.drain else "drained" if node.drain is not None else ""]
    parts.append(f"silent since {node.silent_since}" if node.silent_since else "")
    waits_for_it = node.state.value == "ready" and not node.schedulable
    parts.append("no new work before it has reported to this control plane" if waits_for_it else "")
    waits = [stray for stray in node.strays if stray.quarantined_since]
    parts.append(f"{sum(len(stray.gpus) for stray in waits)} GPUs in quarantine" if waits else "")
    parts.append(f"{len(node.strays) - len(waits)} tasks to clear away" if len(node.strays) > len(waits) else "")
    return "; ".join(filter(None, parts))


def account_of(node: "NodeView") -> str:
    if node.account != "root":
        return node.account
    return "their own users" + (", or root where none is named" if node.allow_root else "")


def _marks(node: "NodeView") -> "Iterator[tuple[str, object]]":
    """Labels and taints, and which of them people have a hand in."""
    yield "labels", labels_line(node)
    yield from _hands(node.labels_by, node.labels_off)
    yield "taints", taints_line(node)
    yield from _hands(node.taints_by, node.taints_off)


def _hands(by: "Mapping[str, str]", off: "Sequence[str]") -> "Iterator[tuple[str, object]]":
    if "people" in by.values():
        yield "  set by people", ", ".join(sorted(key for key, who in by.items() if who == "people"))
    if off:
        yield "  taken off", ", ".join(off)


def node_pairs(node: "NodeView") -> "Iterator[tuple[str, object]]":
    yield "node", node.name
    yield "state", node.state.value
    yield "note", note_of(node)
    yield "address", node.address
    yield "cpus", f"{node.free.cpus} of {node.cpus} free"
    yield "memory", f"{node.free.memory_mb} of {node.memory_mb} MiB free"
    yield from _marks(node)
    yield "runs", ", ".join(node.executors)
    yield "jobs run as", account_of(node)
    yield "leases", "kept" if node.keeps_leases else "not kept: its jobs wait for it, however long it is silent"
    yield "version", node.version
    yield "registered", node.registered_at
    yield "boot id", node.boot_id
    yield "jobs", ", ".join(node.jobs)
    for gpu in node.gpus:
        holder = f", job {gpu.current_task}" if gpu.current_task else ""
        simulated = ", simulated" if gpu.simulated else ""
        yield f"gpu {gpu.device_index}", f"{gpu.uuid} {gpu.model}, {gpu.memory_mb} MiB{simulated}: {gpu.status}{holder}"
    for stray in node.strays:
        what = f"job {stray.job} attempt {stray.attempt} rank {stray.rank} on {len(stray.gpus)} GPUs"
        if stray.quarantined_since:
            yield "in quarantine", f"{what}, lost {stray.quarantined_since}; until the agent here says that it is gone"
        else:
            yield "to clear away", what
