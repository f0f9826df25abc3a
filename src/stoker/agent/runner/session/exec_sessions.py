"""All sessions of a runner, and the socket at which agents ask for them.

A connection is one client of one session. Its first frame is a control message of type `open`: which task, which
session, and for a new one the command. It is answered `attached` or `refused`; then frames go both ways.

Rules: Z1  a program that is executed in a task gets the task's account, groups, environment, folder, limits and cgroup;
           it is never the task's own end, and it ends with the task
       Z2  a session that is there already is joined, never begun a second time; one that is asked for by how much was
           had of it must be there. A newer client replaces the older, which may not be known to be dead
       Z3  a program whose client has been gone for `session_gone_s` gets SIGHUP and its session is over, unless it is a
           terminal that stays. While no control plane is heard from, that isn't counted: no client could come back
       Z7  a task whose own terminal was hung up, and doesn't stay, ends: as if it were cancelled, after another
           `session_gone_s` in which its program didn't heed the SIGHUP and no client came
       Z4  a client that says what is no frame is left, and so is one of a task's own terminal whose window has been
           full for `STALL_S`: the task doesn't wait for who looks on
       Z5  at most `TASK_SESSIONS_MAX` of one task and `SESSIONS_MAX` of all are open; one more is refused, as
           is one that takes files which tasks need to start. Terminals of tasks, which need them to start, don't count
       Z6  the end of a session is kept for `session_gone_s` for a client whose connection broke, if there is room
"""

from __future__ import annotations

import os
import select
import signal

from stoker.agent.runner import clock
from stoker.agent.runner.log import complain
from stoker.agent.runner.process.account import CannotStart
from stoker.agent.runner.process.launch import answer_of
from stoker.agent.runner.protocol import BadFrame, peer_uid
from stoker.agent.runner.session.client import (
    SESSIONS_MAX,
    Interest,
    SessionClient,
    listen,
    number_in,
    opening_fault,
    read_opening,
)
from stoker.agent.runner.session.exec_session import (
    DRAIN_S,
    INPUT_MAX,
    MAIN,
    NEVER,
    SIDE_MAX,
    ExecSession,
    end_of,
    open_terminal,
)
from stoker.agent.runner.session.frames import (
    CONTROL,
    SOCKET_NAME,
    STDERR,
    STDIN,
    STDOUT,
    encode_control,
    encode_frame,
    read_control,
)
from stoker.agent.runner.session.program import SessionPrograms, Surroundings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Final

    from stoker.agent.runner.process.tree import Trees
    from stoker.agent.runner.protocol import StartInstruction
    from stoker.agent.runner.session.client import Opening
    from stoker.agent.runner.session.program import ContainerExecs
    from stoker.agent.runner.settings import RunnerSettings
    from stoker.agent.runner.task import RunnerTask

SILENT_S: Final = 20.0
"""Since the newest answered beat: then no client is to blame (Z3)."""
HEEDED_S: Final = 60.0
"""An end within this time after a hang-up is taken to follow from it."""
_CLIENTS_MAX: Final = 4 * SESSIONS_MAX
_OUT_MAX: Final = 64 * 1024
_READ_BYTES: Final = 64 * 1024
_TAKEN_STEP: Final = INPUT_MAX // 4
_SIGNALS: Final = range(1, 65)


class ExecSessions:
    """Every session of the tasks of one runner."""

    def __init__(
        self,
        settings: RunnerSettings,
        epoll: select.epoll,
        tasks: Mapping[str, RunnerTask],
        trees: Trees,
        silent_s: Callable[[float], float],
        containers: Callable[[], ContainerExecs],
    ) -> None:
        """`silent_s` answers, at a boot time, since how long no control plane was heard from. Raises OSError.

        `containers` as for the programs.
        """
        self._settings = settings
        self._tasks, self._trees = tasks, trees
        self._programs = SessionPrograms(settings.node, trees, containers)
        self._silent_s = silent_s
        self.surroundings = Surroundings()
        self._sessions: dict[tuple[str, str], ExecSession] = {}
        self._by_pid: dict[int, ExecSession] = {}
        self._by_descriptor: dict[int, ExecSession] = {}
        self._clients: dict[int, SessionClient] = {}
        self._interest = Interest(epoll)
        self._listener = listen(SOCKET_NAME)
        self._interest.want(self._listener.fileno(), select.EPOLLIN)

    # --- what the supervisor tells ------------------------------------------------------------------------------------

    def terminal(self, task: RunnerTask, start: StartInstruction) -> int:
        """Give a task a terminal, and return the end that its program gets. Raises OSError."""
        ours, theirs = open_terminal(start["columns"], start["rows"])
        session = ExecSession(MAIN, task.key, tty=True, now_s=clock.boot_s())
        session.stays = start["stays"]
        self._add(session, ours, {ours: STDOUT})
        return theirs

    def led(self, task: RunnerTask, pid: int, terminal: int) -> None:
        """Note the program of a task, 0 = it was not started, and close its end of a terminal, -1 = it has none."""
        if terminal >= 0:
            os.close(terminal)
        session = self._sessions.get((task.key, MAIN))
        if session is not None:
            session.pid = pid
            if not pid:
                self._forget(session)

    def leader_ended(self, task: RunnerTask, status: int, now_s: float) -> None:
        """Note the end of a task's own program: what others executed beside it goes with it (Z1)."""
        for session in self._of(task.key):
            if session.main:
                task.hung_up = task.hung_up or now_s <= session.hung_up_s + HEEDED_S
                self._ended(session, status, now_s)
            else:
                session.hang_up()

    def reaped(self, pid: int, status: int, now_s: float) -> None:
        """Note that a child has ended, which may have been the program of a session."""
        session = self._by_pid.get(pid)
        if session is not None:
            self._hear_answer(session)
            self._programs.ended(session, status, self._tasks.get(session.key), now_s)
            self._ended(session, status, now_s)

    def task_over(self, task: RunnerTask) -> None:
        """Take the last output of a task whose tree is gone. Its sessions stay for clients that come for their end."""
        for session in self._of(task.key):
            while session.main and session.sources and self._read(session, max(session.sources)):
                pass
            self._programs.task_over(session)
            session.status = signal.SIGKILL if session.status is None else session.status
            session.ended_s = 0.0
            self._move(session, clock.boot_s())

    # --- the loop ---------------------------------------------------------------------------------------------------

    def hear(self, descriptor: int, events: int) -> bool:
        """Take what happened on a descriptor. False = it isn't one of ours."""
        if descriptor not in self._interest.wanted:
            return False
        now_s = clock.boot_s()
        if descriptor == self._listener.fileno():
            self._accept(now_s)
        elif descriptor in self._clients:
            self._hear_client(self._clients[descriptor], events, now_s)
        elif (session := self._by_descriptor.get(descriptor)) is not None:
            try:
                self._hear_program(session, descriptor, events)
                self._move(session, now_s)
            except OSError as error:  # never the end of a task, let alone of all
                complain(f"session {session.name} of task {session.key} is given up: {error}")
                self._forget(session)
        return True

    def advance(self) -> dict[str, RunnerTask]:
        """Do what is due (Z3, Z4, Z6), and return the tasks that end by it (Z7)."""
        now_s = clock.boot_s()
        ending: dict[str, RunnerTask] = {}
        self.surroundings.pack(now_s)
        self._programs.advance(now_s)
        for client in [each for each in self._clients.values() if now_s >= each.left_s]:
            self._leave(client, now_s)
        for session in list(self._sessions.values()):
            if not session.over and session.is_drained(now_s):
                self._move(session, now_s)
            if session.client is None and now_s >= session.gone_s + self._settings.session_gone_s:
                self._gone(session, now_s)
            if now_s >= session.ends_s:
                session.ends_s = NEVER
                if session.status is None and (task := self._tasks.get(session.key)) is not None:
                    task.end_hung_up(self._trees, now_s)
                    ending[task.key] = task
        return ending

    @property
    def next_check_s(self) -> float:
        """Boot time at which `advance` is due."""
        due = min((self.surroundings.due_s, self._programs.due_s, *(each.left_s for each in self._clients.values())))
        for session in self._sessions.values():
            due = min(due, session.ends_s)
            if session.status is not None and not session.over:
                due = min(due, session.ended_s + DRAIN_S)
            if session.client is None and (session.status is not None or not session.stays):
                due = min(due, session.gone_s + self._settings.session_gone_s)
        return due

    def _gone(self, session: ExecSession, now_s: float) -> None:
        if session.status is None and self._silent_s(now_s) > SILENT_S:
            session.gone_s = now_s
        elif session.main and session.key in self._tasks:
            if session.status is None and not session.stays:
                session.hang_up(self._settings.session_gone_s)
            session.gone_s = NEVER
        elif session.status is not None or not session.stays:
            session.hang_up()
            self._forget(session)

    # --- clients ------------------------------------------------------------------------------------------------------

    def _accept(self, now_s: float) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if peer_uid(connection) not in (0, os.geteuid()) or len(self._clients) >= _CLIENTS_MAX:
            connection.close()
            return
        connection.setblocking(False)
        self._clients[connection.fileno()] = SessionClient(connection, now_s)
        self._interest.want(connection.fileno(), select.EPOLLIN)

    def _hear_client(self, client: SessionClient, events: int, now_s: float) -> None:
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            try:
                received = client.connection.recv(_READ_BYTES)
                if not received:
                    self._leave(client, now_s)
                    return
                for channel, content in client.decoder.feed(received):
                    self._take(client, channel, content, now_s)
            except BlockingIOError:
                pass
            except OSError:
                self._leave(client, now_s)
                return
            except BadFrame as error:  # Z4
                if client.session is not None:
                    client.session.detach(now_s)
                    client.session = None
                self._refuse(client, "bad_frame", str(error))
        if client.session is not None:
            self._move(client.session, now_s)
        else:
            self._flush(client, now_s)

    def _take(self, client: SessionClient, channel: int, content: bytes, now_s: float) -> None:
        """Raises BadFrame."""
        session = client.session
        if client.closing or client.connection.fileno() < 0:
            return
        if session is None:
            if channel != CONTROL:
                raise BadFrame("the first frame opens a session")
            self._open(client, read_opening(content), now_s)
        elif channel == STDIN:
            session.input += content
            if len(session.input) > INPUT_MAX:
                raise BadFrame(f"more than {INPUT_MAX} bytes of input wait for the program")
        elif channel == CONTROL:
            self._obey(client, session, read_control(content), now_s)
        else:
            raise BadFrame(f"channel {channel} is none of a client")

    def _obey(self, client: SessionClient, session: ExecSession, fields: dict[str, object], now_s: float) -> None:
        """Raises BadFrame."""
        kind = fields["type"]
        if kind == "got":
            session.acknowledge(number_in(fields, "bytes", 1 << 62), now_s)
        elif kind == "resize":
            session.resize(number_in(fields, "columns", SIDE_MAX), number_in(fields, "rows", SIDE_MAX))
        elif kind == "signal":
            if number_in(fields, "number", 64) in _SIGNALS:
                session.signal(number_in(fields, "number", 64))
        elif kind == "end":
            session.input_over = True
        elif kind == "detach":
            session.stays = session.main
        elif kind == "hangup":
            session.hang_up(self._settings.session_gone_s)
        elif kind == "done":
            client.session = None
            self._close(client)
            session.detach(now_s)
            if session.status is not None:
                self._forget(session)

    def _leave(self, client: SessionClient, now_s: float) -> None:
        """Close a connection; its session waits for another."""
        session = client.session
        self._close(client)
        if session is not None and session.client is client:
            session.detach(now_s)
            self._move(session, now_s)

    def _close(self, client: SessionClient) -> None:
        descriptor = client.connection.fileno()
        if self._clients.pop(descriptor, None) is not None:
            self._interest.want(descriptor, 0)
            client.connection.close()

    def _refuse(self, client: SessionClient, code: str, message: str) -> None:
        client.out += encode_control(type="refused", code=code, message=message)
        client.closing = True

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self, client: SessionClient, opening: Opening, now_s: float) -> None:
        task = self._tasks.get(opening["key"])
        session = self._sessions.get((opening["key"], opening["session"]))
        if session is None:
            room = self._settings.has_files_for_session(len(self._tasks))
            fault = opening_fault(opening, task, self._places(opening["key"]), self._places(""), has_files=room)
            if fault or task is None:
                self._refuse(client, *(fault or ("not_running", "the task is over")))
                return
            try:
                session = self._begin(task, opening, now_s)
            except (CannotStart, OSError) as error:
                words = str(error) if isinstance(error, CannotStart) else error.strerror or str(error)
                self._refuse(client, "exec_failed", words)
                return
        older = session.client
        if older is not None:  # Z2
            older.session = None
            self._refuse(older, "session_taken", "another client has taken this session over")
            self._flush(older, now_s)
        fresh = opening["at"] < 0
        session.attach(client, opening["at"])
        client.session = session
        told = {"session": session.name, "at": session.sent, "taken": session.taken, "tty": session.tty}
        client.out += encode_control(type="attached", **told)
        session.told_taken = session.taken
        if opening["columns"] and opening["rows"]:
            session.resize(opening["columns"], opening["rows"])
        if fresh and session.ring.end:
            session.redraw()

    def _begin(self, task: RunnerTask, opening: Opening, now_s: float) -> ExecSession:
        """Execute a program in a task (Z1). Raises CannotStart, OSError."""
        if len(self._sessions) >= SESSIONS_MAX:
            for ended in [each for each in self._sessions.values() if each.is_kept]:
                self._forget(ended)
        session, ours = self._programs.begin(task, opening, now_s)
        self._by_pid[session.pid] = session
        sources = {ours[1]: STDOUT} if session.tty else {ours[1]: STDOUT, ours[2]: STDERR}
        self._add(session, ours[0], sources)
        self._by_descriptor[session.answer] = session
        self._interest.want(session.answer, select.EPOLLIN)
        return session

    def _add(self, session: ExecSession, sink: int, sources: dict[int, int]) -> None:
        session.sink, session.sources = sink, sources
        self._sessions[session.key, session.name] = session
        for descriptor in dict.fromkeys((sink, *sources)):
            self._by_descriptor[descriptor] = session

    # --- programs -----------------------------------------------------------------------------------------------------

    def _hear_program(self, session: ExecSession, descriptor: int, events: int) -> None:
        if descriptor == session.answer:
            self._hear_answer(session)
        elif descriptor in session.sources and events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            if session.room > 0:
                self._read(session, descriptor)
        elif descriptor == session.sink and events & select.EPOLLERR and not session.tty:
            session.input.clear()
            self._close_sink(session)

    def _hear_answer(self, session: ExecSession) -> None:
        reason = answer_of(session.answer, session.said) if session.answer >= 0 else None
        if reason is not None:
            session.error = reason
            self._shut(session.answer)
            session.answer = -1

    def _read(self, session: ExecSession, source: int) -> bytes | None:
        """Read what a program has written; that of a task's own goes into its log too."""
        received = session.read(source)
        if received:
            task = self._tasks.get(session.key)
            if session.main and task is not None and task.spool is not None:
                task.spool.write(received)
        elif received is not None:
            self._end_source(session, source)
        return received

    def _end_source(self, session: ExecSession, source: int) -> None:
        del session.sources[source]
        if source != session.sink:
            self._shut(source)
        else:
            self._close_sink(session)

    def _ended(self, session: ExecSession, status: int, now_s: float) -> None:
        self._by_pid.pop(session.pid, None)
        session.status, session.ended_s = status, now_s
        if session.client is None:
            session.gone_s = now_s
        self._move(session, now_s)

    def _move(self, session: ExecSession, now_s: float) -> None:
        """Carry bytes both ways as far as there is room, and say what epoll is to wait for."""
        session.feed()
        if session.input_over and not session.input and session.sink >= 0 and not session.tty:
            self._close_sink(session)
        if session.status is not None:
            for source in list(session.sources):
                while session.room > 0 and self._read(session, source):
                    pass
        if not session.over and session.is_drained(now_s):
            session.over = True
            for source in () if session.main else list(session.sources):
                self._end_source(session, source)
        client = session.client
        if client is not None:
            self._send(session, client, now_s)
            self._flush(client, now_s)
        for descriptor, events in session.wanted.items():
            self._interest.want(descriptor, events)

    def _send(self, session: ExecSession, client: SessionClient, now_s: float) -> None:
        if session.taken - session.told_taken >= _TAKEN_STEP:
            session.told_taken = session.taken
            client.out += encode_control(type="taken", bytes=session.taken)
        while len(client.out) < _OUT_MAX and not session.is_told:
            channel, piece = session.ring.piece(session.sent)
            session.sent += len(piece)
            client.out += encode_frame(channel, piece)
        if session.room <= 0:
            session.full_s = min(session.full_s, now_s)
        if session.over and session.is_told and not client.told_end:
            client.out += encode_control(type="exit", **end_of(session))
            client.told_end = True

    def _flush(self, client: SessionClient, now_s: float) -> None:
        """Send what waits for a client; one that was told the end may go."""
        if client.connection.fileno() < 0:
            return
        try:
            sent = client.connection.send(client.out) if client.out else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._leave(client, now_s)
            return
        del client.out[:sent]
        if client.closing and not client.out and client.session is None:
            self._close(client)
            return
        self._interest.want(client.connection.fileno(), select.EPOLLIN | (select.EPOLLOUT if client.out else 0))

    # --- descriptors --------------------------------------------------------------------------------------------------

    def _shut(self, descriptor: int) -> None:
        self._interest.want(descriptor, 0)
        self._by_descriptor.pop(descriptor, None)
        os.close(descriptor)

    def _close_sink(self, session: ExecSession) -> None:
        sink, session.sink = session.sink, -1
        if sink >= 0:
            self._shut(sink)

    def _forget(self, session: ExecSession) -> None:
        """Close all of a session. A terminal that is closed hangs up what is left behind it."""
        self._sessions.pop((session.key, session.name), None)
        self._by_pid.pop(session.pid, None)
        if session.client is not None:
            session.client.session = None
            self._close(session.client)
        for descriptor in dict.fromkeys((session.sink, session.answer, *session.sources)):
            if descriptor >= 0:
                self._shut(descriptor)
        session.client, session.sink, session.answer, session.over = None, -1, -1, True
        session.sources.clear()

    def _places(self, key: str) -> int:
        """Programs that people execute in a task now; empty = in all."""
        return sum(each.holds_place for each in self._sessions.values() if key in ("", each.key))

    def _of(self, key: str) -> list[ExecSession]:
        return [session for session in self._sessions.values() if session.key == key]
