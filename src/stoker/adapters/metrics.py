"""Prometheus metrics from telemetry calls.

Rules: M1  every name gets the prefix `stoker_`; a duration also gets the suffix `_seconds`, a counter `_total`
       M2  a metric holds at most `series_max` label sets; what is beyond counts under the value `other`, so that a
           label taken from the outside (a tenant, a node) can't fill the memory of the control plane
       M3  a metric keeps the kind and the label names of its first use; another use is a bug and raises ValueError
       M4  what a metric means stands in HELP, and a test holds that against every name that the source counts under
       M5  a counter of whose growth an alert speaks stands at zero from the start: Prometheus sees no increase in a
           series that begins with its first count
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

SERIES_MAX: Final = 1_000
"""A cluster of 200 nodes with a label per node stays far below it."""

BUCKETS_S: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3_600.0, 21_600.0, 86_400.0),
)
"""From one fsync of a fast disk to a day in the queue."""

HELP: Final[Mapping[str, str]] = {
    "admission_wait": "From the submit of a job to its first placement, by band of priority.",
    "agent_drained": "Drains begun.",
    "agent_forgotten": "Nodes forgotten.",
    "agent_labelled": "Changes of a node's labels.",
    "agent_lost": "Times that a node was silent for so long that work there was settled without proof.",
    "agent_pause_over": "Pauses of nodes that have lasted long enough.",
    "agent_paused": "Pauses begun, of nodes on which starts failed in a row.",
    "agent_reachable": "Nodes heard again after silence.",
    "agent_registered": "Registrations of agents that changed what is known of a node.",
    "agent_resumed": "Drains and pauses ended by people.",
    "agent_tainted": "Changes of a node's taints.",
    "audit_rows_dropped": "Rows of the audit trail dropped while the history couldn't be written.",
    "audit_rows_shipped": "Rows of the audit trail that were sent to audit.ship_to.",
    "audit_rows_unshipped": "Rows of the audit trail that were not sent, since audit.ship_to took none for too long.",
    "audit_ship_faults": "Times that audit.ship_to took no rows of the audit trail.",
    "audit_ship_ok": "1 while audit.ship_to takes rows of the audit trail, 0 while it doesn't.",
    "audit_rows_waiting": "Rows of the audit trail that are not in the history tables yet.",
    "capacity_claimed": "Times that GPUs were kept for a job for which others give way.",
    "clock_moved": "Times that the wall clock was corrected, or the machine had slept.",
    "commit": "From the first fact of a batch to all of it being durable.",
    "deadlines_without_effect": "Deadlines that were due and changed nothing, which is a defect.",
    "events": "Facts made durable.",
    "history_faults": "Times that the history tables could not be written or trimmed.",
    "history_ok": "1 while the history tables can be written, 0 while they can't. Jobs go on either way.",
    "history_waiting": "Ended jobs and holdings that are not in the history tables yet.",
    "in_sync_members": "Control planes whose disks hold all that was acknowledged. 1 = the active is alone.",
    "jobs": "Jobs and members of arrays accepted since this process began.",
    "ledger_drift": "Violations that the newest audit of the ledger found. Should be 0.",
    "lease_broken": "Tasks that a node said it ran after they must have been dead by their lease. Should be 0.",
    "log_output_broken": "Times that log lines could not be written any more.",
    "notification_faults": "Notifications that broke before they were sent, which is a defect.",
    "output_bytes_archived": "Bytes that jobs wrote and that were copied into the archive of outputs.",
    "outputs_archived": "Outputs of tasks that were copied into the archive.",
    "outputs_not_archived": "Outputs that were given up: their node was silent for a day, or too many waited.",
    "outputs_to_archive": "Outputs of ended tasks that wait to be copied into the archive.",
    "notifications": "Notifications of jobs by kind of target and outcome: sent, retrying, failed (given up), unknown "
    "(sent and never answered), dropped (too many waited).",
    "partition_defined": "Partitions defined or changed.",
    "partition_deleted": "Partitions deleted.",
    "pass": "Time that one scheduling pass took to decide.",
    "pass_faults": "Scheduling passes that broke, which is a defect.",
    "peer_secret_ok": "1 while the secret of the control planes lies where they read it, 0 while it does not.",
    "placements": "Placements and preemptions of scheduling passes that the writer accepted.",
    "placements_refused": "Placements and preemptions that no longer held when they were to be written.",
    "preemptions": "Jobs told to give way, by cause: preempted (by a higher priority), reclaimed (borrowed GPUs).",
    "quota_updated": "Changes of how the classes share the GPUs.",
    "csp_reports": "Reports of browsers that kept a web page from what its policy does not allow.",
    "requests_broken": "REST requests that ended in a defect of ours.",
    "replication": "From handing facts to a standby to its having them on disk.",
    "replication_lag_records": "Facts that a standby doesn't have on disk yet.",
    "replication_lag_s": "Seconds since the oldest fact was handed to a standby that it doesn't have on disk yet.",
    "role_changed": "Times that this process became active.",
    "cluster_restored": "Times that this process went on from a backup.",
    "scheduling_latency": "From when a job may run (submitted, begin time reached, dependencies met, released) to its "
    "placement, by band of priority.",
    "secret_deleted": "Secrets deleted.",
    "secret_set": "Secrets set, or given another value.",
    "snapshot": "Time that a snapshot took, from its beginning to its being saved.",
    "snapshot_faults": "Snapshots that could not be saved.",
    "snapshot_position": "Number of the newest fact in the newest snapshot.",
    "snapshots_held": "Snapshots that waited for the history tables, which the log would have forgotten otherwise.",
    "starts_withheld": "Starts not sent to their node, since a secret of the job could not be given.",
    "task_finished": "Jobs and members of arrays that ended, by their final state.",
    "task_requeued": "Times that a job was put back to wait for another attempt.",
    "task_scheduled": "Placements, by band of priority (low, normal, high, urgent).",
    "task_stopping": "Attempts that began to end.",
    "task_warned": "Running jobs that were given notice of their time limit, as they had wished.",
    "time_limit_near": "Running jobs of which it was said that their time limit is near.",
    "task_updated": "Changes of jobs after their submit.",
    "task_submitted": "Jobs and members of arrays accepted, by band of priority (low, normal, high, urgent).",
    "tenant_defined": "Tenants defined or changed.",
    "tenant_deleted": "Tenants deleted.",
    "node_joined": "Nodes that joined with a key of their own.",
    "node_key_replaced": "Nodes that joined again with another key: set up anew, or taken over.",
    "token_created": "Tokens made.",
    "token_revoked": "Tokens revoked.",
    "wrong_tokens": "Requests with a token that is not known: never made, revoked or expired.",
}

_OVERFLOW: Final = "other"

Kind = TypeVar("Kind", bound=Counter | Gauge | Histogram)


FROM_ZERO: Final[Sequence[tuple[str, Mapping[str, str]]]] = (
    ("pass_faults", {}),
    ("node_key_replaced", {}),
    *(("task_finished", {"status": status}) for status in ("failed", "timeout", "out_of_memory", "node_failed")),
)
"""M5."""


class _Family(Generic[Kind]):
    """One metric and its series. Series are kept here too, because the library's own look-up takes a lock."""

    def __init__(self, metric: Kind, label_names: tuple[str, ...], series_max: int) -> None:
        self._metric: Kind = metric
        self._label_names = label_names
        self._series_max = series_max
        self._series: dict[tuple[str, ...], Kind] = {}

    def series(self, labels: Mapping[str, str]) -> Kind:
        if not self._label_names and not labels:
            return self._metric
        if len(labels) != len(self._label_names) or any(name not in labels for name in self._label_names):
            raise ValueError(f"{self._metric} has labels {self._label_names}, not {tuple(labels)}")
        values = tuple(labels[name] for name in self._label_names)
        found = self._series.get(values)
        return found if found is not None else self._begin(values)

    def _begin(self, values: tuple[str, ...]) -> Kind:
        overflow = (_OVERFLOW,) * len(values)
        if len(self._series) >= self._series_max:
            values = overflow
        if values not in self._series:
            self._series[values] = self._metric.labels(*values)  # type: ignore[assignment]  # answers its own kind
        return self._series[values]


class Metrics:
    """Every metric of one process."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series per series that says when it began
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._series_max = series_max
        self._families: dict[tuple[type, str], _Family[Any]] = {}

    def begin(self) -> None:
        """Show the counters of which alerts speak, at zero (M5)."""
        for name, labels in FROM_ZERO:
            self.count(name, 0, labels)

    def count(self, name: str, by: int, labels: Mapping[str, str]) -> None:
        self._series(Counter, name, labels).inc(by)

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._series(Gauge, name, labels).set(value)

    def observe(self, name: str, seconds: float, labels: Mapping[str, str]) -> None:
        self._series(Histogram, name, labels).observe(seconds)

    def _series(self, kind: type[Kind], name: str, labels: Mapping[str, str]) -> Kind:
        family: _Family[Kind] | None = self._families.get((kind, name))
        if family is None:
            full, options = _full(name), dict[str, Any]()
            if kind is Histogram:
                full, options = f"{full.removesuffix('_seconds')}_seconds", {"buckets": BUCKETS_S}
            metric = kind(full, _words(name), tuple(labels), registry=self._registry, **options)
            family = self._families[kind, name] = _Family(metric, tuple(labels), self._series_max)
        return family.series(labels)

    def render(self) -> bytes:
        """The text exposition format, for `/metrics`."""
        return generate_latest(self._registry)


def _full(name: str) -> str:
    return f"stoker_{name.removeprefix('stoker_')}"


def _words(name: str) -> str:
    return HELP.get(known_as(name), f"{name.replace('_', ' ')}.")


def known_as(name: str) -> str:
    """The name in HELP of whatever it is counted under."""
    return name.removeprefix("stoker_").removesuffix("_total").removesuffix("_seconds")
