"""Daemons and commands that tests start, as forks of one process that has imported Stoker: the imports are most of what
a start costs, half a second for a control plane.

A program begun so is a process with environment, folder, streams and limits of its own, and ends as any other does.
What an interpreter reads when it starts can't be given to it: who asks for that, or for the interpreter's options, gets
a process from scratch. So does what is started otherwise, as runners are; outside of tests everything does, for there
something may be measured. Shell scripts have a program `stoker` that asks for a fork, and `stoker up` may have a
process at its side that forks its agents.
"""

import atexit
import ctypes
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
SRC: Final = ROOT / "src"
IMPORTED: Final = ("stoker.live.main", "stoker.agent.main", "stoker.cli.main")
COMMANDS: Final = ("stoker.cli.commands", "stoker.cli.display", "stoker.wire.client")
"""Packages whose modules are imported when one is first needed: a fork would import them each time."""
OURS: Final = dict(os.environ)
"""Environment of the process that forks: what a test sets meanwhile isn't in it."""
OF_THE_START: Final = ("PYTHON", "LC_", "LD_")
"""How variables begin that are read when an interpreter starts; `LANG`, `LANGUAGE` and `TZ` are such too."""
MESSAGE_BYTES_MAX: Final = 200_000
_PR_SET_CHILD_SUBREAPER: Final = 36


class Fork:
    """What tests use of `subprocess.Popen`. The process is a child of the one that forked it, which tells its end."""

    def __init__(self, told: socket.socket) -> None:
        self._told = told
        self.returncode: int | None = None
        self.pid = int(told.recv(32) or 0)
        assert self.pid, "nobody is there to fork"

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Raises: subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def _look(self, patience_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._told], [], [], patience_s)[0]:
            said = self._told.recv(32)
            self._told.close()
            self.returncode = int(said) if said else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


Started = Fork | subprocess.Popen[bytes]


def started(  # noqa: PLR0913  # what of Popen's is used
    words: Sequence[str],
    *,
    out: IO[Any],
    err: IO[Any] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    limits: Mapping[int, int] | None = None,
    new_session: bool = False,
    from_scratch: bool = False,
    forks: bool = False,
) -> Started:
    """`[sys.executable, "-m", "stoker", ...]` or `[sys.executable, "-c", PROGRAM, ...]`, started, with nothing to read.

    `limits`: as `ulimit` sets them, by their numbers in `resource`. `forks`: the `stoker` programs that it starts are
    forks as well, which nobody knows by their command line.
    """
    environ = dict(os.environ if env is None else env)
    request: dict[str, object] = {"words": list(words[1:]), "env": environ, "cwd": str(cwd or Path.cwd())}
    request |= {"limits": list((limits or {}).items()), "new_session": new_session, "forks": forks}
    if can_be_forked(words, environ) and not from_scratch:
        return _NURSERY.started(request, out, err or out)
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=out, stderr=err or out, env=environ, cwd=cwd,
        start_new_session=new_session, preexec_fn=partial(limited, limits) if limits else None,
    )  # fmt: skip


def ran(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 60.0
) -> "subprocess.CompletedProcess[bytes]":
    """The same, to its end. Raises: subprocess.TimeoutExpired, once it is killed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = started(words, out=out, err=err, env=env, cwd=cwd)
        try:
            code = process.wait(timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(words), code, out.read(), err.read())


def ran_text(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 60.0
) -> "subprocess.CompletedProcess[str]":
    done = ran(words, env=env, cwd=cwd, timeout_s=timeout_s)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def limited(limits: Mapping[int, int]) -> None:
    """Hold this process to these limits for good."""
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, most))


def can_be_forked(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """No option of the interpreter, and of what it reads at its start only what ours has read."""

    def at_start(environ: Mapping[str, str]) -> dict[str, str]:
        return {
            name: value
            for name, value in environ.items()
            if name.startswith(OF_THE_START) or name in ("LANG", "LANGUAGE", "TZ")
        }

    ours = at_start(OURS)
    # Of the working tree is ours in any case.
    theirs = at_start(env) | ({"PYTHONPATH": ours.get("PYTHONPATH", "")} if env.get("PYTHONPATH") == str(SRC) else {})
    known = words[0] == sys.executable and (words[1] == "-c" or list(words[1:3]) == ["-m", "stoker"])
    return known and "pytest" in sys.modules and {**theirs, "PYTHONPATH": ""} == {**ours, "PYTHONPATH": ""}


class _Nursery:
    """The process that forks, started when it is first asked, ended when this one does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asking: socket.socket | None = None

    def started(self, request: Mapping[str, object], out: IO[Any], err: IO[Any]) -> Fork:
        told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with tells, open(os.devnull) as nothing:
            streams = [nothing.fileno(), out.fileno(), err.fileno(), tells.fileno()]
            message = json.dumps(request).encode()
            assert len(message) <= MESSAGE_BYTES_MAX, "too much environment for a fork"
            socket.send_fds(self.asking(), [message], streams)
        return Fork(told)

    def asking(self) -> socket.socket:
        """Where requests go, in one message each, so that several may have it."""
        with self._lock:
            if self._asking is None:
                self._asking = self._start()
            return self._asking

    def _start(self) -> socket.socket:
        asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environ = {**OURS, "PYTHONPATH": os.pathsep.join((str(SRC), OURS.get("PYTHONPATH", "")))}
        with asked:
            words = [sys.executable, "-m", "tests.real.forks", str(asked.fileno())]
            # Never waited for: it ends when the other end of its socket closes, with this process.
            _KEPT.append(
                subprocess.Popen(words, stdin=subprocess.DEVNULL, cwd=ROOT, env=environ, pass_fds=[asked.fileno()])
            )
        return asking


ASKS: Final = """#!{python} -IS
import json, os, signal, socket, sys
words = ["-m", "stoker", *sys.argv[1:]]
try:
    asking = socket.socket(fileno=int(os.environ.pop("STOKER_FORKS")))
except (KeyError, OSError):  # begun by something that closes what it inherited, as runners do
    os.execv("{python}", ["{python}", *words])
told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
request = {{"words": words, "env": dict(os.environ), "cwd": os.getcwd(), "limits": [], "new_session": False}}
socket.send_fds(asking, [json.dumps(request).encode()], [0, 1, 2, tells.fileno()])
tells.close()
pid = int(told.recv(32))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int(told.recv(32) or -signal.SIGKILL)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def on_path(path: Path) -> dict[str, str]:
    """Make `path` the program `stoker` of a shell script; what its environment needs beside. The script inherits
    `requests_to()`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(ASKS.format(python=sys.executable))
    path.chmod(0o755)
    return {"STOKER_FORKS": str(requests_to())}


def requests_to() -> int:
    """The descriptor that a script of such commands inherits."""
    return _NURSERY.asking().fileno()


_NURSERY: Final = _Nursery()
_KEPT: Final[list["subprocess.Popen[bytes]"]] = []


def forker_pid() -> int:
    """The process that forks for this one; 0 = there is none."""
    return _KEPT[-1].pid if _KEPT else 0


def serve(asked: socket.socket) -> dict[str, Any]:
    """Fork for every request. Returns in a fork only: what it is to be."""
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for ready in select.select([asked.fileno(), *running], [], [])[0]:
            if ready != asked.fileno():
                pid, told = running.pop(ready)
                os.close(ready)
                _tell(told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                told.close()
                continue
            message, streams, _, _ = socket.recv_fds(asked, MESSAGE_BYTES_MAX, 4)
            if not message:
                os._exit(0)  # what it forked goes on, as it would without us
            pid = os.fork()
            if not pid:
                return _request_of_a_fork(message, streams)
            told = socket.socket(fileno=streams[3])
            for stream in streams[:3]:
                os.close(stream)
            running[os.pidfd_open(pid)] = pid, told
            _tell(told, pid)


def _request_of_a_fork(message: bytes, streams: Sequence[int]) -> dict[str, Any]:
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
    os.closerange(3, 1_024)
    request: dict[str, Any] = json.loads(message)
    return request


def _tell(told: socket.socket, number: int) -> None:
    with suppress(OSError):  # nobody asks any more
        told.send(str(number).encode())


def become(request: Mapping[str, Any]) -> None:
    """Be the program: what follows is what an interpreter does between its start and the program's first line."""
    if request["new_session"]:
        os.setsid()
    limited(dict(request["limits"]))
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if request.get("forks"):
        _let_it_fork()
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, name, _as_it_is_now(getattr(sys, name), buffering=1 if name == "stderr" else -1))
    try:
        _run(request["words"])
    except SystemExit as end:
        if not (end.code is None or isinstance(end.code, int)):
            raise
        _leave(end.code or 0)
    else:
        _leave(0)


def _let_it_fork() -> None:
    """Have a process at the side of this one, and let it fork what `subprocess` would start from scratch. Its forks
    become children of this one, which adopts the orphans among its descendants."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    asking, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        asking.close()
        become(_orphan(asked))
        os._exit(0)
    asked.close()
    from_scratch = subprocess._fork_exec  # type: ignore[attr-defined]  # where each Popen begins its process

    def fork(words: Sequence[str], *more: Any) -> int:  # noqa: ANN401  # as many as this version of Python has
        if list(words[:3]) != [sys.executable, "-m", "stoker"]:
            return int(from_scratch(words, *more))
        cwd, env, stdin, _, _, stdout, _, stderr = more[3:11]
        assert env is None, "a fork has the environment of what asks for it"
        request = {"words": list(words[1:]), "env": dict(os.environ), "cwd": cwd or os.getcwd(), "limits": []}
        message = json.dumps({**request, "new_session": more[14], "forks": words[3] == "up"}).encode()
        socket.send_fds(asking, [message], [stdin, stdout, stderr])
        return int(asking.recv(32))

    subprocess._fork_exec = fork  # type: ignore[attr-defined]  # as above


def _orphan(asked: socket.socket) -> dict[str, Any]:
    """Fork for every request a process that soon has no parent, and tell its pid once it has been adopted. Returns in
    a fork only: what it is to be."""
    while True:
        message, streams, _, _ = socket.recv_fds(asked, MESSAGE_BYTES_MAX, 3)
        if not message:
            os._exit(0)
        reads, writes = os.pipe()
        parent = os.fork()
        if not parent:
            mother = os.getpid()
            pid = os.fork()
            if not pid:
                while os.getppid() == mother:
                    time.sleep(0.001)  # it may ask to end with its parent
                return _request_of_a_fork(message, streams)
            os.write(writes, b"%d" % pid)
            os._exit(0)
        os.waitpid(parent, 0)
        asked.send(os.read(reads, 32))
        for each in (*streams, reads, writes):
            os.close(each)


def _run(words: Sequence[str]) -> None:
    kind, text, *rest = words
    if kind == "-m":
        sys.path[0], sys.argv = os.getcwd(), [text, *rest]
        runpy.run_module(text, run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = "", [kind, *rest]
        file = os.memfd_create("program")
        os.write(file, text.encode())
        runpy.run_path(f"/proc/self/fd/{file}", run_name="__main__")


def _leave(code: int) -> None:
    """End as an interpreter does, but for taking apart what is in memory: that touches, and so copies, all that a fork
    shares with us, and costs more than most commands do. Returns where a stream takes no more words: what is said
    then, and the status, are the interpreter's own."""
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter: threads first
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except (OSError, ValueError):
        return sys.exit(code)
    os._exit(code & 0xFF)


def _as_it_is_now(stream: Any, buffering: int) -> IO[str]:  # noqa: ANN401  # the text streams of sys are of several types
    """What was a file when the interpreter started may be a pipe or a terminal here."""
    return open(stream.fileno(), stream.mode, buffering, stream.encoding, stream.errors, closefd=False)


if __name__ == "__main__":
    import gc
    import importlib
    import pkgutil

    from stoker.cli.foreground import quiet_grpc

    quiet_grpc()
    for module in IMPORTED:
        importlib.import_module(module)
    for package in COMMANDS:
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{found.name}")
    gc.collect()
    gc.freeze()  # what is here already is not written to in the forks, and so is shared
    become(serve(socket.socket(fileno=int(sys.argv[1]))))
