"""Containers of the runner's tasks: how one is begun, what is known of it at its end, and the proof that it is gone.

Rules: N1  a task isn't over, and so its GPUs aren't offered, before its container is gone: its client has removed it,
           or a removal has found none with its label, or no engine listens that could have one
       N2  that is asked by a process of its own; one that fails is tried again, with longer and longer pauses, for as
           long as it takes
       N3  where the container was in the task's cgroup and had been started, the end of that cgroup is proof enough if
           the engine doesn't answer: it starts a container once. What is left of it on the engine's disk goes later
       N4  a container whose exit status is lost is the node's fault, not the job's: with its engine, or with its
           client, which nothing in a container can kill
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress

from stoker.agent.runner.container.cgroup import ContainerCgroup, container_cgroup
from stoker.agent.runner.container.launch import CLIENT, ContainerLaunch, ExecLaunch, become_client, memory_file
from stoker.agent.runner.container.names import EXEC_MARK, NO_ENGINE, REMOVED, REQUEST, TASK_LABEL
from stoker.agent.runner.container.request import container_name
from stoker.agent.runner.log import complain
from stoker.agent.runner.process.cgroup import TaskLimits
from stoker.agent.runner.process.kernel import default_signals, die_with
from stoker.agent.runner.process.launch import SIGNALS_OF_OURS
from stoker.agent.runner.process.procfs import MARK_NAME, mark_of, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from stoker.agent.runner.process.account import Actor
    from stoker.agent.runner.process.cgroup import Cgroups, TaskCgroup
    from stoker.agent.runner.process.tree import Trees
    from stoker.agent.runner.protocol import ContainerFields, StartInstruction
    from stoker.agent.runner.task import RunnerTask

_AGAIN_FIRST_S: Final = 0.5
_AGAIN_MAX_S: Final = 30.0
_REMOVAL_S: Final = 120.0
"""After which a removal is killed; by itself it gives up sooner."""
_KILLED: Final = 128 + signal.SIGKILL
"""As engines tell it."""
_RESULT_BYTES_MAX: Final = 64 * 1024
_CLIENT_KILLED: Final = (
    "the client of its container was killed by signal {signal}, which Stoker did not send; the container was ended, "
    "and its exit status is lost"
)


class _Removal:
    """The proof of one container's end, on its way."""

    def __init__(self) -> None:
        self.pid = 0
        """Of the process that asks now."""
        self.until_s = 0.0
        self.status: int | None = None
        self.again_s = 0.0
        self.pause_s = _AGAIN_FIRST_S
        self.told = False


def _ran_out(task: RunnerTask, status: int) -> bool:
    """Return whether a container was surely killed for its memory, although its engine doesn't say so.

    Podman's doesn't on version 1, where the kernel's count of such kills goes with the container's own cgroup. Killed
    by nobody here, with all of its memory in use, is as near as one can come there.
    """
    wanted_mb = task.tree.group.memory_mb
    if not wanted_mb or os.waitstatus_to_exitcode(status) != _KILLED:
        return False
    killed, peak_mb = task.tree.group.memory()
    return killed or peak_mb >= wanted_mb


class TaskContainers:
    """The containers of all open tasks."""

    def __init__(self, cgroups: Cgroups, trees: Trees) -> None:
        self._cgroups = cgroups
        self._trees = trees
        self._removals: dict[str, _Removal] = {}

    def group(self, start: StartInstruction) -> TaskCgroup:
        """Return the cgroup of a container, which isn't made yet; where it can have none, that of its client."""
        fields = start["container"]
        assert fields is not None, f"no container is asked for: {start['key']}"
        if fields["in_cgroup"]:
            group = container_cgroup(self._cgroups, start["key"], start["memory_mb"], start["pids_max"])
            if group is not None:
                return group
        return self._cgroups.group(start["key"], TaskLimits())

    def begin(self, task: RunnerTask, fields: ContainerFields) -> None:
        """Note that a task is to be a container."""
        contained = isinstance(task.tree.group, ContainerCgroup)
        task.container = {"socket": fields["socket"], "contained": contained}
        task.tree.marked = not contained

    def launch(
        self, start: StartInstruction, mark: str, workdir: str, account: Actor, group: TaskCgroup, shown: list[str]
    ) -> ContainerLaunch:
        """Return the launch of a container, which may read the paths that are `shown`. Raises CannotStart, OSError."""
        launch = ContainerLaunch(start, (MARK_NAME, mark), workdir, account, group)
        for path in shown:
            launch.own(path, read_only=True)
        return launch

    def beside(self, task: RunnerTask, argv: list[str], mark: str, *, tty: bool, term: str) -> ExecLaunch:
        """Return the launch of a program in the container of a task; `mark` is its own. Raises CannotStart, OSError."""
        assert task.container is not None, f"no container: {task.key}"
        name = container_name(task.key, task.tree.mark)
        return ExecLaunch(task.container["socket"], name, argv, mark, tty=tty, term=term)

    def end_beside(self, task: RunnerTask, mark: str) -> None:
        """Kill what was executed in a container with this mark, since its client can't any more."""
        for proc in self._trees.members(task.tree):
            if mark_of(proc.pid, EXEC_MARK) == mark:
                send(proc, signal.SIGKILL)

    def ended(self, task: RunnerTask, status: int) -> None:
        """Take what the client of a task has said before its end, which had this status."""
        if task.result < 0:
            return
        said = b""
        with suppress(OSError):
            said = os.pread(task.result, _RESULT_BYTES_MAX, 0)
        os.close(task.result)
        task.result = -1
        with suppress(ValueError):
            result = json.loads(said)
            task.container_gone, task.oom = bool(result["removed"]), task.oom or bool(result["oom"])
            task.oom = task.oom or (task.cause == "exited" and _ran_out(task, status))
            if result["lost"] and task.cause == "exited":  # N4
                task.cause, task.error = "runner_lost", str(result["lost"])
        if os.WIFSIGNALED(status) and task.cause == "exited":  # N4
            task.cause, task.error = "runner_lost", _CLIENT_KILLED.format(signal=os.WTERMSIG(status))

    def gone(self, task: RunnerTask, now_s: float) -> bool:
        """Return True once the container of a task, of which no process is left here, is proved gone (N1).

        Else its `check_s` says when to look again.
        """
        if task.container is None or task.container_gone:
            self._removals.pop(task.key, None)
            return True
        removal = self._removals.setdefault(task.key, _Removal())
        if removal.status is not None:
            code, removal.status = os.waitstatus_to_exitcode(removal.status), None
            had_run = task.started_at > 0 and not task.tree.inherited
            if code == REMOVED or (task.container["contained"] and (code == NO_ENGINE or had_run)):  # N3
                task.container_gone = True
                return self.gone(task, now_s)
            self._failed(task, removal, now_s)
        if not removal.pid and now_s >= removal.again_s:
            self._begin(task, removal, now_s)
        elif removal.pid and now_s >= removal.until_s:
            with suppress(ProcessLookupError):
                os.kill(removal.pid, signal.SIGKILL)
            removal.until_s = now_s + _REMOVAL_S
        task.check_s = removal.until_s if removal.pid else removal.again_s
        return False

    def reaped(self, pid: int, status: int) -> None:
        """Note that a child has ended, which may have been a removal."""
        for removal in self._removals.values():
            if removal.pid == pid:
                removal.pid, removal.status = 0, status

    def _failed(self, task: RunnerTask, removal: _Removal, now_s: float) -> None:
        """Try a removal again after a pause, and say once that the container isn't proved gone (N2)."""
        removal.again_s = now_s + removal.pause_s
        removal.pause_s = min(2 * removal.pause_s, _AGAIN_MAX_S)
        if not removal.told:
            removal.told = True
            complain(f"the container of task {task.key} isn't proved gone: its GPUs are held until it is")

    def _begin(self, task: RunnerTask, removal: _Removal, now_s: float) -> None:
        assert task.container is not None, f"no container: {task.key}"
        request = {"socket": task.container["socket"], "label": f"{TASK_LABEL}={task.tree.mark}"}
        runner = os.getpid()
        try:
            asked = memory_file(request)
            pid = os.fork()
        except OSError as error:
            complain(f"the container of task {task.key} can't be asked for: {error.strerror}")
            self._failed(task, removal, now_s)
            return
        if pid == 0:
            try:
                default_signals(SIGNALS_OF_OURS)
                os.setsid()
                die_with(runner)
                become_client((CLIENT, "remove"), {REQUEST: asked}, "")
            finally:
                os._exit(127)
        os.close(asked)
        self._trees.helped(pid)
        removal.pid, removal.until_s = pid, now_s + _REMOVAL_S
