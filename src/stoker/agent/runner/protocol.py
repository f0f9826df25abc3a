"""Protocol between the agent and its runner, and the runner's side of the connection.

Frames: four bytes of length, big-endian, then one JSON object. The agent's messages name a deed (`do`), the runner's
a fact (`say`). The shapes below exist for the type checker only: at run time they are plain dictionaries, because
`typing` and `dataclasses` would cost the runner a tenth of its memory.

The connection is a UNIX socket in the data folder, for one agent at a time. It is open to the folder's owner only: by
its mode, and by asking the kernel for the account of the peer. A newer agent replaces the older: after a restart the
old connection may not have been noticed to be dead.

Rules: P1  a frame above `FRAME_MAX`, or one that isn't a JSON object, ends the connection
       P2  an unknown deed or fact is ignored, so that neighbours may differ by one version
       P3  the inventory comes first, in parts of at most `INVENTORY_PART_MAX` entries; the last has `more` false
       P4  of ends that the control plane has only the keys are in it (`kept`); `recall` asks for one of them
       P5  `answered` names a boot time in milliseconds, since both sides may be held up for any time in between
Limits: an agent that doesn't read is given up when `OUT_MAX` bytes wait for it; the next inventory says it all.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Final, Literal, NotRequired, TypedDict, TypeVar

    T = TypeVar("T")

    class SiteFields(TypedDict):
        """Program of the site, as a start describes it."""

        path: str
        env: dict[str, str]
        timeout_s: int

    class MountFields(TypedDict):
        """Folder or file of the node that a container sees."""

        source: str
        target: str
        read_only: bool

    class ContainerFields(TypedDict):
        """Container of a task, as a start describes it."""

        socket: str
        """Of the engine."""
        owner: str
        """Id of the agent."""
        cluster: str
        epoch: int
        image: str
        entrypoint: str | None
        """Instead of the image's; empty = none. None = the image's."""
        mounts: list[MountFields]
        allowed: list[str]
        """Paths of the node that may be mounted; `:ro` behind those for reading only."""
        hidden: list[str]
        """Paths of the node that may never be."""
        shm_mb: int
        network: str
        cpus: int
        devices: list[dict[str, object]]
        """Device requests of the Engine API."""
        init: bool
        """Whether the engine has an init process to put before the job's."""
        in_cgroup: bool
        """Whether the engine takes a path as the cgroup of a container."""

    class StartInstruction(TypedDict):
        """Start one task. Exactly one of `shell` and `argv` isn't empty."""

        do: Literal["start"]
        key: str
        shell: str
        argv: list[str]
        env: dict[str, str]
        workdir: str
        gpus: list[str]
        gpu_share: int
        """Thousandths that it holds of each of its GPUs."""
        memory_mb: int
        user: str
        allow_root: bool
        probe_port: int
        output: str
        error: str
        append: bool
        folder: str
        lease_ms: int
        script: str
        """Text of the script that `argv` names. Empty = `argv` names a program of this node."""
        umask: int
        pids_max: int
        """Processes and threads that the task may have at once, where the node can bound them. 0 = no bound."""
        gang_port_min: int
        gang_port_max: int
        """Choose a port for it beyond these. 0 = it has one."""
        host_file: str
        prolog: str
        epilog: str
        """Programs of the site; empty = none."""
        site_env: dict[str, str]
        site_timeout_s: int
        cpus: int
        cpu_limit: str
        """`weight` or `quota`: how the cgroup holds it to its CPUs. Empty = not at all."""
        denied_devices: list[list[int]]
        """Character devices that it may not open, by major and minor number."""
        cpu_list: list[int]
        """Numbers of the CPUs that it runs on. Empty = all that the runner may."""
        private_tmp: bool
        """Give it folders of its own in the place of /tmp and /var/tmp, where the runner is root."""
        tty: bool
        """It has a terminal for its standard streams, of `columns` x `rows`; 0 = 80 x 24."""
        stays: bool
        """It goes on though nobody is connected to its terminal."""
        columns: int
        rows: int
        limits: dict[str, list[int]]
        """Soft and hard limit by the names of setrlimit(2), such as `nofile`. -1 = unlimited."""

        container: ContainerFields | None
        """Run it in this container. None = as a process."""

    class WarningFields(TypedDict):
        """Warning to a task that it is to end."""

        notice: str
        """Content of a file for it."""
        number: int
        """Signal for its processes; 0 = none."""
        lead_ms: int
        """How long after that a stop terminates it."""

    class EndFields(TypedDict):
        """`TaskEnd` of the brain, field by field."""

        cause: str
        at: int
        exit_code: int | None
        signal: int
        oom: bool
        peak_memory_mb: int
        error: str
        node_fault: NotRequired[str]
        """Only where there is one."""
        hung_up: NotRequired[bool]
        """Only where it was."""

    class TaskFields(TypedDict):
        key: str
        phase: str
        gpus: list[str]
        gpu_share: int
        started_at: int

    class OverFields(TypedDict):
        key: str
        gpus: list[str]
        gpu_share: NotRequired[int]
        """Only where it isn't WHOLE_GPU."""
        started_at: int
        end: EndFields


FRAME_MAX: Final = 32 * 1024 * 1024
"""The largest start (environment, command and script at their bounds, every byte escaped) needs two thirds of it."""
INVENTORY_PART_MAX: Final = 50
"""Tasks and as many ends, each with up to a thousand GPUs by UUID: half a frame."""
KEPT_PART_MAX: Final = 1_000
"""Keys of ends that the control plane has, beside them in one part: some 20 KB."""
SOCKET_NAME: Final = "runner.sock"
LOCK_NAME: Final = "runner.lock"
LOG_NAME: Final = "runner.log"
SPOOL_NAME: Final = "output"
CHECKPOINTS_NAME: Final = "checkpoints"
"""Where the agent has the folders for checkpoints unless its settings name another place."""
ENGINE_FAULT: Final = "the container engine of this node: "
"""How a reason begins that is no fault of the job, by the client of an engine."""
_LENGTH_BYTES: Final = 4
_DIGITS_MAX: Final = 16
OUT_MAX: Final = 32 * 1024 * 1024
_CREDENTIALS: Final = struct.Struct("iII")
"""pid, uid, gid."""
_OLDER: Final[dict[str, object]] = {
    "output": "", "error": "", "append": False, "folder": "", "allow_root": False, "lease_ms": 0, "umask": 0o022,
    "limits": {}, "pids_max": 0, "gang_port_min": 0, "gang_port_max": 0, "host_file": "", "script": "",
    "prolog": "", "epilog": "", "site_env": {}, "site_timeout_s": 0, "gpu_share": 1_000, "cpus": 0, "cpu_limit": "",
    "denied_devices": [], "cpu_list": [], "private_tmp": False, "tty": False, "stays": False, "columns": 0, "rows": 0,
    "container": None,
}  # fmt: skip
"""What a start means that is an older agent's, which says nothing of these (P2)."""
_TEXTS: Final = (
    "shell", "workdir", "user", "output", "error", "folder", "host_file", "script", "prolog", "epilog", "cpu_limit",
)  # fmt: skip
_NUMBERS: Final = (
    "memory_mb", "probe_port", "lease_ms", "umask", "pids_max", "gang_port_min", "gang_port_max", "site_timeout_s",
    "gpu_share", "cpus", "columns", "rows",
)  # fmt: skip
_TRUTHS: Final = ("allow_root", "append", "private_tmp", "tty", "stays")
_CONTAINER: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("socket", "owner", "cluster", "image", "network"), (str,)),
    **dict.fromkeys(("mounts", "allowed", "hidden", "devices"), (list,)),
    **dict.fromkeys(("epoch", "shm_mb", "cpus"), (int,)),
    **dict.fromkeys(("init", "in_cgroup"), (bool,)),
    "entrypoint": (str, type(None)),
}
_READ_BYTES: Final = 64 * 1024
"""Taken from the socket in one turn: from 128 KiB on, the C library maps and unmaps memory for each."""


class BadFrame(Exception):
    """Bytes of the peer that are no frame. The message says what they are."""


def key_text(job: int, attempt: int, rank: int) -> str:
    """Return the text of a task key, such as `5.1.0`: job 5, first attempt, rank 0. It also names the task's files."""
    return f"{job}.{attempt}.{rank}"


def parse_key(text: str) -> tuple[int, int, int]:
    """Return job, attempt and rank. Raises BadFrame for all but three whole numbers: the text becomes a file name."""
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) <= _DIGITS_MAX for part in parts):
        raise BadFrame(f"{text[:80]!r} is not a task key")
    return int(parts[0]), int(parts[1]), int(parts[2])


def read_start(message: Mapping[str, object]) -> StartInstruction:
    """Return the instruction of a `start`. Raises BadFrame when a field is missing or of another type."""
    key, argv, env, gpus = _text(message, "key"), message.get("argv"), message.get("env"), message.get("gpus")
    parse_key(key)
    if not isinstance(argv, list) or not isinstance(gpus, list) or not isinstance(env, dict):
        raise BadFrame(f"the start of {key} lacks argv, env or gpus")
    if not all(isinstance(word, str) for word in (*argv, *gpus, *env, *env.values())):
        raise BadFrame(f"argv, env and gpus of the start of {key} may hold texts only")
    message = {**_OLDER, **message}
    start: dict[str, object] = {"do": "start", "key": key, "argv": argv, "env": env, "gpus": gpus}
    start |= {name: _text(message, name) for name in _TEXTS}
    start |= {name: read_number(message, name) for name in _NUMBERS}
    start |= {name: _field(message, name, bool, "true or false") for name in _TRUTHS}
    start["cpu_list"] = _numbers(message, "cpu_list")
    start["denied_devices"] = [
        _pair("denied_devices", pair) for pair in _field(message, "denied_devices", list, "pairs")
    ]
    start["limits"] = _read_limits(message)
    start["site_env"] = site_env = _field(message, "site_env", dict, "variables by name")
    if not all(isinstance(word, str) for word in (*site_env, *site_env.values())):
        raise BadFrame(f"site_env of the start of {key} may hold texts only")
    start["container"] = _read_container(message)
    return start  # type: ignore[return-value]  # every field was read just now


def _read_container(message: Mapping[str, object]) -> ContainerFields | None:
    if message["container"] is None:
        return None
    fields = _field(message, "container", dict, "a container or nothing")
    for name, kinds in _CONTAINER.items():
        if type(fields.get(name)) not in kinds:
            raise BadFrame(f"the {name} of a container is {fields.get(name)!r}")
    return fields  # type: ignore[return-value]  # every field was looked at just now


def _read_limits(message: Mapping[str, object]) -> dict[str, list[int]]:
    limits = _field(message, "limits", dict, "limits by name")
    return {name: _pair(f"the limit {name}", both) for name, both in limits.items()}


def _pair(name: str, value: object) -> list[int]:
    if not isinstance(value, list) or [type(number) for number in value] != [int, int]:
        raise BadFrame(f"{name} has {value!r}, not two numbers")
    return value


def _numbers(message: Mapping[str, object], name: str) -> list[int]:
    numbers = _field(message, name, list, "a list of numbers")
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise BadFrame(f"{name} holds what is no whole number from 0 up")
    return numbers


def read_key(message: Mapping[str, object]) -> str:
    """Return the key of the task that a message is about. Raises BadFrame."""
    key = _text(message, "key")
    parse_key(key)
    return key


def read_warning(message: Mapping[str, object]) -> WarningFields | None:
    """Return the warning of a `stop` or `warn`; None = there is none. Raises BadFrame."""
    if "notice" not in message:
        return None
    number, lead_ms = read_number(message, "number"), read_number(message, "lead_ms")
    return {"notice": _text(message, "notice"), "number": number, "lead_ms": lead_ms}


def read_number(message: Mapping[str, object], name: str) -> int:
    """Return the whole number, not below 0, of a field. Raises BadFrame."""
    value = message.get(name)
    if not isinstance(value, int) or value < 0:
        raise BadFrame(f"{name} is {value!r}, not a whole number from 0 up")
    return value


def _text(message: Mapping[str, object], name: str) -> str:
    return _field(message, name, str, "a text")


def _field(message: Mapping[str, object], name: str, kind: type[T], words: str) -> T:
    value = message.get(name)
    if not isinstance(value, kind):
        raise BadFrame(f"{name} is {value!r}, not {words}")
    return value


def encode(message: Mapping[str, object]) -> bytes:
    """Return the frame of a message."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > FRAME_MAX:
        raise BadFrame(f"a message of {len(body)} bytes is above the bound of {FRAME_MAX}")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Decoder:
    """Decoder of a byte stream into messages, which holds at most one frame that isn't whole yet."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> Iterator[dict[str, object]]:
        """Yield the messages that are whole now. Raises BadFrame."""
        self._buffer += received
        start = 0
        try:
            while len(self._buffer) - start >= _LENGTH_BYTES:
                body = start + _LENGTH_BYTES
                length = int.from_bytes(self._buffer[start:body], "big")
                if length > FRAME_MAX:
                    raise BadFrame(f"a frame of {length} bytes is above the bound of {FRAME_MAX}")
                if len(self._buffer) < body + length:
                    break
                start = body + length
                yield _parse(bytes(self._buffer[body:start]))
        finally:
            del self._buffer[:start]


def _parse(body: bytes) -> dict[str, object]:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise BadFrame(f"a frame holds no JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadFrame("a frame holds no JSON object")
    return message


def peer_uid(peer: socket.socket) -> int:
    """Return the uid of the process that opened this connection. Source: SO_PEERCRED in unix(7)."""
    uid: int = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    return uid


class Channel:
    """The listening socket and the agent that is connected."""

    def __init__(self, path: str, epoll: select.epoll) -> None:
        """`path` is relative to the working directory: a UNIX address holds 107 bytes, a data folder's name may be
        longer. Raises OSError."""
        self._epoll = epoll
        with suppress(FileNotFoundError):
            os.unlink(path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        before = os.umask(0o177)
        try:
            self._listener.bind(path)
        finally:
            os.umask(before)
        self._listener.listen(4)
        self.listening = self._listener.fileno()
        self._epoll.register(self.listening, select.EPOLLIN)
        self._agent: socket.socket | None = None
        self.talking = -1
        """Descriptor of the agent's connection. -1 = there is none."""
        self._decoder = Decoder()
        self._out = bytearray()

    def accept(self) -> bool:
        """Take a newer agent instead of the present one. False when it has gone again, or is of a foreign account."""
        try:
            agent, _ = self._listener.accept()
        except OSError:
            return False
        if peer_uid(agent) not in (0, os.geteuid()):
            agent.close()
            return False
        self.dismiss("another agent has connected to this runner")
        agent.setblocking(False)
        self._agent, self.talking = agent, agent.fileno()
        self._epoll.register(self.talking, select.EPOLLIN)
        return True

    def receive(self) -> list[dict[str, object]]:
        """Return the messages of the agent, as far as one turn takes them; none once it has gone."""
        if self._agent is None:
            return []
        try:
            received = self._agent.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            received = b""
        if not received:
            self.hang_up()
            return []
        try:
            return list(self._decoder.feed(received))
        except BadFrame as error:
            self.dismiss(str(error))
            return []

    def say(self, message: Mapping[str, object]) -> None:
        """Put a message on its way to the agent, if there is one; `flush` sends it."""
        if self._agent is None:
            return
        self._out += encode(message)
        if len(self._out) > OUT_MAX:
            self.hang_up()

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        if self._agent is None or not self._out:
            return
        try:
            sent = self._agent.send(self._out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.hang_up()
            return
        del self._out[:sent]
        wanted = select.EPOLLIN | (select.EPOLLOUT if self._out else 0)
        self._epoll.modify(self.talking, wanted)

    @property
    def waiting(self) -> bool:
        """Whether something is unsent."""
        return bool(self._out)

    def dismiss(self, why: str) -> None:
        """Tell the agent, if there is one, why it is left, and close the connection."""
        self.say({"say": "bye", "error": why})
        self.flush()
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection to the agent, if there is one."""
        if self._agent is None:
            return
        self._epoll.unregister(self.talking)
        self._agent.close()
        self._agent, self.talking = None, -1
        self._decoder = Decoder()
        self._out.clear()
