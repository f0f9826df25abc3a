"""How does a control plane start, serve and stop?

The composition root of this body: the only place here that picks adapters.

Rules: R1  nothing is served before the log is ours, read to its end, and holds our epoch
       R2  whatever essential part dies, the process stops with one clear refusal
       R3  a clean stop ends streams first, then saves; it takes a second or two and touches no job
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.history_sql import SqliteHistory
from stoker.adapters.log_sqlite import SqliteLog
from stoker.adapters.logs import StructuredTelemetry, capture_library_logs
from stoker.adapters.metrics import Metrics
from stoker.brain.domain.errors import StokerError, refuse
from stoker.live.control import active, recover_control
from stoker.live.http.app import create_app
from stoker.live.http.server import serve_http
from stoker.live.listen import bind
from stoker.live.rpc.server import RpcServer
from stoker.live.settings import ControlSettings
from stoker.live.supervise import DutyEnded
from stoker.live.world import World
from stoker.ports import EventLog, History, LogConflict, LogDamaged, LogFailed
from stoker.wire.versions import PRODUCT

SWITCH_S: Final = 0.0005
"""How long a thread that has something to do waits for Python while another computes. An append takes Python a dozen
times: with the usual 5 ms it took 90 ms beside the audit of 100,000 jobs, with this 14."""
_GC_THRESHOLDS: Final = (10_000, 50, 100)
"""Full collections walk every job record; those that are kept for long are frozen out of their way instead."""


class Stores(NamedTuple):
    log: EventLog
    history: History


async def run_control(settings: ControlSettings, *, stop: asyncio.Event, on_ready: Callable[[], None]) -> None:
    """Serve until `stop` is set. `on_ready` is called once requests are answered.

    Raises: StokerError when it can't start, or when it had to stop.
    """
    if not __debug__:
        raise StokerError(
            refuse(
                "assertions_off",
                "Python runs with -O, which removes the checks that guard the ledger",
                "start it without -O and without PYTHONOPTIMIZE",
            )
        )
    sys.setswitchinterval(SWITCH_S)
    clock = SystemClock()
    telemetry = StructuredTelemetry(clock, metrics=Metrics(), level=settings.log.level, format=settings.log.format)
    world = World(clock=clock, entropy=SystemEntropy(), telemetry=telemetry)
    with _library_logs(telemetry), as_refusals():
        log, history = SqliteLog(settings.data_dir, telemetry=telemetry), SqliteHistory(settings.data_dir)
        try:
            await log.open()
            await _serve(settings, Stores(log, history), world, stop, on_ready)
        finally:
            await history.close()
            await log.close()
    telemetry.event("stopped")


async def _serve(
    settings: ControlSettings, stores: Stores, world: World, stop: asyncio.Event, on_ready: Callable[[], None]
) -> None:
    listener = bind(settings.http.host, settings.http.port, "http")
    try:
        control = await recover_control(settings, *stores, world)
        agents = RpcServer(settings.grpc, control)
        app = create_app(control)
        quiet_collector()
        async with active(control) as duties:
            http_port: int = listener.getsockname()[1]
            async with agents as grpc_port, serve_http(app, listener, duties):
                world.telemetry.event("scheduler_started", version=PRODUCT, epoch=control.committer.state.epoch)
                world.telemetry.event(
                    "serving", http_port=http_port, grpc_port=grpc_port, data_dir=str(settings.data_dir)
                )
                on_ready()
                await duties.until(stop)
                world.telemetry.event("stopping")
                control.committer.feed.close()
                control.sessions.tails.close()
    finally:
        listener.close()


@contextmanager
def as_refusals() -> Iterator[None]:
    """What ends a control plane, in words for whoever started it."""
    try:
        yield
    except LogDamaged as fault:
        hint = "nothing was changed; the message says how to recover"
        raise StokerError(refuse("log_damaged", str(fault), hint)) from fault
    except (LogFailed, LogConflict) as fault:
        raise _log_failed(fault) from fault
    except DutyEnded as fault:
        if isinstance(fault.__cause__, LogFailed):
            raise _log_failed(fault.__cause__) from fault
        hint = "start it again: nothing that was acknowledged is lost; the log above says more"
        raise StokerError(refuse("part_died", str(fault), hint)) from fault


def _log_failed(fault: Exception) -> StokerError:
    hint = "see whether the disk of data_dir is full or broken, then start it again: nothing acknowledged is lost"
    return StokerError(refuse("log_failed", f"the event log can't be written: {fault}", hint))


@contextmanager
def _library_logs(telemetry: StructuredTelemetry) -> Iterator[None]:
    handler = capture_library_logs(telemetry)
    try:
        yield
    finally:
        handler.close()
        logging.getLogger().removeHandler(handler)


def quiet_collector() -> None:
    """Once what is kept for long has been read: full collections needn't look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
