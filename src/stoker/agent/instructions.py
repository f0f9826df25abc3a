"""Execution of instructions: starts, stops and signals of tasks on this node.

The daemon passes on instructions of the present stream only, in order.

The control plane composes a job's environment (`brain/domain/environment.py`); here the node adds what only it knows,
and never overrides a word of it; but a job that runs as another account than the agent's gets HOME, USER, LOGNAME and
SHELL of that account from the runner.

Rules: A3  an instruction of an older epoch than the stream's is ignored and counted
       A4  a start whose key is known is answered from what is known, never acted on
       A5  a start whose GPUs aren't free here ends `never_started` and says who holds them: the node's fault, so the
           job is requeued; sharers hold at most the whole of a GPU together, and nobody is beside one that has it all
       A6  a stop of a task that this node has no trace of is answered with an end `gone`
       A9  a call to the runner is carried through when the stream that asked for it breaks meanwhile: half a start
           would be noted here and unknown there, and its GPUs held for ever. Calls for one task are made in order, and
           those for several at once, so that the runner does one turn for them
       A10 a signal for a task that isn't open here is ignored: it is sent once, for what ran when it was asked for
       A12 an agent that isn't root runs every job as its own account, and says so of the first that names another
       A18 a node with a fault starts nothing: a start that comes, and one that a runner which doesn't answer surely
           hasn't begun, ends `never_started`, so that it is tried elsewhere
       A13 an end that the control plane had before, and asks for as if it lacked it, is offered again
       A21 a task that asked for no memory may have the share of the node's that its CPUs or its GPUs are of the node's,
           whichever is more, and SHARE_MB_MIN at least
       A23 an image is made ready beside everything else; a start that waits for one belongs to its stream, and is
           forgotten with it: whoever then leads sends it again, or has placed the job elsewhere meanwhile
       A22 where the agent is root and its runner can make no cgroup, a start whose account isn't among those of the
           settings ends `account_refused`: what such a job leaves behind can't be told from other jobs
"""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol, assert_never

import msgspec

from stoker.agent.container_ports import ContainerFault
from stoker.agent.delivery import Delivery
from stoker.agent.observed import Observed
from stoker.agent.ports import AgentPorts, StartTask, TaskOver, TaskWarning
from stoker.agent.preparations import Preparations
from stoker.brain.domain.gpu import WHOLE_GPU, gpus_number
from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.instruction import Instruction, Signal, Start, Stop, StopNotice, TaskKey, Warn
from stoker.brain.domain.job import EndCause, TaskEnd
from stoker.brain.domain.node import ROOT, Inventory
from stoker.brain.domain.report import TaskPhase
from stoker.brain.domain.units import SECOND_MS, Instant, later, utc_text
from stoker.ports import Telemetry

CHECKPOINT_DIR: Final = "STOKER_CHECKPOINT_DIR"
CALLS_MAX: Final = 64
"""Calls to the runner under way; it takes them as fast as they are written unless it hangs."""
SHARE_MB_MIN: Final = 1_024
"""Enough for a shell, an interpreter and a compiler, on a node of whatever size."""


class TaskRules(NamedTuple):
    """Settings of this node that its tasks are held to."""

    memory_share: bool = False
    """Whether a task that asked for no memory is limited (A21)."""
    accounts: tuple[str, ...] | None = None
    """Accounts whose jobs are taken where no cgroup can be made (A22). None = all."""


class ReportSink(Protocol):
    """Sink of the present stream for answers to instructions."""

    @property
    def node(self) -> Inventory:
        """Inventory of this node, as it is registered."""
        ...

    def say_started(self, key: TaskKey) -> None: ...

    def say_beat(self) -> None: ...


class InstructionExecutor:
    """Executor of the instructions that one agent receives."""

    def __init__(
        self,
        ports: AgentPorts,
        observed: Observed,
        delivery: Delivery,
        report_sink: ReportSink,
        node_env: Mapping[str, str],
        rules: TaskRules,
    ) -> None:
        self._ports = ports
        self._observed = observed
        self._delivery = delivery
        self._report_sink = report_sink
        self._node_env = dict(node_env)
        self._rules = rules
        self.cgroups = True
        """Whether the runner can make them."""
        self.keeps_scripts = True
        """Whether the runner knows scripts; the node says of itself what its runner says."""
        self.runs_containers = True
        """Whether the runner knows them."""
        self._said_as_whom = False
        self._calls: dict[TaskKey, asyncio.Future[None]] = {}
        self.preparations = Preparations(ports.clock, report_sink.say_beat)

    async def settled(self) -> None:
        """Wait until every call to the runner is over (A9)."""
        if self._calls:
            await asyncio.wait(self._calls.values())

    def drop(self) -> None:
        """Give up the calls to the runner, since the agent stops."""
        for call in self._calls.values():
            call.cancel()
        self.withdraw()

    def withdraw(self) -> None:
        """Give up the starts that haven't reached the runner: their stream has ended, and they come again (A23)."""
        for key in self.preparations.give_up():
            self._observed.withdrawn(key)

    async def carry_out(self, instruction: Instruction, epoch: Epoch) -> None:
        """Carry out one instruction of a stream of this epoch, as far as it is the runner's turn."""
        if instruction.epoch < epoch:  # A3
            ignored(self._ports.telemetry, _name(instruction.key), instruction.epoch, epoch)
            return
        await self._may_call(instruction.key)
        match instruction:
            case Start():
                await self._start(instruction)
            case Stop():
                self._stop(instruction)
            case Signal():
                self._signal(instruction)
            case Warn():
                self._warn(instruction)
            case _:
                assert_never(instruction)

    async def _start(self, start: Start) -> None:
        if self._observed.knows(start.key):
            self._answer_known(start.key)
            return
        if refused := self._account_conflict(start):
            self._end_unstarted(start.key, EndCause.ACCOUNT_REFUSED, refused)
            return
        conflict = self._report_sink.node.fault or self._gpu_conflict(start)  # A18
        if conflict:
            self._end_unstarted(start.key, EndCause.NEVER_STARTED, conflict)
            return
        try:
            folder = await self._ports.folders.claim(start.key.job)
        except OSError as error:
            self._end_unstarted(start.key, EndCause.NEVER_STARTED, f"no folder for checkpoints: {error}")
            return
        self._say_as_whom(start)
        self._observed.starting(start)
        if self._ports.containers.image_of(start) and not self.runs_containers:
            words = "the runner of this node is older than containers, and would start a bare process"
            self._end_unstarted(start.key, EndCause.NEVER_STARTED, words)
            return
        if self._ports.containers.image_of(start):
            env = complete_environment(start.env, {}, folder)
            task = self._task(start, env, folder)
            self.preparations.begin(start.key, self._prepare(task))
            return
        env = complete_environment(start.env, self._node_env, folder)
        self._to_runner(start.key, self._ports.runner.start(self._task(start, env, folder)))

    async def _prepare(self, task: StartTask) -> None:
        """Hand a task to the runner once the image of its container is here (A23)."""
        key = task.start.key
        try:
            tell = self.preparations.teller(key)
            container = await self._ports.containers.prepare(task.start, tell)
        except ContainerFault as fault:
            self.preparations.over(key)
            self._end_unstarted(key, fault.cause, str(fault))
            return
        await self._may_call(key)
        self.preparations.over(key)
        self._to_runner(key, self._ports.runner.start(msgspec.structs.replace(task, container=container)))

    def give_up_starts(self, fault: str) -> None:
        """End the tasks that a runner which doesn't answer hasn't begun to start (A18)."""
        for key, status in tuple(self._observed.open.items()):
            if status.phase is TaskPhase.STARTING and not self.preparations.has(key):
                with suppress(OSError):  # tried again soon
                    if self._ports.runner.revoke(key):
                        self._end_unstarted(key, EndCause.NEVER_STARTED, fault)

    def _stop(self, stop: Stop) -> None:
        if self.preparations.cancel(stop.key):
            self._end_unstarted(stop.key, EndCause.STOPPED, "stopped before its container was started")
        elif stop.key in self._observed.open:
            warning = self._warning(stop.key, stop.notice, stop.grace_ms) if stop.notice else None
            self._to_runner(stop.key, self._ports.runner.stop(stop.key, stop.grace_ms, warning))
        elif self._observed.knows(stop.key):
            self._answer_known(stop.key)
        else:  # A6: the runner searched records, trees, cgroups and marks before it gave its inventory
            self._end_unstarted(stop.key, EndCause.GONE, "this node has no record, process or mark of it")

    def _signal(self, signal: Signal) -> None:
        if signal.key in self._observed.open:  # A10
            self._ports.telemetry.event("task_signalled", **which(signal.key), signal=signal.signal)
            self._to_runner(signal.key, self._ports.runner.signal(signal.key, signal.signal))

    def _warn(self, warn: Warn) -> None:
        if warn.key in self._observed.open:  # A10
            warning = self._warning(warn.key, warn.notice, warn.grace_ms)
            self._to_runner(warn.key, self._ports.runner.warn(warn.key, warning, warn.limit_ms))

    def _warning(self, key: TaskKey, notice: StopNotice, grace_ms: int) -> TaskWarning:
        """Return what a task is told of a notice that came now."""
        told = {"cause": notice.cause, "signal": notice.signal, "lead_ms": notice.lead_ms}
        self._ports.telemetry.event("task_warned", **which(key), **told)
        text = notice_text(notice, self._ports.clock.now(), grace_ms)
        return TaskWarning(signal=notice.signal, text=text, lead_ms=notice.lead_ms)

    async def _may_call(self, key: TaskKey) -> None:
        """Wait until an earlier call to the runner for this task is over."""
        while key in self._calls or len(self._calls) >= CALLS_MAX:
            earlier = self._calls.get(key)
            waited = self._calls.values() if earlier is None else (earlier,)
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)

    def _to_runner(self, key: TaskKey, request: Coroutine[Any, Any, None]) -> None:
        """Begin a call to the runner, which goes on when the stream that asked for it breaks (A9)."""
        call = self._calls[key] = asyncio.ensure_future(request)
        call.add_done_callback(lambda call: self._called(key, call))

    def _called(self, key: TaskKey, call: "asyncio.Future[None]") -> None:
        del self._calls[key]
        fault = None if call.cancelled() else call.exception()
        if isinstance(fault, OSError):  # the runner died under the call: RunnerGone follows and cuts the stream (A8)
            self._ports.telemetry.warn("runner_call_failed", error=str(fault))
        elif fault is not None:
            self._ports.telemetry.warn("runner_call_broke", error=repr(fault))

    def _answer_known(self, key: TaskKey) -> None:
        """A4. What is open is reported as it stands; an end is offered, again if need be."""
        if key in self._observed.open:
            self._report_sink.say_started(key)
            self._report_sink.say_beat()
        elif key in self._observed.offered or self._observed.reoffer(key):
            self._delivery.offer(key)
        else:  # A13: its end comes as a report
            self._to_runner(key, self._ports.runner.recall(key))

    def forgotten(self, key: TaskKey) -> None:
        """Report as gone a task of which the runner had nothing to recall."""
        if key not in self._observed.open and key not in self._observed.offered:
            self._observed.forgotten(key)
            self._end_unstarted(key, EndCause.GONE, "it ended here before; the record of its end is no longer kept")

    def _gpu_conflict(self, start: Start) -> str:
        """Why its GPUs can't be had (A5); empty when they are free."""
        here = {gpu.uuid for gpu in self._report_sink.node.gpus}
        missing = [uuid for uuid in start.gpus if uuid not in here]
        if missing:
            return f"GPU {missing[0]} isn't on this node ({len(missing)} of {len(start.gpus)} are missing)"
        for uuid, holders in self._observed.holders(start.gpus).items():
            held = sum(each.gpu_share for each in holders)
            if held + start.gpu_share > WHOLE_GPU:
                others = ", ".join(_name(each.key) for each in holders)
                share = "it" if held >= WHOLE_GPU else f"{gpus_number(held)} of it"
                return f"GPU {uuid} isn't free here: {others} still {'holds' if len(holders) == 1 else 'hold'} {share}"
        return ""

    @property
    def accounts(self) -> tuple[str, ...] | None:
        """Accounts whose jobs this node takes; None = all."""
        return None if self.cgroups else self._rules.accounts

    def _account_conflict(self, start: Start) -> str:
        """Why no job of its account runs here (A22); empty when it may."""
        user = start.user or ROOT
        if self.accounts is None or user in self.accounts:
            return ""
        return (
            f"no cgroup can be made on this node, and it takes no jobs of {user}: executor.accounts_without_cgroups in "
            "its agent.yaml names those that it takes"
        )

    def _task(self, start: Start, env: dict[str, str], folder: str) -> StartTask:
        shares = self._rules.memory_share and not start.memory_mb
        memory_mb = memory_share(self._report_sink.node, start) if shares else 0
        placement = self._ports.locality.placement(start.gpus, start.cpus)
        return StartTask(start=start, env=env, folder=folder, memory_mb=memory_mb, placement=placement)

    def _say_as_whom(self, start: Start) -> None:
        """Log under which account a job will run, where that isn't its own user (A12)."""
        account = self._report_sink.node.account
        if not self._said_as_whom and start.user and account not in ("", "root", start.user):
            self._said_as_whom = True
            self._ports.telemetry.warn("user_not_taken_on", **which(start.key), user=start.user, account=account)

    def _end_unstarted(self, key: TaskKey, cause: EndCause, error: str) -> None:
        end = TaskEnd(cause=cause, at=self._ports.clock.now(), error=error)
        self._observed.refused(TaskOver(key=key, end=end))
        self._delivery.offer(key)
        self._ports.telemetry.warn("task_not_started", **which(key), cause=cause, error=error)


def memory_share(node: Inventory, start: Start) -> int:
    """Return the MiB of memory that a task may have which asked for none (A21)."""
    of_cpus = node.memory_mb * start.cpus // max(1, node.cpus)
    of_gpus = node.memory_mb * len(start.gpus) * start.gpu_share // (WHOLE_GPU * max(1, len(node.gpus)))
    return min(node.memory_mb, max(of_cpus, of_gpus, SHARE_MB_MIN))


def notice_text(notice: StopNotice, now: Instant, grace_ms: int) -> str:
    """Return the content of the file that STOKER_PREEMPT_FILE names: one JSON object, of one line.

    Units: `terminate_at` and `deadline` are seconds since 1970 of this node's clock.
    """
    terminate_at = later(now, notice.lead_ms)
    deadline = later(terminate_at, grace_ms)
    told = {
        "cause": notice.cause.value,
        "for_job": notice.for_job,
        "terminate_at": terminate_at // SECOND_MS,
        "terminate_at_text": utc_text(terminate_at),
        "deadline": deadline // SECOND_MS,
        "deadline_text": utc_text(deadline),
    }
    return msgspec.json.encode(told).decode() + "\n"


def complete_environment(given: Mapping[str, str], node: Mapping[str, str], checkpoint_dir: str) -> dict[str, str]:
    """Return the whole environment of a process. What the control plane gave wins over the node's own."""
    ours = {CHECKPOINT_DIR: checkpoint_dir} if checkpoint_dir else {}
    return {**node, **ours, **given}


def ignored(telemetry: Telemetry, what: str, epoch: Epoch, newest: Epoch) -> None:
    """Log that something came from a control plane that has been replaced."""
    telemetry.count("stale_instructions_total")
    telemetry.warn("stale_epoch_ignored", what=what, epoch=epoch, newest=newest)


def _name(key: TaskKey) -> str:
    """A task for people: job 17, attempt 2, rank 0."""
    return f"job {key.job}, attempt {key.attempt}, rank {key.rank}"


def which(key: TaskKey) -> dict[str, object]:
    """Return the fields of a task in a log line; `task_id` is the job's id, as everywhere people search for it."""
    return {"task_id": str(key.job), "attempt": key.attempt, "rank": key.rank}
