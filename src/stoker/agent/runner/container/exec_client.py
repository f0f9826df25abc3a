"""Program `python -m stoker.agent.runner.container.exec_client`: client of a program that is executed in a container.

It stands where the program itself would be, were its task a process: on the session's own terminal or pipes, exiting as
the program does. So all that sessions promise holds without a word about containers in them.

The runner signals it as it would signal the program; it hands that on to the process in the container.

Rules: V1  descriptor 3 is told why the program can't be executed, or closed once it runs
       V2  what the program has written is written before the exit
       V3  a hang-up is handed on, and what hasn't gone `HANG_UP_S` later is killed: the program doesn't outlive its
           session. If this client is killed, the runner kills the program, which it finds by its mark
       V4  where the program's processes can't be seen from here (the engine is another kernel's), no signal reaches it;
           it ends with its container
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress

from stoker.agent.runner import clock
from stoker.agent.runner.container.contained_program import ContainedProgram
from stoker.agent.runner.container.engine import Engine, EngineGone, EngineRefused
from stoker.agent.runner.container.names import ASK_S, EXEC_MARK, REPLY, REQUEST, RESIZE_S, START_S
from stoker.agent.runner.container.stream_relay import Signals, StreamRelay
from stoker.agent.runner.files import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from typing import Any, Final

    Fields = Mapping[str, Any]

HANG_UP_S: Final = 5.0
"""For a program that writes its last words after SIGHUP."""
_SEEN_S: Final = 1.0
"""For a process of this machine to become the program; signals that come before are handed on then."""
_LOOK_FIRST_S: Final = 0.005
_LOOK_MAX_S: Final = 0.5
_WORDS_MAX: Final = 4096
_NOT_RUN: Final = 126
_KILLED: Final = 128 + signal.SIGKILL
_HEEDED: Final = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH,
    signal.SIGALRM, signal.SIGTSTP, signal.SIGCONT,
)  # fmt: skip
_NOT_FOUND: Final = ("executable file not found", "no such file or directory")


def main() -> int:
    """Execute what the request on its descriptor names, and return the exit status."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    with open(REQUEST, "rb") as request:
        asked: Fields = json.loads(request.read())
    return ExecRun(Engine(asked["socket"]), asked).run()


class ExecRun:
    """One program in a container from its start to its end."""

    def __init__(self, engine: Engine, asked: Fields) -> None:
        self._engine = engine
        self._asked = asked
        self._tty = bool(asked["exec"]["Tty"])
        self._id = ""
        self._program = ContainedProgram(0, "")
        self._size = (0, 0)
        self._hung_up = False
        self._early: list[int] | None = []
        """Signals that came before it ran, to be handed on once it does. None = it runs."""
        self._signals = Signals(_HEEDED, self._heed)

    def run(self) -> int:
        """Return the exit status of the program, or of a failure to execute it."""
        word = self._asked["exec"]["Cmd"][0]
        try:
            connection, begun = self._start()
            if why := self._why_not(connection, begun):
                return self._cannot(f"cannot run {word} in the container: {why}")
        except EngineRefused as error:
            return self._cannot(f"cannot run {word} in the container: {error}")
        except EngineGone as error:
            return self._cannot(f"the container engine of this node doesn't answer: {error}")
        os.close(REPLY)  # V1
        self._fit()
        early, self._early = self._early or [], None
        for number in early:
            self._heed(number)
        StreamRelay(connection, begun, self._signals, tty=self._tty).run()
        return self._ended()

    def _start(self) -> tuple[socket.socket, bytes]:
        """Raises EngineGone, EngineRefused."""
        path = f"/containers/{self._asked['container']}/exec"
        made: Any = self._engine.ask("POST", path, self._asked["exec"], ASK_S)
        self._id = made["Id"]
        return self._engine.stream("POST", f"/exec/{self._id}/start", START_S, {"Detach": False, "Tty": self._tty})

    def _why_not(self, connection: socket.socket, begun: bytes) -> str:
        """Wait until the program runs; else return why it can't. Raises EngineGone, EngineRefused."""
        until_s, pause_s = clock.boot_s() + START_S, _LOOK_FIRST_S
        while clock.boot_s() < until_s:
            state = self._state()
            if state.get("Pid"):
                self._program = ContainedProgram(int(state["Pid"]), self._asked["mark"], EXEC_MARK)
                seen_until_s = clock.boot_s() + _SEEN_S
                while not self._program.is_seen and self._program.may_be_seen and clock.boot_s() < seen_until_s:
                    self._signals.wait(_LOOK_FIRST_S)
                return ""
            if not state.get("Running") and state.get("ExitCode") is not None:
                return _plainly(begun + _rest(connection))
            self._signals.wait(pause_s)
            pause_s = min(2 * pause_s, _LOOK_MAX_S)
        raise EngineGone(f"it hasn't begun within {START_S:.0f} s")

    def _state(self) -> Fields:
        """Raises EngineGone, EngineRefused."""
        state: Any = self._engine.ask("GET", f"/exec/{self._id}/json", None, ASK_S)
        return state if isinstance(state, dict) else {}

    def _ended(self) -> int:
        """Return its exit status once it has one: it may run on with its streams closed."""
        pause_s = _LOOK_FIRST_S
        while True:
            try:
                state = self._state()
            except (EngineGone, EngineRefused):  # an engine that is gone, or knows nothing of it since its restart
                self._program.kill()  # and nothing is there to be killed if its container is gone
                return _KILLED
            if not state.get("Running"):
                return int(state.get("ExitCode") or 0) & 0xFF
            self._signals.wait(pause_s)
            pause_s = min(2 * pause_s, _LOOK_MAX_S)

    def _cannot(self, words: str) -> int:
        with suppress(OSError):
            write_all(REPLY, words.encode("utf-8", "replace"))
        return _NOT_RUN

    # --- signals ------------------------------------------------------------------------------------------------

    def _heed(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._fit()
        elif self._early is not None:
            if number not in self._early:
                self._early.append(number)
        elif number == signal.SIGALRM:
            self._program.kill()
            os._exit(128 + signal.SIGHUP)
        elif number == signal.SIGHUP:  # V3
            self._program.hang_up()
            if not self._hung_up:
                self._hung_up = True
                signal.setitimer(signal.ITIMER_REAL, HANG_UP_S)
        elif not (number == signal.SIGCONT and self._hung_up):
            self._program.signal(number)

    def _fit(self) -> None:
        """Give the program's terminal the size of ours; of one that has it already it is to be drawn anew."""
        if not self._tty or not self._id:
            return
        with suppress(OSError, EngineRefused):
            size = os.get_terminal_size(0)
            if size == self._size:
                self._program.signal(signal.SIGWINCH)
                return
            self._engine.ask("POST", f"/exec/{self._id}/resize?h={size.lines}&w={size.columns}", None, RESIZE_S)
            self._size = size


def _rest(connection: socket.socket) -> bytes:
    """Return what an engine says in the place of the program's output."""
    said = b""
    with connection, suppress(OSError):
        connection.settimeout(ASK_S)
        while len(said) < _WORDS_MAX and (part := connection.recv(_WORDS_MAX)):
            said += part
    return said


def _plainly(said: bytes) -> str:
    """Return the words of an engine that could not execute a program, as those of the kernel where it is known."""
    words = " ".join(said.decode("utf-8", "replace").replace("\0", " ").split())
    words = words[max(0, words.find("exec failed: ")) :].removeprefix("exec failed: ")
    for prefix in ("exec failed: ", "unable to start container process: "):
        words = words.removeprefix(prefix)
    words = words.removesuffix(": unknown")
    if any(each in words.lower() for each in _NOT_FOUND):
        return f"No such file or directory ({words})"
    return words or "its engine doesn't say why"


if __name__ == "__main__":
    sys.exit(main())
