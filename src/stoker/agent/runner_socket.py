"""Runner port over a UNIX socket: finds or starts the runner of a node, and talks to it.

A connection is made to the socket in the data folder; when nobody answers there, a runner is started, in a session of
its own and with nothing of the agent's open, and then connected to. Output is read from the files that the runner
writes, without asking it.

Calls on a connection that has broken raise ConnectionError (an OSError); the report stream says RunnerGone.
"""

import asyncio
import os
import pwd
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec

from stoker.agent.ports import (
    LeasesUnkept,
    LogSlice,
    RunnerGone,
    RunnerHealth,
    RunnerInventory,
    RunnerReport,
    SiteProgramEnded,
    StartTask,
    TaskEnding,
    TaskForgotten,
    TaskOver,
    TaskRunning,
    TaskWarning,
)
from stoker.agent.runner import protocol
from stoker.agent.runner.clock import boot_s
from stoker.agent.runner.files import disk_fault, opened
from stoker.agent.runner.output import spool
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.instruction import Start, TaskKey
from stoker.brain.domain.report import TaskPhase, TaskStatus
from stoker.brain.domain.units import Mono
from stoker.ports import Clock

CONNECT_S_MAX: Final = 15.0
"""From starting a runner to its answer. Python on a busy machine takes a second; a sweep of leftovers adds to it."""
SHUTDOWN_S_MAX: Final = 30.0
REPORTS_MAX: Final = 10_000
"""Reports that wait for the daemon. At the bound the socket isn't read, and the runner keeps what it has to say."""
_RETRY_S: Final = 0.02
_READ_BYTES: Final = 256 * 1024
_SITE_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LOG_TAIL_BYTES: Final = 2_000

_TASK_REPORTS: Final[Mapping[str, type[RunnerReport]]] = {
    "running": TaskRunning,
    "ending": TaskEnding,
    "over": TaskOver,
    "forgotten": TaskForgotten,
    "site": SiteProgramEnded,
}
_KNOWN: Final = {"scripts": "keeps_scripts", "containers": "runs_containers"}
"""What a runner of an older version doesn't know, and so doesn't name."""
_T = TypeVar("_T")
_Fields = Mapping[str, object]
RunnerConnection = tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]
"""With the first bytes that came."""


class RunnerSocket:
    """The runner of one node, as its agent sees it."""

    def __init__(
        self,
        data_dir: Path,
        clock: Clock,
        options: dict[str, object] | None = None,
        every_start: dict[str, object] | None = None,
    ) -> None:
        """`options` are fields of `RunnerSettings` by name, for a runner that must be started: `tether_s`, bounds.
        `every_start`: fields of `StartInstruction` that are the same for all of this node: `allow_root`, `umask`,
        `limits`, `pids_max`, `cpu_limit`, `private_tmp`, `prolog`, `epilog`,
        `site_timeout_s`. A runner that an earlier agent has started obeys them too."""
        self.data_dir = data_dir
        self._clock = clock
        self._options = options or {}
        self._every_start = {"allow_root": False, **(every_start or {})}
        self._has_site_programs = bool(self._every_start.get("prolog") or self._every_start.get("epilog"))
        self._reports: asyncio.Queue[RunnerReport] = asyncio.Queue(REPORTS_MAX)
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = 0
        # The runner (its guard, rather) that we started and that hasn't answered yet. 0 = there is none.
        self._children: dict[int, None] = {}
        # Those we started and that haven't been seen to end.
        self._log_from = 0
        # Where the words of the runner that we started last begin in the log.
        self._unsent: list[bytes] = []
        self._asked: set[TaskKey] = set()
        # Starts that the runner hasn't answered: they have no output yet.
        self.notes: tuple[str, ...] = ()
        """What this node's runner can't do, in sentences for people. Known after the inventory."""

    # --- the port -----------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect to the runner of this node, or to one that is started now. Raises OSError when neither works."""
        await self.close()
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            let_through(self.data_dir)
        reader, self._writer, greeting = await self._reach()
        self._reports = asyncio.Queue(REPORTS_MAX)
        self._asked.clear()
        self._reading = asyncio.create_task(self._read(reader, greeting), name="runner-reports")

    async def reports(self) -> AsyncGenerator[RunnerReport, None]:
        reports = self._reports
        while True:
            report = await reports.get()
            yield report
            if isinstance(report, RunnerGone):
                return

    async def start(self, task: StartTask) -> None:
        start, native = task.start, task.start.encoding.native
        message: dict[str, object] = {
            "do": "start",
            "key": _text(start.key),
            "shell": native(start.command) if isinstance(start.command, str) else "",
            "argv": [] if isinstance(start.command, str) else list(map(native, start.command)),
            "env": {**task.env, **{native(name): native(value) for name, value in start.env.items()}},
            "workdir": native(start.workdir),
            "gpus": list(start.gpus),
            "gpu_share": start.gpu_share,
            "memory_mb": start.memory_mb or task.memory_mb,
            "user": start.user,
            "probe_port": start.probe_port,
            "gang_port_min": start.gang_port_min,
            "gang_port_max": start.gang_port_max,
            "host_file": start.host_file,
            "site_env": site_variables(start) if self._has_site_programs else {},
            "output": native(start.output),
            "error": native(start.error),
            "append": start.append,
            "tty": start.tty,
            "stays": start.stays,
            "columns": 0,
            "rows": 0,
            "folder": task.folder,
            "lease_ms": start.lease_ms,
            "script": native(start.script),
            "cpus": start.cpus,
            "cpu_list": list(task.placement.cpus),
            "denied_devices": [list(device) for device in task.placement.denied],
            "container": task.container,
            **self._every_start,
        }
        self._asked.add(start.key)
        await self._send(message)

    async def stop(self, key: TaskKey, grace_ms: int, warning: TaskWarning | None = None) -> None:
        told = _warning(warning) if warning else {}
        await self._send({"do": "stop", "key": _text(key), "grace_ms": grace_ms, **told})

    async def warn(self, key: TaskKey, warning: TaskWarning, once: int) -> None:
        await self._send({"do": "warn", "key": _text(key), "once": once, **_warning(warning)})

    async def signal(self, key: TaskKey, number: int) -> None:
        await self._send({"do": "signal", "key": _text(key), "number": number})

    async def settle(self, key: TaskKey) -> None:
        self._say({"do": "settle", "key": _text(key)})

    async def recall(self, key: TaskKey) -> None:
        await self._send({"do": "recall", "key": _text(key)})

    async def answered(self, at: Mono) -> None:
        """Pass on the moment in boot time: the agent's clock runs as fast, but counts from another beginning."""
        now_s = boot_s()
        age_s = self._clock.mono() - at
        await self._send({"do": "answered", "at_ms": max(0, int((now_s - age_s) * 1_000))})

    def revoke(self, key: TaskKey) -> bool:
        """Make its output before the runner does, which starts nothing whose output is there."""
        base = str(self.data_dir / protocol.SPOOL_NAME / _text(key))
        revoked = spool.claim(base)
        if revoked:
            spool.seal(base)
        return revoked

    def ask(self) -> None:
        if self._writer is not None:
            self._unsent.append(protocol.encode({"do": "ask"}))
            self._flush()

    async def read_log(self, key: TaskKey, offset: int, limit: int) -> LogSlice:
        """Read a task's output from its spool. Raises FileNotFoundError when none is kept here."""
        base = str(self.data_dir / protocol.SPOOL_NAME / _text(key))
        try:
            begin, content, size, ended = spool.read(base, offset, limit)
        except FileNotFoundError as error:
            if key in self._asked:
                return LogSlice(offset=0, data=b"", size=0, ended=False)
            raise FileNotFoundError("none is kept there any more") from error
        return LogSlice(offset=begin, data=content, size=size, ended=ended)

    async def renounce(self) -> None:
        await self._send({"do": "renounce"})

    async def shutdown(self) -> None:
        """Kill every task, then end the runner. Raises TimeoutError when a process can't be killed."""
        if self._reading is None or self._reading.done():
            return
        with suppress(ConnectionError):
            await self._send({"do": "shutdown"})
        async with asyncio.timeout(SHUTDOWN_S_MAX):
            await self._drain()
            self._bury()
            while self._children:  # its guard has the last look at what is left
                await self._clock.sleep(_RETRY_S)
                self._bury()

    async def close(self) -> None:
        """Close the connection; the runner and its tasks go on."""
        if self._reading is not None:
            self._reading.cancel()
            # Not awaited itself: a cancellation that is meant for us would be taken for the reader's and be lost.
            await asyncio.wait({self._reading})
            self._reading = None
        if self._writer is not None:
            self._flush()
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
            self._writer = None
        self._bury()

    # --- connecting ---------------------------------------------------------------------------------------------

    async def _reach(self) -> RunnerConnection:
        with suppress(FileNotFoundError, ConnectionError):
            return await self._open()
        self._bury()
        if self._starting not in self._children:
            # Of an earlier one only the guard may live, which is killing what it left: nobody has to wait for that.
            self._starting = self._launch()
            self._children[self._starting] = None
        deadline = self._clock.mono() + CONNECT_S_MAX
        while True:
            with suppress(FileNotFoundError, ConnectionError):
                return await self._open()
            self._bury()
            if self._starting not in self._children:
                raise OSError(f"the runner ended at once: {self._last_words()}")
            if self._clock.mono() > deadline:
                raise OSError(f"the runner doesn't answer: {self._last_words()}")
            await self._clock.sleep(_RETRY_S)

    async def _open(self) -> RunnerConnection:
        """A connection on which the runner has begun to speak: one that dies still takes connections for a moment.
        Raises FileNotFoundError, ConnectionError."""
        # By way of a descriptor, since a UNIX address holds only 107 bytes.
        with opened(self.data_dir, os.O_PATH | os.O_DIRECTORY) as folder:
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{protocol.SOCKET_NAME}")
        greeting = b""
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                greeting = await reader.read(_READ_BYTES)
        except TimeoutError:
            raise OSError(f"it hasn't answered for {CONNECT_S_MAX:.0f} s: it is stopped, or its disk hangs") from None
        finally:
            if not greeting:
                writer.close()
        if not greeting:
            raise ConnectionResetError("the runner ended before it said a word")
        self._starting = 0
        return reader, writer, greeting

    def _launch(self) -> int:
        """Start a runner in a session of its own, with its own log and no descriptor of ours."""
        options = [word for name, value in self._options.items() for word in (f"--{name}", str(value))]
        # With UTF-8, whatever the agent's locale is: by it names of folders and files become bytes.
        runner = [sys.executable, "-X", "utf8", "-m", "stoker.agent.runner"]
        arguments = [*runner, "--data_dir", str(self.data_dir.resolve()), *options]
        log = str(self.data_dir / protocol.LOG_NAME)
        with suppress(FileNotFoundError):
            self._log_from = os.stat(log).st_size
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        streams = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, log, flags, 0o600),
        ]
        try:
            return os.posix_spawn(sys.executable, arguments, os.environ, file_actions=streams, setsid=True)
        except OSError as error:  # which names the program, also where it is the log that can't be opened
            raise OSError(f"no runner can be started: {self._of_the_disk() or error.strerror}") from error

    def _bury(self) -> None:
        """Take the exit status of what we started and has ended, so that no zombie stays."""
        for pid in tuple(self._children):
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            del self._children[pid]

    def _last_words(self) -> str:
        """What the runner that was started last has said."""
        try:
            with (self.data_dir / protocol.LOG_NAME).open("rb") as log:
                log.seek(max(self._log_from, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
                content = log.read()
        except OSError as error:
            return self._of_the_disk() or f"it left no log ({error.strerror})"
        words = content.decode(errors="replace").strip().rpartition("\n")[2]
        return words.lstrip("0123456789 ") or self._of_the_disk() or "its log is empty"

    def _of_the_disk(self) -> str:
        return disk_fault(str(self.data_dir), f"data folder {self.data_dir}")

    # --- messages -----------------------------------------------------------------------------------------------

    async def _send(self, message: dict[str, object]) -> None:
        """Write a message. Raises: ConnectionError."""
        writer = self._say(message)
        await asyncio.sleep(0)
        await writer.drain()

    def _say(self, message: dict[str, object]) -> asyncio.StreamWriter:
        """Write a message with others of this turn of the loop: for the runner each write is a turn of its own.

        Raises: ConnectionError.
        """
        if self._writer is None or self._reading is None or self._reading.done():
            raise ConnectionError("the runner isn't connected")
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(protocol.encode(message))
        return self._writer

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.write(b"".join(self._unsent))
        self._unsent.clear()

    async def _read(self, reader: asyncio.StreamReader, received: bytes) -> None:
        """Queue everything that the runner says, until it is gone."""
        reports, decoder, error = self._reports, protocol.Decoder(), ""
        parts: list[_Fields] = []
        try:
            while received:
                for message in decoder.feed(received):
                    error = str(message["error"]) if message["say"] == "bye" else error
                    for report in self._reports_in(message, parts):
                        if isinstance(report, TaskRunning | TaskOver):
                            self._asked.discard(report.key)
                        await reports.put(report)
                received = await reader.read(_READ_BYTES)
        except (OSError, protocol.BadFrame) as broken:
            error = error or str(broken)
        assert self._writer is not None, "reading without a connection"
        self._writer.close()
        self._bury()
        await reports.put(RunnerGone(error=error or "the runner process has ended"))

    def _reports_in(self, message: _Fields, parts: list[_Fields]) -> Iterator[RunnerReport]:
        """The reports in a message; an unknown one is ignored (P2 of `protocol`). `parts`: of an inventory, so far."""
        match message["say"]:
            case "inventory":
                self.notes = tuple(cast(list[str], message["notes"]))
                parts.append(message)
                if not message["more"]:
                    yield _inventory(parts)
                    parts.clear()
            case "health":
                yield RunnerHealth(fault=str(message["fault"]))
            case "unguarded":
                yield LeasesUnkept()
            case str() as fact if fact in _TASK_REPORTS:
                yield _converted(_TASK_REPORTS[fact], message)

    async def _drain(self) -> None:
        """Wait until the runner is gone. What it says meanwhile nobody needs any more."""
        assert self._reading is not None, "draining without a connection"
        while not self._reading.done():
            with suppress(asyncio.QueueEmpty):
                while self._reports.full():
                    self._reports.get_nowait()
            await asyncio.wait({self._reading}, timeout=_RETRY_S)


def _inventory(parts: list[_Fields]) -> RunnerInventory:
    """The whole of an inventory that came in these parts (P3 of `protocol`)."""
    kept: list[TaskStatus] = []
    tasks: list[TaskStatus] = []
    ends: list[TaskOver] = []
    for part in parts:
        names = cast("list[str]", part.get("kept", ()))
        kept += [TaskStatus(key=_key({"key": name}), phase=TaskPhase.ENDED) for name in names]
        tasks += [_converted(TaskStatus, task) for task in cast("list[_Fields]", part["tasks"])]
        for over in cast("list[_Fields]", part["ends"]):
            ends.append(_converted(TaskOver, over))
            tasks.append(_converted(TaskStatus, {**over, "phase": TaskPhase.ENDED}))
    guarded, fault = bool(parts[-1].get("guarded", False)), cast("str | None", parts[-1].get("fault"))
    most, short_of = cast("int", parts[-1].get("tasks_max", 0)), str(parts[-1].get("short_of", ""))
    told = RunnerInventory(tasks=(*kept, *tasks), ends=tuple(ends), keeps_leases=guarded, fault=fault)
    cgroups = bool(parts[-1].get("cgroups", True))
    told = msgspec.structs.replace(told, notes=tuple(cast("list[str]", parts[-1]["notes"])))
    knows = {field: bool(parts[-1].get(name, False)) for name, field in _KNOWN.items()}
    return msgspec.structs.replace(told, tasks_max=most, short_of=short_of, cgroups=cgroups, **knows)


def let_through(folder: Path) -> None:
    """Let jobs of other users reach their own folders inside, and see nothing else. Raises OSError."""
    mode = folder.stat().st_mode
    if mode & 0o011 != 0o011:
        folder.chmod(mode & 0o7777 | 0o011)


def site_variables(start: Start) -> dict[str, str]:
    """Return the environment of prolog and epilog: what is known of the task, and nothing that its job chose."""
    given = {"STOKER_JOB_ID": str(start.key.job), "STOKER_NODE": ""}
    return {
        "PATH": _SITE_PATH,
        **{name: start.env.get(name, otherwise) for name, otherwise in given.items()},
        "STOKER_ATTEMPT": str(start.key.attempt),
        "STOKER_RANK": str(start.key.rank),
        "STOKER_USER": start.user or pwd.getpwuid(os.geteuid()).pw_name,
        "STOKER_TENANT": start.tenant,
        "CUDA_VISIBLE_DEVICES": ",".join(start.gpus),
    }


def _warning(warning: TaskWarning) -> dict[str, object]:
    return {"notice": warning.text, "number": warning.signal, "lead_ms": warning.lead_ms}


def _text(key: TaskKey) -> str:
    return protocol.key_text(key.job, key.attempt, key.rank)


def _key(fields: Mapping[str, object]) -> TaskKey:
    job, attempt, rank = protocol.parse_key(str(fields["key"]))
    return TaskKey(JobId(job), attempt, rank)


def _converted(kind: type[_T], fields: Mapping[str, object]) -> _T:
    """What a message says of the task that its `key` names."""
    return msgspec.convert({**fields, "key": _key(fields)}, kind)
