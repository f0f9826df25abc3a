"""Launch of a task's first process.

It is a fork of the runner: the child makes its session, enters its cgroup, becomes the job's user, takes its folder and
output, and becomes the program. Why not posix_spawn, which is 0.4 ms cheaper: the parent would stand still until the
exec is done, and one hung network file system would stop every cancel on the node; the runner itself would have to
visit the job's folder and cgroup; and no other user could be taken on.

The child answers on a pipe that the exec closes: nothing = it runs, else why not. No Python starts per job.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
from contextlib import suppress

from stoker.agent.runner.files import opened, write_all
from stoker.agent.runner.process.account import CannotStart, child_error_text, error_text, is_of, plain
from stoker.agent.runner.process.fork_server import CHECKPOINTS, FOLDER, LIMITS, PROGRAM, SAYS_STEP
from stoker.agent.runner.process.kernel import (
    allow_limits,
    bound_project,
    default_signals,
    die_with,
    fork_into,
    join_mounts,
    join_project,
    lower_limits,
    mount_privately,
    take_terminal,
)
from stoker.agent.runner.protocol import ENGINE_FAULT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Final

    from stoker.agent.runner.process.account import Actor
    from stoker.agent.runner.process.cgroup import TaskCgroup
    from stoker.agent.runner.protocol import StartInstruction

_DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
"""Searched when the job's environment has no PATH."""
_REASON_BYTES_MAX: Final = 4096
_OWN_PORTS: Final = (*range(10_000, 20_000), *range(30_000, 32_768))
"""Ports for tasks alone: below Linux's ephemeral range, whose ports any connection may take, and on both sides of those
that the engine gives to gangs by default."""
_OWN_PORT_TRIES_MAX: Final = 1_000
"""Some 40 ms."""
_PROJECTS_BEGIN: Final = 1 << 30
_PROJECTS_MAX: Final = 1 << 20
"""Numbers of projects that are ours, so that a file system keeps at most 75 MB about them; jobs so far apart share."""
NO_LIMITS: Final = "this node can't give a job its limits"
FAILED_EARLY: Final = "the runner's child failed before it could become the program"
_NODE_LACKS: Final = ("(EMFILE)", "(ENFILE)", "(ENOMEM)")
_OF_THE_NODE: Final = (*_NODE_LACKS, "(EAGAIN)", "(ENOSPC)", "(EROFS)", "(EIO)")
"""How a reason ends that is no fault of the job: the node has too few processes, open files or memory, or a disk that
is full, read-only or broken."""
_NAMED_BY_JOB: Final = ("cannot write its ", "cannot use the working directory ")
"""How a reason begins that is about a place that the job named, which may be full, read-only or broken for years:
jobs of one person that name such a place must not pass for a sick node, which then pauses for everybody."""
_MAYBE_ELSEWHERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EACCES)
"""The program may be in the next folder of the PATH."""
_NAME_BYTES_MAX: Final = 255
PRIVATE_PLACES: Final = ("/tmp", "/var/tmp")
SIGNALS_OF_OURS: Final = tuple(
    int(number)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
)
"""The runner's handlers would swallow a signal between fork and exec; Python ignores the last two."""


class FolderBound:
    """Bound for what the folders of a job may hold on one file system, where that keeps project quotas.

    A job of another account could give its files another project: this guards against accidents.
    """

    def __init__(self, job: int, bytes_max: int, folders: list[str]) -> None:
        self._project = _PROJECTS_BEGIN + job % _PROJECTS_MAX
        self._bytes_max = bytes_max
        self._folders = folders

    def keep(self) -> None:
        """Set the bound. In the child, while it is root; others can't."""
        for folder in self._folders:
            while not os.path.isdir(folder):
                folder = os.path.dirname(folder)
            with suppress(OSError):
                bound_project(folder, self._project, self._bytes_max)

    def join(self) -> None:
        """Count the folders. In the child, as their owner; files that were made before count as they did."""
        for folder in self._folders:
            with suppress(OSError):
                join_project(folder, self._project)


class Launch:
    """All that the child needs, prepared before the fork so that the child only has to make system calls."""

    def __init__(
        self, start: StartInstruction, mark: tuple[str, str], workdir: str, actor: Actor, group: TaskCgroup
    ) -> None:
        """`mark`: name and value of the variable by which the task's processes are found. Raises CannotStart."""
        env = {mark[0]: mark[1], **start["env"]}
        env[mark[0]] = mark[1]
        words = ["/bin/sh", "-c", start["shell"]] if start["shell"] else list(start["argv"])
        if not words or not words[0]:
            raise CannotStart("the command is empty")
        self.argv = [_bytes(word, "an argument") for word in words]
        self.env = {_name(name): _bytes(value, f"the variable {name}") for name, value in env.items()}
        self.workdir = workdir
        self.actor = actor
        self.umask = start["umask"]
        self.limits = {_limit(name): (soft, hard) for name, (soft, hard) in start["limits"].items()}
        actor.writes_to(1, 2)
        self.folder = start["folder"]
        if self.folder:
            actor.owns(self.folder)
        self.bound: FolderBound | None = None
        self.terminal = False
        """Its standard input is a terminal, which becomes its own (controlling) one."""
        self.paths = _candidates(words[0], env.get("PATH", _DEFAULT_PATH))
        self.group = group
        self.cpu_list = start["cpu_list"]
        self._has_private_tmp = start["private_tmp"] and os.geteuid() == 0
        self._private_tmp: dict[str, str] = {}
        self.beside = 0
        """Process of the task beside which it is executed: what that sees at /tmp it sees too. 0 = it is the first."""
        self.result = -1
        """What the first process says at its end, where that is known to say something. -1 = nothing."""
        self._script = b""
        self._script_path = ""

    def keep_script(self, folder: str, text: str) -> None:
        """Run this script, kept in `folder` under the name that the command has, with the rest of the command.

        Its interpreter is started as the kernel would start it, but named here: it needs no permission to be run, and
        what is wrong with its first line is told. Raises CannotStart.
        """
        if not text:
            return
        name = self.argv[0].rpartition(b"/")[2]
        if name in (b"", b".", b".."):
            name = b"script"
        self._script = _bytes(text, "the script")
        self._script_path = f"{folder}/{os.fsdecode(name[-_NAME_BYTES_MAX:])}"
        self.argv = [*interpreter_of(self._script), os.fsencode(self._script_path), *self.argv[1:]]
        self.paths = [os.fsdecode(self.argv[0])]

    def keep_private_tmp(self, folder: str) -> None:
        """Let it see folders of its own, inside this one, where others see /tmp and /var/tmp, if it is to have them."""
        for place in PRIVATE_PLACES if self._has_private_tmp else ():
            own = self._private_tmp[place] = f"{folder}{place}"
            self.actor.owns(own)

    @property
    def is_plain(self) -> bool:
        """Whether its child has nothing to do but what system calls do that can be prepared (`fork_server`)."""
        asked = self.actor.name or self.bound or self._private_tmp or self._script_path or self.terminal
        return not (asked or self.beside)

    def fault(self, said: str) -> str:
        """Return why the child couldn't become the program, from what it, or that of a fork server, said."""
        if not said.startswith(SAYS_STEP):
            return said
        step, *numbers = said[len(SAYS_STEP) :].split()
        errors = list(map(int, numbers))
        if step == PROGRAM:
            return self._program_fault(errors)
        if step == FOLDER:
            return self._folder_fault(errors[0])
        if step == CHECKPOINTS:
            return self._checkpoints_fault(errors[0], os.getuid())
        if step == LIMITS:
            return f"{NO_LIMITS}: {os.strerror(errors[0])}; its agent.yaml sets executor.limits"
        return _cgroup_fault(OSError(errors[0], os.strerror(errors[0])))

    def fork(self, streams: tuple[int, int, int]) -> tuple[int, int]:
        """Fork the child and return its pid and the pipe of its answer. Raises OSError.

        `streams` become the child's standard input, output and error.
        """
        answer, reply = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        runner = os.getpid()
        try:
            pid, born_inside = fork_into(self.group.born_in)
        except OSError:
            os.close(answer)
            os.close(reply)
            raise
        if pid == 0:
            self._become(streams, reply, runner, born_inside=born_inside)
        os.close(reply)
        return pid, answer

    def _become(self, streams: tuple[int, int, int], reply: int, runner: int, *, born_inside: bool) -> None:
        """In the child. Never returns."""
        reason = FAILED_EARLY  # also where what follows raises
        try:
            default_signals(SIGNALS_OF_OURS)
            os.setsid()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            if self.terminal:
                self._take_terminal()
            said = self._enter(born_inside, reply)
            if not said:
                die_with(runner)
                os.umask(self.umask)  # not before: the folders on the way to its own are for others too
                said = self._lower_limits() or self._exec()
            reason = said
        finally:
            os.write(reply, plain(reason.encode("utf-8", "surrogateescape"))[:_REASON_BYTES_MAX])
            os._exit(127)

    def _take_terminal(self) -> None:
        """Raises OSError."""
        take_terminal()

    def _enter(self, born_inside: bool, reply: int) -> str:
        """Into cgroup, account and folders. Answers why not."""
        try:
            self.group.enter(born_inside)
        except OSError as error:
            return _cgroup_fault(error)
        if self.cpu_list:
            with suppress(OSError):  # a CPU that went offline: it runs on all of them
                os.sched_setaffinity(0, self.cpu_list)
        if self.bound is not None:
            self.bound.keep()
        try:
            self._take_private_tmp()
        except OSError as error:
            return f"it can't have a /tmp of its own: {error_text(error)}; executor.private_tmp wants CAP_SYS_ADMIN"
        try:
            allow_limits(self.limits)
        except (OSError, ValueError) as error:
            return f"{NO_LIMITS}: {error}; its agent.yaml sets executor.limits"
        try:
            self.env.update(self.actor.take_on(lambda words: os.write(reply, words)))
        except CannotStart as error:
            return str(error)
        reason = self._write_script() or self._make_folder()
        if self.bound is not None:
            self.bound.join()
        return reason or self._change_folder()

    def _take_private_tmp(self) -> None:
        """Raises OSError."""
        if self._has_private_tmp and self.beside:
            join_mounts(self.beside)
        for own in self._private_tmp.values():
            os.makedirs(own, 0o711)
            os.chmod(own, 0o1777 if not self.actor.name else 0o700)
        if self._private_tmp:
            mount_privately(self._private_tmp)

    def _lower_limits(self) -> str:
        """Not before all else: the runner may have more files open than the program may. Answers why not."""
        try:
            lower_limits(self.limits)
        except (OSError, ValueError) as error:
            return f"{NO_LIMITS}: {error}; the limits of the runner were changed while it ran: start it anew"
        return ""

    def _write_script(self) -> str:
        """As the job's account, into a folder that is its own. Answers why not."""
        if not self._script_path:
            return ""
        try:
            os.makedirs(os.path.dirname(self._script_path), 0o700)
            with opened(self._script_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW) as file:
                write_all(file, self._script)
                os.fchmod(file, 0o700)
        except OSError as error:
            return f"cannot keep the job's script at {self._script_path}{self.actor.words}: {error_text(error)}"
        return ""

    def _make_folder(self) -> str:
        if not self.folder:
            return ""
        try:
            os.makedirs(self.folder, 0o700, exist_ok=True)
            if not is_of(self.folder, os.getuid()):
                return self._checkpoints_fault(0, os.getuid())
            with suppress(OSError):
                os.utime(self.folder)  # whoever removes old ones sees that it is used
        except OSError as error:
            return self._checkpoints_fault(error.errno or errno.EIO, os.getuid())
        return ""

    def _checkpoints_fault(self, number: int, uid: int) -> str:
        """`number` 0: it is there, and isn't a folder of this account's."""
        if number:
            return f"no folder for checkpoints, {self.folder}{self.actor.words}: {_number_text(number)}"
        whose = f"user {self.actor.name!r}" if self.actor.name else f"uid {uid}, which the job has here"
        return f"the folder for checkpoints, {self.folder}, isn't a folder of {whose}; move it away, or give it"

    def _change_folder(self) -> str:
        try:
            os.chdir(self.workdir)
        except OSError as error:
            return self._folder_fault(error.errno or errno.EIO)
        return ""

    def _folder_fault(self, number: int) -> str:
        is_closed = self.actor.name and number == errno.EACCES
        closed = "; that user must be able to enter each folder on the way" if is_closed else ""
        return f"cannot use the working directory {self.workdir}{self.actor.words}: {_number_text(number)}{closed}"

    def _exec(self) -> str:
        """Answers why none of the candidates could be run."""
        errors: list[int] = []
        for path in self.paths:
            # A failed execve costs Python 20 us, a look 2 us, and a PATH has a dozen folders.
            if len(self.paths) > 1 and not os.access(path, os.F_OK):
                errors.append(errno.ENOENT)
                continue
            try:
                os.execve(path, self.argv, self.env)
            except OSError as error:
                errors.append(error.errno or errno.EIO)
                if errors[-1] not in _MAYBE_ELSEWHERE:
                    break
        return self._program_fault(errors)

    def _program_fault(self, errors: list[int]) -> str:
        """The most telling of the reasons why the candidates, in their order, couldn't be run."""
        by_error = dict(zip(reversed(errors), reversed(self.paths[: len(errors)]), strict=True))
        number = errors[-1] if errors[-1] not in _MAYBE_ELSEWHERE else errno.EACCES
        if number in by_error:
            return f"cannot run {by_error[number]}{self.actor.words}: {_number_text(number)}"
        word = self.argv[0].decode("utf-8", "replace")
        if self._script_path:
            ended = "; the line ends as on Windows: `dos2unix` mends it" if word.endswith("\r") else ""
            return f"cannot run {word!r}, which the first line of the job's script names: there is no such file{ended}"
        where = f"in the job's PATH ({len(self.paths)} folders)" if "/" not in word else f"from {self.workdir}"
        return f"cannot run {word}: No such file or directory {where}; or its interpreter is missing"


def _number_text(number: int) -> str:
    return error_text(OSError(number, os.strerror(number)))


def _cgroup_fault(error: OSError) -> str:
    return f"cannot enter its cgroup: {error_text(error)}"


def interpreter_of(script: bytes) -> list[bytes]:
    """Return the program that runs a script, and at most one argument of its first line; without a `#!` it is a shell.

    Source: execve(2), interpreter scripts. Raises CannotStart.
    """
    line = script.partition(b"\n")[0]
    if not line.startswith(b"#!"):
        return [b"/bin/sh"]
    program, _, argument = line[2:].replace(b"\t", b" ").strip(b" ").partition(b" ")
    if not program:
        raise CannotStart("the first line of the job's script begins with #! and names no program")
    return [program, *filter(None, (argument.strip(b" "),))]


def answer_of(pipe: int, said: bytearray) -> str | None:
    """Return all that the child said, once it says no more: empty = it runs. None = not yet. `said` keeps the parts."""
    try:
        while part := os.read(pipe, _REASON_BYTES_MAX):
            said += part
    except BlockingIOError:
        return None
    return child_error_text(bytes(said))


def cause_of(reason: str, otherwise: str = "start_failed") -> str:
    """Return the cause of the end of a task that could not start, by how the reason begins and ends."""
    faults = _NODE_LACKS if reason.startswith(_NAMED_BY_JOB) else _OF_THE_NODE
    return (
        "never_started"
        if reason.endswith(faults) or reason.startswith((NO_LIMITS, FAILED_EARLY, ENGINE_FAULT))
        else otherwise
    )


def port_conflict(port: int) -> str:
    """Return why nobody could listen on this TCP port now; empty = one could. Old connections don't count.

    Both families are asked, by one socket of both or, where the machine has no IPv6, of the one: ranks meet at the
    node's address, which may be of either.
    """
    for family, everywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                probe.bind((everywhere, port))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                return f"TCP port {port} can't be bound: {error_text(error)}"
        else:
            return ""
    return ""


def meet_here(start: StartInstruction, taken: Container[int], begin: int) -> int:
    """Choose a port for a task that meets nobody elsewhere, put it into its variables and return it.

    Raises CannotStart.
    """
    port = own_port((start["gang_port_min"], start["gang_port_max"]), taken, begin)
    for prefix in ("", "PET_"):
        start["env"][f"{prefix}MASTER_ADDR"] = "127.0.0.1"
        start["env"][f"{prefix}MASTER_PORT"] = str(port)
    return port


def own_port(gang_ports: tuple[int, int], taken: Container[int], begin: int) -> int:
    """Return a port for a task that meets nobody elsewhere: free, not of `gang_ports` (both included), not `taken`.

    `begin` is any number, by which agents that share a machine begin at different places. Raises CannotStart.
    """
    count, tries = len(_OWN_PORTS), 0
    for step in range(count):
        port: int = _OWN_PORTS[(begin + step) % count]
        if port in taken or gang_ports[0] <= port <= gang_ports[1]:
            continue
        tries += 1
        if not port_conflict(port):
            return port
        if tries == _OWN_PORT_TRIES_MAX:
            break
    raise CannotStart(
        f"no port is free for its processes to meet at: {tries} ports of this machine were tried", "port_taken"
    )


def _candidates(word: str, path: str) -> list[str]:
    """Where execvp(3) would look. An empty entry is the working directory."""
    if "/" in word:
        return [word]
    return [f"{folder or '.'}/{word}" for folder in path.split(":")]


def _limit(name: str) -> int:
    number: int | None = getattr(resource, f"RLIMIT_{name.upper()}", None)
    if number is None:  # this runner is older than its agent
        raise CannotStart(f"{NO_LIMITS}: its runner knows no limit {name[:80]!r}")
    return number


def _name(name: str) -> bytes:
    if not name or "=" in name:
        raise CannotStart(f"{name[:80]!r} can't be the name of an environment variable")
    return _bytes(name, "the name of a variable")


def _bytes(text: str, what: str) -> bytes:
    """UTF-8; bytes that weren't UTF-8 on their way in come out as they were."""
    if "\0" in text:
        raise CannotStart(f"{what[:80]} holds a NUL character, which Linux can't pass to a program")
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise CannotStart(f"{what[:80]} holds a character that can't be encoded: {error.reason}") from error
