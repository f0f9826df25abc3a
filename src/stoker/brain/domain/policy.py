"""Policy: the numbers that change a decision of admission or of the engine.

These are in the log (`PolicySet`) and are replayed, so a log explains itself without the settings file of its day.
"""

import hashlib
from typing import Annotated, Final

import msgspec

from stoker.brain.domain.gpu import GPU_SHARERS_MAX
from stoker.brain.domain.units import DAY_MS, SECOND_MS, Range

LEASE_KILL_MS: Final = 10 * SECOND_MS
"""From the end of an attempt's lease until all of it is surely gone, on a node that keeps leases and isn't frozen: its
runner kills within a tenth of that, a runner's guard that has to take over first within half. A machine or a runner
that was frozen meanwhile kills as it thaws, before it says a word; nothing else on that machine runs earlier."""
LEASE_DRIFT_PER_MILLE: Final = 20
"""By how much the clocks of two machines may differ in speed, as between control planes (`failover.timing`): quartz
drifts by less than a tenth of that within any year."""
LEASE_SLACK_MS: Final = 5 * SECOND_MS
"""Added beside the drift: what timers may be late, and what a control plane that was pushed aside by force may still
have answered before its own lease was over."""
LEASE_MS_MIN: Final = 1 * SECOND_MS
"""Below it heartbeats would be a load of their own."""
LEASE_MS_MAX: Final = 30 * DAY_MS
"""Beyond it a person has long looked."""


PRIORITY_STEP: Final = 500
"""Between the words `normal` and `high`: what a job gains by waiting and by fair share together stays below it."""


def surely_over_ms(lease_ms: int) -> int:
    """Return the milliseconds of silence of a node after which none of its tasks with this lease runs any more.

    The silence is counted where the node would be heard.
    """
    return lease_ms + lease_ms * LEASE_DRIFT_PER_MILLE // 1_000 + LEASE_KILL_MS + LEASE_SLACK_MS


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Tunables of admission and engine. Each bound says what happens at it.

    Operators may set what has a `Range`, under the key `policy.NAME`; durations are in seconds there. What has none is
    set by Linux, by the size of a message or by another section, and no cluster would be better off with another value.
    """

    time_limit_default_ms: Annotated[int, Range(1 * SECOND_MS, 3_650 * DAY_MS)] = 1 * DAY_MS
    """Given to a job that names no limit: long enough for a day's run, short enough that a forgotten one ends."""
    time_limit_max_ms: Annotated[int, Range(1 * SECOND_MS, 3_650 * DAY_MS)] = 30 * DAY_MS
    """A longer wish is refused at submit: a month, since longer runs are better cut by a checkpoint."""
    time_limit_warning_ms: Annotated[int, Range(0, 1 * DAY_MS)] = 300 * SECOND_MS
    """So long before a running job reaches its time limit that is said, once; 0 = never. Five minutes are enough to
    give it more. Of jobs whose whole limit is less than twice as long it isn't said."""
    priority_max: Annotated[int, Range(2_000, 1_000_000_000)] = 1_000_000
    """Priorities beyond +- this are refused: they are typing errors."""
    pending_jobs_max: Annotated[int, Range(1, 10_000_000)] = 1_000_000
    """Jobs and members of arrays that may wait; a submit beyond it is refused with `queue_full`."""
    tenant_pending_jobs_max: Annotated[int, Range(1, 10_000_000)] = 100_000
    """The same of one tenant, so that one runaway script can't fill the queue of all."""
    job_bytes_max: Annotated[int, Range(1 << 20, 1 << 40)] = 1 << 30
    """Memory of all jobs that haven't ended, in bytes; a submit beyond it is refused with `job_bytes_full`. 1 GiB is
    the million jobs that may wait, of 1 KiB each: a usual one takes 0.8 KiB, one of the longest command and environment
    a quarter of a MiB or, with many small variables, more."""
    tenant_job_bytes_max: Annotated[int, Range(1 << 20, 1 << 40)] = 128 << 20
    """The same of one tenant with those beneath it: 128 MiB, which is 100,000 jobs of 1.3 KiB or 500 of the longest."""
    tenants_max: int = 10_000
    """One more is refused."""
    tenant_depth_max: int = 8
    """Levels of the tree of tenants: each start is charged to as many."""
    tokens_max: int = 10_000
    """Tokens that are neither revoked nor expired; one more is refused."""
    ended_jobs_max: Annotated[int, Range(1, 1_000_000)] = 10_000
    """Ended jobs kept in memory, about 2 KiB each; older ones are pruned from the state."""
    ended_bytes_max: Annotated[int, Range(1 << 20, 1 << 40)] = 64 << 20
    """Memory of the ended jobs that are kept, in bytes; beyond it older ones are pruned too. 64 MiB is three times what
    as many usual ones take, so it is met by jobs with long commands and environments alone."""
    jobs_per_submit_max: Annotated[int, Range(1, 100_000)] = 10_000
    """Jobs of one request; a longer list is refused, so that no request holds up the others for long."""
    array_members_max: Annotated[int, Range(1, 1_000_000)] = 100_000
    """Members of one array; a larger one is refused."""
    dependencies_max: Annotated[int, Range(1, 10_000)] = 100
    """Conditions of one job; more are refused. A job in between can gather as many again."""
    dependencies_per_submit_max: Annotated[int, Range(1, 1_000_000)] = 100_000
    """Conditions of all jobs of one request; more are refused. Ten for each of the most jobs that one may bring: each
    condition is judged anew when the job that it names changes, some tenths of a second for so many."""
    submit_keys_max: Annotated[int, Range(1, 1_000_000)] = 40_000
    """Idempotency keys remembered, newest kept; a repeat beyond them would be taken for a new submit. Clients repeat
    for 15 s, in which a busy control plane takes nearly as many; each costs 400 bytes."""
    submit_key_bytes_max: int = 255
    """A longer idempotency key is refused; a UUID has 36."""
    begin_ahead_max_ms: Annotated[int, Range(60 * SECOND_MS, 3_650 * DAY_MS)] = 366 * DAY_MS
    """A job may be told to wait so long before it begins; a later time is a typing error."""
    partitions_max: Annotated[int, Range(1, 10_000)] = 1_000
    """One more is refused: partitions are for people to choose from."""
    node_labels_max: Annotated[int, Range(1, 1_000)] = 100
    """Labels, and taints, that one node may have."""
    selector_terms_max: Annotated[int, Range(1, 1_000)] = 100
    """Conditions, excluded names and tolerations of one job."""
    aging_per_hour: Annotated[int, Range(0, 1_000_000)] = 20
    """Points of priority that a job gains for each hour it waits: `low` passes fresh `normal` in 20 hours."""
    aging_max: Annotated[int, Range(0, 1_000_000_000)] = 400
    """The most it gains, so that no age lifts a job above the fresh ones of the next word (normal 500, high 1000)."""
    fair_share_points: Annotated[int, Range(0, 499)] = 99
    """Points of priority that a job gains at most because its tenant has used little for its weight; 0 = fair share is
    off. With `aging_max` it must stay below the 500 between `normal` and `high`: 99 is the most beside 400."""
    fair_share_half_life_ms: Annotated[int, Range(60 * SECOND_MS, 365 * DAY_MS)] = 7 * DAY_MS
    """After so long use counts half: a busy week is half forgiven by the next one, and forgotten after two months."""
    tasks_max: Annotated[int, Range(1, 16_384)] = 1_024
    """Ranks of one gang; more are refused. The largest clusters that this version is for have as many GPUs."""
    gpus_per_task_max: Annotated[int, Range(1, 16_384)] = 1_024
    """Beyond it a wish is a typing error: a task runs on one node."""
    gpu_sharers_max: Annotated[int, Range(1, 1_000)] = GPU_SHARERS_MAX
    """Tasks that share one GPU. Each keeps a context of a few hundred MiB there, and MPS takes 48 to 60 of them."""
    cpus_per_task_max: int = 65_536
    """The same for CPUs."""
    memory_mb_max: int = 1 << 30
    """The same for memory: a pebibyte."""
    env_bytes_max: int = 128 * 1024
    """Environment of one job, names and values; beyond it Linux refuses the exec anyway once the job adds its own."""
    command_bytes_max: int = 120 * 1024
    """Linux refuses a single argument above 128 KiB."""
    arguments_bytes_max: int = 1 << 20
    """All arguments of one command, each with eight bytes for its place; Linux refuses more than 2 MiB with the
    environment, or a quarter of the stack's limit."""
    script_bytes_max: Annotated[int, Range(1 << 10, 2 << 20)] = 1 << 20
    """A longer script is refused at submit. 1 MiB is a hundred times the longest that people write: what is larger is a
    program, or has its data inside, and belongs into a file that the nodes can read."""
    text_bytes_max: int = 4_096
    """Name, working directory, user and other single texts."""
    retries_max: Annotated[int, Range(0, 10_000)] = 100
    """The most that `--retries` may ask for; more is refused."""
    requeues_max: Annotated[int, Range(0, 10_000)] = 10
    """Times that a job starts anew after a loss that wasn't its fault; after that many it ends `node_failed`."""
    attempts_max: Annotated[int, Range(1, 10_000)] = 1_000
    """A person may requeue a job until it has had so many attempts: all of them stay in its record, about 300 bytes for
    each of their tasks. Retries and requeues that nobody asks for have bounds of their own."""
    port_retries_max: Annotated[int, Range(0, 1_000)] = 20
    """Attempts that ended `port_taken`; after that many the job ends `failed`."""
    port_min: Annotated[int, Range(1_024, 65_535)] = 20_000
    """Lowest rendezvous port of gangs."""
    port_max: Annotated[int, Range(1_024, 65_535)] = 29_999
    """Highest; below Linux's ephemeral range, which begins at 32768."""
    backoff_first_ms: Annotated[int, Range(0, 1 * DAY_MS)] = 1 * SECOND_MS
    """Pause before the first retry or requeue; it doubles with each one that follows."""
    backoff_max_ms: Annotated[int, Range(0, 1 * DAY_MS)] = 60 * SECOND_MS
    """The longest such pause: long enough for a node to come back, short enough not to be noticed in a day's run."""
    failed_starts_max: Annotated[int, Range(1, 1_000)] = 3
    """Starts of different jobs that fail on a node in a row before it pauses; fewer may be the jobs' own fault."""
    node_pause_first_ms: Annotated[int, Range(1 * SECOND_MS, 1 * DAY_MS)] = 60 * SECOND_MS
    """The first pause, in which a node gets no new work; it doubles with each one that follows without a good start."""
    node_pause_max_ms: Annotated[int, Range(1 * SECOND_MS, 1 * DAY_MS)] = 60 * 60 * SECOND_MS
    """The longest: a sick node costs one job a requeue an hour, and a node that is well again serves within it."""
    gpu_faults_stop_jobs: Annotated[int, Range(0, 1)] = 1
    """1 = a job that holds a GPU which is lost, or has uncorrected memory errors or others of the device, is stopped
    and starts elsewhere as after the loss of its node: what it computes can't be trusted, and most such jobs hang. 0 =
    it goes on, and what ends badly by itself is its own fault."""
    stop_grace_ms: Annotated[int, Range(0, 1 * DAY_MS)] = 10 * SECOND_MS
    """Between the terminate and the kill signal, for a last checkpoint."""
    preemptions_max: Annotated[int, Range(0, 10_000)] = 5
    """Times that a job's GPUs may be taken back for another one; after that many it is spared, so that it ends at some
    time. 0 = nothing is preempted or reclaimed."""
    preempt_min_run_ms: Annotated[int, Range(0, 1 * DAY_MS)] = 0
    """A job that has run for less gives way to none, for then little more than its start would come of it. 0 = none is
    spared for that: a job with no checkpoint yet costs least to stop while it is young."""
    preempt_notice_max_ms: Annotated[int, Range(0, 1 * DAY_MS)] = 120 * SECOND_MS
    """The most of a job's wish (`--signal USR1@90`) for which its terminate signal waits when its GPUs are taken back:
    two minutes write most checkpoints, and whoever waits for the GPUs waits no longer."""
    attempt_lease_ms: int = 0
    """How long a node may be silent before its work is started elsewhere. 0 = for ever."""
    attempt_lease_min_ms: int = 30 * SECOND_MS
    """A job may ask for no shorter one: heartbeats that get lost or come late must not end work."""
    placements_per_pass_max: Annotated[int, Range(1, 100_000)] = 1_024
    """One pass places no more, so that it never holds the process long; the next pass goes on at once."""

    reservations_max: Annotated[int, Range(0, 64)] = 8
    """Blocked jobs, the first of the queue, for which a pass keeps what they wait for; 0 = none, and then small jobs
    may pass a large one for ever. Each costs a walk over the nodes."""
    reserve_after_ms: Annotated[int, Range(0, 30 * DAY_MS)] = 0
    """A job waits so long before it gets a reservation. 0 = as soon as it is blocked. Where jobs name no honest time
    limits, a reservation leaves GPUs idle for long; an hour lets small jobs pass for an hour."""

    def digest(self) -> str:
        """Return a short hash of these values, written beside each decision."""
        return hashlib.blake2b(msgspec.json.encode(self, order="sorted"), digest_size=6).hexdigest()
