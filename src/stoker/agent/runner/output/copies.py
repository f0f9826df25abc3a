"""Which tasks' output goes to files of their users, and which of them waits for such a file?

Rules: Y1  a file is emptied by a job's first attempt only, and by the first task of that attempt that names it here
       Y2  nobody is given a file while another task of its attempt is still opening, and perhaps emptying, it
       Y3  a task's end waits until its files have what it wrote, within a bound
"""

from __future__ import annotations

import os

from stoker.agent.runner.output.copier import ERROR, OUTPUT, PATIENCE_S, Target, fork_copier
from stoker.agent.runner.process.launch import CannotStart
from stoker.agent.runner.protocol import parse_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from stoker.agent.runner.output.copier import Copier
    from stoker.agent.runner.process.account import Actor
    from stoker.agent.runner.process.tree import Trees
    from stoker.agent.runner.protocol import StartInstruction
    from stoker.agent.runner.task import RunnerTask

_NAMED_MAX: Final = 8_192
"""Files remembered for Y1; the oldest go. An attempt's tasks start within seconds of each other."""


class Copies:
    def __init__(
        self,
        trees: Trees,
        watch: Callable[[int, RunnerTask], None],
        unwatch: Callable[[int], None],
        launch: Callable[[RunnerTask], None],
    ) -> None:
        """`watch` and `unwatch` tell the loop which descriptors to wait for; `launch` takes a task up again."""
        self._trees = trees
        self._watch = watch
        self._unwatch = unwatch
        self._launch = launch
        self._named: dict[str, None] = {}
        self._opening: dict[str, list[RunnerTask]] = {}
        """By file: who waits for it, while somebody opens it."""
        self._tasks: dict[int, RunnerTask] = {}
        """By the copier's pid."""

    def opened(self, task: RunnerTask, order: StartInstruction, workdir: str, actor: Actor) -> bool:
        """Are the files that the order names open? Else the task will be taken up again.

        Raises CannotStart when one can't be opened, OSError.
        """
        files = _files(order, workdir)
        if not files:
            return True
        if task.copier is None:
            self._open(task, order, files, actor)
            return False
        if task.copier.left:
            raise CannotStart(task.copier.words)
        return task.copier.opened

    def _open(self, task: RunnerTask, order: StartInstruction, files: dict[str, str], actor: Actor) -> None:
        """Raises OSError."""
        attempt = task.key.rpartition(".")[0]
        names = [f"{attempt} {path}" for path in files.values()]
        busy = next((name for name in names if name in self._opening), "")
        if busy:  # Y2
            self._opening[busy].append(task)
            return
        fresh = not order["append"] and parse_key(task.key)[1] == 1
        wanted = zip(files.items(), names, strict=True)
        targets = [Target(which, path, fresh=fresh and name not in self._named) for (which, path), name in wanted]
        task.copier = fork_copier(targets, names, actor)
        self._tasks[task.copier.pid] = task
        self._trees.helped(task.copier.pid)
        self._watch(task.copier.line.fileno(), task)
        for name in names:
            self._opening[name] = []
            self._named[name] = None
        while len(self._named) > _NAMED_MAX:
            del self._named[next(iter(self._named))]

    def hear(self, task: RunnerTask) -> None:
        """Its copier has said something."""
        copier = task.copier
        assert copier is not None, f"nothing copies the output of {task.key}"
        if not copier.hear():
            self._leave(copier)
            task.check_s = 0.0
        if task.order is not None and (copier.opened or copier.left):
            self._release(copier)
            self._launch(task)

    def finished(self, task: RunnerTask, now_s: float) -> bool:
        """Y3. Its tree is gone."""
        copier = task.copier
        if copier is None or copier.left:
            return True
        if copier.until_s == 0.0:
            copier.until_s = now_s + PATIENCE_S
            copier.finish()
        task.check_s = copier.until_s
        return now_s >= copier.until_s

    def drop(self, task: RunnerTask) -> None:
        """It is over, with or without having begun."""
        copier = task.copier
        if copier is None:
            return
        self._release(copier)
        copier.pipes.close()
        if not copier.left:
            copier.late = True
            self._leave(copier)
            copier.kill()

    def reaped(self, pid: int) -> None:
        task = self._tasks.pop(pid, None)
        if task is not None and task.copier is not None:
            task.copier.pid = 0

    def _release(self, copier: Copier) -> None:
        """Y2. Whoever waits for its files may try now."""
        for name in copier.names:
            for waiting in self._opening.pop(name, ()):
                self._launch(waiting)

    def _leave(self, copier: Copier) -> None:
        self._unwatch(copier.line.fileno())
        copier.line.close()


def _files(order: StartInstruction, workdir: str) -> dict[str, str]:
    """OUTPUT and ERROR, where they go; only the first when both go to one."""
    files: dict[str, str] = {}
    for which, path in ((OUTPUT, order["output"]), (ERROR, order["error"])):
        path = os.path.normpath(os.path.join(workdir, path)) if path else ""
        if path and path not in files.values():
            files[which] = path
    return files
