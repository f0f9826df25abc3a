"""Programs of the site that a node runs around each task: its prolog before it, its epilog once its tree is gone.

They are the operator's, and run as the runner's account, which may be root. So nothing of the job reaches them but what
the agent says of it: no PATH, no library path, no folder.

Rules: V1  a program runs once per task, in a session and, where one can be made, a cgroup of its own
       V2  what a program leaves behind is ended with it; so is the program itself after `site_timeout_s`
       V3  one that exits other than 0, is killed or can't be started is a fault of the node, told in one sentence with
           the last line that it wrote
       V4  a program that can't be killed is given up `GIVE_UP_S` later: no process of the job depends on it
       V5  it is looked at anew before each run: whoever could change it could be root
       V6  of what it writes the last `OUTPUT_BYTES_MAX` bytes are told
"""

from __future__ import annotations

import os
import stat

from stoker.agent.runner.process import procfs
from stoker.agent.runner.process.account import error_text
from stoker.agent.runner.process.cgroup import TaskLimits
from stoker.agent.runner.process.kernel import default_signals, die_with, fork_into, lower_limits
from stoker.agent.runner.process.launch import SIGNALS_OF_OURS
from stoker.agent.runner.process.tree import Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from stoker.agent.runner.process.cgroup import Cgroups
    from stoker.agent.runner.process.tree import Trees
    from stoker.agent.runner.protocol import SiteFields
    from stoker.agent.runner.task import RunnerTask


PROLOG: Final = "prolog"
EPILOG: Final = "epilog"
GIVE_UP_S: Final = 10.0
OUTPUT_BYTES_MAX: Final = 4_096
_LINE_MAX: Final = 200
"""Characters of the last line that a fault repeats."""
_READ_BYTES: Final = 64 * 1024
_READS_PER_TURN: Final = 4
_RECHECK_S: Final = 0.02


class SiteProgram:
    """One run of a program around one task."""

    def __init__(self, key: str, which: str, site: SiteFields, mark: str, cgroups: Cgroups) -> None:
        self.key = key
        self.which = which
        self.tree = Tree(f"{key}.{which}", mark, cgroups.group(f"{key}.{which}", TaskLimits()))
        self.output = -1
        """Read end of the pipe that it writes to. -1 = closed."""
        self.check_s = 0.0
        """When to look at it again."""
        self._site = site
        self._tail = bytearray()
        self._status: int | None = None
        self._killed_s = 0.0
        self._timed_out = False
        self._until_s = 0.0

    @property
    def name(self) -> str:
        """Such as `prolog of job 7`."""
        return f"{self.which} of job {self._site['env'].get('STOKER_JOB_ID', self.key)}"

    def start(self, null: int, trees: Trees, now_s: float) -> None:
        """Start it (V1). Raises OSError."""
        self.tree.group.make()
        self.tree.born_s = now_s
        self.output, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.tree.pipe = os.fstat(write_end).st_ino
        try:
            os.set_blocking(write_end, True)  # its end is its own; ours stays as it is
            runner = os.getpid()
            pid, born_inside = fork_into(self.tree.group.born_in)
            if pid == 0:
                self._become((null, write_end, write_end), runner, born_inside=born_inside)
        finally:
            os.close(write_end)
        trees.add(self.tree)
        trees.led(self.tree, pid)
        self._until_s = self.check_s = now_s + self._site["timeout_s"]

    def _become(self, streams: tuple[int, int, int], runner: int, *, born_inside: bool) -> None:
        """In the child. Never returns."""
        path, words = self._site["path"], "the runner's child failed before it could become the program"
        try:
            default_signals(SIGNALS_OF_OURS)
            os.setsid()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            self.tree.group.enter(born_inside)
            die_with(runner)
            os.chdir("/")
            os.umask(0o022)
            lower_limits({})
            words = program_fault(path)
            if not words:
                os.execve(path, [path], {procfs.MARK_NAME: self.tree.mark, **self._site["env"]})
        except OSError as error:
            words = f"{path} can't be run: {error_text(error)}"
        finally:
            os.write(2, words.encode("utf-8", "replace"))
            os._exit(127)

    def hear(self) -> bool:
        """Take what it has written (V6). False = no more will come."""
        for _ in range(_READS_PER_TURN):
            try:
                received = os.read(self.output, _READ_BYTES)
            except BlockingIOError:
                return True
            if not received:
                return False
            self._tail += received
            del self._tail[:-OUTPUT_BYTES_MAX]
        return True

    def ended(self, status: int, now_s: float) -> None:
        """Note that it was reaped."""
        self._status, self.check_s = status, now_s

    def look_at(self, now_s: float) -> None:
        """Look at it soon, if it has ended and something of it may be left."""
        if self._status is not None:
            self.check_s = now_s

    def advance(self, trees: Trees, now_s: float) -> bool:
        """Look whether it is over, and take it one step on if it isn't (V2, V4)."""
        if self._status is not None and trees.gone(self.tree):
            return True
        if self._killed_s and now_s >= self._killed_s + GIVE_UP_S:
            return True
        if self._status is None and now_s < self._until_s:
            self.check_s = self._until_s
            return False
        self._killed_s = self._killed_s or now_s
        self._timed_out = self._timed_out or self._status is None
        trees.kill(self.tree)
        self.check_s = now_s + _RECHECK_S
        return False

    @property
    def fault(self) -> str:
        """Fault of the node, in one sentence, once the program is over (V3); empty = none."""
        if self._timed_out:
            words = f"took more than {self._site['timeout_s']} s and was killed"
        elif not self._status:
            return ""
        else:
            code = os.waitstatus_to_exitcode(self._status)
            words = f"exited {code}" if code >= 0 else f"was killed by signal {-code}"
        lines = [line for line in self.said.splitlines() if line.strip()]
        return f"{self.name} {words}" + (f": {lines[-1].strip()[:_LINE_MAX]}" if lines else "")

    @property
    def said(self) -> str:
        """The end of what it wrote, as plain text."""
        text = bytes(self._tail).decode("utf-8", "replace")
        return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def program_fault(path: str) -> str:
    """Return why a program of the site may not be run (V5); empty = it may."""
    if not path.startswith("/"):
        return f"{path[:200]!r} isn't an absolute path"
    try:
        seen = os.stat(path)
    except OSError as error:
        return f"{path} can't be looked at: {error_text(error)}"
    if not stat.S_ISREG(seen.st_mode) or not os.access(path, os.X_OK):
        return f"{path} isn't a program that can be run"
    if seen.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to uid {seen.st_uid}, who could change it: it must be root's, or of the agent's account"
    if seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{path} may be changed by others (mode {stat.S_IMODE(seen.st_mode):o}): `chmod go-w {path}`"
    return ""


class SitePrograms:
    """Programs of the site that run now, at most one for each task."""

    def __init__(
        self, cgroups: Cgroups, trees: Trees, watch: Callable[[int, RunnerTask], None], close: Callable[[int], None]
    ) -> None:
        """`watch` and `close` as for the supervisor."""
        self._cgroups = cgroups
        self._trees = trees
        self._watch = watch
        self._close = close
        self._running: dict[str, SiteProgram] = {}
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def of(self, task: RunnerTask) -> SiteProgram | None:
        """Return the program that runs for a task."""
        return self._running.get(task.key)

    def begin(self, task: RunnerTask, which: str, site: SiteFields, now_s: float) -> None:
        """Start a program for a task. Raises OSError."""
        program = SiteProgram(task.key, which, site, task.tree.mark, self._cgroups)
        try:
            program.start(self._null, self._trees, now_s)
        except OSError:
            if program.output >= 0:
                os.close(program.output)
            program.tree.group.remove()
            raise
        self._running[task.key] = program
        self._watch(program.output, task)

    def hear(self, program: SiteProgram) -> None:
        """Take what a program has written."""
        if not program.hear():
            self._close(program.output)
            program.output = -1

    def reaped(self, tree: Tree, status: int, now_s: float) -> bool:
        """Return True if the leader that was reaped was a program of the site."""
        for program in self._running.values():
            if program.tree is tree:
                program.ended(status, now_s)
                return True
        return False

    def look_again(self, now_s: float) -> None:
        """Look at every program soon, since a child has ended that one of them may have left behind."""
        for program in self._running.values():
            program.look_at(now_s)

    def over(self, now_s: float) -> list[SiteProgram]:
        """Take every program that is due for a look one step on, and return those that are over."""
        due = [program for program in self._running.values() if program.check_s <= now_s]
        over = [program for program in due if program.advance(self._trees, now_s)]
        for program in over:
            del self._running[program.key]
            if program.output >= 0:
                program.hear()
                self._close(program.output)
                program.output = -1
            self._trees.drop(program.tree)
            program.tree.group.remove()
        return over

    @property
    def next_check_s(self) -> float:
        """Boot time of the next look; infinity = not before something happens."""
        return min((program.check_s for program in self._running.values()), default=float("inf"))
