"""Task of the runner: all that is held in memory of one that isn't proved gone."""

from __future__ import annotations

import os

from stoker.agent.runner import clock
from stoker.agent.runner.process.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from stoker.agent.runner.journal import StartRecord
    from stoker.agent.runner.output.copier import Copier
    from stoker.agent.runner.output.spool import Spool
    from stoker.agent.runner.process.cgroup import TaskCgroup
    from stoker.agent.runner.protocol import EndFields, StartInstruction

STARTING: Final = "starting"
RUNNING: Final = "running"
ENDING: Final = "ending"

# Steps of an ending, in order.
LINGERING: Final = 0
"""The leader ended; what it left may still write its last line."""
TERMINATED: Final = 1
KILLED: Final = 2


class RunnerTask:
    """One task from its start record to its end record."""

    __slots__ = (
        "answer",
        "cause",
        "check_s",
        "copier",
        "error",
        "gpus",
        "key",
        "oom",
        "output",
        "peak_memory_mb",
        "phase",
        "recheck_s",
        "said",
        "said_ending",
        "spool",
        "start",
        "started_at",
        "status",
        "step",
        "step_until_s",
        "tree",
    )

    def __init__(self, key: str, mark: str, gpus: list[str], group: TaskCgroup | None) -> None:
        self.key = key
        self.gpus = gpus
        self.tree = Tree(key, mark, group)
        self.phase = STARTING
        self.started_at = 0
        self.start: StartInstruction | None = None
        """What the agent asked for. None = its process exists, or never will."""
        self.answer = -1
        """Pipe on which the child says whether it became the program."""
        self.said = bytearray()
        """What it has said so far."""
        self.output = -1
        """Read end of the output pipe."""
        self.copier: Copier | None = None
        """When its output also goes to a file of its user's."""
        self.spool: Spool | None = None
        self.status: int | None = None
        """Of the leader, as waitpid gives it."""
        self.cause = "exited"
        self.error = ""
        self.oom = False
        self.peak_memory_mb = 0
        self.said_ending = False
        self.step = LINGERING
        self.step_until_s = 0.0
        self.check_s = 0.0
        """When to look again whether the tree is gone."""
        self.recheck_s = 0.0

    def start_record(self, boot_id: str, folders: list[str]) -> StartRecord:
        """Return the record by which a later runner finds this task, and ends it, whatever its lease."""
        return {
            "key": self.key,
            "mark": self.tree.mark,
            "boot": boot_id,
            "at": clock.wall_ms(),
            "gpus": self.gpus,
            "groups": folders,
            "pid": 0,
            "birth": 0,
        }

    def end_fields(self, at: int) -> EndFields:
        """Return the end of this task, which happened at `at`, in milliseconds since 1970."""
        exit_code, number = None, 0
        if self.status is not None and self.cause in ("exited", "stopped"):
            code = os.waitstatus_to_exitcode(self.status)
            exit_code, number = (code, 0) if code >= 0 else (None, -code)
        losses = (self.copier.words if self.copier and self.spool else "", self.spool.lost if self.spool else "")
        error = "; ".join(filter(None, (self.error, *losses)))
        return {
            "cause": self.cause,
            "at": at,
            "exit_code": exit_code,
            "signal": number,
            "oom": self.oom,
            "peak_memory_mb": self.peak_memory_mb,
            "error": error,
        }
