"""Which of the control plane's own duties holds up the writer, and for how long?

Run: `PYTHONPATH=src python -m benchmarks.stalls [--jobs 100000] [--dir FOLDER] [--alone]`. The real control plane over
real stores in FOLDER, without servers: 100,000 waiting jobs of 1,000 shapes in a tenant with limits (`sharing`), and
beside them 10,000 that have ended. Then each duty by itself while a probe asks for a turn of the event loop every
millisecond: the longest wait for one, and the longest commit of one job that is submitted meanwhile every 20 ms. A
garbage collection is timed by the collector's own callback. `scale` measures the same from outside, all duties at once.

Must: 50 ms, whatever runs.
"""

import argparse
import asyncio
import gc
import io
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from benchmarks.cluster import fsyncs_per_second, machine
from benchmarks.sharing import TEAM, alone_option, tree
from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.logs import StructuredTelemetry
from stoker.adapters.metrics import Metrics
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.adapters.sqlite.history import SqliteHistory
from stoker.brain.domain.access import Caller, Role
from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.ids import DEFAULT_TENANT, JobId, Position, Principal, TenantName
from stoker.brain.domain.job import JobSpec
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.units import DAY_MS, Instant
from stoker.brain.domain.usage import UsageBy, UsageQuery
from stoker.brain.state.commands import Cancel, PutTenant, Submit
from stoker.control.access import Sights
from stoker.control.control_plane import active
from stoker.control.control_ports import ControlPorts
from stoker.control.queries.job_listing import page_of, select
from stoker.control.queries.usage import usage_report
from stoker.control.settings import SnapshotSettings
from stoker.live.control_plane import LiveControlPlane, quiet_collector, recover_control
from stoker.live.main import SWITCH_S
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import PolicySettings
from stoker.wire.rest.job import JobListQuery

SHAPES = 1_000
BULK = 1_000
"""Jobs of one request; ten of them are as many as have ended."""
QUIET_S = 5.0
"""The scheduling loop's own period."""
MUST_MS = 50.0
PROBE_S, SUBMIT_S = 0.001, 0.02
BENCH = Principal("user:bench")
Duty = Callable[[], Awaitable[object]]


class StallSample(NamedTuple):
    """What others had to wait for while a duty ran."""

    took_s: float
    gap_ms: float
    commit_ms: float


def spec(number: int, **fields: object) -> JobSpec:
    demand = Demand(gpu_count=1 + number % 8, cpus=1 + number // 8 % 125)
    given = {"command": ("python", "train.py"), "priority": 500, "time_limit_ms": DAY_MS, **fields}
    return JobSpec(name="stalls", demand=demand, **given)  # type: ignore[arg-type]  # given by name


class Bench:
    def __init__(self, control: LiveControlPlane, tenant: TenantName, bulk: int) -> None:
        self.control = control
        self.bulk = bulk
        self._tenant = tenant
        self.collections: list[tuple[int, float]] = []
        self._collecting = 0.0
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.perf_counter()
        else:
            self.collections.append((info["generation"], (time.perf_counter() - self._collecting) * 1_000))

    async def submit(self, *specs: JobSpec) -> None:
        charged = tuple(replace(each, tenant=self._tenant) for each in specs)
        await self.control.committer.ask(Submit(by=BENCH, specs=charged))

    async def share(self) -> None:
        for tenant in tree():
            await self.control.committer.ask(PutTenant(by=BENCH, tenant=tenant, create=True))

    async def fill(self, jobs: int) -> None:
        for first in range(0, jobs, self.bulk):
            await self.submit(*(spec((first + i) % SHAPES) for i in range(min(self.bulk, jobs - first))))

    async def end_many(self, jobs: int) -> None:
        """Jobs that wait for one that was cancelled end at once, without a node."""
        first = JobId(self.control.committer.state.next_job_id)
        await self.submit(spec(0, hold=True))
        await self.control.committer.ask(Cancel(by=BENCH, target=JobRef(first)))
        never = (Dependency(kind=DependencyKind.OK, job=first),)
        for _ in range(0, jobs, self.bulk):
            await self.submit(*(spec(i, after=never) for i in range(self.bulk)))
        while self.control.committer.state.indexes.dependents.decided:
            await asyncio.sleep(0.01)

    async def watch(self, duty: Duty) -> StallSample:
        gaps, commits = [0.0], [0.0]
        probes = [asyncio.ensure_future(self._probe(gaps)), asyncio.ensure_future(self._committing(commits))]
        await asyncio.sleep(0.2)
        gaps[0] = commits[0] = 0.0
        began = time.perf_counter()
        await duty()
        took = time.perf_counter() - began
        await asyncio.sleep(0.2)
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        return StallSample(took, gaps[0], commits[0])

    async def _probe(self, gaps: list[float]) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(PROBE_S)
            gaps[0] = max(gaps[0], (time.perf_counter() - began - PROBE_S) * 1_000)

    async def _committing(self, commits: list[float]) -> None:
        while True:
            began = time.perf_counter()
            await self.submit(spec(0))
            commits[0] = max(commits[0], (time.perf_counter() - began) * 1_000)
            await asyncio.sleep(SUBMIT_S)


def duties(bench: Bench, quiet_s: float) -> list[tuple[str, Duty]]:
    control, many = bench.control, bench.bulk * 10
    history = control.history

    async def compaction() -> None:
        for _ in range(3):  # the third lets go of what the first was kept for
            await bench.submit(spec(0))
            await control.snapshots.save()

    async def report() -> None:
        now = control.committer.now()
        await usage_report(control, UsageQuery(since=Instant(1), until=now, by=UsageBy.USER, through=Position(0)), now)

    async def young() -> None:
        gc.collect(1)

    async def full() -> None:
        gc.collect(2)

    everybody = Sights(control.committer.state, Caller(principal=BENCH, role=Role.ADMIN))

    async def filtered() -> None:
        await select(control, JobFilter(name="nobody"), await page_of(control, JobListQuery(limit=50), everybody))

    async def trim() -> None:
        await history.store.trim(control.committer.now(), 1)

    return [
        ("nothing", lambda: asyncio.sleep(quiet_s)),
        ("a snapshot", control.snapshots.save),
        ("three snapshots and compaction", compaction),
        ("the audit", control.audit.check),
        ("garbage collection, generations 0 and 1", young),
        ("garbage collection, whole", full),
        (f"{many:,} jobs end and are written to the history", lambda: bench.end_many(many)),
        ("a report of usage", report),
        ("a list with a filter that nothing matches", filtered),
        ("a trim of the whole history", trim),
        (f"a submit of {many:,} in bulks of {bench.bulk:,}", lambda: bench.fill(many)),
        ("the scheduling loop looks", lambda: asyncio.sleep(quiet_s + 1)),
    ]


async def measure(folder: Path, chosen: argparse.Namespace) -> None:
    clock = SystemClock()
    telemetry = StructuredTelemetry(clock, metrics=Metrics(), stream=io.BytesIO())
    world = ControlPorts(clock=clock, entropy=SystemEntropy(), telemetry=telemetry)
    log, history = SqliteLog(folder, look_back_max=0), SqliteHistory(folder)
    policy = PolicySettings(tenant_pending_jobs_max=1_000_000, tenant_job_bytes_max=1 << 40, job_bytes_max=1 << 40)
    settings = ControlSettings(snapshot=SnapshotSettings(interval_s=80_000), policy=policy)
    await log.open()
    try:
        control = await recover_control(settings, log, history, world)
        quiet_collector()
        async with active(control):
            bench = Bench(control, DEFAULT_TENANT if chosen.alone else TEAM, chosen.bulk)
            if not chosen.alone:
                await bench.share()
            await bench.end_many(chosen.bulk * 10)
            await bench.fill(chosen.jobs)
            print("| while this runs | it takes | longest wait for a turn | longest commit | must |")
            print("|---|---:|---:|---:|---|")
            for name, duty in duties(bench, chosen.quiet):
                seen = await bench.watch(duty)
                held = "yes" if max(seen.gap_ms, seen.commit_ms) <= MUST_MS else "NO"
                print(
                    f"| {name} | {seen.took_s:.2f} s | {seen.gap_ms:.1f} ms | {seen.commit_ms:.1f} ms | 50: {held} |",
                    flush=True,
                )
            _show_collections(bench)
    finally:
        await history.close()
        await log.close()


def _show_collections(bench: Bench) -> None:
    print("\n| collections | times | longest | must |\n|---|---:|---:|---|")
    for generation in range(3):
        took = [ms for found, ms in bench.collections if found == generation]
        longest = max(took, default=0.0)
        print(f"| generation {generation} | {len(took)} | {longest:.1f} ms | 50: {'yes' if longest <= 50 else 'NO'} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--bulk", type=int, default=BULK, help="jobs of one request")
    parser.add_argument("--quiet", type=float, default=QUIET_S, help="seconds with nothing to do")
    parser.add_argument("--dir", help="where the stores lie: the disk that is measured")
    alone_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stoker-bench-", dir=options.dir) as made:
        rate = fsyncs_per_second(Path(made))
        print(f"{machine()}; {rate:,.0f} fdatasync/s; {options.jobs:,} waiting jobs of {SHAPES} shapes\n")
        sys.setswitchinterval(SWITCH_S)
        asyncio.run(measure(Path(made) / "data", options))


if __name__ == "__main__":
    main()
