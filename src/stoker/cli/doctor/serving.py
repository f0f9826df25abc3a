"""Checks of a control plane that serves: whether it decides, commits, saves, and hears from its nodes.

Everything is asked over REST, so from any machine. Answers are read loosely: control planes may be of another version.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from math import isinf
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from stoker import __version__
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.node_health import CLOCK_OFF_MS
from stoker.brain.domain.reason import ReasonCode
from stoker.brain.domain.units import counted
from stoker.cli.clock import now_ms
from stoker.cli.doctor.finding import Check, CheckResult, doubtful, fine, refusal, unless_refused, wrong
from stoker.cli.doctor.folder import by_room
from stoker.wire.client.http_message import Reply
from stoker.wire.client.servers import each_alone
from stoker.wire.client.staleness import stale_answer
from stoker.wire.client.transport import Transport
from stoker.wire.client.trust import NO_CREDENTIALS, Credentials
from stoker.wire.endpoints import API_PREFIX

ANSWER_S: Final = 5.0
"""A GET is tried twice."""
BOUND_S: Final = 2 * ANSWER_S + 4
SKEW_MAX_S: Final = 5.0
"""A header that says when has no finer unit than a second, and the answer took its time."""
COMMIT_SLOW_S: Final = 0.1
SNAPSHOT_OLD_S: Final = 600.0
NAMES_MAX: Final = 5
JOBS_MAX: Final = 1_000
SAMPLES_MAX: Final = 200_000
_CANT_RUN: Final = {  # nothing that is here now could run such a job
    ReasonCode.NO_NODES: "start an agent: `stoker agent -c agent.yaml`",
    ReasonCode.NODES_UNAVAILABLE: "bring those nodes back, or end their drain",
    ReasonCode.GPUS_UNREAD: "mend the driver of those nodes",
    ReasonCode.NO_FITTING_NODE: "cancel them, or add a larger node",
    ReasonCode.NO_SELECTED_NODE: "change what they select, or label a node",
    ReasonCode.NO_CONTAINER_NODE: "see to the container engines of those nodes: `stoker node show NODE`",
}


class NodeRow(msgspec.Struct, kw_only=True):
    """Fields that are read of a node."""

    name: str
    state: str = ""
    version: str = ""
    address: str = ""
    simulated: bool = False
    fault: str = ""
    limits: str = ""
    gpu_fault: str = ""
    clock_ahead_s: float = 0
    drain: str | None = None
    drained_by: str = ""


class ReasonRow(msgspec.Struct):
    code: str = ""


class JobRow(msgspec.Struct, kw_only=True):
    id: str
    reason: ReasonRow | None = None


class _NodeListReply(msgspec.Struct):
    nodes: list[NodeRow]


class _JobListReply(msgspec.Struct):
    jobs: list[JobRow]


class Health(msgspec.Struct):
    """Fields that are read of `/health`."""

    version: str = ""
    cluster_id: str = ""
    epoch: int = 0
    clock_ahead_ms: int = 0


class Meters:
    """Samples of one scrape of `/metrics`, by name. Lines that make no sense are passed over."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[Sample]] = {}
        for line in text.splitlines()[:SAMPLES_MAX]:
            with suppress(ValueError):
                for family in text_string_to_metric_families(line):
                    for sample in family.samples:
                        self._samples.setdefault(sample.name, []).append(sample)

    def all(self, name: str) -> Sequence[Sample]:
        """Return the samples of a metric with all their labels."""
        return self._samples.get(name, ())

    def value(self, name: str) -> float | None:
        """Return the value of a metric without labels; None where this control plane has none of that name."""
        found = self.all(name)
        return found[0].value if found else None

    def at_most(self, histogram: str, share: float) -> float | None:
        """Return the upper bound of the bucket in which that share of all observations is reached; None without any."""
        buckets = sorted((float(each.labels["le"]), each.value) for each in self.all(f"{histogram}_bucket"))
        if not buckets or buckets[-1][1] == 0:
            return None
        return next(bound for bound, count in buckets if count >= share * buckets[-1][1])


def shown_s(seconds: float) -> str:
    """Return a span in a unit that people read."""
    return "more than an hour" if isinf(seconds) else f"{seconds * 1_000:g} ms" if seconds < 1 else f"{seconds:g} s"


class Server:
    """One control plane, asked anew by each check: a check runs in a process of its own."""

    def __init__(self, servers: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        """Raises: StokerError `bad_server`."""
        Transport(servers)
        self.servers = servers
        self._credentials = credentials

    def get(self, path: str) -> Reply:
        """Raises: StokerError."""
        with closing(Transport(self.servers, credentials=self._credentials, answer_s=ANSWER_S)) as transport:
            return transport.ask("GET", path)

    def alone(self, address: str) -> "Server":
        """Only that one of them."""
        return Server(address, self._credentials)

    def meters(self) -> Meters:
        return Meters(self.get("/metrics").body.decode(errors="replace"))


def first(server: Server) -> Check:
    """Check that the server answers at all; without that no other check is made."""
    return Check("server", lambda: answers(server), seconds=BOUND_S)


def open_checks(server: Server) -> list[Check]:
    """Return the checks of what is answered without a token."""
    looks = {
        "ready": lambda: ready(server),
        "server_clock": lambda: server_clock(server.get("/health"), now_ms()),
    }
    return [Check(name, look, seconds=BOUND_S) for name, look in looks.items()]


def token(server: Server) -> Check:
    """Check the token; without a good one no other check is made."""
    return Check("token", lambda: proves(server), seconds=BOUND_S)


def proves(server: Server) -> Iterator[CheckResult]:
    return unless_refused(
        lambda: server.get(f"{API_PREFIX}/cluster/status"), "the control plane answers whoever asks so"
    )


def checks(server: Server) -> list[Check]:
    looks = {
        "nodes": lambda: nodes(_nodes(server)),
        "agents": lambda: agents(_nodes(server), __version__),
        "addresses": lambda: addresses(_nodes(server)),
        "queue": lambda: queue(_pending(server)),
        "commits": lambda: commits(server.meters()),
        "snapshot": lambda: snapshot(server.meters()),
        "history": lambda: history(server.meters()),
        "audit": lambda: audit(server.meters()),
        "server_disk": lambda: server_disk(server.meters()),
        "ledger": lambda: ledger(server.meters()),
    }
    return [Check(name, look, seconds=BOUND_S) for name, look in looks.items()]


def answers(server: Server) -> Iterator[CheckResult]:
    try:
        reply = server.get("/health")
        health = msgspec.json.decode(reply.body, type=Health)
    except StokerError as fault:
        yield refusal(fault)
        return
    except msgspec.MsgspecError:
        yield wrong(f"what answers at {server.servers} is not a Stoker control plane", "check --server")
        return
    yield fine(f"version {health.version}, cluster {health.cluster_id}, epoch {health.epoch}")
    stale = stale_answer(server.servers, reply.headers, len(each_alone(server.servers)))
    if stale is not None:
        fix = "name the active one too, `--server A,B`; if none is, `stoker control status` on each says why"
        yield doubtful(f"{stale}: nothing changes there, and nothing new is known of nodes", fix)
    if health.version != __version__:
        fix = "install the same version on both sides; neighbouring ones work together"
        yield doubtful(f"the control plane is of version {health.version}, this command of {__version__}", fix)


def ready(server: Server) -> Iterator[CheckResult]:
    return unless_refused(lambda: server.get("/ready"), "the loop decides and the log takes facts")


def server_clock(reply: Reply, now: int) -> Iterator[CheckResult]:
    """Holds the server's clock against ours, `now` in milliseconds since 1970."""
    try:
        theirs = parsedate_to_datetime(reply.headers.get("date", "")).timestamp()
    except ValueError:
        yield fine("the answer has no date to compare")
        return
    skew_s = theirs - now / 1_000
    if abs(skew_s) > SKEW_MAX_S:
        way = "ahead of" if skew_s > 0 else "behind"
        fix = "let both machines keep time (chrony, ntpd, systemd-timesyncd): times that people read don't agree"
        yield doubtful(f"the control plane's clock is {abs(skew_s):.0f} s {way} this machine's", fix)
    else:
        yield fine("the control plane's clock and this machine's agree")
    with suppress(msgspec.MsgspecError):
        ahead_s = msgspec.json.decode(reply.body, type=Health).clock_ahead_ms / 1_000
        if ahead_s > SKEW_MAX_S:
            fix = "nothing needs doing: the log goes at half speed until the clock has caught up"
            words = "it was set back: times to begin and expiries of tokens come early by as much, at most"
            yield doubtful(f"the control plane's log is {ahead_s:.0f} s ahead of its clock; {words}", fix)


def _nodes(server: Server) -> list[NodeRow]:
    return msgspec.json.decode(server.get(f"{API_PREFIX}/nodes").body, type=_NodeListReply).nodes


def nodes(rows: Sequence[NodeRow]) -> Iterator[CheckResult]:
    known = [row for row in rows if row.state != "forgotten"]
    if not known:
        yield doubtful("no node has joined: every job waits", "start an agent: `stoker agent -c agent.yaml`")
        return
    counts = Counter(row.state for row in known)
    yield fine(
        f"{counted(len(known), 'node')}: " + ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    )
    for row in known:
        if row.fault:  # also of a silent one: an agent that reaches no runner registers with that, and says no more
            fix = "mend it: it is used again by itself"
            yield doubtful(f"{row.name} can neither start nor end jobs: {row.fault}", fix)
        if row.drained_by.startswith("node:"):
            fix = f"mend what it says; `stoker node resume {row.name}` gives it work again"
            yield doubtful(f"{row.name} is drained by its own program: {row.drain}", fix)
        if row.limits:
            where = "`LimitNOFILE=`, `LimitNPROC=`, `LimitAS=`, `LimitDATA=` in the agent's unit, or executor.limits"
            fix = f"raise what it names: {where}; its runner follows once it is idle"
            if "no cgroup" in row.limits:
                fix = f"let its agent make cgroups, as root; `stoker node show {row.name}` says what isn't enforced"
            yield doubtful(f"{row.name} {row.limits}", fix)
    for row in [row for row in known if row.gpu_fault][:NAMES_MAX]:
        fix = f"`stoker node show {row.name}` names each; its agent offers them again once they are well"
        yield doubtful(f"GPUs of {row.name} get no jobs: {row.gpu_fault}", fix)
    for row in [row for row in known if abs(row.clock_ahead_s) * 1_000 > CLOCK_OFF_MS][:NAMES_MAX]:
        way = "ahead of" if row.clock_ahead_s > 0 else "behind"
        words = f"the clock of {row.name} is {abs(row.clock_ahead_s):.0f} s {way} this control plane's"
        yield doubtful(words, "set it by NTP (`timedatectl`): times in its logs, tokens and certificates depend on it")
    paused = [row.name for row in known if row.state == "paused"]
    if paused:
        fix = f"`stoker node show {paused[0]}` says why; `stoker node resume NAME` once it is mended"
        yield doubtful(f"{_names(paused)} get no new work for a while, since starts failed there in a row", fix)
    silent = [row.name for row in known if row.state == "unreachable"]
    if silent:
        words = f"{_names(silent)} can't be heard; jobs there are kept, and get no company"
        fix = "see whether machine, agent and network live; once a machine is off: `stoker node forget NAME --force`"
        yield wrong(words, fix) if len(silent) == len(known) else doubtful(words, fix)
    elif not counts["ready"]:
        yield doubtful("no node takes new work", "`stoker node resume NAME` ends a drain or a pause")


def agents(rows: Sequence[NodeRow], ours: str) -> Iterator[CheckResult]:
    known = [row for row in rows if row.state not in ("forgotten", "unreachable")]
    others = [f"{row.name} ({row.version or 'unknown'})" for row in known if row.version != ours]
    if others:
        fix = "upgrade them one by one: jobs run on while an agent restarts"
        yield doubtful(f"agents of another version than {ours}: {_names(others)}", fix)
    else:
        yield fine(f"{counted(len(known), 'agent')} of version {ours}")


def addresses(rows: Sequence[NodeRow]) -> Iterator[CheckResult]:
    """Check that the ranks of a gang can meet.

    Simulated nodes are on one machine, where loopback is right.
    """
    known = [row for row in rows if row.state != "forgotten" and not row.simulated]
    local = [row.name for row in known if row.address == "localhost" or row.address.startswith(("127.", "::1"))]
    if len(known) > 1 and local:
        words = f"{_names(local)} joined with a loopback address: ranks of a gang on other nodes can't meet there"
        yield doubtful(words, "set node.address of each to the name or IP under which the others reach it")
    else:
        yield fine("no node of several is known by a loopback address")


def _pending(server: Server) -> list[JobRow]:
    path = f"{API_PREFIX}/jobs?state=pending&limit={JOBS_MAX}"
    return msgspec.json.decode(server.get(path).body, type=_JobListReply).jobs


def queue(rows: Sequence[JobRow]) -> Iterator[CheckResult]:
    stuck = {code: [row.id for row in rows if row.reason and row.reason.code == code] for code in _CANT_RUN}
    for code, jobs in stuck.items():
        if jobs:
            words = f"{counted(len(jobs), 'waiting job')} that nothing here could run ({code}): {_names(jobs)}"
            yield doubtful(words, f"{_CANT_RUN[code]}; `stoker why {jobs[0]}` says more")
    if not any(stuck.values()):
        newest = "newest " if len(rows) >= JOBS_MAX else ""
        yield fine(f"{len(rows)} {newest}jobs wait, and something here could run each of them")


def commits(meters: Meters) -> Iterator[CheckResult]:
    most_s = meters.at_most("stoker_commit_seconds", 0.99)
    if most_s is None:
        yield fine("nothing was committed yet")
    elif most_s > COMMIT_SLOW_S:
        fix = "put its data_dir on a local SSD, and see what else writes there: each submit waits as long"
        yield doubtful(f"99 of 100 commits are on disk within {shown_s(most_s)}", fix)
    else:
        yield fine(f"99 of 100 commits are on disk within {shown_s(most_s)}")


def snapshot(meters: Meters) -> Iterator[CheckResult]:
    age_s, faults = meters.value("stoker_snapshot_age_seconds"), meters.value("stoker_snapshot_faults_total")
    fix = "see `snapshot_failed` in the control plane's log; a restart replays all that came since"
    if faults:
        yield doubtful(f"{faults:.0f} snapshots could not be saved since its start", fix)
    if age_s is None:
        yield fine("this control plane doesn't say how old its newest snapshot is")
    elif age_s > SNAPSHOT_OLD_S:
        yield doubtful(f"facts of {age_s:.0f} s are in no snapshot", fix)
    else:
        yield fine(f"the oldest fact that is in no snapshot is {age_s:.0f} s old")


def audit(meters: Meters) -> Iterator[CheckResult]:
    ok, lost = meters.value("stoker_audit_ship_ok"), meters.value("stoker_audit_rows_unshipped_total")
    fix = "see `audit_not_shipped` in the control plane's log; nothing is lost from `stoker audit`"
    if ok == 0:
        yield doubtful("the audit trail can't be sent where `audit.ship_to` says", fix)
    elif lost:
        yield doubtful(f"{lost:.0f} rows of the audit trail were not sent where `audit.ship_to` says", fix)
    else:
        yield fine(
            "the audit trail is sent where `audit.ship_to` says" if ok else "the audit trail is sent nowhere else"
        )


def history(meters: Meters) -> Iterator[CheckResult]:
    ok, waiting = meters.value("stoker_history_ok"), meters.value("stoker_history_waiting")
    if ok == 0:
        fix = (
            "see `history_failed` in the control plane's log: most often the disk of data_dir, or the database, is "
            "full, or it is another cluster's"
        )
        yield doubtful(f"what ended can't be written to the history; {waiting or 0:.0f} notes wait", fix)
    else:
        yield fine("what ended is in the history" if ok else "nothing was written to the history yet")


def server_disk(meters: Meters) -> Iterator[CheckResult]:
    free = meters.value("stoker_data_dir_free_bytes")
    if free is None:
        yield fine("this control plane doesn't say how much space it has left")
        return
    words = f"{int(free) >> 20} MiB are free where the control plane's data_dir lies"
    yield by_room(
        free, words, "free some: a control plane whose disk is full stops, and loses nothing that it acknowledged"
    )


def ledger(meters: Meters) -> Iterator[CheckResult]:
    drift, passes = meters.value("stoker_ledger_drift"), meters.value("stoker_pass_faults_total")
    fix = "see `ledger_violated`, `shape_set_aside` and `pass_failed` in its log, and report it: a defect of Stoker"
    if drift:
        yield wrong(f"the audit found {drift:.0f} violations of the ledger", fix)
    if passes:
        yield wrong(f"{passes:.0f} passes of the scheduling loop broke since its start", fix)
    if not drift and not passes:
        yield fine("the ledger proves itself" if drift is not None else "the first audit is still to come")


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more
