"""This terminal, or these pipes, as those of a program inside a job.

Rules: S1  with a terminal every key goes to the program, Ctrl-C and Ctrl-Z too; only after Enter `~.` hangs up, `~d`
           detaches from a job's own terminal, `~?` says so, and `~~` is one `~`
       S2  without one, SIGINT, SIGTERM, SIGQUIT and SIGHUP are passed on to the program
       S3  a connection that breaks is made again for RECONNECT_S, also to whoever is the active control plane then;
           what was sent and not taken is sent again, and output goes on where it stopped
       S4  a terminal that is closed (SIGHUP) or a SIGTERM hangs the program up, as ssh does
       S5  the terminal is put back as it was, however it ends
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from msgspec.structs import replace

from stoker.brain.domain.errors import StokerError
from stoker.cli.clock import mono_s
from stoker.wire.client.backoff import sleep_async
from stoker.wire.client.clients import connect_to_session
from stoker.wire.client.exec_session import SessionBroken
from stoker.wire.exec_session import (
    CONTROL,
    GOT_STEP,
    INPUT_MAX,
    SIDE_MAX,
    STDIN,
    STDOUT,
    SessionMessage,
    control,
)

if TYPE_CHECKING:
    from stoker.wire.client import AsyncClient
    from stoker.wire.client.exec_session import SessionConnection
    from stoker.wire.rest.exec_session import AttachQuery, ExecQuery

RECONNECT_S: Final = 120.0
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 0.5
_READ_BYTES: Final = 16 << 10
_WRITE_BYTES: Final = 4096
"""So much a pipe that is writable takes without a wait."""
_AGAIN: Final = frozenset(
    {"no_server", "no_answer", "not_active", "node_unreachable", "exec_unavailable", "too_many_streams", "overloaded"}
)
"""Refusals that pass by themselves while a control plane or an agent begins anew."""
_PASSED_ON: Final = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_HANGS_UP: Final = (signal.SIGHUP, signal.SIGTERM)
_HELP: Final = (
    "after Enter: `~.` hangs up, `~d` detaches and leaves the job running (`stoker attach` comes back), `~~` is a `~`"
)


class SessionEnd(NamedTuple):
    """End of a session, as this side saw it."""

    status: int
    """For the exit status: that of the program, or 128 + the signal that killed it."""
    error: str = ""
    """Why the program could not be run."""
    detached: bool = False
    """The program goes on."""


class EscapeKeys:
    """Filter of what a person types, which takes out the keys that are meant for the client (S1)."""

    def __init__(self, *, detaches: bool) -> None:
        self._detaches = detaches
        self._at_begin = True
        self._tilde = False

    def take(self, typed: bytes) -> tuple[bytes, str]:
        """Return what goes to the program, and `hangup`, `detach` or `help`; empty = nothing of these was typed."""
        sent, told = bytearray(), ""
        for key in typed:
            letter = bytes((key,))
            if self._tilde:
                self._tilde = False
                if letter == b"." or (letter == b"d" and self._detaches):
                    return bytes(sent), "hangup" if letter == b"." else "detach"
                if letter == b"?":
                    told = "help"
                    continue
                if letter != b"~":
                    sent += b"~"
                sent += letter
            elif letter == b"~" and self._at_begin:
                self._tilde = True
                continue
            else:
                sent += letter
            self._at_begin = letter in b"\r\n"
        return bytes(sent), told


class TerminalMode:
    """Raw mode of the terminal at standard input, from entry to exit (S5)."""

    def __init__(self, *, on: bool) -> None:
        self._before: list[Any] | None = termios.tcgetattr(0) if on else None

    def __enter__(self) -> None:
        if self._before is not None:
            tty.setraw(0, termios.TCSADRAIN)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._before)


def terminal_size() -> tuple[int, int]:
    """Return columns and rows of this terminal; 0 = unknown."""
    with suppress(OSError):
        size = os.get_terminal_size(0)
        return min(size.columns, SIDE_MAX), min(size.lines, SIDE_MAX)
    return 0, 0


class SessionTerminal:
    """Standard streams of this process, connected to a session in a job."""

    def __init__(
        self, client: "AsyncClient", job: str, query: "ExecQuery | AttachQuery", *, sends_input: bool, detaches: bool
    ) -> None:
        """`detaches`: it is a job's own terminal, which goes on without a client."""
        self._client = client
        self._job = job
        self._query = query
        self._tty = sends_input and os.isatty(0) and (detaches or getattr(query, "tty", False))
        self._keys = EscapeKeys(detaches=detaches)
        self._sends_input = sends_input
        self._input = bytearray()
        # Sent or to be sent, and not known to be taken; its first byte is number `_taken` of all.
        self._taken = self._sent = 0
        self._input_over = False
        self._got = self._told_got = 0
        self._leaving = ""
        self._connection: SessionConnection | None = None
        self._reading = False
        self._news = asyncio.Event()
        self._controls: list[SessionMessage] = []

    async def run(self, connection: "SessionConnection") -> SessionEnd:
        """Carry both ways until the program ends, from this first connection. Raises: StokerError."""
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = dict.fromkeys(_HANGS_UP, self._hang_up)
        if self._tty:
            handlers[signal.SIGWINCH] = self._resized
        else:
            handlers |= {number: partial(self._pass_on, number) for number in _PASSED_ON}
        for number, handle in handlers.items():
            loop.add_signal_handler(number, handle)
        try:
            with TerminalMode(on=self._tty):
                self._resized()
                while True:
                    try:
                        return await self._session(connection)
                    except SessionBroken as fault:
                        connection.abort()
                        if self._leaving:
                            return SessionEnd(0 if self._leaving == "detach" else 129, detached=True)
                        connection = await self._again(str(fault))
        finally:
            self._stop_reading()
            for number in handlers:
                loop.remove_signal_handler(number)

    # --- the connection -------------------------------------------------------------------------------------------

    async def _again(self, why: str) -> "SessionConnection":
        """Connect once more (S3). Raises: StokerError."""
        self._say(f"the connection broke ({why}); trying again for {RECONNECT_S:.0f} s")
        pause_s, until = _PAUSE_FIRST_S, mono_s() + RECONNECT_S
        columns, rows = terminal_size() if self._tty else (0, 0)
        while True:
            try:
                query = replace(self._query, at=self._got, columns=columns, rows=rows)
                return await connect_to_session(self._client, self._job, query)
            except StokerError as fault:
                if fault.refusal.code not in _AGAIN or mono_s() > until or self._leaving:
                    raise
            await sleep_async(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    async def _session(self, connection: "SessionConnection") -> SessionEnd:
        """Raises: SessionBroken, StokerError."""
        sending: asyncio.Future[None] | None = None
        try:
            while True:
                message = await connection.read()
                if message.channel != CONTROL:
                    self._got += len(message.content)
                    await _write(1 if message.channel == STDOUT else 2, message.content)
                    if self._got - self._told_got >= GOT_STEP:
                        self._told_got = self._got
                        self._tell(control("got", bytes=self._got))
                    continue
                fields = message.control()
                kind = fields["type"]
                if kind == "attached":
                    self._attached(_count(fields, "at"), _count(fields, "taken"))
                    sending = asyncio.ensure_future(self._send(connection))
                elif kind == "taken":
                    self._take(_count(fields, "bytes"))
                elif kind == "refused":
                    raise _refusal(fields)
                elif kind == "exit":
                    await connection.write(control("done"))
                    await connection.close()
                    status = _count(fields, "code") or (128 + _count(fields, "signal") if fields.get("signal") else 0)
                    return SessionEnd(status, str(fields.get("error", "")))
                if sending is not None and sending.done():
                    sending.result()
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    def _attached(self, at: int, taken: int) -> None:
        if at > self._got and self._got:
            self._say(f"{at - self._got} bytes of output were skipped")
        self._got = self._told_got = at
        self._take(taken)
        self._sent = self._taken
        if self._sends_input:
            self._read_on()
        else:
            self._input_over = True
        self._news.set()

    async def _send(self, connection: "SessionConnection") -> None:
        """Send input and control messages as they come, and the end of the input once. Raises: SessionBroken."""
        told_end = False
        while True:
            while self._controls:
                await connection.write(self._controls.pop(0))
            unsent = bytes(self._input[self._sent - self._taken :])
            if unsent:
                self._sent += len(unsent)
                await connection.write(SessionMessage(STDIN, unsent))
            if self._input_over and not told_end and self._sent == self._taken + len(self._input):
                told_end = True
                await connection.write(control("end"))
            if self._leaving and not self._controls:
                await connection.close()
                raise SessionBroken("left")
            self._news.clear()
            if not self._controls and self._sent == self._taken + len(self._input):
                await self._news.wait()

    def _take(self, taken: int) -> None:
        done = min(max(0, taken - self._taken), len(self._input))
        del self._input[:done]
        self._taken = max(self._taken, taken)
        self._sent = max(self._sent, self._taken)
        if done and self._sends_input:
            self._read_on()

    # --- what is typed ----------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        """Read standard input while there is room (INPUT_MAX)."""
        if self._reading or self._input_over or len(self._input) >= INPUT_MAX:
            return
        try:
            asyncio.get_running_loop().add_reader(0, self._readable)
            self._reading = True
        except PermissionError:  # a file, which is always readable
            self._read_file()

    def _read_file(self) -> None:
        while not self._input_over and len(self._input) < INPUT_MAX:
            self._readable()

    def _stop_reading(self) -> None:
        if self._reading:
            asyncio.get_running_loop().remove_reader(0)
            self._reading = False

    def _readable(self) -> None:
        try:
            typed = os.read(0, min(_READ_BYTES, max(1, INPUT_MAX - len(self._input))))
        except BlockingIOError:
            return
        except OSError:
            typed = b""
        if not typed:
            self._input_over = True
            self._stop_reading()
        elif self._tty:
            sent, told = self._keys.take(typed)
            self._input += sent
            if told == "help":
                self._say(_HELP)
            elif told:
                self._leave(told)
        else:
            self._input += typed
        if len(self._input) >= INPUT_MAX:
            self._stop_reading()
        self._news.set()

    # --- signals ------------------------------------------------------------------------------------------------------

    def _resized(self) -> None:
        columns, rows = terminal_size()
        if self._tty and columns and rows:
            self._tell(control("resize", columns=columns, rows=rows))

    def _pass_on(self, number: int) -> None:
        self._tell(control("signal", number=number))

    def _hang_up(self) -> None:
        self._leave("hangup")

    def _leave(self, how: str) -> None:
        self._leaving = how
        self._tell(control(how))

    def _tell(self, message: SessionMessage) -> None:
        self._controls.append(message)
        self._news.set()

    def _say(self, words: str) -> None:
        end = "\r\n" if self._tty else "\n"
        click.echo(f"{end if self._tty else ''}stoker: {words}{end}", err=True, nl=False)


async def _write(descriptor: int, data: bytes) -> None:
    """Write to a stream of ours without holding up all else while it takes nothing. Raises: SessionBroken."""
    loop = asyncio.get_running_loop()
    while data:
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_writer(descriptor, _set, ready)
        except PermissionError:  # a file
            os.write(descriptor, data)
            return
        try:
            await ready
        finally:
            loop.remove_writer(descriptor)
        try:
            data = data[os.write(descriptor, data[:_WRITE_BYTES]) :]
        except BlockingIOError:
            continue
        except BrokenPipeError:
            raise click.exceptions.Exit(128 + signal.SIGPIPE) from None


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


def _count(fields: dict[str, object], name: str) -> int:
    value = fields.get(name, 0)
    return value if isinstance(value, int) else 0


def _refusal(fields: dict[str, object]) -> StokerError:
    from stoker.brain.domain.errors import refusal_error

    hint = "`stoker attach` or `stoker exec` begins another"
    return refusal_error(str(fields.get("code", "exec_failed")), str(fields.get("message", "")), hint)


def needs_terminal(instead: str = "leave -t out") -> None:
    """Refuse a terminal session where standard input or output is none. Raises: UsageError."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(f"it needs a terminal here, and standard input or output is none: {instead}")
