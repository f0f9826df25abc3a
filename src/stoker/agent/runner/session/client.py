"""Client of a session: one connection of an agent, what it asks for first, and the socket at which it comes."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from stoker.agent.runner.protocol import BadFrame
from stoker.agent.runner.session.exec_session import MAIN, NEVER, SIDE_MAX
from stoker.agent.runner.session.frames import FrameDecoder, read_control
from stoker.agent.runner.task import ENDING, RUNNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    from collections.abc import Mapping
    from typing import Final, TypedDict

    from stoker.agent.runner.session.exec_session import ExecSession
    from stoker.agent.runner.task import RunnerTask

    class Opening(TypedDict):
        """Request with which a client begins."""

        key: str
        session: str
        argv: list[str]
        """Empty = it joins a session that is there."""
        tty: bool
        columns: int
        rows: int
        term: str
        at: int
        """Bytes of its output that the client has had. -1 = it is new."""


SESSIONS_MAX: Final = 32
TASK_SESSIONS_MAX: Final = 8
STALL_S: Final = 10.0
"""What a client may take to ask for a session, and to acknowledge any output of a task that waits for it."""


class SessionClient:
    """One connection of an agent."""

    def __init__(self, connection: socket.socket, now_s: float) -> None:
        self.connection = connection
        self.decoder = FrameDecoder()
        self.out = bytearray()
        self.session: ExecSession | None = None
        self.since_s = now_s
        self.told_end = False
        """It was told how the program ended."""
        self.closing = False
        """It is closed once what waits for it is sent."""

    @property
    def left_s(self) -> float:
        """Boot time at which it is waited for no longer (Z4 of `exec_sessions`)."""
        session = self.session
        if session is None:
            return self.since_s + STALL_S
        return session.full_s + STALL_S if session.main else NEVER


def opening_fault(
    opening: Opening, task: RunnerTask | None, of_task: int, of_all: int, *, has_files: bool
) -> tuple[str, str] | None:
    """Return code and words of why a session that isn't there can't begin; None = it can.

    `of_task` and `of_all`: programs that are executed now, in this task and in all. `has_files`: the runner
    may have more files open than tasks need.
    """
    if task is None or task.phase != RUNNING or task.answer >= 0:
        what = "has ended" if task is None or task.phase == ENDING else "has no process yet"
        return "not_running", f"the task {what} on its node"
    if not opening["argv"] or opening["at"] >= 0:
        if opening["session"] == MAIN:
            return "no_terminal", "it was submitted without a terminal"
        return "session_over", "the session is over: its program has ended, or was hung up"
    if not task.surroundings and task.container is None:
        return "exec_unavailable", "it runs in a way that no program can be executed beside it"
    if of_task >= TASK_SESSIONS_MAX:
        return "too_many_sessions", f"{TASK_SESSIONS_MAX} sessions are open in this task, the most it may have"
    if of_all >= SESSIONS_MAX:
        return "too_many_sessions", f"{SESSIONS_MAX} sessions are open on this node, the most it has"
    if not has_files:
        return "too_many_sessions", "this node's runner may have too few files open (`ulimit -n`) for one more session"
    return None


def read_opening(content: bytes) -> Opening:
    """Raises BadFrame."""
    fields = read_control(content)
    argv, key, name = fields.get("argv"), fields.get("key"), fields.get("session")
    at, term = fields.get("at", -1), fields.get("term", "")
    is_text = isinstance(key, str) and isinstance(name, str) and isinstance(term, str)
    if not is_text or not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise BadFrame("an opening lacks its key, session or argv")
    if not isinstance(at, int):
        raise BadFrame("an opening says no number of bytes")
    if fields["type"] != "open" or (argv and name == MAIN):
        raise BadFrame("an opening names a session, and a command where it begins one")
    opening: Opening = {
        "key": str(key),
        "session": str(name),
        "argv": argv,
        "tty": bool(fields.get("tty")),
        "columns": number_in(fields, "columns", SIDE_MAX),
        "rows": number_in(fields, "rows", SIDE_MAX),
        "term": str(term),
        "at": at,
    }
    return opening


def number_in(fields: Mapping[str, object], name: str, most: int) -> int:
    """Raises BadFrame."""
    value = fields.get(name, 0)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise BadFrame(f"{name} is {str(value)[:40]!r}, not a whole number from 0 to {most}")
    return value


class Interest:
    """Events that the loop's epoll waits for, by descriptor."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self.wanted: dict[int, int] = {}

    def want(self, descriptor: int, events: int) -> None:
        """Wait for these events. 0 = for nothing: not even a hang-up, which would be said again and again."""
        before = self.wanted.pop(descriptor, 0)
        if events:
            self.wanted[descriptor] = events
        if events and not before:
            self._epoll.register(descriptor, events)
        elif before and not events:
            self._epoll.unregister(descriptor)
        elif events != before:
            self._epoll.modify(descriptor, events)


def listen(path: str) -> socket.socket:
    """Return a socket that listens at a path, relative as that of the runner's other one. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(16)
    return listener
