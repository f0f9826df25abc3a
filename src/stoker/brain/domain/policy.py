"""Which numbers change a decision?

These are in the log (`PolicySet`) and are replayed, so a log explains itself without the settings file of its day.
"""

import hashlib

import msgspec

from stoker.brain.domain.units import DAY_MS, SECOND_MS


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Every tunable of admission and engine. Each bound says what happens at it."""

    time_limit_default_ms: int = 1 * DAY_MS
    """Given to a job that names no limit: long enough for a day's run, short enough that a forgotten one ends."""
    time_limit_max_ms: int = 30 * DAY_MS
    """A longer wish is refused at submit."""
    priority_max: int = 1_000_000
    """Priorities beyond +- this are refused: they are typing errors."""
    pending_jobs_max: int = 1_000_000
    """A submit beyond it is refused with `queue_full`."""
    tenant_pending_jobs_max: int = 100_000
    ended_jobs_max: int = 10_000
    """Ended jobs kept in memory; older ones are pruned from the state."""
    jobs_per_submit_max: int = 10_000
    array_members_max: int = 100_000
    """Members of one array; a larger one is refused."""
    dependencies_max: int = 100
    """Conditions of one job."""
    submit_keys_max: int = 10_000
    """Idempotency keys remembered, newest kept; a repeat beyond them would be taken for a new submit."""
    submit_key_bytes_max: int = 255
    begin_ahead_max_ms: int = 366 * DAY_MS
    """A job may be told to wait so long before it begins; a later time is a typing error."""
    partitions_max: int = 1_000
    node_labels_max: int = 100
    """Labels, and taints, that one node may have."""
    selector_terms_max: int = 100
    """Conditions, excluded names and tolerations of one job."""
    aging_per_hour: int = 20
    """Points of priority that a job gains for each hour it waits: `low` passes fresh `normal` in 20 hours."""
    aging_max: int = 400
    """The most it gains, so that no age lifts a job above the fresh ones of the next word (normal 500, high 1000)."""
    tasks_max: int = 1_024
    """Ranks of one gang."""
    gpus_per_task_max: int = 1_024
    cpus_per_task_max: int = 65_536
    memory_mb_max: int = 1 << 30
    env_bytes_max: int = 128 * 1024
    """Environment of one job, names and values; beyond it Linux refuses the exec anyway once the job adds its own."""
    command_bytes_max: int = 120 * 1024
    """Linux refuses a single argument above 128 KiB."""
    text_bytes_max: int = 4_096
    """Name, working directory, user and other single texts."""
    retries_max: int = 100
    requeues_max: int = 10
    """After that many a job ends `node_failed`."""
    port_retries_max: int = 20
    """Attempts that ended `port_taken`; after that many the job ends `failed`."""
    port_min: int = 20_000
    port_max: int = 29_999
    """Rendezvous ports, below Linux's ephemeral range (32768 and up)."""
    backoff_first_ms: int = 1 * SECOND_MS
    backoff_max_ms: int = 60 * SECOND_MS
    """Pause before a retry or requeue: doubles from first to max."""
    stop_grace_ms: int = 10 * SECOND_MS
    """Between the terminate and the kill signal."""
    placements_per_pass_max: int = 1_024
    """One pass places no more, so that it never holds the process long; the next pass goes on at once."""

    def digest(self) -> str:
        """A short name of these values, written beside each decision."""
        return hashlib.blake2b(msgspec.json.encode(self, order="sorted"), digest_size=6).hexdigest()
