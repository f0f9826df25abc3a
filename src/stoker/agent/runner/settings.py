"""Settings of the runner, as its command line gives them: `--name value`.

They are parsed here; `argparse` would cost more memory than all of the runner's own code.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

TREE_MODES: Final = ("auto", "v2", "v1", "scan")
_FILES_PER_TASK: Final = 5
"""While the file of its user is opened: both ends of its pipes, and a line to who opens it. Fewer once it runs."""
_FILES_PER_SESSION: Final = 8
"""While its program is begun: its client, three pipes, and the line on which it says that it has become one."""
_STARTS_KEPT: Final = 4
"""Starts for which a session leaves files. Once they run tasks need fewer."""
_FILES_TO_LOOK: Final = 6
"""Of the spare ones those that are open for moments: files in /proc, the journal while it is written anew."""
_FILES_SPARE: Final = 24
"""For the journal, the agent, and looking into /proc."""
_PROCESSES_PER_TASK: Final = 4
"""A shell, its program, what that starts, and whoever opens the file of its output. A job that wants more than its
share may find none left."""
_PROCESSES_SPARE: Final = 8
"""For the runner and its guard, a runner that follows, and threads of the agent."""


class RunnerSettings:
    """Settings of one runner. Every bound says what happens at it."""

    short_of = ""
    """What made `tasks_max` lower than it was set, in words."""
    files_max = -1
    """Files that this process may have open. Negative = no limit."""

    def __init__(self) -> None:
        self.data_dir = ""
        self.work_dir = ""
        """Where tasks that name no working directory get one: a folder of this runner alone. Empty = `data_dir`."""
        self.folder_bytes_max = 0
        """What the folders of a job may hold on one file system, where that keeps project quotas. 0 = no bound."""
        self.node = os.uname().nodename
        """What people call this node, for messages."""
        self.tree = "auto"
        """How processes are followed: `v2` or `v1` cgroups, `scan` of /proc, `auto` = the first that works."""
        self.tether_s = 0.0
        """> 0: end every task and exit when no agent has been connected for that long. 0 = outlive the agent."""
        self.idle_exit_s = 60.0
        """With no agent and no task for that long there is nothing to outlive: exit. Every end is on disk, and the next
        agent starts another. Longer than an agent's restart takes, which finds its runner still there."""
        self.session_gone_s = 60.0
        """A program that a person executes gets SIGHUP when nobody has been connected to it for that long, and so does
        a task's own in a terminal that doesn't stay."""
        self.tasks_max = 4_096
        """A start beyond it ends `never_started`. Fewer where the system allows too few open files or processes."""
        self.ends_max = 10_000
        """The oldest settled ends beyond it are forgotten. With as many unsettled, a start ends `never_started`."""
        self.ends_kept_s = 24 * 3600
        self.head_bytes_max = 16 * 1024 * 1024
        """Of a task's output the first bytes kept."""
        self.tail_bytes_max = 24 * 1024 * 1024
        """Of the rest, the newest one to two times that many bytes are kept."""
        self.spool_bytes_max = 16 * 1024 * 1024 * 1024
        """Outputs of ended tasks beyond it: the oldest large ones are dropped. So they are on a disk nearly full."""

    def bound_reached(self, tasks: int, ends: int) -> str:
        """Return why no task is begun beside those that there are, with so many ends unsettled; empty = one may be."""
        if tasks > self.tasks_max:
            return f"this node's runner already holds {self.tasks_max} tasks, the most it takes"
        if ends >= self.ends_max:
            return f"{self.ends_max} ends of earlier tasks wait for the control plane to take them"
        return ""

    def has_files_for_session(self, tasks: int) -> bool:
        """Return whether a session leaves the open files that the next tasks need to start beside so many."""
        starts = min(self.tasks_max - tasks, _STARTS_KEPT)
        needed = starts * _FILES_PER_TASK + _FILES_PER_SESSION + _FILES_TO_LOOK
        try:
            return self.files_max < 0 or len(os.listdir("/proc/self/fd")) + needed <= self.files_max
        except OSError:  # there is none left to count them by
            return False

    def keep_within(self, files_max: int, processes_max: int = -1, processes: int = 0) -> None:
        """Lower `tasks_max` to what so many open files and processes allow, of which some exist already.

        Negative = there is no limit.
        """
        self.files_max = files_max
        bounds = (
            (files_max, _FILES_SPARE, _FILES_PER_TASK, "open files (`ulimit -n`)"),
            (
                processes_max,
                _PROCESSES_SPARE + processes,
                _PROCESSES_PER_TASK,
                f"processes (`ulimit -u`), {processes} in use",
            ),
        )
        for most, spare, per_task, words in bounds:
            tasks = max(1, (most - spare) // per_task)
            if most >= 0 and tasks < self.tasks_max:
                self.tasks_max, self.short_of = tasks, f"{most} {words}"


def parse_arguments(arguments: list[str]) -> RunnerSettings:
    """Return the settings that these arguments ask for. Raises ValueError with a sentence for people."""
    settings = RunnerSettings()
    known = sorted(vars(settings))
    for name, value in zip(arguments[::2], [*arguments[1::2], ""], strict=False):
        field = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--") or field not in known:
            raise ValueError(f"unknown argument {name!r}; known: --{', --'.join(known)}")
        setattr(settings, field, type(getattr(settings, field))(value))
    if not settings.data_dir.startswith("/"):
        raise ValueError("--data_dir must be an absolute path")
    if settings.work_dir and not settings.work_dir.startswith("/"):
        raise ValueError("--work_dir must be an absolute path")
    if settings.tree not in TREE_MODES:
        raise ValueError(f"--tree must be one of {', '.join(TREE_MODES)}")
    return settings
