"""The core and REST serve a runtime that brings only its own log, its own side of the jobs and its own main.

It stands for Kubernetes: another system runs the jobs, and this one tells it what was placed and hears what became of
it. There are no agents, no streams and no adapter of the event log.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stoker.api.http.app import create_app
from stoker.brain.domain.gpu import Gpu
from stoker.brain.domain.ids import Epoch, GpuUuid, NodeName, Position, node_principal
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.node import Inventory
from stoker.brain.domain.report import Registration, Started, TaskInventory
from stoker.brain.state.commands import CompareInventory, Register, ReportStarted
from stoker.brain.state.events.job import JobPlaced
from stoker.control.control_plane import ControlPlane, Runtime, active
from stoker.control.control_ports import ControlPorts
from stoker.control.feed import Entry
from stoker.control.settings import CoreSettings
from stoker.ports import HistoryBatch, HistoryMark, LogConflict
from tests.api.http.plane import Reply, asgi_ask
from tests.control.stage import virtual
from tests.rig.sim_ports import Notes, SimClock, SimEntropy

NODE = NodeName("worker-0")
POD_NODE = node_principal(NODE)


class MemoryLog:
    """The EventLog port in memory."""

    floor = Epoch(0)

    def __init__(self) -> None:
        self.records: list[bytes] = []

    async def open(self) -> Position:
        return Position(len(self.records))

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        if position != len(self.records):
            raise LogConflict(f"the log ends at {len(self.records)}")
        self.records.extend(records)

    async def follow(self, position: Position) -> AsyncIterator[tuple[Position, bytes]]:
        for number, record in enumerate(self.records[position:], position + 1):
            yield Position(number), record

    async def snapshot(self) -> None:
        return None

    async def save_snapshot(self, position: Position, chunks: Sequence[bytes]) -> None:
        """The records are kept, so that a snapshot is never needed."""

    async def close(self) -> None:
        """Nothing is open."""


class NoHistory:
    """A History that remembers how far it was written, and answers that nothing ended."""

    shared, writer_slot, way_out = False, 0, ""

    def __init__(self) -> None:
        self._mark = HistoryMark()

    async def open(self) -> HistoryMark:
        return self._mark

    async def record(self, batch: HistoryBatch) -> None:
        self._mark = batch.mark

    async def adopt(self, mark: HistoryMark) -> None:
        return None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # each question has its own type
        async def nothing(*_: object, **__: object) -> object:
            return 0 if name.startswith("trim") else []

        return nothing


class Pods:
    """The system that runs the jobs: each placed task becomes a pod that starts at once."""

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self.placed: asyncio.Queue[JobPlaced] = asyncio.Queue()
        control.committer.on_durable(self._note, of_ours=True)

    def _note(self, entries: Sequence[Entry]) -> None:
        for _, fact in entries:
            if isinstance(fact.event, JobPlaced):
                self.placed.put_nowait(fact.event)

    async def run(self) -> None:
        ask = self._control.committer.ask
        gpus = tuple(Gpu(uuid=GpuUuid(f"GPU-{i}"), index=i, model="NVIDIA H100", memory_mb=81_559) for i in range(2))
        inventory = Inventory(boot_id="b", address="10.0.0.1", gpus=gpus, cpus=16, memory_mb=64_000)
        await ask(Register(by=POD_NODE, registration=Registration(node=NODE, inventory=inventory)))
        await ask(CompareInventory(by=POD_NODE, node=NODE, inventory=TaskInventory(boot_id="b", tasks=())))
        while True:
            event = await self.placed.get()
            for rank in range(len(event.tasks)):
                key = TaskKey(event.job, event.attempt, rank)
                started = Started(key=key, at=self._control.committer.now(), pid=1)
                await ask(ReportStarted(by=POD_NODE, node=NODE, started=started))


@asynccontextmanager
async def runtime(folder: Path) -> AsyncIterator[Any]:
    """The runtime's main: put together, lead, serve."""
    clock = SimClock()
    ports = ControlPorts(clock=clock, entropy=SimEntropy(1), telemetry=Notes(clock, "second"))
    control = await ControlPlane.recover(
        Runtime(settings=CoreSettings(data_dir=folder), log=MemoryLog(), history=NoHistory(), ports=ports)
    )
    pods = Pods(control)
    async with active(control) as duties:
        duties.begin("pods", pods.run())
        app = create_app(control)

        async def ask(method: str, path: str, body: object = None) -> Reply:
            data = b"" if body is None else json.dumps(body).encode()
            return await asgi_ask(app, method, f"/api/v1{path}", data, {"host": "127.0.0.1:8080"})

        yield ask, control.clock
        await duties.end("pods")


@virtual
async def test_a_runtime_without_agents_places_jobs_takes_orders_and_says_why(tmp_path: Path) -> None:
    async with runtime(tmp_path) as (ask, clock), asyncio.timeout(60):
        runs = (await ask("POST", "/jobs", {"command": ["train"], "gpu_count": 2})).json["id"]
        while (await ask("GET", f"/jobs/{runs}")).json["state"] != "running":
            await clock.sleep(0.01)
        waits = (await ask("POST", "/jobs", {"command": ["train"], "gpu_count": 1})).json["id"]
        while (why := (await ask("GET", f"/jobs/{waits}/why")).json)["code"] != "insufficient_gpus":
            await clock.sleep(0.01)
        assert why["position"] == 1
        assert (await ask("POST", f"/jobs/{waits}/hold")).json["state"] == "held"
        refused = await ask("GET", f"/jobs/{runs}/logs")
        assert (refused.status, refused.json["code"]) == (501, "not_supported_here")
