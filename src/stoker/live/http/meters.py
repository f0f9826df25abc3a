"""What do the meters of the state say?

Written by hand at each scrape: these are read from the state, which is their only keeper. Counters and durations come
from the telemetry. Names follow the seeds' (`gpu_total`, `agent_count{status}`) under the prefix `stoker_`.
"""

from collections.abc import Mapping
from typing import Final

from stoker.live.control import ControlPlane
from stoker.live.http.cluster import count_jobs, count_nodes
from stoker.live.http.gpus import count_gpus
from stoker.wire.versions import PRODUCT

_ALONE: Final = ""


def gauges(control: ControlPlane) -> bytes:
    """Prometheus text, ending with a line feed."""
    committer = control.committer
    state, gpus = committer.state, count_gpus(committer.state)
    gpu_counts = {"idle": gpus.idle, "busy": gpus.busy, "offline": gpus.offline}
    families = [
        _family("jobs", "Jobs remembered, by state.", "state", count_jobs(state)),
        _family("gpus", "GPUs of nodes not forgotten.", "status", gpu_counts),
        _family("nodes", "Nodes ever registered, by state.", "state", count_nodes(state)),
        _single("last_pass_age_seconds", "Since the scheduling loop last finished.", control.loop.last_pass_age_s()),
        _single("log_position", "Newest durable fact.", committer.durable),
        _single("log_waiting", "Facts applied and not yet durable.", state.position - committer.durable),
        _single("epoch", "Of this control plane.", state.epoch),
        _family("build", "1, with the version.", "version", {PRODUCT: 1}),
    ]
    return "".join(families).encode()


def _single(name: str, words: str, value: float) -> str:
    return _family(name, words, _ALONE, {_ALONE: value})


def _family(name: str, words: str, label: str, values: Mapping[str, float]) -> str:
    lines = [f"# HELP stoker_{name} {words}", f"# TYPE stoker_{name} gauge"]
    for key, value in values.items():
        labels = f'{{{label}="{key}"}}' if label else ""
        lines.append(f"stoker_{name}{labels} {value}")
    return "\n".join(lines) + "\n"
