"""Task of the runner: all that is held in memory of one that isn't proved gone, and how it is brought to its end.

A task ends by steps, from the end of its leader, or a stop, to a tree that is gone.

Rules: E1  a task is over when its leader is reaped and its tree is gone, never before
       E2  a stop terminates the whole tree at once, kills after the grace, and goes on until the tree is gone
       E3  what a leader leaves behind gets `LINGER_S` to write its last words, then a terminate and `LEFTOVER_GRACE_S`,
           then a kill: a job's children don't outlive it
       E4  of several stops the earliest deadline holds; a leader that had ended by itself stays `exited`
       E7  a stop with a lead terminates the tree once that is over, or the leader has ended, if that is sooner
       E5  a lease that is over kills at once, also what was given a grace
       E6  a process that can't be killed (a hung device) keeps its task in `ending` for as long as it takes

Checks come at once when a child is reaped, and else on a timer that doubles.

An attempt lease says how long a task may run while no control plane answers. It is counted from the moment at which the
newest beat was sent that an active control plane answered; the agent says when that was, in boot time. The control
plane counts from the receipt of the same beat, or later, and adds what clocks may drift and a kill may take: so
whatever runs here is dead before its successor begins. The time of that beat is kept in memory only: a runner that
starts anew ends all that an earlier one left, whatever its lease. Of a runner that has never been told of any, every
lease is over.
"""

from __future__ import annotations

import os
import signal

from stoker.agent.runner import clock
from stoker.agent.runner.process.launch import meet_here
from stoker.agent.runner.process.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from stoker.agent.runner.journal import ContainerRecord, StartRecord
    from stoker.agent.runner.output.copier import Copier
    from stoker.agent.runner.output.retention import OutputRetention
    from stoker.agent.runner.output.spool import Spool
    from stoker.agent.runner.process.cgroup import TaskCgroup
    from stoker.agent.runner.process.launch import Launch
    from stoker.agent.runner.process.tree import Trees
    from stoker.agent.runner.protocol import EndFields, OverFields, SiteFields, StartInstruction, TaskFields

STARTING: Final = "starting"
RUNNING: Final = "running"
ENDING: Final = "ending"

# Steps of an ending, in order.
LINGERING: Final = 0
"""The leader ended; what it left may still write its last line."""
WARNED: Final = 1
"""It was told that it is to go, and may still end by itself."""
TERMINATED: Final = 2
KILLED: Final = 3

LINGER_S: Final = 0.2
LEFTOVER_GRACE_S: Final = 2.0
HUNG_UP_GRACE_S: Final = 10.0
_RECHECK_FIRST_S: Final = 0.005
_RECHECK_MAX_S: Final = 1.0
NEVER: Final = float("inf")
HOST_FILE_NAME: Final = "STOKER_HOSTFILE"
NOTICE_FILE_NAME: Final = "STOKER_PREEMPT_FILE"
WHOLE_GPU: Final = 1_000
"""Thousandths of a GPU that make one."""


class RunnerTask:
    """One task from its start record to its end record."""

    def __init__(self, key: str, mark: str, gpus: list[str], group: TaskCgroup) -> None:
        self.key = key
        self.gpus = gpus
        self.gpu_share = WHOLE_GPU
        """Thousandths that it holds of each of them."""
        self.tree = Tree(key, mark, group)
        self.phase = STARTING
        self.started_at = 0
        self.start: StartInstruction | None = None
        """What the agent asked for. None = its process exists, or never will."""
        self.launch: Launch | None = None
        """How its process was started, until that has answered."""
        self.answer = -1
        """Pipe on which the child says whether it became the program."""
        self.said = bytearray()
        """What it has said so far."""
        self.output = -1
        """Read end of the output pipe."""
        self.surroundings: StartInstruction | bytes = b""
        """What a program gets that is executed beside it (`session`). Empty = none can be executed so."""
        self.copier: Copier | None = None
        """When its output also goes to a file of its user's."""
        self.spool: Spool | None = None
        self.container: ContainerRecord | None = None
        """The container that it is. None = it is a process."""
        self.container_gone = False
        """It is proved that no container of it is left."""
        self.result = -1
        """What the client of its container says at its end."""
        self.port = 0
        """Where its processes meet, if that was chosen here."""
        self.status: int | None = None
        """Of the leader, as waitpid gives it."""
        self.cause = "exited"
        self.error = ""
        self.oom = False
        self.peak_memory_mb = 0
        self.node_fault = ""
        """What a program of the site says is wrong with this node."""
        self.hung_up = False
        """Its own terminal was closed shortly before its leader ended."""
        self.prepared = False
        """Its prolog has done its work, or there is none."""
        self.epilog: SiteFields | None = None
        """What is to run once its tree is gone; None = nothing (any more)."""
        self.said_ending = False
        self.step = LINGERING
        self.step_until_s = 0.0
        self.grace_s = 0.0
        """Of `WARNED`: between the terminate signal, which follows it, and the kill."""
        self.warned = -1
        """Number under which it was warned last. -1 = it never was."""
        self.check_s = 0.0
        """When to look again whether the tree is gone."""
        self.recheck_s = 0.0

    def start_record(self, boot_id: str) -> StartRecord:
        """Return the record by which a later runner finds this task, and ends it, whatever its lease."""
        record: StartRecord = {
            "key": self.key,
            "mark": self.tree.mark,
            "boot": boot_id,
            "at": clock.wall_ms(),
            "gpus": self.gpus,
            "groups": self.tree.group.folders,
            "pid": 0,
            "birth": 0,
        }
        if self.gpu_share != WHOLE_GPU:
            record["gpu_share"] = self.gpu_share
        if self.container is not None:
            record["container"] = self.container
        if self.start is not None and self.start["prolog"]:
            record["prolog"] = True
        if self.start is not None and self.start["epilog"]:
            record["epilog"] = site_fields(self.start, self.start["epilog"])
        return record

    @property
    def fields(self) -> TaskFields:
        """The task as the inventory has it."""
        return {
            "key": self.key,
            "phase": self.phase,
            "gpus": self.gpus,
            "gpu_share": self.gpu_share,
            "started_at": self.started_at,
        }

    def end_fields(self, at: int) -> EndFields:
        """Return the end of this task, which happened at `at`, in milliseconds since 1970."""
        exit_code, number = None, 0
        if self.status is not None and self.cause in ("exited", "stopped"):
            code = os.waitstatus_to_exitcode(self.status)
            exit_code, number = (code, 0) if code >= 0 else (None, -code)
        copier = self.copier if self.spool and self.tree.pid > 0 else None  # else nothing was written
        losses = (copier.words if copier else "", self.spool.lost if self.spool else "")
        error = "; ".join(filter(None, (self.error, *losses)))
        end: EndFields = {
            "cause": self.cause,
            "at": at,
            "exit_code": exit_code,
            "signal": number,
            "oom": self.oom,
            "peak_memory_mb": self.peak_memory_mb,
            "error": error,
        }
        if self.node_fault:
            end["node_fault"] = self.node_fault
        if self.hung_up and self.cause == "exited":
            end["hung_up"] = True
        return end

    # --- ending -------------------------------------------------------------------------------------------------

    def leader_ended(self, status: int, now_s: float) -> None:
        """Note that the leader was reaped; what it left behind lingers (E3)."""
        self.status = status
        if self.phase != ENDING:
            self._enter(LINGERING, now_s + LINGER_S, now_s)
            return
        self.check_s = now_s
        if self.step == WARNED:  # E7
            self.step_until_s = now_s

    def ends_sooner(self, until_s: float) -> bool:
        """Return whether a kill at that time would come before any that is due already (E4)."""
        if self.phase != ENDING or self.step == LINGERING:
            return True
        due_s = self.step_until_s + (self.grace_s if self.step == WARNED else 0.0)
        return self.step != KILLED and until_s < due_s

    def stop(self, grace_s: float, trees: Trees, now_s: float, lead_s: float = 0.0) -> None:
        """Terminate the whole tree once the lead is over, and kill it after the grace.

        The earliest of several deadlines holds (E2, E4), and no lead is given to what a leader left behind (E7).
        """
        until_s = now_s + lead_s + grace_s
        if not self.ends_sooner(until_s):
            return
        ends_already = self.phase == ENDING and self.step != WARNED
        if self.phase != ENDING:
            self.cause = "stopped"
        if lead_s > 0 and not ends_already:
            self._enter(WARNED, now_s + lead_s, now_s)
            self.grace_s = grace_s
        elif grace_s <= 0:
            self.kill(trees, now_s)
        elif self.step == TERMINATED:
            self.step_until_s = until_s
            self.check_s = min(self.check_s, until_s)
        else:
            self._terminate(trees, grace_s, now_s)

    def lapse(self, words: str, now_s: float) -> None:
        """Note that the lease is over and the task will be killed together with more of them. E4 holds here too."""
        if self.phase != ENDING:
            self.cause, self.error = "lease_ended", words
        self._enter(KILLED, now_s, now_s)
        self.tree.spare_client(now_s)

    def end_hung_up(self, trees: Trees, now_s: float) -> None:
        """Terminate the whole tree, whose terminal was closed and whose leader hasn't heeded that; kill it then."""
        if self.phase != ENDING:
            self.hung_up = True
            self._terminate(trees, HUNG_UP_GRACE_S, now_s)

    def kill(self, trees: Trees, now_s: float) -> None:
        """Kill the whole tree: its grace is over, or its runner, and with that the leader's exit code, was lost."""
        self._enter(KILLED, now_s, now_s)
        self.tree.spare_client(now_s)
        trees.kill(self.tree)

    def advance(self, trees: Trees, now_s: float) -> bool:
        """Check a task in `ending`: True when it is over; else its `check_s` says when to look again."""
        if trees.gone(self.tree):
            return True
        if self.step != KILLED and now_s >= self.step_until_s:
            if self.step == LINGERING:
                self._terminate(trees, LEFTOVER_GRACE_S, now_s)
            elif self.step == WARNED and self.grace_s > 0:
                self._terminate(trees, self.grace_s, now_s)
            else:
                self.kill(trees, now_s)
            return False
        self.recheck_s = min(2 * self.recheck_s, _RECHECK_MAX_S)
        self.check_s = now_s + self.recheck_s
        if self.step == KILLED:
            trees.kill(self.tree)
        else:
            self.check_s = min(self.check_s, self.step_until_s)
        return False

    def _terminate(self, trees: Trees, grace_s: float, now_s: float) -> None:
        self._enter(TERMINATED, now_s + grace_s, now_s)
        trees.signal(self.tree, signal.SIGTERM, signal.SIGCONT)  # one that is stopped must wake to hear the first

    def _enter(self, step: int, until_s: float, now_s: float) -> None:
        self.phase = ENDING
        self.step = step
        self.step_until_s = until_s
        self.recheck_s = _RECHECK_FIRST_S
        self.check_s = now_s + _RECHECK_FIRST_S if step else now_s


def tell_place(task: RunnerTask, start: StartInstruction, files: OutputRetention, taken: set[int]) -> list[str]:
    """Put into its variables where a task's processes meet, and on which machines; return the paths in them.

    `taken`: ports of the other tasks. Raises CannotStart, OSError.
    """
    if start["gang_port_max"]:
        task.port = meet_here(start, taken, int.from_bytes(os.urandom(4), "big"))
    notice = files.notice_file(task.key, alone=task.container is not None)
    start["env"][NOTICE_FILE_NAME], paths = notice, [os.path.dirname(notice)]
    if start["host_file"]:
        start["env"][HOST_FILE_NAME] = files.write_host_file(task.key, start["host_file"])
        paths.append(start["env"][HOST_FILE_NAME])
    return paths


def fields_of_end(over: OverFields) -> TaskFields:
    """Return a task whose end isn't durable yet, which counts as ending."""
    share = over.get("gpu_share", WHOLE_GPU)
    return {
        "key": over["key"],
        "phase": ENDING,
        "gpus": over["gpus"],
        "gpu_share": share,
        "started_at": over["started_at"],
    }


def site_fields(start: StartInstruction, path: str) -> SiteFields:
    """Return what a start says of one of its programs of the site."""
    return {"path": path, "env": start["site_env"], "timeout_s": start["site_timeout_s"]}


class Leases:
    """Leases of the open tasks that have one."""

    def __init__(self) -> None:
        self._answered_s = 0.0
        self._lease_s: dict[str, float] = {}
        self._with: dict[float, int] = {}
        # Length of a lease -> number of tasks that have one so long.

    def answered(self, at_s: float, now_s: float) -> None:
        """Note that a beat sent at `at_s` was answered, in boot time. Older news, and the future, change nothing."""
        self._answered_s = max(self._answered_s, min(at_s, now_s))

    def add(self, key: str, lease_ms: int) -> None:
        """Give a task a lease; 0 = it has none."""
        if lease_ms > 0:
            lease_s = self._lease_s[key] = lease_ms / 1000
            self._with[lease_s] = self._with.get(lease_s, 0) + 1

    def drop(self, key: str) -> None:
        """Forget the lease of a task that has ended."""
        lease_s = self._lease_s.pop(key, NEVER)
        if lease_s != NEVER:
            self._with[lease_s] -= 1
            if not self._with[lease_s]:
                del self._with[lease_s]

    def silent_s(self, now_s: float) -> float:
        """Return since how long no beat that was answered was sent."""
        return now_s - self._answered_s

    @property
    def due_s(self) -> float:
        """Boot time at which the first of them is over. NEVER = none will be."""
        return self._answered_s + min(self._with, default=NEVER)

    def over(self, now_s: float) -> list[tuple[str, str]]:
        """Return the tasks whose lease is over, each once, with the reason in words."""
        if now_s <= self.due_s:
            return []
        gone = [(key, lease_s) for key, lease_s in self._lease_s.items() if now_s > self._answered_s + lease_s]
        for key, _ in gone:
            self.drop(key)
        return [(key, _words(lease_s)) for key, lease_s in gone]


def _words(lease_s: float) -> str:
    return f"no active control plane has answered this node for {lease_s:g} s: the attempt's lease is over"
