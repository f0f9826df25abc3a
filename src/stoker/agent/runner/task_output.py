"""Output of tasks on its way from a task's pipe to its spool, and to files of its user where the task names such.

The runner reads a task's pipe and keeps what comes in the task's spool. A copier between the two, if the task names a
file, writes it to that file as well (`output.copier`).

Rules: Y1  a file is emptied by a job's first attempt only, and by the first task of that attempt that names it here
       Y2  no task is given a file while another task of its attempt is still opening, and perhaps emptying, it
       Y3  a task's end waits until its files have what it wrote, within a bound
"""

from __future__ import annotations

import os
from contextlib import suppress

from stoker.agent.runner.output import spool
from stoker.agent.runner.output.copier import ERROR, OUTPUT, PATIENCE_S, Target, fork_copier
from stoker.agent.runner.process.account import CannotStart
from stoker.agent.runner.protocol import parse_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from stoker.agent.runner.output.copier import Copier
    from stoker.agent.runner.output.retention import OutputRetention
    from stoker.agent.runner.process.account import Actor
    from stoker.agent.runner.process.tree import Trees
    from stoker.agent.runner.protocol import StartInstruction
    from stoker.agent.runner.task import RunnerTask

_BYTES_PER_TURN: Final = 128 * 1024
"""Read of one task's output before other tasks have their turn."""
_DRAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Read after a tree is gone: what the pipe held. A foreign process that holds the pipe can't keep the runner longer."""
_READ_BYTES: Final = 64 * 1024
_NAMED_MAX: Final = 8_192
"""Files remembered for Y1; the oldest go. An attempt's tasks start within seconds of each other."""


class TaskOutputs:
    """Output of all open tasks."""

    def __init__(
        self,
        retention: OutputRetention,
        trees: Trees,
        watch: Callable[[int, RunnerTask], None],
        close: Callable[[int], None],
        launch: Callable[[RunnerTask], None],
    ) -> None:
        """`watch` and `close` as for the supervisor; `launch` takes a task up again."""
        self._retention = retention
        self._trees = trees
        self._watch = watch
        self._close = close
        self._launch = launch
        self._named: dict[str, None] = {}
        self._opening: dict[str, list[RunnerTask]] = {}
        """File that a copier is opening -> tasks that wait for it."""
        self._copied: dict[int, RunnerTask] = {}
        """Pid of a copier -> its task."""

    # --- the pipe and the spool -----------------------------------------------------------------------------------

    def end(self, task: RunnerTask) -> None:
        """Take what the pipe still holds and let the copier go, now that no process of the task is left.

        Readers of its spool are told that no more will come.
        """
        if task.output >= 0:
            self.take(task, _DRAIN_BYTES_MAX)
        if task.output >= 0:
            self._close_output(task)
        with suppress(OSError):  # a reader goes on waiting for more until it asks for the task's state
            if task.spool is not None:
                task.spool.close()
            else:
                spool.seal(self._retention.output(task.key))
        copier = task.copier
        if copier is None:
            return
        self._release(copier)
        copier.pipes.close()
        if not copier.left:
            copier.late = True
            self._close(copier.line.detach())
            copier.kill()

    def take(self, task: RunnerTask, limit: int = _BYTES_PER_TURN) -> None:
        """Take what the readable pipe of a task holds, at most one turn's share."""
        assert task.spool is not None, f"output without a spool: {task.key}"
        while limit > 0 and task.output >= 0:
            try:
                received = os.read(task.output, _READ_BYTES)
            except BlockingIOError:
                return
            if not received:
                self._close_output(task)
                return
            task.spool.write(received)
            limit -= len(received)

    def _close_output(self, task: RunnerTask) -> None:
        self._close(task.output)
        task.output = -1

    # --- files of users -------------------------------------------------------------------------------------------

    def opened(self, task: RunnerTask, start: StartInstruction, workdir: str, actor: Actor) -> bool:
        """Return True once the files that a start names are open; else the task is launched again when they are.

        Raises: CannotStart when one can't be opened, OSError.
        """
        files = _files(start, workdir)
        if not files:
            return True
        if task.copier is None:
            self._open(task, start, files, actor)
            return False
        if task.copier.left:
            raise CannotStart(task.copier.words)
        return task.copier.opened

    def _open(self, task: RunnerTask, start: StartInstruction, files: dict[str, str], actor: Actor) -> None:
        """Raises OSError."""
        attempt = task.key.rpartition(".")[0]
        names = [f"{attempt} {path}" for path in files.values()]
        busy = next((name for name in names if name in self._opening), "")
        if busy:  # Y2
            self._opening[busy].append(task)
            return
        fresh = not start["append"] and parse_key(task.key)[1] == 1
        wanted = zip(files.items(), names, strict=True)
        targets = [Target(which, path, fresh=fresh and name not in self._named) for (which, path), name in wanted]
        task.copier = fork_copier(targets, names, actor, start["umask"])
        self._copied[task.copier.pid] = task
        self._trees.helped(task.copier.pid)
        self._watch(task.copier.line.fileno(), task)
        for name in names:
            self._opening[name] = []
            self._named[name] = None
        while len(self._named) > _NAMED_MAX:
            del self._named[next(iter(self._named))]

    def hear(self, task: RunnerTask) -> None:
        """Read what the copier of a task has said."""
        copier = task.copier
        assert copier is not None, f"nothing copies the output of {task.key}"
        if not copier.hear():
            self._close(copier.line.detach())
            task.check_s = 0.0
        if task.start is not None and (copier.opened or copier.left):
            self._release(copier)
            self._launch(task)

    def finished(self, task: RunnerTask, now_s: float) -> bool:
        """Return True once the files of a task, whose tree is gone, have what it wrote (Y3)."""
        copier = task.copier
        if copier is None or copier.left:
            return True
        if copier.until_s == 0.0:
            copier.until_s = now_s + PATIENCE_S
            copier.finish()
        task.check_s = copier.until_s
        return now_s >= copier.until_s

    def reaped(self, pid: int) -> None:
        """Note that a child has ended, which may have been a copier."""
        task = self._copied.pop(pid, None)
        if task is not None and task.copier is not None:
            task.copier.pid = 0

    def _release(self, copier: Copier) -> None:
        """Y2. Whoever waits for its files may try now."""
        for name in copier.names:
            for waiting in self._opening.pop(name, ()):
                self._launch(waiting)


def _files(start: StartInstruction, workdir: str) -> dict[str, str]:
    """OUTPUT and ERROR, where they go; only the first when both go to one."""
    files: dict[str, str] = {}
    for which, path in ((OUTPUT, start["output"]), (ERROR, start["error"])):
        path = os.path.normpath(os.path.join(workdir, path)) if path else ""
        if path and path not in files.values():
            files[which] = path
    return files
