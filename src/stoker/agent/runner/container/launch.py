"""Launch of the clients of a container engine: of a task that is a container, and of what is executed in one.

The child of the runner stays the runner's account, since an engine is spoken to by that; a child of its own becomes the
job's user for a moment, as whom folders are made and mounts are looked at, and says who that is. Then the child writes
the request into memory, never to a disk: it may hold secrets. It becomes the client, which says on the pipe of the
answer when the container runs: until then the task is starting.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import sys

from stoker.agent.runner.container.cgroup import ContainerCgroup
from stoker.agent.runner.container.mounts import AllowedMounts, fabric_devices, once_each
from stoker.agent.runner.container.names import REPLY, REQUEST, RESULT
from stoker.agent.runner.container.request import container_name, create_request, exec_request, variables
from stoker.agent.runner.files import write_all
from stoker.agent.runner.process.account import Actor, CannotStart
from stoker.agent.runner.process.cgroup import TaskCgroup
from stoker.agent.runner.process.kernel import lower_limits, make_raw
from stoker.agent.runner.process.launch import FAILED_EARLY, Launch
from stoker.agent.runner.process.procfs import MARK_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final, NoReturn

    from stoker.agent.runner.protocol import MountFields, StartInstruction

CLIENT: Final = "stoker.agent.runner.container.client"
_EXEC_CLIENT: Final = "stoker.agent.runner.container.exec_client"
_PLAIN: Final = {
    "shell": "", "argv": ["true"], "env": {}, "umask": 0o077, "limits": {}, "folder": "", "cpu_list": [],
    "private_tmp": False,
}  # fmt: skip
"""Of a start, what any launch needs."""
_FREE_FROM: Final = 16
_SOURCES: Final = os.path.abspath(f"{os.path.dirname(__file__)}/../../../..")
_READ_BYTES: Final = 64 * 1024
_ENGINES_MEMLOCK: Final = 8 << 20
"""Locked memory that an engine gives by itself. Podman drops its site's other limits once it is told one."""


class ClientLaunch(Launch):
    """Launch of a process that becomes a client of the engine, and keeps the runner's account for that."""

    words: tuple[str, ...] = ()
    """Module of the client, and its arguments."""
    mark_of_client = ""
    """By which the runner finds it, like any process of a task. Empty = it serves the runner."""

    def __init__(
        self, start: StartInstruction, mark: tuple[str, str], workdir: str, actor: Actor, group: TaskCgroup
    ) -> None:
        """Raises CannotStart, OSError."""
        super().__init__(start, mark, workdir, actor, group)
        self._request = self._reply = -1

    def _ask(self, request: dict[str, Any], reply: int) -> None:
        """Put what the client is to do where it reads it. Raises OSError."""
        self._request = memory_file(request)
        self._reply = reply

    def _take_terminal(self) -> None:
        super()._take_terminal()
        make_raw(0)  # what is typed is for the container's own terminal

    def _lower_limits(self) -> str:
        lower_limits({})  # the client's own; the container has its job's
        return ""

    def _exec(self) -> str:
        descriptors = {REQUEST: self._request, REPLY: self._reply}
        if self.result >= 0:
            descriptors[RESULT] = self.result
        try:
            os.chdir("/")
            become_client(self.words, descriptors, self.mark_of_client)
        except OSError as error:
            os.write(self._reply, f"{FAILED_EARLY}: {error.strerror}".encode())
            os._exit(127)


class ContainerLaunch(ClientLaunch):
    """All that the child needs to become the client of a container."""

    words = (CLIENT, "run")

    def __init__(
        self, start: StartInstruction, mark: tuple[str, str], workdir: str, actor: Actor, group: TaskCgroup
    ) -> None:
        """Raises CannotStart, OSError."""
        wanted: dict[str, Any] = {**start, "env": {}, "limits": {}}
        if not start["shell"] and not start["argv"]:
            wanted["argv"] = ["true"]  # the image's own command
        super().__init__(wanted, mark, workdir, actor, group)  # type: ignore[arg-type]  # a start with less in it
        self._start = start
        self._mark = self.mark_of_client = mark[1]
        self._own: list[MountFields] = []

    def own(self, path: str, *, read_only: bool = False) -> None:
        """Let the container see a path of the runner's own, under the same name."""
        self._own.append({"source": path, "target": path, "read_only": read_only})

    @property
    def is_plain(self) -> bool:
        """Return False: what the client of a container needs is in the runner's memory."""
        return False

    def fork(self, streams: tuple[int, int, int]) -> tuple[int, int]:
        """As of every launch. Raises OSError."""
        self.result = os.memfd_create("stoker-result")
        try:
            return super().fork(streams)
        except OSError:
            os.close(self.result)
            raise

    # --- in the child -------------------------------------------------------------------------------------------

    def _enter(self, born_inside: bool, reply: int) -> str:
        try:
            self.group.enter(born_inside)
        except OSError as error:
            return f"cannot enter its cgroup: {error.strerror}"
        if self.bound is not None:
            self.bound.keep()
        received, sent = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            os.close(received)
            self._look_as_user(sent, reply)
        os.close(sent)
        said = b""
        while part := os.read(received, _READ_BYTES):
            said += part
        os.close(received)
        os.waitpid(pid, 0)
        if not said:
            os._exit(127)  # the look-up took too long: that is said already
        found = json.loads(said)
        if "error" in found:
            return str(found["error"])
        try:
            self._keep_request(found, reply)
        except CannotStart as error:
            return str(error)
        return ""

    def _look_as_user(self, sent: int, reply: int) -> None:
        """In a child of the child, which becomes the user. Never returns."""
        found: dict[str, object] = {"error": "its process failed before it could look at its mounts"}
        try:
            own = self.actor.take_on(lambda words: os.write(reply, words))
            home = own.get(b"HOME", b"")
            error = self._write_script() or self._make_folder()
            if self.bound is not None:
                self.bound.join()
            mounts = [] if error else self._mounts()
            ids = {"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "devices": fabric_devices()}
            found = {**ids, "home": os.fsdecode(home), "mounts": mounts, **({"error": error} if error else {})}
        except CannotStart as refused:
            found = {"error": str(refused)}
        except OSError as error:
            found = {"error": f"its mounts can't be looked at: {error}"}
        finally:
            write_all(sent, json.dumps(found).encode())
            os._exit(0)

    def _mounts(self) -> list[MountFields]:
        """Raises CannotStart."""
        fields = self._start["container"]
        assert fields is not None, "no container is asked for"
        allowed = AllowedMounts(fields["allowed"], fields["hidden"])
        mounts = [allowed.checked(mount) for mount in fields["mounts"]] + self._own
        if self.folder:
            mounts.append({"source": self.folder, "target": self.folder, "read_only": False})
        if self._script_path:
            folder = os.path.dirname(self._script_path)
            mounts.append({"source": folder, "target": folder, "read_only": True})
        folder = self._start["workdir"]
        workdir = allowed.workdir(folder, mounts) if folder else None
        if workdir is not None:
            if reason := self._change_folder():
                raise CannotStart(reason)
            mounts.append(workdir)
        once_each(mounts)
        return mounts

    def _keep_request(self, found: dict[str, Any], reply: int) -> None:
        """Raises CannotStart, OSError."""
        start, fields = self._start, self._start["container"]
        assert fields is not None, "no container is asked for"
        path = self.group.path if isinstance(self.group, ContainerCgroup) else ""
        env = variables(start["env"], self.actor.name, found["home"], found["mounts"])
        asked: Any = {**start, "env": env}
        memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if os.geteuid() == 0 and not 0 <= memlock[1] <= _ENGINES_MEMLOCK:  # infinity is below 0
            asked["limits"] = {"memlock": memlock, **start["limits"]}
        if self._script_path:
            asked["argv"] = [os.fsdecode(word) for word in self.argv]
        request = {
            "socket": fields["socket"],
            "name": container_name(start["key"], self._mark),
            "mark": self._mark,
            "forwards": not path,
            "create": create_request(asked, fields, found, found["mounts"], self._mark, path),  # type: ignore[arg-type]  # it has more
        }
        self._ask(request, reply)


class ExecLaunch(ClientLaunch):
    """Launch of a program in the container of a task. Its client serves the runner, and isn't in the task's cgroup."""

    words = (_EXEC_CLIENT,)

    def __init__(self, socket: str, container: str, argv: list[str], mark: str, *, tty: bool, term: str) -> None:
        """`mark`: of this session alone. Raises CannotStart."""
        super().__init__(_PLAIN, (MARK_NAME, ""), "/", Actor("", "", allow_root=True), TaskCgroup([]))  # type: ignore[arg-type]  # a start with less in it
        self.terminal = tty
        request = exec_request(argv, mark, tty=tty, term=term)
        self._fields = {"socket": socket, "container": container, "mark": mark, "exec": request}

    def _enter(self, born_inside: bool, reply: int) -> str:
        self._ask(self._fields, reply)
        return ""


def client_environment(mark: str) -> dict[str, str]:
    """Return the environment of a client: by its task's mark the runner finds it, like any process of the task."""
    return {"PYTHONPATH": _SOURCES, MARK_NAME: mark}


def memory_file(request: dict[str, Any]) -> int:
    """Return a file in memory that holds a request as JSON, read from its beginning. Raises OSError."""
    file = os.memfd_create("stoker-request")
    write_all(file, json.dumps(request).encode())
    os.lseek(file, 0, os.SEEK_SET)
    return file


def become_client(words: Sequence[str], descriptors: dict[int, int], mark: str) -> NoReturn:
    """Become a client of the engine, with these descriptors under these numbers. Raises OSError."""
    # Out of the way first: one of them may have the number that another is to get.
    held = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _FREE_FROM) for each in descriptors.values()]
    for number, descriptor in zip(descriptors, held, strict=True):
        os.dup2(descriptor, number)
    program = [sys.executable, "-S", "-P", "-X", "utf8", "-m", *words]
    os.execve(sys.executable, program, client_environment(mark))
