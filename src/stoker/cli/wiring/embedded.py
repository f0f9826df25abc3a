"""Cluster on one machine, in the foreground of one command: `stoker up` is this, and `stoker demo` starts `stoker up`.

The control plane runs in this process, every node is an agent process with a data folder of its own.

Rules: E1  when `run` returns or raises, no process that it started, nor any job of theirs, is left: after
           `_adopt_orphans` a grandchild whose parent dies becomes a child of this process instead of getting lost
       E2  an agent that ends by itself ends the cluster, with the last words of its log
       E4  it is up once every node has joined; one that is waited for longer than TOLD_AFTER_S is named
       E3  `kill` ends everything at once and without grace; a process is killed only while it descends from this one:
           ids are looked up anew each time, never remembered

Source: prctl(2), PR_SET_CHILD_SUBREAPER.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stoker.adapters.clock import SystemClock
from stoker.adapters.settings.loader import load
from stoker.agent.runner.process.procfs import every_proc, with_descendants
from stoker.brain.domain.errors import StokerError, refuse
from stoker.cli.display.yaml_text import yaml_text
from stoker.live.main import run_control
from stoker.live.settings.control import ControlSettings
from stoker.wire.client import AsyncClient

CPUS: Final = 16
MEMORY_MB: Final = 128 * 1024
"""What a simulated node of up to four GPUs brings; beyond it grows with the GPUs."""
GPU_MEMORY_MB: Final = 80 * 1024
STOP_S: Final = 20.0
"""Agents get the jobs' grace of ten seconds, and as much again."""
_PR_SET_CHILD_SUBREAPER: Final = 36
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
JOIN_LOOK_S: Final = 0.1
TOLD_AFTER_S: Final = 5.0
LAST_WORDS: Final = 2_000
"""Bytes of a log that are shown when its agent ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSpec:
    """Cluster to run. `gpus_per_node` 0 and no model: one node with the GPUs that are really there."""

    nodes: int
    gpus_per_node: int
    gpu_model: str
    data_dir: Path
    host: str
    http_port: int
    grpc_port: int
    node_prefix: str = "node"
    stop_grace_s: int = 10
    insecure: bool = False
    """Serve everybody who reaches it, without a token."""

    @property
    def node_names(self) -> tuple[str, ...]:
        """Names of the nodes, which sort as they are numbered."""
        digits = len(str(self.nodes))
        return tuple(f"{self.node_prefix}-{number:0{digits}}" for number in range(1, self.nodes + 1))


class EmbeddedCluster:
    """Cluster of this process, from start to end."""

    def __init__(self, shape: EmbeddedSpec) -> None:
        self._shape = shape
        self._clock = SystemClock()
        self._agents: dict[str, asyncio.subprocess.Process] = {}

    async def run(
        self, stop: asyncio.Event, on_ready: Callable[[], None], on_wait: Callable[[list[str]], None]
    ) -> None:
        """Serve until `stop` is set. `on_wait` is told the nodes that are still waited for (E4).

        Raises: StokerError when it can't start, or when a part of it ended.
        """
        ready, control_stop = asyncio.Event(), asyncio.Event()
        control = asyncio.create_task(
            run_control(
                _control_settings(self._shape),
                stop=control_stop,
                on_ready=ready.set,
                open_to_owner=True,
                insecure=self._shape.insecure,
            ),
            name="control",
        )
        try:
            await _first(asyncio.create_task(ready.wait()), control)
            if control.done():
                await control
                return
            await self._start_agents()
            joining = asyncio.create_task(self._joined(on_ready, on_wait))
            serving = asyncio.create_task(self._until(stop, control))
            try:
                await _first(serving, joining)
                if joining.done():
                    joining.result()  # it can't be said where nobody reads any more
                await serving
            finally:
                for task in (joining, serving):
                    task.cancel()
                await asyncio.wait((joining, serving))
        finally:
            await self._end_agents()
            control_stop.set()
            try:
                await control
            finally:
                await self._sweep()

    async def _start_agents(self) -> None:
        _adopt_orphans()
        for name in self._shape.node_names:
            folder = self._shape.data_dir / "nodes" / name
            settings = _write_agent_files(self._shape, name, folder)
            with (folder / "agent.log").open("ab") as log:
                self._agents[name] = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "stoker", "agent", "-c", str(settings)),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C at the terminal is ours to pass on, once
                )

    async def _joined(self, on_ready: Callable[[], None], on_wait: Callable[[list[str]], None]) -> None:
        """Say that the cluster is up once every node has joined (E4)."""
        host = _LOOPBACK.get(self._shape.host, self._shape.host)
        url = f"http://[{host}]" if ":" in host else f"http://{host}"
        begun_s, told = self._clock.mono(), False
        async with AsyncClient(f"{url}:{self._shape.http_port}", patience_s=0) as client:
            while True:
                missing = list(self._shape.node_names)
                with suppress(StokerError):  # the control plane's own end is told by its task
                    online = {node.name for node in await client.nodes() if node.online}
                    missing = [name for name in missing if name not in online]
                if not missing:
                    on_ready()
                    return
                if not told and self._clock.mono() - begun_s > TOLD_AFTER_S:
                    told = True
                    on_wait(missing)
                await self._clock.sleep(JOIN_LOOK_S)

    async def _until(self, stop: asyncio.Event, control: "asyncio.Task[None]") -> None:
        """An agent that ends by itself ends the cluster, with the last words of its log (E2)."""
        stopping = asyncio.create_task(stop.wait())
        endings = {asyncio.create_task(agent.wait()): name for name, agent in self._agents.items()}
        await _first(stopping, control, *endings)
        if control.done():
            await control
        gone = next((name for task, name in endings.items() if task.done() and not stop.is_set()), None)
        for task in (stopping, *endings):
            task.cancel()
        if gone is not None:
            raise self._agent_ended(gone)

    def _agent_ended(self, name: str) -> StokerError:
        log = self._shape.data_dir / "nodes" / name / "agent.log"
        words = log.read_bytes()[-LAST_WORDS:].decode(errors="replace").strip()
        status = self._agents[name].returncode
        message = f"the agent of {name} ended with status {status}; its log ends:\n{words}"
        hint = "start it again; with the same --data-dir the queue is kept"
        return StokerError(refuse("part_died", message, hint, node=name))

    async def _end_agents(self) -> None:
        """Each agent ends its jobs, then itself."""
        living = [agent for agent in self._agents.values() if agent.returncode is None]
        for agent in living:
            agent.terminate()
        try:
            async with asyncio.timeout(self._shape.stop_grace_s + STOP_S):
                await asyncio.gather(*(agent.wait() for agent in living))
        except TimeoutError:
            kill_descendants()

    async def _sweep(self) -> None:
        """Leave no process, also none that an agent left behind (E1)."""
        for delay_s in (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6):
            await self._clock.sleep(delay_s)
            if not kill_descendants():
                return


def _adopt_orphans() -> None:
    """Raises: OSError from the kernel."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def kill_descendants() -> bool:
    """End every process below this one at once and without grace (E3). False when there was none left."""
    me = os.getpid()
    living = [proc.pid for proc in with_descendants((me,), every_proc()) if proc.pid != me]
    for pid in living:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(living)


async def _first(*tasks: "asyncio.Task[object] | asyncio.Task[None]") -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def _control_settings(shape: EmbeddedSpec) -> ControlSettings:
    """Through the loader, so that faults are told as for a daemon."""
    flags: dict[str, object] = {
        "data_dir": shape.data_dir / "control",
        "http.host": shape.host,
        "http.port": shape.http_port,
        "grpc.host": shape.host,
        "grpc.port": shape.grpc_port,
        "secrets.key_file": str(account_key_file()),
        "tls.mode": "off",  # no token is wanted, and only this account is served
        "agents.heartbeat_s": 5.0,
        "policy.stop_grace_s": shape.stop_grace_s,
        "log.level": "warning",
        "log.format": "text",
    }
    # Whom its jobs may tell of themselves can't be said by flags.
    notify = {name: value for name, value in os.environ.items() if name.startswith("STOKER__NOTIFY__")}
    return load(ControlSettings, None, notify, flags).value


def account_key_file() -> Path:
    """Return the file with the keys of this account's secrets: `$XDG_STATE_HOME`, or `~/.local/state`, has it."""
    base = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.local/state"))
    return folder / "stoker" / "secrets.key"


def _write_agent_files(shape: EmbeddedSpec, name: str, folder: Path) -> Path:
    """The settings of one node, and its GPUs where they are simulated."""
    folder.mkdir(parents=True, exist_ok=True)
    # Every address is none that ranks of a gang could meet at; this machine's own always is.
    host = _LOOPBACK.get(shape.host, shape.host)
    address = f"[{host}]" if ":" in host else host
    settings: dict[str, object] = {
        "data_dir": str(folder),
        "node": {"name": name, "address": host},
        "control": {"addresses": [f"{address}:{shape.grpc_port}"], "insecure": True},
        "executor": {"jobs_end_with_agent": True, "allow_root": os.getuid() == 0},
        "log": {"level": "info", "format": "text"},
    }
    if shape.gpus_per_node:
        script = folder / "gpus.yaml"
        script.write_text(yaml_text(_gpu_script(shape)), encoding="utf-8")
        settings["gpu"] = {"detection": "scripted", "script": str(script)}
    path = folder / "agent.yaml"
    path.write_text(yaml_text(settings), encoding="utf-8")
    return path


def _gpu_script(shape: EmbeddedSpec) -> dict[str, object]:
    gpus = {"count": shape.gpus_per_node, "model": shape.gpu_model, "memory_mb": GPU_MEMORY_MB}
    scale = max(4, shape.gpus_per_node)
    return {"gpus": [gpus], "cpus": CPUS * scale // 4, "memory_mb": MEMORY_MB * scale // 4}
