"""Programs that people execute in running tasks: how one is launched, and what is kept for that of each task.

In a task that is a process the program is a process beside it. In one that is a container its place is taken by a
client of the engine, which serves the runner: what the program writes and is told passes through it, and it exits as
that does.

Rules: J1  a client that was killed leaves a program behind that nobody reads: that is killed, at once and, since it may
           have been about to begin, `AGAIN_S` later once more
       J2  a client doesn't outlive the task whose container it speaks of
"""

from __future__ import annotations

import json
import os
import signal
import zlib
from collections import deque
from contextlib import suppress

from stoker.agent.runner.process.account import actor
from stoker.agent.runner.process.launch import Launch
from stoker.agent.runner.process.procfs import MARK_NAME
from stoker.agent.runner.session.exec_session import NEVER, ExecSession, open_terminal
from stoker.agent.runner.task import ENDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final, Protocol

    from stoker.agent.runner.process.tree import Trees
    from stoker.agent.runner.protocol import StartInstruction
    from stoker.agent.runner.session.client import Opening
    from stoker.agent.runner.task import RunnerTask

    class ContainerExecs(Protocol):
        """Programs that are executed in containers, as `container.tasks` knows them."""

        def beside(self, task: RunnerTask, argv: list[str], mark: str, *, tty: bool, term: str) -> Launch: ...

        def end_beside(self, task: RunnerTask, mark: str) -> None: ...


PACK_S: Final = 1.0
AGAIN_S: Final = 5.0
_PACKS_PER_TURN: Final = 16
_KEPT: Final = ("env", "workdir", "user", "allow_root", "umask", "limits", "cpu_list", "private_tmp")


class SessionPrograms:
    """The programs of all sessions but those that are tasks themselves."""

    def __init__(self, node: str, trees: Trees, containers: Callable[[], ContainerExecs]) -> None:
        """`containers` makes, when it is first called, what knows of them."""
        self._node = node
        self._trees = trees
        self._containers = containers
        self._left: deque[tuple[float, RunnerTask, str]] = deque()
        """What is to be killed, when, of which task (J1)."""

    def begin(self, task: RunnerTask, opening: Opening, now_s: float) -> tuple[ExecSession, tuple[int, ...]]:
        """Execute a program in a task, and return its session and our ends of its streams. Raises CannotStart, OSError.

        In a container as its user, else as the task's account (Z1 of `exec_sessions`).
        """
        session = ExecSession(opening["session"], task.key, tty=opening["tty"], now_s=now_s)
        if task.container is not None:
            session.mark = f"{task.key}.{os.urandom(8).hex()}"
            launch = self._containers().beside(
                task, opening["argv"], session.mark, tty=opening["tty"], term=opening["term"]
            )
        else:
            launch = self._process(task, opening)
        ours, theirs = program_streams(opening)
        try:
            session.pid, session.answer = launch.fork(theirs)
        except OSError:
            for descriptor in dict.fromkeys(ours):
                os.close(descriptor)
            raise
        finally:
            for descriptor in dict.fromkeys(theirs):
                os.close(descriptor)
        if session.mark:
            self._trees.helped(session.pid)
        else:
            self._trees.joined(task.tree, session.pid)
        return session, ours

    def _process(self, task: RunnerTask, opening: Opening) -> Launch:
        """Raises CannotStart, OSError."""
        kept = unpacked(task)
        account = actor(kept["user"], self._node, allow_root=kept["allow_root"])
        if opening["tty"]:
            kept["env"]["TERM"] = opening["term"] or "xterm"
        kept |= {"shell": "", "argv": opening["argv"], "folder": ""}
        launch = Launch(kept, (MARK_NAME, task.tree.mark), kept["workdir"], account, task.tree.group)
        launch.terminal, launch.beside = opening["tty"], task.tree.pid
        return launch

    def ended(self, session: ExecSession, status: int, task: RunnerTask | None, now_s: float) -> None:
        """Note how the process of a session has ended (J1)."""
        if session.mark and os.WIFSIGNALED(status) and task is not None:
            self._containers().end_beside(task, session.mark)
            self._left.append((now_s + AGAIN_S, task, session.mark))

    def task_over(self, session: ExecSession) -> None:
        """Note that nothing is left of the task of a session (J2)."""
        if session.mark and session.status is None:
            with suppress(ProcessLookupError):
                os.kill(session.pid, signal.SIGKILL)

    def advance(self, now_s: float) -> None:
        """Do what is due (J1)."""
        while now_s >= self.due_s:
            _, task, mark = self._left.popleft()
            self._containers().end_beside(task, mark)

    @property
    def due_s(self) -> float:
        """Boot time at which something is."""
        return self._left[0][0] if self._left else NEVER


class Surroundings:
    """Environment, folder, account and limits of each task, for programs that are executed in it.

    They are kept as they came at first, and in a third of the bytes once the task has run for `PACK_S`: packing costs
    0.1 ms, which the many tasks that last a moment needn't pay.
    """

    def __init__(self) -> None:
        self._fresh: deque[tuple[float, RunnerTask]] = deque()

    def keep(self, task: RunnerTask, start: StartInstruction, workdir: str, now_s: float) -> None:
        """Keep those of a task that is about to start."""
        task.surroundings = start.copy()
        task.surroundings["workdir"] = workdir
        self._fresh.append((now_s + PACK_S, task))

    def pack(self, now_s: float) -> None:
        """Pack those that are due, a few at a time."""
        for _ in range(_PACKS_PER_TURN):
            if now_s < self.due_s:
                return
            _, task = self._fresh.popleft()
            if isinstance(task.surroundings, dict) and task.phase != ENDING:
                kept = {name: value for name, value in task.surroundings.items() if name in _KEPT}
                task.surroundings = zlib.compress(json.dumps(kept, separators=(",", ":")).encode(), 1)

    @property
    def due_s(self) -> float:
        """Boot time of the next one."""
        return self._fresh[0][0] if self._fresh else NEVER


def unpacked(task: RunnerTask) -> StartInstruction:
    """Return the surroundings of a task as part of a start, to be changed at will."""
    held = task.surroundings
    kept: StartInstruction = held.copy() if isinstance(held, dict) else json.loads(zlib.decompress(held))
    kept["env"] = dict(kept["env"])
    return kept


def program_streams(opening: Opening) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """Return our ends of a program's input, output and errors, and its own. Raises OSError."""
    if opening["tty"]:
        ours, theirs = open_terminal(opening["columns"], opening["rows"])
        return (ours, ours), (theirs, theirs, theirs)
    made: list[int] = []
    try:
        for _ in range(3):
            made += os.pipe2(os.O_CLOEXEC)
    except OSError:
        for descriptor in made:
            os.close(descriptor)
        raise
    mine = (made[1], made[2], made[4])
    for descriptor in mine:
        os.set_blocking(descriptor, False)
    return mine, (made[0], made[3], made[5])
