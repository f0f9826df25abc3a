"""Reasons why a job waits or why it ended.

A closed list. Each code has a sentence for people and a hint what would change it; the numbers travel as facts.
"""

from enum import StrEnum
from typing import Final

import msgspec

from stoker.brain.domain.errors import Facts


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
    TENANT_LIMIT = "tenant_limit"
    POOL_LIMIT = "pool_limit"
    GUARANTEE_KEPT = "guarantee_kept"
    INSUFFICIENT_GPUS = "insufficient_gpus"
    INSUFFICIENT_NODES = "insufficient_nodes"
    INSUFFICIENT_CPUS = "insufficient_cpus"
    INSUFFICIENT_MEMORY = "insufficient_memory"
    NO_FREE_PORT = "no_free_port"
    BUDGET_SPENT = "budget_spent"
    SET_ASIDE = "set_aside"
    HELD = "held"
    BEGIN_TIME = "begin_time"
    RETRY_BACKOFF = "retry_backoff"
    REQUEUED = "requeued"
    DEPENDENCY = "dependency"
    ARRAY_LIMIT = "array_limit"
    # why a job that has started isn't known to go on
    NODE_SILENT = "node_silent"
    NODE_AWAITED = "node_awaited"
    NODE_FAULTY = "node_faulty"
    # why a job ended
    EXITED = "exited"
    KILLED_BY_SIGNAL = "killed_by_signal"
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
        "{fitting} node(s) could run it, but none is available: {unreachable} unreachable, {faulty} faulty, "
        "{draining} draining, {paused} paused, {forgotten} forgotten",
        "`stoker node list` says what ails each; `stoker node resume NODE` ends a drain or a pause",
    ),
    ReasonCode.NODES_PAUSED: (
        "{paused} node(s) that could run it take a pause, since starts failed there in a row: {node} until {until} "
        "({error})",
        "nothing to do: it is tried again then; once that node is mended, `stoker node resume NODE` ends its pause",
    ),
    ReasonCode.NODES_RETURNING: (
        "{returning} node(s) that could run it haven't reported yet to this control plane, which has just started or "
        "taken over",
        "nothing to do: nodes report by themselves within seconds; one that doesn't is `unreachable` within a minute",
    ),
    ReasonCode.GPUS_UNREAD: (
        "{nodes} node(s) that could run it can't read all of their GPUs, such as {node}: {fault}",
        "mend the driver or the device there: the agent looks again by itself, and the job starts then",
    ),
    ReasonCode.NO_FITTING_NODE: (
        "no node {among} is large enough: it asks {asked} per task; the largest has {largest}",
        "cancel it and ask for less per task, let it select other nodes or tolerate their taints, or add a larger node",
    ),
    ReasonCode.INSUFFICIENT_GPUS: (
        "it needs {needed} GPU(s) for {tasks} task(s) of {per_task}; {free} suitable GPU(s) are free now, at most "
        "{best} on one node",
        "it starts when running jobs end; fewer GPUs per task would fit sooner",
    ),
    ReasonCode.INSUFFICIENT_NODES: (
        "at most {per_node} of its {tasks} task(s) may share a node; spread so, the free GPUs have room for {room} of "
        "them",
        "it starts when GPUs of other nodes come free; a higher `--tasks-per-node` would fit sooner",
    ),
    ReasonCode.INSUFFICIENT_CPUS: (
        "each of {tasks} task(s) needs {needed} CPU(s); at most {best} are free on a node that has all GPUs it asks "
        "for, room for {room} task(s) in all",
        "ask for fewer CPUs (`--cpus`), or wait for running jobs to end",
    ),
    ReasonCode.INSUFFICIENT_MEMORY: (
        "each of {tasks} task(s) needs {needed} MiB of memory; at most {best} MiB are free on a node that has all GPUs "
        "and CPUs it asks for, room for {room} task(s) in all",
        "ask for less memory (`--memory`), or wait for running jobs to end",
    ),
    ReasonCode.NO_FREE_PORT: (
        "every rendezvous port of {address} is in use ({ports_max} of them)",
        "it starts when a multi-GPU job on that address ends",
    ),
    ReasonCode.RETRY_BACKOFF: (
        "attempt {attempt} ended ({outcome}){why}; the next try waits until {until}",
        "nothing to do; `stoker status ID` shows the attempts",
    ),
    ReasonCode.BUDGET_SPENT: (
        "this pass placed {placed} jobs, as many as one pass may; the next goes on",
        "nothing to do",
    ),
    ReasonCode.SET_ASIDE: (
        "the scheduler failed while it decided on jobs like this one: {error}; they are set aside for {pause_s} s at a "
        "time, and all others are scheduled",
        "this is a defect of Stoker: please report it with the log line `shape_set_aside`; nothing is lost, and a job "
        "that asks for something else may get round it",
    ),
    ReasonCode.HELD: ("a person holds it", "`stoker release ID` lets it run"),
    ReasonCode.BEGIN_TIME: ("it was told to begin at {begin}", "cancel it and submit again to begin sooner"),
    ReasonCode.DEPENDENCY: ("it waits for {waits}", "`stoker status ID` of those jobs shows how far they are"),
    ReasonCode.ARRAY_LIMIT: (
        "{running} members of the array run, as many as its own limit `%{running_max}` allows",
        "it goes on as members end; submit with a higher `%N` to run more at once",
    ),
    ReasonCode.NO_SELECTED_NODE: (
        "none of the {nodes} node(s) is one that it selects: {asked}",
        "`stoker node list -o wide` shows labels and taints; change `--where`, `--exclude`, `--partition`, or add "
        "`--tolerate`; which nodes a tenant may use is an admin's to say (`stoker tenant set --nodes`)",
    ),
    ReasonCode.TENANT_LIMIT: (
        "tenant {tenant} uses {used} of at most {limit} {what}, and this asks for {asked} more",
        "it starts when jobs of that tenant end; `stoker tenant show` tells its limits, and an admin may raise them",
    ),
    ReasonCode.POOL_LIMIT: (
        "{pool} jobs hold {used} of the {limit} GPU(s) that strict shares leave them, and this asks for {asked} more",
        "it starts when jobs of its class end, or those of the other one that are beyond its share; `stoker quota "
        "show` tells the shares, and an admin may change them",
    ),
    ReasonCode.GUARANTEE_KEPT: (
        "{free} GPU(s) are free, and {kept} are kept for whoever is within a guarantee, with CPUs and memory beside "
        "them; this job, which asks for {asked}, isn't",
        "it starts when those have theirs; `stoker quota show` and `stoker tenant list` tell the guarantees",
    ),
    ReasonCode.NODE_SILENT: (
        "its node {node} has not been heard of since {since}; if that lasts {over}, what ran there is surely over, and "
        "the job {then}{said}",
        "nothing to do: it goes on there if the node is back in time; if that machine is surely off, "
        "`stoker node forget NODE --force` doesn't wait",
    ),
    ReasonCode.NODE_AWAITED: (
        "its node {node} has not been heard of since {since}, and the job waits for it: it has no lease{said}",
        "see to that machine; if it is surely off, `stoker node forget NODE --force`. Jobs submitted with "
        "`--lost-after` move by themselves",
    ),
    ReasonCode.NODE_FAULTY: (
        "its node {node} can neither start nor end tasks: {fault}{unknown}",
        "mend that node (a stopped runner goes on with `kill -CONT`); what it was told and what ended there follows by "
        "itself once it can",
    ),
    ReasonCode.EXITED: ("its command exited with code {exit_code}", "`stoker logs ID` shows its last lines"),
    ReasonCode.KILLED_BY_SIGNAL: (
        "its command was killed by signal {signal}, which Stoker did not send",
        "`stoker logs ID` shows its last lines; the node's kernel log may say more",
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
        "it used up its memory limit of {limit_mb} MiB (peak {peak_mb} MiB)",
        "submit with more `--memory`",
    ),
    ReasonCode.NODE_FAILED: ("{node} lost it: {error}", "submit it again, or allow requeues"),
    ReasonCode.REQUEUES_SPENT: (
        "it was requeued {requeues} times, the most allowed, and lost again: {error}",
        "see `stoker status ID` for its attempts and `stoker node list` for the nodes",
    ),
    ReasonCode.PORT_TAKEN: (
        "the rendezvous port was taken on {node} in {tries} attempts",
        "something else uses ports {port_min} to {port_max} of that node",
    ),
    ReasonCode.DEPENDENCY_NEVER_SATISFIED: (
        "it waited for {dependency}, which can never be: {why}",
        "submit it again once what it depends on has gone well",
    ),
    ReasonCode.MEMBERS_ENDED: (
        "its members have ended: {succeeded} succeeded, {failed} failed, {cancelled} were cancelled",
        "`stoker list --members --name NAME` shows them; `stoker requeue ID` runs those that failed once more",
    ),
    ReasonCode.REQUEUED: ("{by} asked for another try", "nothing to do"),
}


_OF_GANG: Final[dict[ReasonCode, tuple[str, str]]] = {
    ReasonCode.EXITED: (
        "rank {rank} on {node} exited with code {exit_code} first, of {tasks} ranks",
        "`stoker logs ID.{rank}` shows its last lines",
    ),
    ReasonCode.KILLED_BY_SIGNAL: (
        "rank {rank} on {node} was killed first, of {tasks} ranks, by signal {signal}, which Stoker did not send",
        "`stoker logs ID.{rank}` shows its last lines; the kernel log of {node} may say more",
    ),
    ReasonCode.START_FAILED: (
        "rank {rank} of {tasks} could not start on {node}: {error}",
        "mend the command, folder or node and submit again",
    ),
    ReasonCode.OUT_OF_MEMORY: (
        "rank {rank} on {node} used up its memory limit of {limit_mb} MiB first, of {tasks} ranks (peak {peak_mb} MiB)",
        "submit with more `--memory`",
    ),
}
"""Sentence and hint where a gang ended by one of its tasks: which one it was, and where."""
_MEMBERS_ENDED_OLD: Final = "its members have ended: {succeeded} succeeded, {others} otherwise"
"""Of arrays that ended before their failed and cancelled members were told apart."""
_NOT_RESUMED: Final = (
    "`stoker node list` says what ails each; nodes that answer again and can work are used by themselves"
)
"""Of nodes that `stoker node resume NODE` wouldn't bring back."""
_MEMBERS_ENDED_NONE_AGAIN: Final = "`stoker list --members --name NAME` shows them"
"""Where `stoker requeue ID` is refused."""
_NEVER_WITHIN: Final = (
    "it can't start while that limit holds: an admin may raise it (`stoker tenant set {tenant}`); else cancel it, and "
    "submit one that asks for less"
)


class _FactsOrMark(dict[str, object]):
    """Facts for a sentence, with `?` for each that is missing."""

    def __missing__(self, key: str) -> str:
        return "?"


def describe(reason: Reason) -> str:
    """Return the sentence for people."""
    if reason.code is ReasonCode.MEMBERS_ENDED and reason.facts.keys() == {"succeeded", "others"}:
        return _MEMBERS_ENDED_OLD.format_map(_FactsOrMark(reason.facts))
    return _words(reason)[0].format_map(_FactsOrMark(reason.facts))


def _words(reason: Reason) -> tuple[str, str]:
    of_gang = _OF_GANG.get(reason.code) if "tasks" in reason.facts and "rank" in reason.facts else None
    return of_gang or _SENTENCES[reason.code]


def hint_for(reason: Reason, *, forgotten: bool = False) -> str:
    """Return the hint for people: what would change the reason. `forgotten`: only the history knows the job."""
    if reason.code is ReasonCode.NODES_UNAVAILABLE and _none_to_resume(reason):
        return _NOT_RESUMED
    if reason.code is ReasonCode.MEMBERS_ENDED and (forgotten or _none_failed(reason)):
        return _MEMBERS_ENDED_NONE_AGAIN
    if reason.code is ReasonCode.TENANT_LIMIT and _alone_too_much(reason):
        return _NEVER_WITHIN.format_map(_FactsOrMark(reason.facts))
    sentence, hint = _words(reason)
    return hint if (sentence, hint) == _SENTENCES[reason.code] else hint.format_map(_FactsOrMark(reason.facts))


def _none_to_resume(reason: Reason) -> bool:
    # Without facts the hint is for nodes of every kind, as in the reference.
    return bool(reason.facts) and not (reason.facts.get("draining") or reason.facts.get("paused"))


def _none_failed(reason: Reason) -> bool:
    # Of the others of an array that ended before these were told apart some may have failed.
    return reason.facts.get("failed", reason.facts.get("others")) == 0


def _alone_too_much(reason: Reason) -> bool:
    # The limit was higher when the job was admitted: no end of another job helps it now.
    asked, limit = reason.facts.get("asked"), reason.facts.get("limit")
    return isinstance(asked, int) and isinstance(limit, int) and asked > limit
