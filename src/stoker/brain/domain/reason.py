"""Reasons why a job waits or why it ended.

A closed list. Each code has a sentence for people and a hint what would change it; the numbers travel as facts.

Rules: W1  a number agrees with its noun: `{free:GPU|GPUs}` reads "1 GPU" or "2 GPUs", `{free:=is|are}` the word alone
       W2  an instant reads `2026-11-28 05:09:34 UTC`, never as milliseconds; the command line says it in the local zone
       W3  a hint names the job and the node at hand; where none is known, it says ID and NODE
"""

from enum import StrEnum
from shlex import quote
from typing import Final

import msgspec

from stoker.brain.domain.errors import Facts
from stoker.brain.domain.sentence import TAKEN_FOR, SentenceFacts, ending_clauses, person, readable, share_clauses


class ReasonCode(StrEnum):
    """Stable, public codes of the reasons; `docs/reference/reasons.md` lists them."""

    # why a job waits, in the order in which they are shown
    AWAITING_PASS = "awaiting_pass"
    NO_NODES = "no_nodes"
    NODES_UNAVAILABLE = "nodes_unavailable"
    NODES_RETURNING = "nodes_returning"
    GPUS_UNREAD = "gpus_unread"
    NODES_PAUSED = "nodes_paused"
    NO_FITTING_NODE = "no_fitting_node"
    NO_SELECTED_NODE = "no_selected_node"
    NO_CONTAINER_NODE = "no_container_node"
    TENANT_LIMIT = "tenant_limit"
    POOL_LIMIT = "pool_limit"
    GUARANTEE_KEPT = "guarantee_kept"
    INSUFFICIENT_GPUS = "insufficient_gpus"
    INSUFFICIENT_SHARE = "insufficient_share"
    INSUFFICIENT_NODES = "insufficient_nodes"
    INSUFFICIENT_CPUS = "insufficient_cpus"
    INSUFFICIENT_MEMORY = "insufficient_memory"
    RESERVED = "reserved"
    NO_FREE_PORT = "no_free_port"
    BUDGET_SPENT = "budget_spent"
    SET_ASIDE = "set_aside"
    HELD = "held"
    BEGIN_TIME = "begin_time"
    RETRY_BACKOFF = "retry_backoff"
    REQUEUED = "requeued"
    PREEMPTED = "preempted"
    DEPENDENCY = "dependency"
    ARRAY_LIMIT = "array_limit"
    # why a job that has started isn't known to go on
    NODE_SILENT = "node_silent"
    NODE_AWAITED = "node_awaited"
    NODE_FAULTY = "node_faulty"
    PREPARING = "preparing"
    ENDING = "ending"
    RELEASING = "releasing"
    # why a job ended
    EXITED = "exited"
    KILLED_BY_SIGNAL = "killed_by_signal"
    TERMINAL_CLOSED = "terminal_closed"
    START_FAILED = "start_failed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    OUT_OF_MEMORY = "out_of_memory"
    NODE_FAILED = "node_failed"
    REQUEUES_SPENT = "requeues_spent"
    PORT_TAKEN = "port_taken"
    DEPENDENCY_NEVER_SATISFIED = "dependency_never_satisfied"
    MEMBERS_ENDED = "members_ended"


class Reason(msgspec.Struct, frozen=True):
    """A reason: its code, and the numbers that make it true."""

    code: ReasonCode
    facts: Facts = msgspec.field(default_factory=dict)


SHORT: Final = frozenset(
    {
        ReasonCode.INSUFFICIENT_GPUS,
        ReasonCode.INSUFFICIENT_SHARE,
        ReasonCode.INSUFFICIENT_NODES,
        ReasonCode.INSUFFICIENT_CPUS,
        ReasonCode.INSUFFICIENT_MEMORY,
    }
)
"""Reasons of jobs for which the resources exist, and other jobs hold them."""
AWAITING_PASS: Final = Reason(ReasonCode.AWAITING_PASS)

_SENTENCES: Final[dict[ReasonCode, tuple[str, str]]] = {
    ReasonCode.AWAITING_PASS: (
        "the scheduler of this control plane has not looked at it yet",
        "nothing to do; a pass runs within seconds, on a standby once it takes over: ask the active one",
    ),
    ReasonCode.NO_NODES: ("no node has registered with this cluster yet", "start `stoker agent -c FILE` on a GPU node"),
    ReasonCode.NODES_UNAVAILABLE: (
        "{fitting:node|nodes} could run it, but {fitting:=it isn't|none is} available: {ails}{such}",
        "`stoker node list` says what ails each; `stoker node resume {node}` ends a drain or a pause",
    ),
    ReasonCode.NODES_PAUSED: (
        "{paused:node|nodes} that could run it {paused:=takes|take} a pause, since starts failed there in a row: "
        "{node} until {until} ({error})",
        "nothing to do: it is tried again then; once that node is mended, `stoker node resume {node}` ends its pause",
    ),
    ReasonCode.NODES_RETURNING: (
        "{returning:node|nodes} that could run it {returning:=hasn't|haven't} reported yet to this control plane, "
        "which has just started or taken over",
        "nothing to do: nodes report by themselves within seconds; one that doesn't is `unreachable` within a minute",
    ),
    ReasonCode.GPUS_UNREAD: (
        "{nodes:node|nodes} that could run it can't read all of {nodes:=its|their} GPUs, such as {node}: {fault}",
        "mend the driver or the device there: the agent looks again by itself, and the job starts then",
    ),
    ReasonCode.NO_FITTING_NODE: (
        "no node {among} is large enough: it asks {asked} per task; the largest has {largest}",
        "cancel it and ask for less per task, let it select other nodes or tolerate their taints, or add a larger node",
    ),
    ReasonCode.INSUFFICIENT_GPUS: (
        "it needs {needed:GPU|GPUs} for {tasks:task|tasks} of {per_task}; "
        "{free:suitable GPU is|suitable GPUs are} free now, at most {best} on one node",
        "it starts when running jobs end; fewer GPUs per task would fit sooner",
    ),
    ReasonCode.INSUFFICIENT_SHARE: (
        "no GPU that suits it has {share} free{within}{rest}",
        "it starts when jobs that share a GPU end, or a whole one comes free; a smaller `--gpu-share` or "
        "`--gpu-memory` would fit sooner",
    ),
    ReasonCode.INSUFFICIENT_NODES: (
        "at most {per_node} of its {tasks:task|tasks} may share a node; spread so, the free GPUs "
        "have room for {room} of them",
        "it starts when GPUs of other nodes come free; a higher `--tasks-per-node` would fit sooner",
    ),
    ReasonCode.INSUFFICIENT_CPUS: (
        "each of {tasks:task|tasks} needs {needed:CPU|CPUs}; at most {best} {best:=is|are} free on a node "
        "that has all GPUs it asks for, room for {room:task|tasks} in all",
        "ask for fewer CPUs (`--cpus`), or wait for running jobs to end",
    ),
    ReasonCode.INSUFFICIENT_MEMORY: (
        "each of {tasks:task|tasks} needs {needed} MiB of memory; at most {best} MiB {best:=is|are} free on a node "
        "that has all GPUs and CPUs it asks for, room for {room:task|tasks} in all",
        "ask for less memory (`--memory`), or wait for running jobs to end",
    ),
    ReasonCode.RESERVED: (
        "{kept:free GPU is|free GPUs are} kept, with CPUs and memory, for {jobs:job|jobs} before it in the queue, such "
        "as job {job}, which starts at {until} at the latest",
        "a time limit (`--time`) by which it has ended before then lets it start at once",
    ),
    ReasonCode.NO_FREE_PORT: (
        "every rendezvous port of {address} is in use ({ports_max} of them)",
        "it starts when a multi-GPU job on that address ends",
    ),
    ReasonCode.RETRY_BACKOFF: (
        "attempt {attempt} ended ({outcome}){why}; the next try waits until {until}",
        "nothing to do; `stoker status {id}` shows the attempts",
    ),
    ReasonCode.BUDGET_SPENT: (
        "this pass placed {placed:job|jobs}, as many as one pass may; the next goes on",
        "nothing to do",
    ),
    ReasonCode.SET_ASIDE: (
        "the scheduler failed while it decided on jobs like this one: {error}; they are set aside for {pause_s} s at a "
        "time, and all others are scheduled",
        "this is a defect of Stoker: please report it with the log line `shape_set_aside`; nothing is lost, and a job "
        "that asks for something else may get round it",
    ),
    ReasonCode.HELD: ("{by} holds it{since}", "`stoker release {id}` lets it run"),
    ReasonCode.BEGIN_TIME: (
        "it was told to begin at {begin}",
        "nothing to do; to begin sooner, cancel it and submit it again",
    ),
    ReasonCode.DEPENDENCY: ("it waits for {waits}", "`stoker status {job}` shows how far that is"),
    ReasonCode.ARRAY_LIMIT: (
        "{running:member|members} of the array {running:=runs|run}, as many as its own limit `%{running_max}` allows",
        "it goes on as members end; submit with a higher `%N` to run more at once",
    ),
    ReasonCode.NO_SELECTED_NODE: (
        "{nodes:=the only node isn't one|none of the nodes is one} that it selects: {asked}",
        "`stoker node list -o wide` shows labels and taints; change `--where`, `--exclude`, `--partition`, or add "
        "`--tolerate`; which nodes a tenant may use is an admin's to say (`stoker tenant set --nodes`)",
    ),
    ReasonCode.NO_CONTAINER_NODE: (
        "it has an image, and no node runs containers now{fault}",
        "it starts once a node's container engine answers; `stoker node show NODE` says what is wrong with one",
    ),
    ReasonCode.TENANT_LIMIT: (
        "tenant {tenant} uses {used} of at most {limit} {what}, and this asks for {asked} more",
        "it starts when jobs of that tenant end; `stoker tenant show` tells its limits, and an admin may raise them",
    ),
    ReasonCode.POOL_LIMIT: (
        "{pool} jobs hold {used} of the {limit:GPU|GPUs} that strict shares leave them, and this asks for {asked} more",
        "it starts when jobs of its class end, or those of the other one that are beyond its share; `stoker quota "
        "show` tells the shares, and an admin may change them",
    ),
    ReasonCode.GUARANTEE_KEPT: (
        "{free:GPU is|GPUs are} free, and {kept} {kept:=is|are} kept for whoever is within a "
        "guarantee, with CPUs and memory beside {kept:=it|them}; this job, which asks for {asked}, isn't",
        "it starts when those have theirs; `stoker quota show` and `stoker tenant list` tell the guarantees",
    ),
    ReasonCode.NODE_SILENT: (
        "its node {node} has not been heard of since {since}; if that lasts {over}, what ran there is surely over, and "
        "the job {then}{said}",
        "nothing to do: it goes on there if the node is back in time; if that machine is surely off, "
        "`stoker node forget {node} --force` doesn't wait",
    ),
    ReasonCode.NODE_AWAITED: (
        "its node {node} has not been heard of since {since}, and the job waits for it: it has no lease{said}",
        "see to that machine; if it is surely off, `stoker node forget {node} --force`. Jobs submitted with "
        "`--lost-after` move by themselves",
    ),
    ReasonCode.NODE_FAULTY: (
        "its node {node} can neither start nor end tasks: {fault}{unknown}",
        "mend that node (a stopped runner goes on with `kill -CONT`); what it was told and what ended there follows by "
        "itself once it can",
    ),
    ReasonCode.PREPARING: (
        "its node {node} {text}, and starts it then{more}",
        "nothing to do: it starts once that is done; a pull is given up when it stalls, and the job starts elsewhere",
    ),
    ReasonCode.ENDING: (
        "{ends}; its processes are gone by {until} at the latest, if its nodes can be reached{then}",
        "nothing to do: its GPUs are free once its processes are proved gone",
    ),
    ReasonCode.RELEASING: (
        "all its processes there are gone, says node {node}, and {text}{more}",
        "nothing to do: a GPU that doesn't come clean in time is kept back by itself, and the job ends; `stoker gpu "
        "list` shows it then",
    ),
    ReasonCode.EXITED: ("its command exited with code {exit_code}{place}", "`stoker logs {id}` shows its last lines"),
    ReasonCode.KILLED_BY_SIGNAL: (
        "its command was killed{place} by signal {signal}, which Stoker did not send",
        "`stoker logs {id}` shows its last lines; the node's kernel log may say more",
    ),
    ReasonCode.TERMINAL_CLOSED: (
        "its terminal was closed, which hung it up (SIGHUP), and its command {how}",
        "leave a terminal by Enter `~d`, or submit with `--detach`, and the job goes on; `stoker attach` comes back",
    ),
    ReasonCode.START_FAILED: (
        "it could not start on {node}: {error}",
        "mend the command, folder or node and submit again",
    ),
    ReasonCode.CANCELLED: ("cancelled by {by}", "submit it again to run it"),
    ReasonCode.TIME_LIMIT: (
        "it ran longer than its limit of {limit}",
        "submit with a longer `--time`, or make it resume from a checkpoint",
    ),
    ReasonCode.OUT_OF_MEMORY: (
        "it used up its memory limit of {limit_mb} MiB{place} (peak {peak_mb} MiB)",
        "submit with more `--memory`",
    ),
    ReasonCode.NODE_FAILED: ("{node} lost it: {error}", "submit it again, or allow requeues"),
    ReasonCode.REQUEUES_SPENT: (
        "it was requeued {requeues:time|times}, the most allowed, and lost again: {error}",
        "see `stoker status {id}` for its attempts and `stoker node list` for the nodes",
    ),
    ReasonCode.PORT_TAKEN: (
        "the rendezvous port was taken on {node} in {tries:attempt|attempts}",
        "something else uses ports {port_min} to {port_max} of that node",
    ),
    ReasonCode.DEPENDENCY_NEVER_SATISFIED: (
        "it waited for {dependency}, which can never be: {why}",
        "submit it again once what it depends on has gone well",
    ),
    ReasonCode.MEMBERS_ENDED: (
        "its members have ended: {succeeded} succeeded, {failed} failed, {cancelled} were cancelled",
        "`stoker list {id}` shows them; `stoker requeue {id}` runs those that failed once more",
    ),
    ReasonCode.REQUEUED: ("{by} asked for another try", "nothing to do"),
    ReasonCode.PREEMPTED: (
        "it was preempted at {since} for job {job}{why}, and waits for its turn again",
        "nothing to do: it keeps its place in the queue by its submit; `stoker why {id}` says what it waits for now",
    ),
}


_OF_GANG: Final[dict[ReasonCode, tuple[str, str]]] = {
    ReasonCode.EXITED: (
        "rank {rank} on {node} exited with code {exit_code} first, of {tasks:rank|ranks}",
        "`stoker logs {id}.{rank}` shows its last lines",
    ),
    ReasonCode.KILLED_BY_SIGNAL: (
        "rank {rank} on {node} was killed first, of {tasks:rank|ranks}, by signal {signal}, which Stoker did not send",
        "`stoker logs {id}.{rank}` shows its last lines; the kernel log of {node} may say more",
    ),
    ReasonCode.START_FAILED: (
        "rank {rank} of {tasks} could not start on {node}: {error}",
        "mend the command, folder or node and submit again",
    ),
    ReasonCode.OUT_OF_MEMORY: (
        "rank {rank} on {node} used up its memory limit of {limit_mb} MiB first, of {tasks:rank|ranks} "
        "(peak {peak_mb} MiB)",
        "submit with more `--memory`",
    ),
}
"""Sentence and hint where a gang ended by one of its tasks: which one it was, and where."""
_MEMBERS_ENDED_OLD: Final = "its members have ended: {succeeded} succeeded, {others} otherwise"
"""Of arrays that ended before their failed and cancelled members were told apart."""
_HELD_BY_SOMEBODY: Final = "a person holds it"
"""Of jobs that were held before it was noted who did it."""
_PEAK: Final = " (peak {peak_mb} MiB)"
"""Left out where the node can't tell it."""
_GPUS_ON_ONE: Final = (
    "it needs {needed:GPU|GPUs} on one node; {free} that {free:=suits is|suit are} free, at most {best} on one"
)
_CPUS_OF_ONE: Final = (
    "it needs {needed:CPU|CPUs}; at most {best} {best:=is|are} free on a node that has all GPUs it asks for"
)
_MEMORY_OF_ONE: Final = (
    "it needs {needed} MiB of memory; at most {best} MiB {best:=is|are} free on a node that has all GPUs and CPUs it "
    "asks for"
)
_NO_GPU_FREE: Final = "no GPU that suits it is free now; it needs {needed:GPU|GPUs}"
_NOT_RESUMED: Final = (
    "`stoker node list` says what ails each; nodes that answer again and can work are used by themselves"
)
"""Of nodes that `stoker node resume NODE` wouldn't bring back."""
_MEMBERS_ENDED_NONE_AGAIN: Final = "`stoker list {id}` shows them"
"""Where `stoker requeue ID` is refused."""
_MEMBERS_ENDED_FORGOTTEN: Final = "`stoker list --members --name {name}` shows them"
"""Of an array that `stoker list ID` knows no more."""
_NEVER_WITHIN: Final = (
    "it can't start while that limit holds: an admin may raise it (`stoker tenant set {tenant}`); else cancel it, and "
    "submit one that asks for less"
)
_GIVES_WAY_HINT: Final = (
    "nothing to do: it keeps its priority, and this costs it neither a retry nor a requeue; what it has saved in its "
    "checkpoint folder, its next attempt finds"
)
_JOBS_END: Final = "it starts when running jobs end"
_AILS: Final = ("unreachable", "faulty", "draining", "paused", "forgotten")
"""Why nodes aren't available, by how often."""


def describe(reason: Reason) -> str:
    """Return the sentence for people."""
    return _sentence(reason).format_map(SentenceFacts(reason.facts | _clauses(reason)))


def _of_gang(reason: Reason) -> tuple[str, str] | None:
    """Return sentence and hint of a gang that ended by one of its tasks; None = it is none, or didn't."""
    return _OF_GANG.get(reason.code) if "tasks" in reason.facts and "rank" in reason.facts else None


def _sentence(reason: Reason) -> str:
    facts = reason.facts
    if of_gang := _of_gang(reason):
        return of_gang[0] if facts.get("peak_mb", 1) else of_gang[0].removesuffix(_PEAK)
    match reason.code:
        case ReasonCode.OUT_OF_MEMORY if not facts.get("peak_mb", 1):
            return _SENTENCES[reason.code][0].removesuffix(_PEAK)
        case ReasonCode.MEMBERS_ENDED if facts.keys() == {"succeeded", "others"}:
            return _MEMBERS_ENDED_OLD
        case ReasonCode.HELD if facts and not facts.get("by"):
            return _HELD_BY_SOMEBODY
        case ReasonCode.INSUFFICIENT_GPUS if facts.get("free") == 0:
            return _NO_GPU_FREE
        case ReasonCode.INSUFFICIENT_GPUS if facts.get("tasks") == 1:
            return _GPUS_ON_ONE
        case ReasonCode.INSUFFICIENT_CPUS if facts.get("tasks") == 1:
            return _CPUS_OF_ONE
        case ReasonCode.INSUFFICIENT_MEMORY if facts.get("tasks") == 1:
            return _MEMORY_OF_ONE
        case _:
            return _SENTENCES[reason.code][0]


def _clauses(reason: Reason) -> Facts:
    """Return what stands in the sentence beside the facts, made of several of them."""
    facts = reason.facts
    match reason.code:
        case ReasonCode.NODES_UNAVAILABLE if facts:
            of = [f"{facts[word]} {word}" for word in _AILS if facts.get(word)]
            return {"ails": ", ".join(of), "such": f" ({facts['drained']})" if facts.get("drained") else ""}
        case ReasonCode.NODES_UNAVAILABLE:
            return {"such": ""}
        case ReasonCode.INSUFFICIENT_SHARE:
            return share_clauses(facts)
        case ReasonCode.CANCELLED | ReasonCode.REQUEUED if "by" in facts:
            return {"by": person(facts)}
        case ReasonCode.HELD:
            return {
                "by": person(facts),
                "since": f" since {readable('since', facts['since'])}" if "since" in facts else "",
            }
        case ReasonCode.ENDING:
            return ending_clauses(facts)
        case ReasonCode.EXITED | ReasonCode.KILLED_BY_SIGNAL | ReasonCode.OUT_OF_MEMORY:
            return {"place": f" on {facts['node']}" if "node" in facts else ""}
        case ReasonCode.TERMINAL_CLOSED:
            how = f"was killed by signal {facts['signal']}" if facts.get("signal") else ""
            return {"how": how or f"exited with code {facts.get('exit_code')}"}
        case ReasonCode.PREEMPTED:
            return {"why": TAKEN_FOR.get(str(facts.get("cause")), "")}
        case ReasonCode.DEPENDENCY if "jobs" in facts:
            return {"waits": facts["jobs"]}
        case _:
            return {}


def hint_for(reason: Reason, *, job: str = "", name: str = "", forgotten: bool = False) -> str:
    """Return the hint for people: what would change the reason.

    `job`: the id of the job as people write it. `name`: the name that it was given. `forgotten`: only the history
    knows the job.
    """
    named: Facts = {"id": job} if job else {}
    if name and forgotten:
        named = {**named, "name": quote(name)}
    return _hint(reason, forgotten=forgotten).format_map(SentenceFacts(reason.facts | named, missing=""))


def _hint(reason: Reason, *, forgotten: bool) -> str:
    facts = reason.facts
    if of_gang := _of_gang(reason):
        return of_gang[1]
    match reason.code:
        case ReasonCode.NODES_UNAVAILABLE if facts and not (facts.get("draining") or facts.get("paused")):
            return _NOT_RESUMED
        case ReasonCode.ENDING if facts.get("cause") in TAKEN_FOR:
            return _GIVES_WAY_HINT
        case ReasonCode.MEMBERS_ENDED if forgotten:
            return _MEMBERS_ENDED_FORGOTTEN
        case ReasonCode.MEMBERS_ENDED if _none_failed(reason):
            return _MEMBERS_ENDED_NONE_AGAIN
        case ReasonCode.TENANT_LIMIT if _alone_too_much(reason):
            return _NEVER_WITHIN
        case ReasonCode.INSUFFICIENT_GPUS:
            return _fewer_gpus(facts)
        case ReasonCode.INSUFFICIENT_CPUS | ReasonCode.INSUFFICIENT_MEMORY if _asks_least(reason):
            return _JOBS_END
        case _:
            return _SENTENCES[reason.code][1]


def _fewer_gpus(facts: Facts) -> str:
    """Return the hint of a job that waits for GPUs: what it could ask less of, if it could."""
    needed, tasks, per_task, free = (facts.get(name) for name in ("needed", "tasks", "per_task", "free"))
    if needed == 1:
        return "it starts when a job that holds such a GPU ends"
    if tasks == 1 and isinstance(free, int) and isinstance(needed, int) and free >= needed:
        return f"{_JOBS_END} on one of the nodes; several `--tasks` of fewer GPUs may be spread over nodes"
    if per_task == 1:
        return f"{_JOBS_END}; fewer `--tasks` would fit sooner"
    return _SENTENCES[ReasonCode.INSUFFICIENT_GPUS][1]


def _asks_least(reason: Reason) -> bool:
    # A task has one CPU at least, and no job can ask for fewer.
    return reason.code is ReasonCode.INSUFFICIENT_CPUS and reason.facts.get("needed") == 1


def _none_failed(reason: Reason) -> bool:
    # Of the others of an array that ended before these were told apart some may have failed.
    return reason.facts.get("failed", reason.facts.get("others")) == 0


def _alone_too_much(reason: Reason) -> bool:
    # The limit was higher when the job was admitted: no end of another job helps it now.
    asked, limit = reason.facts.get("asked"), reason.facts.get("limit")
    return isinstance(asked, int) and isinstance(limit, int) and asked > limit
