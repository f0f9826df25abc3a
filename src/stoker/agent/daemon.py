"""What does an agent do with what it is told, and what does it say?

The logic between the Link and Runner ports. It holds no thread and reads no clock of its own.

Rules: A1  the first report on each stream is the inventory of tasks, and none is sent before the runner gave its own
       A2  only instructions received on the present stream are acted on; when it breaks, the rest is dropped
       A3  an instruction of an older epoch than the newest seen is ignored and counted
       A4  a start whose key is known is answered from what is known, never acted on
       A5  a start whose GPUs aren't free here ends `never_started` and says who holds them: the node's fault, so the
           job is requeued
       A6  a stop of a task that this node has no trace of is answered with an end `gone`
       A7  a sign of life goes out every heartbeat, and at once when a task is ending
       A8  when the runner dies the stream is dropped too, and both begin again from the next runner's inventory:
           a start that died with it is in neither the inventory nor the air
       A9  a call to the runner is carried through when the stream that asked for it breaks meanwhile: half a start
           would be noted here and unknown there, and its GPUs held for ever
       A10 a signal for a task that isn't open here is ignored: it is sent once, for what ran when it was wished
       A11 an agent that isn't root runs every job as its own account, and says so of the first that names another
       A11 a refusal is logged once, however often it is repeated: again only when it has other words, or when this
           agent was let in meanwhile
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from stoker.agent.delivery import Delivery
from stoker.agent.launch import Folders, NoFolders, complete_environment
from stoker.agent.link import Backoff
from stoker.agent.logs import LogReads
from stoker.agent.observed import Observed
from stoker.agent.ports import (
    Link,
    LinkDown,
    LinkRefused,
    LinkSession,
    Runner,
    RunnerGone,
    RunnerInventory,
    RunnerReport,
    StartTask,
    TaskEnding,
    TaskOver,
    TaskRunning,
)
from stoker.agent.stream import Stream, closing, first_failure
from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.instruction import Instruction, Signal, Start, Stop, TaskKey
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.report import Registration
from stoker.ports import Clock, Entropy, Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPorts:
    """All that the daemon touches."""

    link: Link
    runner: Runner
    clock: Clock
    entropy: Entropy
    telemetry: Telemetry
    folders: Folders = field(default_factory=NoFolders)


class Daemon:
    """One node's agent. `run` until cancelled; `amend` when the node's inventory changes."""

    def __init__(
        self, registration: Registration, ports: AgentPorts, *, node_env: Mapping[str, str] | None = None
    ) -> None:
        """`node_env` is what each job gets unless the control plane gave it: PATH, HOME."""
        self._registration = registration
        self._ports = ports
        self._node_env = dict(node_env or {})
        self._observed = Observed()
        self._delivery = Delivery(registration.node, self._observed, ports.runner, ports.folders, self._session_when_up)
        self._link_backoff = Backoff(ports.entropy)
        self._runner_backoff = Backoff(ports.entropy)
        self._epoch = Epoch(0)
        self._said_as_whom = False
        self._refused = ""
        self._stream: Stream | None = None
        self._calls: dict[asyncio.Future[None], None] = {}
        self._up, self._down, self._runner_ready = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._down.set()

    async def run(self) -> None:
        """Serve until cancelled. Jobs run on."""
        try:
            async with asyncio.TaskGroup() as duties:
                duties.create_task(self._keep_runner())
                duties.create_task(self._keep_link())
                duties.create_task(self._delivery.run(self._ports.clock, self._ports.entropy))
        finally:
            for call in self._calls:
                call.cancel()

    def amend(self, registration: Registration) -> None:
        """The node has changed (a driver came up): register anew. No running task is touched."""
        assert registration.node == self._registration.node, "a node can't change its name"
        if registration != self._registration:
            self._registration = registration
            self._cut("the node's inventory changed")

    # --- the runner ---------------------------------------------------------------------------------------------

    async def _keep_runner(self) -> None:
        while True:
            try:
                await self._ports.runner.connect()
            except OSError as error:
                self._ports.telemetry.warn("runner_unavailable", error=str(error))
                await self._ports.clock.sleep(self._runner_backoff.next_s())
                continue
            async with closing(self._ports.runner.reports()) as reports:
                async for report in reports:
                    self._take_report(report)
            self._cut("the runner is gone")
            self._runner_ready.clear()
            # A8: the last instruction of the old stream is over before the next inventory.
            await self._down.wait()
            if self._calls:
                await asyncio.wait(self._calls)
            await self._ports.clock.sleep(self._runner_backoff.next_s())

    def _take_report(self, report: RunnerReport) -> None:
        match report:
            case RunnerInventory():
                self._observed.inventory(report)
                self._delivery.offer_all()
                self._runner_backoff.worked()
                self._runner_ready.set()
            case TaskRunning():
                self._observed.running(report)
                self._say_started(report.key)
                self._ports.telemetry.event("task_started", **_which(report.key), pid=report.pid)
            case TaskEnding():
                self._observed.ending(report)
                self._say_beat()
            case TaskOver():
                self._observed.over(report)
                self._delivery.offer(report.key)
                end = report.end
                self._ports.telemetry.event(
                    "task_finished", **_which(report.key), cause=end.cause, exit_code=end.exit_code, signal=end.signal
                )
            case RunnerGone():
                self._ports.telemetry.warn("runner_lost", error=report.error)
            case _:
                assert_never(report)

    # --- the link -----------------------------------------------------------------------------------------------

    async def _keep_link(self) -> None:
        while True:
            await self._runner_ready.wait()
            if not await self._connect_and_serve():
                await self._ports.clock.sleep(self._link_backoff.next_s())

    async def _connect_and_serve(self) -> bool:
        """True when the stream ended for a reason of ours, so that nobody needs a pause."""
        registration = self._registration
        try:
            session = await self._ports.link.connect(registration)
        except LinkDown as error:
            self._ports.telemetry.warn("control_plane_unreachable", error=str(error))
            return False
        except LinkRefused as error:
            if str(error) != self._refused:  # A11
                self._refused = str(error)
                self._ports.telemetry.warn("registration_refused", error=self._refused)
            return False
        try:
            if session.epoch < self._epoch:
                self._ignored("session", session.epoch)
                return False
            if self._registration is not registration:
                return True  # it was amended on the way: register anew
            return await self._serve(session)
        finally:
            await session.close()

    async def _serve(self, session: LinkSession) -> bool:
        if not self._runner_ready.is_set():
            return True  # it died while we connected: there is no inventory to begin with
        self._epoch, self._refused = session.epoch, ""
        stream = Stream(session, self._observed.task_inventory(self._registration.inventory.boot_id))  # A1
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
        )
        try:
            why = await first_failure([asyncio.ensure_future(duty) for duty in duties])
        finally:
            self._stream = None
            self._up.clear()
            self._down.set()
        self._ports.telemetry.warn("agent_disconnected", error=str(why))
        return stream.was_cut

    async def _beat(self, stream: Stream) -> None:
        while True:
            await self._ports.clock.sleep(stream.session.heartbeat_s)
            self._link_backoff.worked()
            stream.say(self._observed.beat())

    async def _session_when_up(self) -> LinkSession:
        while self._stream is None:
            await self._up.wait()
        return self._stream.session

    def _cut(self, why: str) -> None:
        if self._stream is not None:
            self._stream.cut(why)

    def _say_started(self, key: TaskKey) -> None:
        started = self._observed.started(key)
        if started is not None and self._stream is not None:
            self._stream.say(started)

    def _say_beat(self) -> None:
        if self._stream is not None:
            self._stream.say(self._observed.beat())

    # --- instructions -------------------------------------------------------------------------------------------

    async def _obey(self, session: LinkSession) -> None:
        async with closing(session.instructions()) as instructions:
            async for instruction in instructions:
                try:
                    await self._carry_out(instruction)
                except OSError as error:
                    # The runner died under the call; RunnerGone follows and cuts this stream (A8).
                    self._ports.telemetry.warn("runner_call_failed", **_which(instruction.key), error=str(error))
        raise LinkDown("the control plane closed the stream")

    async def _carry_out(self, instruction: Instruction) -> None:
        if instruction.epoch < self._epoch:  # A3
            self._ignored(_name(instruction.key), instruction.epoch)
            return
        match instruction:
            case Start():
                await self._start(instruction)
            case Stop():
                await self._stop(instruction)
            case Signal():
                await self._signal(instruction)
            case _:
                assert_never(instruction)

    async def _start(self, start: Start) -> None:
        if self._observed.knows(start.key):
            self._answer_known(start.key)
            return
        obstacle = self._obstacle(start)
        if obstacle:
            self._end_unstarted(start.key, EndCause.NEVER_STARTED, obstacle)
            return
        try:
            folder = await self._ports.folders.claim(start.key.job)
        except OSError as error:
            self._end_unstarted(start.key, EndCause.NEVER_STARTED, f"no folder for checkpoints: {error}")
            return
        self._say_as_whom(start)
        self._observed.starting(start)
        env = complete_environment(start.env, self._node_env, folder)
        await self._to_runner(self._ports.runner.start(StartTask(start=start, env=env, folder=folder)))

    async def _stop(self, stop: Stop) -> None:
        if stop.key in self._observed.open:
            await self._to_runner(self._ports.runner.stop(stop.key, stop.grace_ms))
        elif self._observed.knows(stop.key):
            self._answer_known(stop.key)
        else:  # A6: the runner searched records, trees, cgroups and marks before it gave its inventory
            self._end_unstarted(stop.key, EndCause.GONE, "this node has no record, process or mark of it")

    async def _signal(self, signal: Signal) -> None:
        if signal.key in self._observed.open:  # A10
            self._ports.telemetry.event("task_signalled", **_which(signal.key), signal=signal.signal)
            await self._to_runner(self._ports.runner.signal(signal.key, signal.signal))

    async def _to_runner(self, deed: Coroutine[Any, Any, None]) -> None:
        """A9."""
        call = asyncio.ensure_future(deed)
        self._calls[call] = None
        call.add_done_callback(self._called)
        await asyncio.shield(call)

    def _called(self, call: "asyncio.Future[None]") -> None:
        del self._calls[call]
        if not call.cancelled() and call.exception() is not None and not isinstance(call.exception(), OSError):
            self._ports.telemetry.warn("runner_call_broke", error=repr(call.exception()))

    def _answer_known(self, key: TaskKey) -> None:
        """A4. What is open is reported as it stands; an end is offered, again if need be."""
        if key in self._observed.open:
            self._say_started(key)
            self._say_beat()
        elif key in self._observed.offered or self._observed.reoffer(key) is not None:
            self._delivery.offer(key)
        else:
            self._end_unstarted(key, EndCause.GONE, "it ended here before; the record of its end is no longer kept")

    def _obstacle(self, start: Start) -> str:
        """A5. Empty when nothing is in the way."""
        here = {gpu.uuid for gpu in self._registration.inventory.gpus}
        missing = [uuid for uuid in start.gpus if uuid not in here]
        if missing:
            return f"GPU {missing[0]} isn't on this node ({len(missing)} of {len(start.gpus)} are missing)"
        for uuid, key in self._observed.holders(start.gpus).items():
            return f"GPU {uuid} isn't free here: {_name(key)} still holds it"
        return ""

    def _say_as_whom(self, start: Start) -> None:
        """A11."""
        account = self._registration.inventory.account
        if not self._said_as_whom and start.user and account not in ("", "root", start.user):
            self._said_as_whom = True
            self._ports.telemetry.warn("user_not_taken_on", **_which(start.key), user=start.user, account=account)

    def _end_unstarted(self, key: TaskKey, cause: EndCause, error: str) -> None:
        end = TaskEnd(cause=cause, at=self._ports.clock.now(), error=error)
        self._observed.refused(TaskOver(key=key, end=end))
        self._delivery.offer(key)
        self._ports.telemetry.warn("task_not_started", **_which(key), cause=cause, error=error)

    def _ignored(self, what: str, epoch: Epoch) -> None:
        self._ports.telemetry.count("stale_instructions_total")
        self._ports.telemetry.warn("stale_epoch_ignored", what=what, epoch=epoch, newest=self._epoch)


def _name(key: TaskKey) -> str:
    """A task for people: job 17, attempt 2, rank 0."""
    return f"job {key.job}, attempt {key.attempt}, rank {key.rank}"


def _which(key: TaskKey) -> dict[str, object]:
    """A task in a log line; `task_id` is the job's, as everywhere people search for it."""
    return {"task_id": str(key.job), "attempt": key.attempt, "rank": key.rank}
