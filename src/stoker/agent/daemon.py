"""Daemon of the agent: the logic between the Link and Runner ports.

It holds no thread and reads no clock of its own.

Rules: A1  the first report on each stream is the inventory of tasks, and none is sent before the runner gave its own
       A2  only instructions received on the present stream are acted on (`instructions`); when it breaks, the rest is
           dropped
       A3  no control plane of an older epoch than the newest ever obeyed is obeyed, by this agent process or by a later
           one: the epoch is on disk before anything is done under it
       A7  a sign of life goes out at once and then every heartbeat, and at once when a task is ending
       A8  when the runner dies the stream is dropped too, and both begin again from the next runner's inventory:
           a start that died with it is in neither the inventory nor the air
       A11 the reason why no control plane takes this agent is logged once, however often it is repeated: again
           only when it has other words, or when the agent was let in meanwhile; that only standbys answer is ordinary
       A14 the runner is told when the newest answered beat was sent, before any instruction that came after it
       A17 a runner that leaves a question unanswered for `UNANSWERED_MAX` looks, or says itself that it can't work, is
           a fault of the node, which registers anew with it, and without it once that is over; each is logged once
       A20 so is that no runner can be started: the node registers with that, opens no stream, and falls silent; the
           same holds for an epoch that can't be kept
       A19 a runner that may have too few open files or processes for a task on each CPU takes fewer tasks, and that
           many CPUs are offered
       A25 what its runner can't hold tasks to, for want of a cgroup or a controller, is logged once, and the node
           registers with it
       A16 another cluster begins anew, once nothing is left of the former, whose job 1 is another job
       A23 the end of a task is told once its GPUs were found clean, or are no longer offered: whoever hears of the end
           may place the next task there at once
       A24 so is what the site's own check finds, and a disk that is nearly full: the node starts nothing, and what runs
           there goes on
       A15 a control plane that leaves a beat unanswered until the next is left, where there is another to go to
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final, assert_never

import msgspec

from stoker.agent.backoff import CEILING_S, QUICK_S, SOON_S, Backoff
from stoker.agent.delivery import Delivery
from stoker.agent.gpu_ports import Holders, NoGpuCare
from stoker.agent.instructions import InstructionExecutor, TaskRules, ignored, which
from stoker.agent.logs import LogReads
from stoker.agent.machine import offers_less, without_containers
from stoker.agent.observed import Observed
from stoker.agent.outgoing import HeartbeatAcks, Stream, first_failure
from stoker.agent.ports import (
    AgentPorts,
    BeatAnswered,
    LeasesUnkept,
    LinkDown,
    LinkRefused,
    LinkSession,
    LinkStandby,
    Obeyed,
    RunnerGone,
    RunnerHealth,
    RunnerInventory,
    RunnerReport,
    SiteProgramEnded,
    TaskEnding,
    TaskForgotten,
    TaskOver,
    TaskRunning,
)
from stoker.agent.tunnels import NodeTunnels
from stoker.brain.domain.gpu_telemetry import FigureWatch
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.node import CONTAINER, Inventory
from stoker.brain.domain.report import Registration, TaskStatus
from stoker.brain.domain.units import Mono

UNANSWERED_PART: Final = 0.9
UNANSWERED_S_MIN: Final = 3.0
"""A15: of a heartbeat, and at least. A control plane that writes a snapshot or a large submission answers later than
another, but within that; one that doesn't has lost its lease too."""
ASK_S: Final = 2.0
UNANSWERED_MAX: Final = 5
"""A17: a busy disk may hold a runner up for seconds. Looks are counted, not time: we may have slept ourselves."""
_OLD_RUNNER: Final = "its runner is of an older version; the next one begins when the tasks of this one have ended"
_SECOND_LOOK_S: Final = 0.25
"""If we were stopped ourselves, the answer lies there and has only to be read."""


class Daemon:
    """Agent of one node. `run` until cancelled; `amend` when the node's inventory changes."""

    def __init__(
        self,
        registration: Registration,
        ports: AgentPorts,
        *,
        node_env: Mapping[str, str] | None = None,
        rules: TaskRules | None = None,
    ) -> None:
        """`node_env` is what each job gets unless the control plane gave it: PATH, HOME."""
        self._registration = registration
        self._ports = ports
        self._measured = registration.inventory
        # A19: fewer CPUs are offered where the runner takes fewer tasks.
        self._tasks_max, self._short_of, self._unenforced = 0, "", ""
        self._observed = Observed()
        self._gpus = ports.gpus or NoGpuCare(ports.clock)
        self._delivery = Delivery(registration.node, self._observed, ports, self._gpus, self._session_when_up)
        self._executor = InstructionExecutor(
            ports, self._observed, self._delivery, self, node_env or {}, rules or TaskRules()
        )
        self._link_backoff = Backoff(ports.entropy, quick=QUICK_S)
        self._runner_backoff = Backoff(ports.entropy)
        self._obeyed = ports.fence.read()
        ports.folders.serve(self._obeyed.cluster_id)
        ports.containers.serve(self._obeyed.cluster_id)
        self._refused, self._has_no_runner = "", False
        self._unanswered: int | None = None
        # Looks since the runner was asked how it is. None = it needn't answer: it is too old, or isn't connected.
        self._stream: Stream | None = None
        self._answers = HeartbeatAcks(Mono(0.0))
        self._up, self._down, self._runner_ready = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._registrable = asyncio.Event()
        # Set while there is a runner, or a control plane to be told why there is none (A20).
        self._runner_fault, self._fence_fault, self._own_fault = "", "", ""
        self._down.set()

    async def run(self) -> None:
        """Serve until cancelled. Jobs run on."""
        try:
            async with asyncio.TaskGroup() as duties:
                duties.create_task(self._keep_runner())
                duties.create_task(self._watch_runner())
                duties.create_task(self._keep_link())
                duties.create_task(self._delivery.run())
                duties.create_task(self._gpus.run(self._holders, self.say_beat))
        finally:
            self._executor.drop()
            self._delivery.drop()

    def may_run(self, key: TaskKey) -> bool:
        """Return whether a task may have processes or a container here. True until the runner has told its own."""
        return not self._runner_ready.is_set() or key in self._observed.open

    def amend(self, registration: Registration) -> None:
        """Register anew, since the node has changed (a driver came up). No running task is touched."""
        assert registration.node == self._registration.node, "a node can't change its name"
        self._measured = registration.inventory
        self._amend(registration.inventory, keeps_leases=self.node.keeps_leases, fault=self.node.fault)

    def ail(self, fault: str) -> None:
        """Take what is wrong with the machine, whatever its runner says; empty = nothing (A24)."""
        self._own_fault = fault
        self._take_fault(self._runner_fault, keeps_leases=self.node.keeps_leases)

    def _amend(self, inventory: Inventory, *, keeps_leases: bool, fault: str) -> None:
        """Whether leases are kept, what is wrong, and how many tasks are taken (A19) is the runner's to say."""
        cpus = self._measured.cpus
        offered = min(self._tasks_max or cpus, cpus)
        limits = offers_less(offered, cpus, f"its runner may have only {self._short_of}") or self._measured.limits
        if (accounts := self._executor.accounts) is not None:
            taken = f"takes jobs of {', '.join(accounts) or 'nobody'} alone, since no cgroup can be made"
            limits = "; ".join(filter(None, (limits, taken)))
        inventory = msgspec.structs.replace(inventory, cpus=offered, limits=limits)
        contained = self._ports.containers.contained and self._executor.cgroups
        if CONTAINER in inventory.executors and not contained:
            keeps_leases = False  # a container outlives a runner that is killed, until there is another
        keeps_scripts = self._executor.keeps_scripts
        if not self._executor.runs_containers:
            inventory = without_containers(inventory, _OLD_RUNNER)
        inventory = msgspec.structs.replace(
            inventory,
            keeps_leases=keeps_leases,
            fault=fault,
            keeps_scripts=keeps_scripts,
            unenforced=self._unenforced,
            opens_no_stream=bool(fault) and (self._has_no_runner or bool(self._fence_fault)),
        )
        if inventory != self.node:
            self._registration = msgspec.structs.replace(self._registration, inventory=inventory)
            self._cut("the node's inventory changed")

    # --- the runner ---------------------------------------------------------------------------------------------

    async def _keep_runner(self) -> None:
        while True:
            try:
                await self._ports.runner.connect()
            except OSError as error:
                self._ports.telemetry.warn("runner_unavailable", error=str(error))
                self._has_no_runner = True
                self._take_fault(f"it has no runner that works: {error}", keeps_leases=self.node.keeps_leases)
                await self._ports.clock.sleep(self._runner_backoff.next_s())
                continue
            async with aclosing(self._ports.runner.reports()) as reports:
                async for report in reports:
                    self._take_report(report)
            self._unanswered = None
            self._cut("the runner is gone")
            self._runner_ready.clear()
            self._registrable.clear()
            # A8: the last instruction of the old stream is over before the next inventory.
            await self._down.wait()
            await self._executor.settled()
            await self._ports.clock.sleep(self._runner_backoff.next_s())

    def _take_notes(self, notes: str) -> None:
        """Say once what this node can't hold tasks to, as long as it stays the same (A25)."""
        if notes and notes != self._unenforced:
            self._ports.telemetry.warn("limits_not_enforced", agent_id=self._registration.node, error=notes)
        self._unenforced = notes

    def _take_report(self, report: RunnerReport) -> None:
        match report:
            case RunnerInventory():
                self._observed.inventory(report)
                self._ports.folders.keep(key.job for key in self._observed.open)
                self._tasks_max, self._short_of, self._has_no_runner = report.tasks_max, report.short_of, False
                self._executor.cgroups = report.cgroups
                self._take_notes("; ".join(report.notes))
                self._executor.keeps_scripts = report.keeps_scripts
                self._executor.runs_containers = report.runs_containers
                self._unanswered = None if report.fault is None else 0
                self._take_fault(report.fault or "", keeps_leases=report.keeps_leases)
                statuses = {status.key: status for status in report.tasks}
                for over in report.ends:  # while no agent was here, nobody looked at their GPUs
                    self._offer(over, statuses.get(over.key))
                self._delivery.offer_all()
                self._runner_backoff.worked()
                self._runner_ready.set()
                self._registrable.set()
            case RunnerHealth():
                self._unanswered = 0
                self._take_fault(report.fault, keeps_leases=self.node.keeps_leases)
            case TaskRunning():
                self._observed.advanced(report)
                self.say_started(report.key)
                self._ports.telemetry.event("task_started", **which(report.key), pid=report.pid)
            case TaskEnding():
                self._observed.advanced(report)
                self.say_beat()
            case TaskOver():
                self._take_end(report)
            case TaskForgotten():
                self._executor.forgotten(report.key)
            case SiteProgramEnded():
                self._say_site_program(report)
            case LeasesUnkept():
                self._ports.telemetry.warn("runner_unguarded", agent_id=self._registration.node)
                self._amend(self.node, keeps_leases=False, fault=self.node.fault)
            case RunnerGone():
                self._ports.telemetry.warn("runner_lost", error=report.error)
            case _:
                assert_never(report)

    def _holders(self) -> Holders | None:
        """Tasks that have each GPU. None = no runner has said yet what runs."""
        return self._observed.held() if self._runner_ready.is_set() else None

    def _say_site_program(self, report: SiteProgramEnded) -> None:
        fields = {**which(report.key), "output": report.output.strip()}
        if report.fault:
            self._ports.telemetry.warn(f"{report.program}_failed", error=report.fault, **fields)
        else:
            self._ports.telemetry.event(f"{report.program}_ended", **fields)

    async def _watch_runner(self) -> None:
        """Ask the runner how it is, again and again (A17)."""
        while True:
            await self._ports.clock.sleep(ASK_S)
            if self._unanswered is None:
                continue
            if self._unanswered == 0:
                self._ports.runner.ask()
            self._unanswered += 1
            if self._unanswered > UNANSWERED_MAX:
                words = (
                    f"the runner hasn't answered for {UNANSWERED_MAX * ASK_S:.0f} s: it is stopped, or its disk hangs"
                )
                self._take_fault(words, keeps_leases=self.node.keeps_leases)
            if self._unanswered > UNANSWERED_MAX + 1:  # the fault is known by now: what is given up goes elsewhere
                self._executor.give_up_starts(self.node.fault)

    def _take_fault(self, fault: str, *, keeps_leases: bool) -> None:
        """Take what is wrong with the runner; empty = nothing."""
        self._runner_fault = fault
        fault = fault or self._fence_fault or self._own_fault
        if fault != self.node.fault:
            if fault:
                self._ports.telemetry.warn("node_faulty", agent_id=self._registration.node, error=fault)
            else:
                self._ports.telemetry.event("node_works_again", agent_id=self._registration.node)
            self._registrable.set()
        self._amend(self.node, keeps_leases=keeps_leases, fault=fault)

    def _take_end(self, report: TaskOver) -> None:
        again, end = self._observed.has_arrived(report.key), report.end
        self._ports.containers.ended(end)
        status = self._observed.open.get(report.key)
        self._observed.over(report)
        self._offer(report, status)
        if again:
            self._ports.telemetry.event("end_offered_again", **which(report.key), cause=end.cause)
        else:
            self._ports.telemetry.event(
                "task_finished", **which(report.key), cause=end.cause, exit_code=end.exit_code, signal=end.signal
            )

    def _offer(self, over: TaskOver, status: TaskStatus | None) -> None:
        """Offer an end once the GPUs that came free with it are clean (A23); `status` says which it had."""
        held = self._observed.held() if status and status.gpus else {}
        if freed := [gpu for gpu in (status.gpus if status else ()) if gpu not in held]:
            self._delivery.offer_once_clean(over.key, freed, went_well=over.end.clean)
        else:
            self._delivery.offer(over.key)

    # --- the link -----------------------------------------------------------------------------------------------

    async def _keep_link(self) -> None:
        while True:
            await self._registrable.wait()
            at_most_s = await self._connect_and_serve()
            if at_most_s:
                await self._ports.clock.sleep(self._link_backoff.next_s(at_most_s))

    async def _connect_and_serve(self) -> float:
        """Longest pause after it, in seconds. 0 = the stream ended for a reason of ours, so that no pause is needed."""
        registration, telemetry = self._registration, self._ports.telemetry
        longest_s = SOON_S if self._ports.link.has_alternatives else CEILING_S
        try:
            session = await self._ports.link.connect(registration)
        except LinkStandby as error:
            if self._is_news(str(error)):
                telemetry.event("control_plane_standby", error=str(error))
            return SOON_S
        except LinkDown as error:
            if self._is_news(str(error)):
                telemetry.warn("control_plane_unreachable", error=str(error))
            return longest_s
        except LinkRefused as error:
            if self._is_news(str(error)):
                telemetry.warn("registration_refused", error=str(error))
            return CEILING_S
        try:
            if not self._runner_ready.is_set():  # A20
                if self._registration is registration:
                    self._registrable.clear()
                return 0.0
            if not await self._may_obey(session):
                return longest_s
            # Amended on the way: register anew.
            again = self._registration is not registration or await self._serve(session)
            return 0.0 if again else longest_s
        finally:
            await session.close()

    def _is_news(self, refusal: str) -> bool:
        """Whether a refusal has other words than the one before it (A11)."""
        before, self._refused = self._refused, refusal
        return refusal != before

    async def _may_obey(self, session: LinkSession) -> bool:
        """Whether the control plane of a stream isn't older than any that was obeyed (A3, A16)."""
        before = self._obeyed
        theirs = Obeyed(session.cluster_id or before.cluster_id, session.epoch)
        if before.cluster_id not in ("", theirs.cluster_id):
            self._ports.telemetry.warn("cluster_changed", before=before.cluster_id, now=theirs.cluster_id)
            if not self._observed.is_empty:
                await self._renounce()
                return False
        elif theirs.epoch < before.epoch:
            ignored(self._ports.telemetry, "session", theirs.epoch, before.epoch)
            return False
        if theirs != before:
            try:
                await self._ports.fence.keep(theirs)
            except OSError as error:
                self._ports.telemetry.warn("epoch_not_kept", epoch=theirs.epoch, error=str(error))
                self._fence_fault = f"the epoch of its control plane can't be kept: {error.strerror or error}"
            else:
                self._obeyed, self._fence_fault = theirs, ""
            self._take_fault(self._runner_fault, keeps_leases=self.node.keeps_leases)
            if self._fence_fault:
                return False
            self._ports.folders.serve(theirs.cluster_id)
            self._ports.containers.serve(theirs.cluster_id)
        return True

    async def _renounce(self) -> None:
        """End all that is another cluster's (A16). The stream waits for the next runner, which knows nothing."""
        try:
            await self._ports.runner.renounce()
        except OSError as error:
            self._ports.telemetry.warn("runner_call_failed", error=str(error))
        else:
            self._observed.renounce()

    async def _serve(self, session: LinkSession) -> bool:
        if not self._runner_ready.is_set():
            return True  # it died while we connected: there is no inventory to begin with
        self._refused = ""
        self._answers = HeartbeatAcks(self._ports.clock.mono())
        stream = Stream(session, self._observed.task_inventory(self.node.boot_id))  # A1
        self._stream = stream
        self._down.clear()
        self._up.set()
        self._ports.telemetry.event("agent_registered", agent_id=self._registration.node, epoch=session.epoch)
        duties = (
            stream.send(),
            stream.until_cut(),
            self._beat(stream),
            self._obey(session),
            LogReads(session, self._ports.runner, self._ports.clock).serve(),
            *([NodeTunnels(session, self._ports.dialer).serve()] if self._ports.dialer is not None else ()),
        )
        try:
            why = await first_failure([asyncio.ensure_future(duty) for duty in duties])
        finally:
            self._stream = None
            self._executor.withdraw()
            self._up.clear()
            self._down.set()
        self._ports.telemetry.warn("agent_disconnected", error=str(why))
        return stream.was_cut

    async def _beat(self, stream: Stream) -> None:
        """Send beats (A7). Raises: LinkDown when they stay unanswered (A15)."""
        while True:
            self.say_beat()
            await self._ports.clock.sleep(stream.session.heartbeat_s)
            self._link_backoff.worked()
            if self._ports.link.has_alternatives and self._is_left_unanswered(stream):
                await self._ports.clock.sleep(_SECOND_LOOK_S)
                if self._is_left_unanswered(stream):
                    raise LinkDown("the control plane doesn't answer beats")

    def _is_left_unanswered(self, stream: Stream) -> bool:
        patience_s = max(UNANSWERED_PART * stream.session.heartbeat_s, UNANSWERED_S_MIN)
        return self._answers.waited_s(self._ports.clock.mono()) >= patience_s

    async def _session_when_up(self) -> LinkSession:
        while self._stream is None or self._stream.was_cut:
            self._up.clear()
            await self._up.wait()
        return self._stream.session

    def _cut(self, why: str) -> None:
        if self._stream is not None:
            self._stream.cut(why)

    # --- answers to instructions --------------------------------------------------------------------------------

    @property
    def node(self) -> Inventory:
        """Inventory of this node, as it is registered."""
        return self._registration.inventory

    def say_started(self, key: TaskKey) -> None:
        """Report that a task runs, if it does."""
        started = self._observed.started(key)
        if started is not None and self._stream is not None:
            self._stream.say(started)

    def say_beat(self) -> None:
        """Send a beat now."""
        if self._stream is not None:
            beat = self._gpus.fill(self._observed.beat(self._executor.preparations.told()))
            self._answers.sent(beat.sequence, self._ports.clock.mono())
            self._stream.say(beat)

    # --- instructions -------------------------------------------------------------------------------------------

    async def _obey(self, session: LinkSession) -> None:
        async with aclosing(session.instructions()) as messages:
            async for message in messages:
                try:
                    if isinstance(message, BeatAnswered):
                        await self._take_answer(message, session)
                        continue
                    if isinstance(message, FigureWatch):
                        self._gpus.watch(message)
                        continue
                    await self._tell_answered(self._answers.spoken())
                    await self._executor.carry_out(message, session.epoch)
                except OSError as error:
                    # The runner died under the call; RunnerGone follows and cuts this stream (A8).
                    self._ports.telemetry.warn("runner_call_failed", error=str(error))
        raise LinkDown("the control plane closed the stream")

    async def _take_answer(self, answer: BeatAnswered, session: LinkSession) -> None:
        if answer.epoch < session.epoch:
            ignored(self._ports.telemetry, "answer to a beat", answer.epoch, session.epoch)
        else:
            await self._tell_answered(self._answers.answered(answer.sequence))

    async def _tell_answered(self, at: Mono | None) -> None:
        """Tell the runner of an answered beat, if there is news (A14). Raises: OSError."""
        if at is not None:
            self._link_backoff.answered()
            await self._ports.runner.answered(at)
