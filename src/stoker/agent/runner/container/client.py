"""Program `python -m stoker.agent.runner.container.client run|remove`: the leader of a task that is a container.

`run` makes the container that its request (descriptor 5) describes, starts it, copies its output to its own, waits for
its end, removes it and exits as it did. `remove` removes every container of a task, and exits 0 once none is left.

Signals for the task go to the processes of the container straight from the runner, which finds them in the task's
cgroup or by their mark; so this process ignores all of them, and only a kill ends it. Where the engine is of another
machine's kernel, as seen from here, nothing of that can be: then it forwards what it gets.

Rules: L1  descriptor 3 is told why the container can't be started, or closed once it runs
       L2  descriptor 4 gets one JSON object at the end: whether the container is `removed`, whether it was killed for
           memory (`oom`), and if its exit status was `lost` with the engine, in which words
       L3  what it has written before its end is copied before the exit
       L4  an engine that goes away is waited for, `RETURN_S`; a container that the engine no longer runs then is lost
       L5  words about the engine, and not the job, begin with `ENGINE_FAULT`
       L6  a container with a terminal gets what is typed on ours, its size, and the signals that a session sends; what
           the runner sends to all of a task's processes isn't sent here where it sees any of the container
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from urllib.parse import quote

from stoker.agent.runner import clock
from stoker.agent.runner.container.engine import Engine, EngineGone, EngineRefused, NoEngine
from stoker.agent.runner.container.names import (
    ASK_S,
    DETACH_KEYS,
    NO_ENGINE,
    REMOVED,
    REPLY,
    REQUEST,
    RESIZE_S,
    RESULT,
    START_S,
    STILL_THERE,
)
from stoker.agent.runner.files import write_all
from stoker.agent.runner.log import complain
from stoker.agent.runner.protocol import ENGINE_FAULT

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from typing import Any, Final

    from stoker.agent.runner.container.contained_program import ContainedProgram
    from stoker.agent.runner.container.stream_relay import Signals

    Fields = Mapping[str, Any]

RETURN_S: Final = 60.0
_AGAIN_S: Final = 0.5
_REMOVE_S: Final = 45.0
_LOOK_S: Final = 0.5
_READ_BYTES: Final = 64 * 1024
_HEADER_BYTES: Final = 8
_FAILED: Final = 125
"""As `docker run` exits when no container could be run."""
_OF_THE_NODE: Final = (
    "no space left on device", "read-only file system", "input/output error", "cannot allocate memory",
    "could not select device driver", "nvidia-container-cli", "unresolvable cdi devices",
)  # fmt: skip
"""What engines say of a disk that is full or broken, and of GPUs that they aren't set up for (L5)."""
_STREAMS: Final = {1: 1, 2: 2}
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(arguments: list[str]) -> int:
    """Do what the first argument names with the request on its descriptor, and return the exit status."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    with open(REQUEST, "rb") as request:
        asked: Fields = json.loads(request.read())
    engine = Engine(asked["socket"])
    return _remove_all(engine, asked["label"]) if arguments == ["remove"] else ContainerRun(engine, asked).run()


class ContainerRun:
    """One container from its creation to its removal."""

    def __init__(self, engine: Engine, asked: Fields) -> None:
        self._engine = engine
        self._asked = asked
        self._id = ""
        self._result: dict[str, object] = {"removed": True, "oom": False, "lost": ""}
        self._signals: Signals | None = None
        """Of the session that has its terminal. None = it has none."""
        self._size = (0, 0)

    def run(self) -> int:
        """Return the exit status of the container, or of a failure to start it."""
        if self._asked["create"]["Tty"]:
            self._take_signals()
        try:
            output = self._start()
        except EngineRefused as error:
            image = self._asked["create"]["Image"]
            if is_of_the_node(str(error)):
                return self._cannot(f"{ENGINE_FAULT}{_plainly(error)}")
            return self._cannot(f"the container of image {image[:200]!r} can't be started: {_plainly(error)}")
        except EngineGone as error:
            return self._cannot(f"{ENGINE_FAULT}{error}")
        os.close(REPLY)
        code = self._ended(output)
        self._remove()
        self._tell()
        return code

    def _start(self) -> socket.socket:
        """Return the connection on which its output comes. Raises EngineGone, EngineRefused."""
        name, create = quote(self._asked["name"]), self._asked["create"]
        self._result["removed"] = False  # from here on there may be one
        made: Any = self._engine.ask("POST", f"/containers/create?name={name}", create, ASK_S)
        self._id = made["Id"]
        output = self._attached()
        self._engine.ask("POST", f"/containers/{self._id}/start", None, START_S)
        self._fit()
        if self._signals is None and self._asked["forwards"] and not self._is_ours():
            for number in _FORWARDED:
                signal.signal(number, self._forward)
        return output

    def _attached(self) -> socket.socket:
        path = f"/containers/{self._id}/attach?stream=1&stdout=1&stderr=1"
        if self._signals is not None:
            path += f"&stdin=1&detachKeys={quote(DETACH_KEYS)}"
        connection, begun = self._engine.stream("POST", path, ASK_S)
        self._begun = begun
        return connection

    def _is_ours(self) -> bool:
        """Whether the runner can see its first process, and so reach all of them by itself."""
        with suppress(EngineGone, EngineRefused, OSError):
            mark = self._asked["mark"].encode()
            with open(f"/proc/{self._state()['Pid']}/environ", "rb") as environ:
                return mark in environ.read()
        return False

    def _forward(self, number: int, frame: object) -> None:
        with suppress(EngineGone, EngineRefused):
            self._engine.ask("POST", f"/containers/{self._id}/kill?signal={int(number)}", None, ASK_S)

    def _state(self) -> Fields:
        """Raises EngineGone, EngineRefused."""
        found: Any = self._engine.ask("GET", f"/containers/{self._id}/json", None, ASK_S)
        state: Fields = found["State"]
        return state

    # --- while it runs ------------------------------------------------------------------------------------------

    def _ended(self, output: socket.socket | None) -> int:
        """Copy its output until its end, and return its exit status."""
        was_gone = False
        while True:
            if output is not None:
                self._copy(output) if self._signals is None else self._relay(output, self._signals)
                output = None
            try:
                self._heed_until_stopped()
                waited: Any = self._engine.ask("POST", f"/containers/{self._id}/wait?condition=not-running")
                state = self._state()
            except (EngineGone, EngineRefused, KeyError, TypeError) as error:
                output = self._returned(str(error))
                was_gone = True
                if output is None:
                    return _FAILED
                continue
            if was_gone:  # L4: whoever has begun it anew has ended what ran
                self._result["lost"] = f"{ENGINE_FAULT}was restarted under the container"
            self._result["oom"] = bool(state.get("OOMKilled"))
            return int(waited["StatusCode"]) & 0xFF

    def _copy(self, output: socket.socket) -> None:
        """Copy frames of output until there are no more (L3). Source: `Attach to a container` of the API."""
        buffer = bytearray(self._begun)
        with output:
            while True:
                while len(buffer) >= _HEADER_BYTES:
                    size = int.from_bytes(buffer[4:_HEADER_BYTES], "big")
                    if len(buffer) < _HEADER_BYTES + size:
                        break
                    with suppress(OSError):  # the runner takes no more: the end counts
                        write_all(_STREAMS.get(buffer[0], 1), bytes(buffer[_HEADER_BYTES : _HEADER_BYTES + size]))
                    del buffer[: _HEADER_BYTES + size]
                try:
                    received = output.recv(_READ_BYTES)
                except OSError:
                    return
                if not received:
                    return
                buffer += received

    def _returned(self, why: str) -> socket.socket | None:
        """Return the output of the container, which runs on, once its engine is back; None = it is lost (L4)."""
        until_s = clock.boot_s() + RETURN_S
        while clock.boot_s() < until_s:
            clock.pause(_AGAIN_S)
            try:
                if self._state().get("Running"):
                    return self._attached()
                self._result["lost"] = f"{ENGINE_FAULT}was restarted under the container"
                return None
            except EngineRefused as error:
                self._result["lost"] = f"{ENGINE_FAULT}knows the container no longer: {error}"
                return None
            except EngineGone as error:
                why = str(error)
        self._result["lost"] = f"{ENGINE_FAULT}went away and didn't return within {RETURN_S:.0f} s: {why}"
        return None

    # --- its terminal -------------------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        """Imported by none that has no terminal: each container has a client."""
        from stoker.agent.runner.container.stream_relay import Signals

        self._signals = Signals((*_FORWARDED, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT), self._heed)

    def _relay(self, output: socket.socket, signals: Signals) -> None:
        from stoker.agent.runner.container.stream_relay import StreamRelay

        self._fit()
        StreamRelay(output, self._begun, signals, tty=True).run()

    def _heed_until_stopped(self) -> None:
        """Go on with signals for a program that has closed its terminal. Raises EngineGone, EngineRefused."""
        while self._signals is not None and self._state().get("Running"):
            self._signals.wait(_LOOK_S)

    def _heed(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._fit()
            return
        program = self._program()
        if not program.is_seen:
            self._forward(number, None)
        elif number == signal.SIGHUP:
            program.hang_up()
        else:
            program.signal(number)

    def _program(self) -> ContainedProgram:
        from stoker.agent.runner.container.contained_program import ContainedProgram

        pid = 0
        with suppress(EngineGone, EngineRefused, KeyError):
            pid = int(self._state()["Pid"])
        return ContainedProgram(pid, self._asked["mark"])

    def _fit(self) -> None:
        """Give its terminal the size of ours; one that has it already is to be drawn anew."""
        if self._signals is None or not self._id:
            return
        with suppress(OSError, EngineRefused):
            size = os.get_terminal_size(0)
            if size == self._size:
                self._program().signal(signal.SIGWINCH)
                return
            self._engine.ask("POST", f"/containers/{self._id}/resize?h={size.lines}&w={size.columns}", None, RESIZE_S)
            self._size = size

    # --- the end ------------------------------------------------------------------------------------------------

    def _cannot(self, words: str) -> int:
        self._remove()
        self._tell()
        with suppress(OSError):
            write_all(REPLY, words.encode("utf-8", "replace"))
        return _FAILED

    def _remove(self) -> None:
        if not self._id:
            return  # if there is one, who ends the task finds it by its label
        with suppress(EngineGone, EngineRefused):
            self._result["removed"] = _removed(self._engine, self._id)

    def _tell(self) -> None:
        with suppress(OSError):
            write_all(RESULT, json.dumps(self._result).encode())


def is_of_the_node(words: str) -> bool:
    """Return whether an engine refuses for something that its node lacks, and the job couldn't have said better."""
    return any(each in words.lower() for each in _OF_THE_NODE)


def _removed(engine: Engine, container: str) -> bool:
    """Kill and remove a container; True = it is surely gone. Raises EngineGone, EngineRefused."""
    try:
        engine.ask("DELETE", f"/containers/{container}?v=1&force=1", None, ASK_S)
    except EngineRefused as error:
        return error.status == 404
    return True


def _remove_all(engine: Engine, label: str) -> int:
    """Remove every container with this label, and return as what a removal exits."""
    filters = quote(json.dumps({"label": [label]}))
    until_s, why = clock.boot_s() + _REMOVE_S, ""
    while clock.boot_s() < until_s:
        try:
            found: Any = engine.ask("GET", f"/containers/json?all=1&filters={filters}", None, ASK_S)
            if not found:
                return REMOVED
            for each in found:
                _removed(engine, each["Id"])
        except NoEngine as error:
            return _said(error, NO_ENGINE)
        except (EngineGone, EngineRefused, KeyError, TypeError) as error:
            why = str(error)
        clock.pause(_AGAIN_S / 10 if not why else _AGAIN_S)
    return _said(why or "it lists them still", STILL_THERE)


def _said(why: object, status: int) -> int:
    complain(f"containers of a task aren't proved gone: {why}")
    return status


def _plainly(error: EngineRefused) -> str:
    """Return the words of a refusal without the names of the programs that pass them on."""
    words = str(error)
    for prefix in ("failed to create shim task: ", "OCI runtime create failed: ", "runc create failed: "):
        words = words.removeprefix(prefix)
    words = words.removeprefix("unable to start container process: ").removesuffix(": unknown")
    if error.status == 404 and "image" in words.lower():
        return f"{words} (it was there when the task was handed to the engine)"
    return words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
