"""Supervisor of the open tasks of a runner.

It is the runner's own logic, between the loop, which owns the descriptors and the order of things on disk, and the
parts that touch processes. A task passes through `start` -> (journal durable) -> `launch` -> its child's answer -> its
leader's end -> `advance` until its tree is gone -> `over` -> (journal durable) -> reported.
"""

from __future__ import annotations

import os
from collections import deque

from stoker.agent.runner import clock
from stoker.agent.runner.files import publish_file
from stoker.agent.runner.log import complain
from stoker.agent.runner.output import spool
from stoker.agent.runner.output.copier import Pipes
from stoker.agent.runner.output.retention import OutputRetention
from stoker.agent.runner.process import procfs
from stoker.agent.runner.process.account import NOBODY, CannotStart, actor, fault_text, uid_said
from stoker.agent.runner.process.cgroup import Cgroups, TaskCgroup, TaskLimits
from stoker.agent.runner.process.launch import FolderBound, Launch, answer_of, cause_of, port_conflict
from stoker.agent.runner.process.launcher import Launcher
from stoker.agent.runner.process.tree import Trees
from stoker.agent.runner.session.exec_sessions import ExecSessions
from stoker.agent.runner.site_program import EPILOG, PROLOG, SitePrograms
from stoker.agent.runner.task import (
    ENDING,
    RUNNING,
    STARTING,
    WHOLE_GPU,
    Leases,
    RunnerTask,
    fields_of_end,
    site_fields,
    tell_place,
)
from stoker.agent.runner.task_output import TaskOutputs

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    from collections.abc import Callable, Iterator
    from typing import Final

    from stoker.agent.runner.container.tasks import TaskContainers
    from stoker.agent.runner.journal import Journal, StartRecord
    from stoker.agent.runner.protocol import OverFields, StartInstruction, TaskFields, WarningFields
    from stoker.agent.runner.settings import RunnerSettings
    from stoker.agent.runner.site_program import SiteProgram

    Watch = Callable[[int, RunnerTask], None]
    Close = Callable[[int], None]

_NOT_BEGUN: Final = "the runner was killed before it started its process"
_SIGNALS: Final = range(1, 65)


class Supervisor:
    """Every task from its start record to its end record."""

    def __init__(
        self, settings: RunnerSettings, journal: Journal, epoll: select.epoll, watch: Watch, close: Close
    ) -> None:
        """`watch` has the loop wait for a descriptor with `epoll`, until `close` closes it. Raises OSError."""
        self._settings, self._journal = settings, journal
        self._watch, self._close = watch, close
        self.cgroups = Cgroups(settings.data_dir, settings.tree)
        self.output_retention = OutputRetention(settings.data_dir, settings.spool_bytes_max, settings.work_dir)
        self.trees = Trees()
        self._launcher = Launcher(self.trees.helped)
        self._boot_id = procfs.boot_id()
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._site = SitePrograms(self.cgroups, self.trees, watch, close)
        self.tasks: dict[str, RunnerTask] = {}
        self.leases = Leases()
        self.sessions = ExecSessions(
            settings, epoll, self.tasks, self.trees, self.leases.silent_s, lambda: self.containers
        )
        self.recorded: list[RunnerTask] = []
        """Starts whose record isn't durable yet."""
        self.ready: deque[RunnerTask] = deque()
        """Starts whose record is."""
        self._outputs = TaskOutputs(self.output_retention, self.trees, watch, close, self.ready.append)
        self._containers: TaskContainers | None = None
        self._ending: dict[str, RunnerTask] = {}
        self.overs: list[OverFields] = []
        """Ends whose record isn't durable yet."""
        self.news: list[dict[str, object]] = []
        """For the agent, in order."""

    @property
    def containers(self) -> TaskContainers:
        """The containers of tasks; made when the first is needed, since most nodes never have any."""
        if self._containers is None:
            from stoker.agent.runner.container.tasks import TaskContainers

            self._containers = TaskContainers(self.cgroups, self.trees)
        return self._containers

    # --- told by the agent --------------------------------------------------------------------------------------

    def start(self, instruction: StartInstruction) -> None:
        """Record a task to start; of one that is known tell what is known."""
        key = instruction["key"]
        if self._journal.knows(key):
            self._answer_known(key)
            return
        mark = f"{key}.{os.urandom(8).hex()}"
        if instruction["container"] is None:
            group = self.cgroups.group(key, TaskLimits(instruction))
        else:
            group = self.containers.group(instruction)
        task = self.tasks[key] = RunnerTask(key, mark, instruction["gpus"], group)
        if instruction["container"] is not None:
            self.containers.begin(task, instruction["container"])
        task.gpu_share = instruction["gpu_share"]
        task.start = instruction
        self.leases.add(key, instruction["lease_ms"])
        self._journal.start(task.start_record(self._boot_id))
        if bound := self._settings.bound_reached(len(self.tasks), len(self._journal.offered)):
            self._fail(task, "never_started", bound)
        else:
            self.recorded.append(task)

    def stop(self, key: str, grace_ms: int, warning: WarningFields | None = None) -> None:
        """Terminate a task, and kill what is left of it after the grace; before that give it a warning, if any."""
        task = self.tasks.get(key)
        if task is None:
            return
        if task.start is not None:
            self._fail(task, "stopped", "stopped before its process was started")
            return
        if self._site.of(task) is not None:
            return  # none of the job's processes is left
        self.hear_answer(task)
        # Still no answer: nothing of the job has run that could use a grace.
        if task.answer >= 0:
            grace_ms, warning = 0, None
        if warning is not None and task.phase != ENDING:
            self._tell(task, warning)
        lead_s = warning["lead_ms"] / 1000 if warning else 0.0
        task.stop(grace_ms / 1000, self.trees, clock.boot_s(), lead_s)
        self._ending[key] = task

    def warn(self, key: str, warning: WarningFields, once: int) -> None:
        """Warn a task that runs, unless it was warned under this number."""
        task = self.tasks.get(key)
        if task is None or task.start is not None or task.phase == ENDING or task.warned == once:
            return
        self.hear_answer(task)
        if task.answer < 0:
            task.warned = once
            self._tell(task, warning)

    def _tell(self, task: RunnerTask, warning: WarningFields) -> None:
        """Tell a task that it is to go, by its file and then by a signal."""
        path = self.output_retention.notice_file(task.key, alone=task.container is not None)
        try:
            publish_file(path, warning["notice"])
        except OSError as error:  # the signal says it too
            complain(f"the notice of task {task.key} can't be written to {path}: {error}")
        if warning["number"] in _SIGNALS:
            self.trees.forward(task.tree, warning["number"])

    def signal(self, key: str, number: int) -> None:
        """Send a signal to every process of an open task, unless it isn't a program yet that could know its meaning."""
        task = self.tasks.get(key)
        if task is None or task.start is not None or number not in _SIGNALS:
            return
        self.hear_answer(task)
        if task.answer < 0:
            self.trees.forward(task.tree, number)

    def recall(self, key: str) -> None:
        """Report the end of a task again, if it has one, or that it is forgotten."""
        if not self._journal.knows(key):
            self.news.append({"say": "forgotten", "key": key})
        elif key not in self.tasks:
            self._answer_known(key)

    def _answer_known(self, key: str) -> None:
        """Report what is known of a task, which is never started a second time."""
        task = self.tasks.get(key)
        if task is None:
            over = self._journal.end_of(key)
            if over is not None and all(over["key"] != waiting["key"] for waiting in self.overs):
                self.news.append({"say": "over", **over})
            return
        if task.phase != STARTING and task.started_at:
            self._say_running(task)
        if task.phase == ENDING:
            self.news.append({"say": "ending", "key": key})

    # --- launching ----------------------------------------------------------------------------------------------

    def records_are_durable(self) -> None:
        """Let the recorded tasks be launched."""
        self.ready += self.recorded
        self.recorded.clear()

    def records_failed(self, error: str) -> None:
        """End the recorded tasks, since the disk took no record of them.

        That is reported at once: what the next runner may find of them says the same.
        """
        for task in self.recorded:
            if task.key in self.tasks:
                self._fail(task, "never_started", f"the runner's journal can't be written: {error}")
                self.news.append({"say": "over", **self.overs.pop()})
        self.recorded.clear()

    def launch(self, at_most: int) -> None:
        """Start the processes of at most so many tasks that are ready."""
        while self.ready and at_most > 0:
            task = self.ready.popleft()
            if task.start is None:
                continue  # stopped meanwhile
            at_most -= 1
            try:
                if task.prepared or not task.start["prolog"]:
                    self._launch(task, task.start)
                else:
                    self._site.begin(task, PROLOG, site_fields(task.start, task.start["prolog"]), clock.boot_s())
            except CannotStart as error:
                self._fail(task, cause_of(str(error), error.cause), str(error))
            except OSError as error:
                self._fail(task, "never_started", f"this node can't start it: {fault_text(error)}")

    def _launch(self, task: RunnerTask, start: StartInstruction) -> None:
        """Raises CannotStart, OSError."""
        account = actor(start["user"], self._settings.node, allow_root=start["allow_root"])
        if start["workdir"] and not start["workdir"].startswith("/"):
            raise CannotStart(f"the working directory {start['workdir'][:200]!r} isn't an absolute path")
        if conflict := port_conflict(start["probe_port"]) if start["probe_port"] else "":
            raise CannotStart(conflict, "port_taken")
        workdir = start["workdir"] or self.output_retention.workdir(task.key)
        script_folder = ""
        if start["script"]:
            account.owns(self.output_retention.workdir(task.key))
            script_folder = self.output_retention.script_folder(task.key)
        elif not start["workdir"]:
            account.owns(workdir)
        if not self._outputs.opened(task, start, workdir, account):
            return  # it comes again
        shown = tell_place(task, start, self.output_retention, {other.port for other in self.tasks.values()})
        if start["container"] is None:
            launch = Launch(start, (procfs.MARK_NAME, task.tree.mark), workdir, account, task.tree.group)
            self.sessions.surroundings.keep(task, start, workdir, clock.boot_s())
        else:
            launch = self.containers.launch(start, task.tree.mark, workdir, account, task.tree.group, shown)
        launch.keep_script(script_folder, start["script"])
        launch.keep_private_tmp(self.output_retention.private_tmp(task.key))
        launch.terminal = start["tty"]
        if self._settings.folder_bytes_max:
            job = int(task.key.partition(".")[0])
            ours = (start["folder"], "" if start["workdir"] else workdir)
            launch.bound = FolderBound(job, self._settings.folder_bytes_max, [folder for folder in ours if folder])
        # A later runner takes a task without this file for never started: it is made before the process is.
        limits = (self._settings.head_bytes_max, self._settings.tail_bytes_max)
        try:
            task.spool = spool.Spool(self.output_retention.output(task.key), *limits)
        except FileExistsError:
            words = "the agent has given it up, since this runner didn't answer"
            raise CannotStart(words, "never_started") from None
        task.tree.group.make()
        self._fork(task, launch)

    def _fork(self, task: RunnerTask, launch: Launch) -> None:
        pipes = task.copier.pipes if task.copier else Pipes()
        terminal = self.sessions.terminal(task, task.start) if task.start is not None and launch.terminal else -1
        streams = (terminal,) * 3 if launch.terminal else (self._null, pipes.output, pipes.error)
        task.tree.born_s = clock.boot_s()
        task.tree.pipe = os.fstat(pipes.output).st_ino
        task.tree.uid = NOBODY if launch.actor.name else None
        if launch.is_plain:
            launch.folder = self.output_retention.left_to_make(task.key, launch.folder)
        pid = 0
        try:
            pid, task.answer = self._launcher.fork(launch, streams)
        except OSError:
            pipes.close()
            raise
        finally:
            self.sessions.led(task, pid, terminal)
        pipes.close_task_ends()
        task.start, task.launch, task.output, task.result = None, launch, pipes.take(), launch.result
        task.epilog = self._journal.open[task.key].get("epilog")
        self.trees.add(task.tree)
        self.trees.led(task.tree, pid)
        self._journal.ran(task.key, pid, task.tree.birth)
        self._watch(task.output, task)
        self._watch(task.answer, task)

    def hear(self, descriptor: int, task: RunnerTask) -> None:
        """Read from the descriptor of a task that is readable."""
        if descriptor == task.answer:
            self.hear_answer(task)
        elif (program := self._site.of(task)) is not None and descriptor == program.output:
            self._site.hear(program)
        elif descriptor == task.output:
            self._outputs.take(task)
        elif task.copier is not None and descriptor == task.copier.line.fileno():
            self._outputs.hear(task)

    def hear_answer(self, task: RunnerTask) -> None:
        """Read what the child of a task says about becoming its program, unless it has said all."""
        reason = answer_of(task.answer, task.said) if task.answer >= 0 else None
        if reason is None:
            return
        self._close(task.answer)
        reason = task.launch.fault(reason) if task.launch is not None else reason
        task.answer, task.launch = -1, None
        if task.tree.uid is not None:
            task.tree.uid = uid_said(bytes(task.said))
        if reason and task.cause == "exited":
            task.cause, task.error = cause_of(reason), reason
        elif task.phase == STARTING:
            task.phase, task.started_at = RUNNING, clock.wall_ms()
            task.tree.drains = task.container is not None
            self._say_running(task)

    def _say_running(self, task: RunnerTask) -> None:
        self.news.append({"say": "running", "key": task.key, "pid": task.tree.pid, "at": task.started_at})

    # --- ending -------------------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Reap every child that has ended: leaders, and orphans that became ours."""
        now_s, any_reaped = clock.boot_s(), False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid = 0
            if pid == 0:
                break
            any_reaped = True
            self._outputs.reaped(pid)
            self._launcher.reaped(pid)
            self.sessions.reaped(pid, status, now_s)
            if self._containers is not None:
                self._containers.reaped(pid, status)
            tree = self.trees.reaped(pid)
            if tree is not None and not self._site.reaped(tree, status, now_s):
                self._leader_ended(self.tasks[tree.key], status, now_s)
        if any_reaped:
            self._site.look_again(now_s)
            for task in self._ending.values():
                task.check_s = now_s

    def _leader_ended(self, task: RunnerTask, status: int, now_s: float) -> None:
        self.hear_answer(task)
        self.sessions.leader_ended(task, status, now_s)
        if task.container is not None:
            self.containers.ended(task, status)
        task.leader_ended(status, now_s)
        self._ending[task.key] = task

    def advance(self) -> None:
        """Take the tasks that are ending, and due for a look, one step on."""
        now_s = clock.boot_s()
        self._ending |= self.sessions.advance()
        for program in self._site.over(now_s):
            self._site_program_over(self.tasks[program.key], program)
        for task in [task for task in self._ending.values() if task.check_s <= now_s]:
            if not task.tree.leading:
                killed, peak_mb = task.tree.group.memory()
                task.oom, task.peak_memory_mb = task.oom or killed, max(task.peak_memory_mb, peak_mb)
            gone = task.advance(self.trees, now_s) and self._outputs.finished(task, now_s)
            if gone and (task.container is None or self.containers.gone(task, now_s)):
                self._finish(task)
            else:
                self._say_ending(task)

    def _say_ending(self, task: RunnerTask) -> None:
        if not task.said_ending:
            task.said_ending = True
            self.news.append({"say": "ending", "key": task.key})

    def _site_program_over(self, task: RunnerTask, program: SiteProgram) -> None:
        """Go on with a task whose prolog or epilog is over. One whose prolog failed is never started."""
        fault, said = program.fault, program.said
        if fault or said.strip():
            told = {"key": task.key, "program": program.which, "fault": fault, "output": said}
            self.news.append({"say": "site", **told})
        task.node_fault = task.node_fault or fault
        if program.which == EPILOG:
            self._over(task)
            return
        task.prepared = True
        if not fault:
            task.epilog = self._journal.open[task.key].get("epilog")
        if task.start is None:  # given up meanwhile
            self._finish(task)
        elif fault:
            self._fail(task, "never_started", fault)
        else:
            self.ready.append(task)

    def _finish(self, task: RunnerTask) -> None:
        """Let the epilog follow a task of which no process is left, if it is to have one, and end it."""
        epilog, task.epilog = task.epilog, None
        if epilog is None:
            self._over(task)
            return
        task.phase = ENDING
        self._ending.pop(task.key, None)
        self.leases.drop(task.key)
        self.trees.drop(task.tree)
        self._say_ending(task)
        try:
            self._site.begin(task, EPILOG, epilog, clock.boot_s())
        except OSError as error:
            name = epilog["env"].get("STOKER_JOB_ID", task.key)
            task.node_fault = f"epilog of job {name} can't be started: {error.strerror or error}"
            self._over(task)

    def end_leases(self) -> None:
        """Kill the tasks that have outlived their leases; one that still waits for the disk is never started."""
        now_s = clock.boot_s()
        over = [(self.tasks[key], words) for key, words in self.leases.over(now_s)]
        for task, words in over:
            if task.start is not None:
                self._fail(task, "lease_ended", words)
            else:
                task.lapse(words, now_s)
                self._ending[task.key] = task
        self.trees.kill_together([task.tree for task, _ in over if task.key in self._ending])

    def next_check_s(self) -> float:
        """Return the boot time at which `advance` is due, in seconds; infinity = not before something happens."""
        first = min((task.check_s for task in self._ending.values()), default=float("inf"))
        return min(first, self._site.next_check_s, self.sessions.next_check_s)

    def _fail(self, task: RunnerTask, cause: str, error: str) -> None:
        """End a task that never had a process."""
        task.start, task.cause, task.error = None, cause, error
        task.tree.group.remove()
        self.leases.drop(task.key)
        if self._site.of(task) is None:  # else it is let finish its work, and undo it
            self._finish(task)

    def _over(self, task: RunnerTask) -> None:
        """End a task whose tree is gone. It is reported once its end record is durable."""
        self.sessions.task_over(task)
        self._outputs.end(task)
        if task.answer >= 0:
            self._close(task.answer)
        self.trees.drop(task.tree)
        self._ending.pop(task.key, None)
        self.leases.drop(task.key)
        del self.tasks[task.key]
        end = task.end_fields(clock.wall_ms())
        over: OverFields = {"key": task.key, "gpus": task.gpus, "started_at": task.started_at, "end": end}
        if task.gpu_share != WHOLE_GPU:
            over["gpu_share"] = task.gpu_share
        self._journal.end(over)
        self.overs.append(over)
        self.output_retention.ended(task.key, self.tasks)

    # --- what an earlier runner left ----------------------------------------------------------------------------

    def inherit(self) -> None:
        """End what an earlier runner left open, and report what became of each task."""
        known = [*self._journal.open, *self._journal.offered, *self._journal.settled]
        self.output_retention.recount(known)
        records = list(self._journal.open.values())
        self.cgroups.sweep({folder for record in records for folder in record["groups"]})
        for record in records:
            task = RunnerTask(record["key"], record["mark"], record["gpus"], TaskCgroup(record["groups"]))
            task.gpu_share = record.get("gpu_share", WHOLE_GPU)
            self.tasks[task.key] = task
            if record["boot"] != self._boot_id:
                self._fail(task, "node_rebooted", "the node was rebooted while it ran")
            elif record["pid"] or spool.exists(self.output_retention.output(task.key)):
                task.cause = "runner_lost"
                task.error = "the node's runner was killed while it ran; what was left of it was ended"
                self._sweep(task, record)
            elif "prolog" in record:
                task.cause, task.error = "never_started", _NOT_BEGUN
                self._sweep(task, record)
            else:
                self._fail(task, "never_started", _NOT_BEGUN)

    def _sweep(self, task: RunnerTask, record: StartRecord) -> None:
        """End what is left of a task, or of its prolog; its epilog may run a second time."""
        task.epilog = record.get("epilog")
        task.started_at = record["at"] if task.cause == "runner_lost" else 0
        task.container = record.get("container")
        task.tree.marked = task.container is not None
        task.tree.pid, task.tree.birth, task.tree.inherited = record["pid"], record["birth"], True
        self.trees.add(task.tree)
        task.kill(self.trees, clock.boot_s())
        self._ending[task.key] = task

    def inventory(self) -> Iterator[TaskFields]:
        """Yield every open task; one whose end isn't durable yet counts as ending."""
        yield from (task.fields for task in self.tasks.values())
        yield from map(fields_of_end, self.overs)
