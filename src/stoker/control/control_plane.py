"""What is a control plane made of, and how does it come to be active?

Everything between the ports, without servers: `main` puts servers around it and real adapters under it, the test rig
puts a simulated world under the same parts.
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from stoker.brain.domain.ids import CONTROL, Epoch, Principal
from stoker.brain.state.commands import BeginEpoch
from stoker.control.access import Access
from stoker.control.audit_trail import AuditTrail
from stoker.control.committer import Committer
from stoker.control.control_ports import World
from stoker.control.history import Recorder
from stoker.control.job_metrics import JobMeters
from stoker.control.ledger_audit import Audit
from stoker.control.log_lines import Announcer
from stoker.control.loop import Loop
from stoker.control.rate_limit import Rates, WrongTokens
from stoker.control.snapshots import Snapshots, recover
from stoker.control.standing import Standing, not_active
from stoker.control.supervisor import Duties
from stoker.live.liveness import Liveness
from stoker.live.outbox import Outbox
from stoker.live.sessions import Sessions
from stoker.live.settings.control import ControlSettings
from stoker.ports import Clock, Entropy, EventLog, History, Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """The parts, joined. Faces read the state through `committer.state` and ask for changes with `committer.ask`."""

    settings: ControlSettings
    committer: Committer
    access: Access
    rates: Rates
    loop: Loop
    sessions: Sessions
    liveness: Liveness
    snapshots: Snapshots
    audit: Audit
    history: Recorder
    clock: Clock
    entropy: Entropy
    telemetry: Telemetry
    pair: Standing | None = None
    """What it is among several. None = it is the only one."""

    @property
    def audit_trail(self) -> AuditTrail:
        return self.history.trail

    @property
    def ready(self) -> bool:
        """Can it acknowledge and decide right now?"""
        return self.committer.following is None and not self.committer.failed.is_set() and not self.loop.stuck


async def recover_control(
    settings: ControlSettings,
    log: EventLog,
    history: History,
    world: World,
    *,
    open_to_owner: bool = True,
    pair: Standing | None = None,
) -> ControlPlane:
    """The control plane as its log left it, not yet active. The log is open; the history will be.

    `open_to_owner`: nobody but its owner reaches it, so it wants no token.
    `pair`: what it is among several, of whom it begins as a standby.
    Raises: LogDamaged, HistoryTooNew.
    """
    recovered = await recover(log, world, lambda state: Recorder(state, history, world, settings.history))
    state = recovered.state
    committer = Committer(state, log, world, recent=recovered.recent, replicas=pair.replicas if pair else None)
    if pair is not None:
        committer.following = lambda: not_active(pair.view())
    await recovered.history.follow(committer)
    outbox = Outbox(committer)
    liveness = Liveness(committer, world, unreachable_after_s=settings.agents.unreachable_after_s)
    heartbeat_ms = round(settings.agents.heartbeat_s * 1_000)
    sessions = Sessions(committer, outbox, liveness, world, heartbeat_ms=heartbeat_ms)
    loop = Loop(committer, world, period_s=settings.loop.period_s)
    committer.on_durable(Announcer(state, world.telemetry).committed, of_ours=True)
    committer.on_durable(JobMeters(state, world.telemetry).committed, of_ours=True)
    return ControlPlane(
        settings=settings,
        committer=committer,
        access=Access(committer, WrongTokens(world), open_to_owner=open_to_owner),
        rates=Rates(world, per_second=settings.http.rate_per_principal),
        loop=loop,
        sessions=sessions,
        liveness=liveness,
        snapshots=Snapshots(committer, log, world, recovered, interval_s=settings.snapshot.interval_s),
        audit=Audit(committer, sessions, world),
        history=recovered.history,
        clock=world.clock,
        entropy=world.entropy,
        telemetry=world.telemetry,
        pair=pair,
    )


@asynccontextmanager
async def following(control: ControlPlane, *, snapshots: bool) -> AsyncIterator[Duties]:
    """A standby from entry to exit: it keeps its history and, where its log is its own, that one short."""
    async with Duties() as duties:
        for name, run in _KEEPING:
            if snapshots or name != "snapshots":
                duties.begin(name, run(control))
        yield duties


@asynccontextmanager
async def active(
    control: ControlPlane, epoch: Epoch | None = None, *, by: Principal = CONTROL, forced: bool = False
) -> AsyncIterator[Duties]:
    """Active from entry to exit: a new epoch has begun, and every duty runs. None = the next epoch. `forced`: `by` has
    said so, whatever is lost.

    Leaving without an exception stops cleanly: what was taken is made durable and a snapshot is saved. Leaving with one
    is the same as a crash. Jobs are not touched by either.
    Raises: StokerError when the epoch can't begin, DutyEnded when a duty ended by itself.
    """
    committer = control.committer
    async with Duties() as duties:
        writer = duties.begin("committer", committer.run())
        committer.lead()
        control.liveness.begin()
        epoch = epoch or Epoch(max(committer.state.epoch, committer.floor) + 1)
        policy, pools = control.settings.as_policy(), control.settings.quota.as_pools()
        await committer.ask(BeginEpoch(by=by, epoch=epoch, policy=policy, pools=pools, forced=forced))
        for name, run in (*_LEADING, *_KEEPING):
            duties.begin(name, run(control))
        yield duties
        control.sessions.close()
        await duties.end(*(name for name, _ in (*_LEADING, *_KEEPING)))
        await control.snapshots.save()
        committer.close()
        await writer
        committer.feed.close()


_Duty = tuple[str, Callable[[ControlPlane], Coroutine[None, None, None]]]
_LEADING: Final[tuple[_Duty, ...]] = (
    ("loop", lambda control: control.loop.run()),
    ("loop_watch", lambda control: control.loop.watch()),
    ("liveness", lambda control: control.liveness.run()),
    ("audit", lambda control: control.audit.run()),
)
_KEEPING: Final[tuple[_Duty, ...]] = (
    ("snapshots", lambda control: control.snapshots.run()),
    ("history", lambda control: control.history.run()),
    ("audit_trail", lambda control: control.history.run_trail()),
    ("history_trim", lambda control: control.history.run_trim()),
)
