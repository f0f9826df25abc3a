"""The parts of a control plane, joined, and its phases: recovered from the log, following, active.

Everything between the ports, without servers. A runtime puts servers around it and adapters under it; the test rig puts
a simulated world under the same parts.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self

from stoker.brain.domain.ids import CONTROL, Epoch, Principal
from stoker.brain.state.commands import BeginEpoch
from stoker.brain.state.wait_reason import shown_reason
from stoker.control.access import Access
from stoker.control.audit_trail import AuditTrail
from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts, Duty, Nodes, SecretVault
from stoker.control.failover_control import FailoverControl, not_active
from stoker.control.history import Recorder
from stoker.control.job_metrics import JobMeters
from stoker.control.ledger_audit import Audit
from stoker.control.log_lines import Announcer
from stoker.control.loop import Loop
from stoker.control.notifier import Notifier
from stoker.control.output_archive import OutputArchiver
from stoker.control.output_reader import LogTails, attempt_is_over
from stoker.control.rate_limit import ListSlots, RateLimit, WrongTokens
from stoker.control.settings import CoreSettings
from stoker.control.snapshots import Snapshots, recover
from stoker.control.supervisor import Duties
from stoker.ports import Clock, Entropy, EventLog, History, Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The parts that a runtime brings to the core. Its log is open; its history is opened here."""

    settings: CoreSettings
    log: EventLog
    history: History
    ports: ControlPorts
    nodes_of: Callable[[Committer], Nodes] | None = None
    """Makes the runtime's side of nodes over the writer. None = it has none."""
    pair: FailoverControl | None = None
    """Its failover: it begins as a standby. None = it is the only control plane."""
    open_to_owner: bool = True
    """Nobody but its owner reaches it, so it wants no token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """The parts of one control plane: the state is read through `committer.state`, changes are asked of `committer`."""

    settings: CoreSettings
    committer: Committer
    access: Access
    rate_limit: RateLimit
    lists: ListSlots
    loop: Loop
    snapshots: Snapshots
    audit: Audit
    history: Recorder
    clock: Clock
    entropy: Entropy
    telemetry: Telemetry
    nodes: Nodes | None = None
    """The nodes that it instructs. None = another system runs the jobs."""
    output: LogTails | None = None
    """Readers of output. None = this runtime can't read it."""
    output_archiver: OutputArchiver | None = None
    """None = output is on the nodes alone."""
    pair: FailoverControl | None = None
    """Its failover. None = it is the only control plane."""
    vault: SecretVault | None = None
    """None = it keeps no secrets."""
    notifier: Notifier | None = None
    """None = nobody is notified of jobs."""

    @property
    def audit_trail(self) -> AuditTrail:
        return self.history.trail

    @property
    def ready(self) -> bool:
        """Whether it can acknowledge and decide right now."""
        return self.committer.following is None and not self.committer.failed.is_set() and not self.loop.stuck

    def close_streams(self) -> None:
        """End the streams of events and output: this control plane stops serving."""
        self.committer.feed.close()
        if self.output is not None:
            self.output.close()

    @classmethod
    async def recover(cls, runtime: Runtime) -> Self:
        """Recover the control plane that the log describes; it is not yet active.

        Raises: LogDamaged, HistoryTooNew.
        """
        settings, log, ports, pair = runtime.settings, runtime.log, runtime.ports, runtime.pair
        recovered = await recover(log, ports, lambda state: Recorder(state, runtime.history, ports, settings.history))
        state = recovered.state
        committer = Committer(state, log, ports, recent=recovered.recent, replicas=pair.replicas if pair else None)
        if pair is not None:
            committer.following = lambda: not_active(pair.view())
        await recovered.history.follow(committer)
        nodes = runtime.nodes_of(committer) if runtime.nodes_of is not None else None
        loop = Loop(committer, ports, period_s=settings.loop.period_s)
        archiver = _archiver(committer, ports, nodes)
        read_log = archiver.read if archiver else nodes.read_log if nodes else None
        committer.on_durable(Announcer(state, ports.telemetry).committed, of_ours=True)
        committer.on_durable(JobMeters(state, ports.telemetry).committed, of_ours=True)
        return cls(
            settings=settings,
            committer=committer,
            access=Access(committer, WrongTokens(ports), open_to_owner=runtime.open_to_owner),
            # Whom only its owner reaches has nobody to keep others out.
            rate_limit=RateLimit(ports, per_second=0 if runtime.open_to_owner else settings.http.rate_per_principal),
            lists=ListSlots(),
            loop=loop,
            snapshots=Snapshots(committer, log, ports, recovered, interval_s=settings.snapshot.interval_s),
            audit=Audit(committer, nodes, ports),
            history=recovered.history,
            clock=ports.clock,
            entropy=ports.entropy,
            telemetry=ports.telemetry,
            nodes=nodes,
            output=LogTails(read_log, partial(attempt_is_over, state), ports.clock) if read_log else None,
            output_archiver=archiver,
            pair=pair,
            vault=ports.vault,
            notifier=_notifier(committer, ports, loop),
        )

    def settings_drift(self) -> str:
        """Return settings here that differ from those in force, in words; empty = none is known."""
        return ""

    def leading_duties(self) -> tuple[Duty, ...]:
        """Return the duties that run only while this control plane is active."""
        nodes = self.nodes.duties() if self.nodes is not None else ()
        return (
            Duty("loop", self.loop.run),
            Duty("loop_watch", self.loop.watch),
            *([Duty("notifier", self.notifier.run)] if self.notifier is not None else ()),
            *([Duty("output_archive", self.output_archiver.run)] if self.output_archiver is not None else ()),
            *nodes,
            Duty("audit", self.audit.run),
        )

    def keeping_duties(self) -> tuple[Duty, ...]:
        """Return the duties that run in an active control plane and in a standby."""
        shipper = self.history.shipper
        return (
            *([Duty("audit_shipping", partial(shipper.run, self.committer))] if shipper is not None else ()),
            Duty("snapshots", self.snapshots.run),
            Duty("history", self.history.run),
            Duty("audit_trail", self.history.run_trail),
            Duty("history_trim", self.history.run_trim),
        )


def _notifier(committer: Committer, ports: ControlPorts, loop: Loop) -> Notifier | None:
    if ports.messenger is None:
        return None
    state = committer.state
    return Notifier(committer, ports, ports.messenger, lambda job: shown_reason(state, job, loop.planned_reason))


def _archiver(committer: Committer, ports: ControlPorts, nodes: Nodes | None) -> OutputArchiver | None:
    if ports.output_archive is None or nodes is None:
        return None
    return OutputArchiver(committer, ports, ports.output_archive, nodes.read_log)


@asynccontextmanager
async def following(control: ControlPlane, *, snapshots: bool) -> AsyncIterator[Duties]:
    """Be a standby from entry to exit: keep the history and, with `snapshots`, the log short."""
    async with Duties() as duties:
        for duty in control.keeping_duties():
            if snapshots or duty.name != "snapshots":
                duties.begin(duty.name, duty.run())
        yield duties


@asynccontextmanager
async def active(
    control: ControlPlane, epoch: Epoch | None = None, *, by: Principal = CONTROL, forced: bool = False
) -> AsyncIterator[Duties]:
    """Be active from entry to exit: a new epoch has begun, and every duty runs.

    `epoch` None = the next one. `forced`: `by` has said so, whatever is lost.

    Leaving without an exception stops cleanly: what was taken is made durable and a snapshot is saved. Leaving with one
    is the same as a crash. Jobs are not touched by either.
    Raises: StokerError when the epoch can't begin, DutyEnded when a duty ended by itself.
    """
    committer = control.committer
    async with Duties() as duties:
        writer = duties.begin("committer", committer.run())
        committer.lead()
        if control.nodes is not None:
            control.nodes.begin()
        epoch = epoch or Epoch(max(committer.state.epoch, committer.floor) + 1)
        policy, pools = control.settings.policy, control.settings.pools
        await committer.ask(BeginEpoch(by=by, epoch=epoch, policy=policy, pools=pools, forced=forced))
        running = (*control.leading_duties(), *control.keeping_duties())
        for duty in running:
            duties.begin(duty.name, duty.run())
        yield duties
        if control.output is not None:
            control.output.close()
        if control.nodes is not None:
            control.nodes.close()
        await duties.end(*(duty.name for duty in running))
        await control.snapshots.save()
        committer.close()
        await writer
        if control.history.shipper is not None:
            await control.history.shipper.flush(committer)
        committer.feed.close()
