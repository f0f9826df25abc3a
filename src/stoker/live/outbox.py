"""Outbox of instructions: works out which of them are due to each agent, and sends those.

Nothing is queued here. Which instructions are due follows from the job's durable record and from what this stream has
already been told, so a new stream gets exactly what the ledger says is unconfirmed, and a restart loses nothing.

Rules: O1  an instruction leaves only when all that it follows from is durable
       O2  a start is sent once per stream, never when its node has reported the task, and never after a stop order
       O3  where a rendezvous port was chosen, rank 0 goes first and the others follow once it has started: its agent
           tries the port before any rank runs
       O4  every open task of an attempt with a stop order is told to stop, once per stream; so is every
           orphan task. One whose GPUs are taken back is given notice with it, and is told once more when it is to end
           without waiting for that, as on a cancel
       O5  a stream remembers open tasks and orphan tasks of its node only, so one that lasts for months stays small
       O6  a signal is sent once, on the streams that are up when it is durable, to tasks that have started
       O7  a task that is live here and whose end its node keeps is told to stop, since that is answered with the end
       O8  secrets are opened when a start is sent, and go to nodes to which nobody else listens; a start that can't
           have its secrets is withheld, and the attempt ends without a word to its node
       O9  notice of a time limit, if the job wished for one, is given to each task that has started once per stream;
           the runner gives it to the processes once for each limit
"""

from collections.abc import Callable, Iterable, Sequence

from stoker.brain.domain.environment import host_file, share_variables, task_environment
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import JobId, NodeName
from stoker.brain.domain.instruction import Instruction, Signal, Start, Stop, StopNotice, TaskKey, Warn
from stoker.brain.domain.job import Attempt, Job, StopCause, StopRequest, Task
from stoker.brain.domain.node import OrphanTask
from stoker.brain.domain.output import must_append, output_path
from stoker.brain.domain.preemption import TAKEN_BACK, lead_ms
from stoker.brain.domain.units import NEVER, later
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.job import JobSignalled, TaskEnded
from stoker.brain.state.events.node import OrphanTasksFound
from stoker.control.committer import Committer, job_to_instruct
from stoker.control.control_ports import SecretVault
from stoker.control.feed import Entry
from stoker.control.job_secrets import secret_variables

Push = Callable[[Instruction], None]
Withhold = Callable[[TaskKey, StokerError], None]
"""Told which start was not sent, and why. It must only take notes."""


class InstructionStream:
    """One stream to an agent, and what was said on it."""

    __slots__ = ("node", "private", "push", "started", "stopped", "warned")

    def __init__(self, node: NodeName, reported: Iterable[TaskKey], push: Push, *, private: bool) -> None:
        self.node = node
        self.push = push
        self.private = private
        """Nobody between reads it."""
        self.started = dict.fromkeys(reported)
        """Tasks whose start was sent here or needn't be, since the node knows them."""
        self.warned: dict[TaskKey, int] = {}
        """Time limit of which a task was given notice here."""
        self.stopped: dict[TaskKey, int] = {}
        """Tasks that were told to stop here, with the lead of the notice, in milliseconds."""

    def forget(self, key: TaskKey) -> None:
        """Forget a task whose end is durable, since nothing is ever due for it again (O5)."""
        self.started.pop(key, None)
        self.stopped.pop(key, None)
        self.warned.pop(key, None)


class Outbox:
    """Instruction streams to all agents whose inventory has been compared."""

    def __init__(self, committer: Committer, vault: SecretVault | None, withhold: Withhold) -> None:
        self._committer = committer
        self._vault = vault
        self._withhold = withhold
        self._streams: dict[NodeName, InstructionStream] = {}
        committer.on_durable(self._committed)

    def open(self, node: NodeName, reported: Iterable[TaskKey], push: Push, *, private: bool) -> InstructionStream:
        """Begin to instruct `node` through `push`, first with all that is due; `reported` is what it says it knows.

        `private`: nobody between reads what is pushed.
        """
        state = self._committer.state
        held = state.indexes.held.get(node, {})
        known = [key for key in reported if (key.job, key.attempt, key.rank) in held]
        stream = self._streams[node] = InstructionStream(node, known, push, private=private)
        for job in tuple(state.indexes.on_node.get(node, ())):
            self._instruct(job, only=node)
        self.stop(stream, map(_key, state.nodes[node].strays))
        return stream

    def stop(self, stream: InstructionStream, keys: Iterable[TaskKey]) -> None:
        """Tell the node to stop these tasks, each once per stream (O4, O7)."""
        for key in keys:
            if key not in stream.stopped:
                self._stop(stream, key)

    def _stop(
        self, stream: InstructionStream, key: TaskKey, cause: StopCause | None = None, notice: StopNotice | None = None
    ) -> None:
        state = self._committer.state
        stream.stopped[key] = notice.lead_ms if notice else 0
        if cause is StopCause.GPU_FAILED:  # an agent of an older version would break off at this word
            cause = StopCause.REQUEUED
        stop = Stop(key=key, epoch=state.epoch, grace_ms=state.policy.stop_grace_ms, cause=cause, notice=notice)
        stream.push(stop)

    def close(self, stream: InstructionStream) -> None:
        if self._streams.get(stream.node) is stream:
            del self._streams[stream.node]

    def _committed(self, entries: Sequence[Entry]) -> None:
        jobs: dict[JobId, None] = {}
        for _, fact in entries:
            job = job_to_instruct(fact.event)
            if job is not None:
                jobs[job] = None
            elif isinstance(fact.event, JobSignalled):
                self._signal(fact.event)
            elif isinstance(fact.event, OrphanTasksFound):
                stream = self._streams.get(fact.event.node)
                if stream is not None:
                    self._forget_orphans(stream, fact.event.strays)
                    self.stop(stream, map(_key, fact.event.strays))
        for job in jobs:
            self._instruct(job)
        for _, fact in entries:
            if isinstance(fact.event, TaskEnded):
                self._forget(TaskKey(fact.event.job, fact.event.attempt, fact.event.rank))

    def _forget(self, key: TaskKey) -> None:
        job = self._committer.state.jobs.get(key.job)
        if job is None:  # pruned in the same moment, and with it the name of the node
            for stream in self._streams.values():
                stream.forget(key)
            return
        held_by = self._streams.get(job.attempt(key.attempt).tasks[key.rank].placement.node)
        if held_by is not None:
            held_by.forget(key)

    def _forget_orphans(self, stream: InstructionStream, orphans: Iterable[OrphanTask]) -> None:
        """Forget what was stopped and has ended: it is neither live nor an orphan task that is still listed."""
        listed = {(orphan.job, orphan.attempt, orphan.rank) for orphan in orphans}
        held = self._committer.state.indexes.held.get(stream.node, {})
        for key in tuple(stream.stopped):
            task = (key.job, key.attempt, key.rank)
            if task not in listed and task not in held:
                stream.forget(key)

    def _instruct(self, job_id: JobId, only: NodeName | None = None) -> None:
        job = self._committer.state.jobs.get(job_id)
        attempt = job.live_attempt if job else None
        if job is None or attempt is None or self._committer.is_undurable(job_id):
            return
        for task in attempt.open_tasks:
            stream = self._streams.get(task.placement.node)
            if stream is not None and only in (None, stream.node):
                self._instruct_task(stream, job, attempt, task)

    def _instruct_task(self, stream: InstructionStream, job: Job, attempt: Attempt, task: Task) -> None:
        key = TaskKey(job.id, attempt.number, task.placement.rank)
        if attempt.stop is not None:
            notice = _notice(self._committer.state, job, attempt.stop)
            told = stream.stopped.get(key)
            if told is None or told > (notice.lead_ms if notice else 0):
                self._stop(stream, key, attempt.stop.cause, notice)
        elif task.started_at != NEVER and attempt.signalled_limit_ms == job.spec.time_limit_ms:
            self._warn(stream, key, job, attempt)
        elif task.started_at == NEVER and key not in stream.started and _may_start(attempt, task):
            stream.started[key] = None
            try:
                opened = self._secrets(stream, job)
            except StokerError as fault:  # O8
                self._withhold(key, fault)
            else:
                stream.push(self._start(key, job, attempt, task, opened))

    def _warn(self, stream: InstructionStream, key: TaskKey, job: Job, attempt: Attempt) -> None:
        """Give notice of a time limit, once per stream (O9)."""
        limit_ms, warn, state = job.spec.time_limit_ms, job.spec.warn, self._committer.state
        if warn is None or stream.warned.get(key) == limit_ms:
            return
        stream.warned[key] = limit_ms
        ends_at = later(attempt.began_at, limit_ms - attempt.clock_moved_ms + state.clock_moved_ms)
        notice = StopNotice(
            cause=StopCause.TIMEOUT, lead_ms=max(0, ends_at - self._committer.now()), signal=warn.signal
        )
        grace_ms = state.policy.stop_grace_ms
        stream.push(Warn(key=key, epoch=state.epoch, notice=notice, grace_ms=grace_ms, limit_ms=limit_ms))

    def _signal(self, event: JobSignalled) -> None:
        """Send a signal to the tasks of its attempt that have started (O6)."""
        job = self._committer.state.jobs.get(event.job)
        attempt = job.live_attempt if job else None
        if attempt is None or attempt.number != event.attempt:
            return
        for task in attempt.open_tasks:
            stream = self._streams.get(task.placement.node)
            if stream is not None and task.started_at != NEVER:
                key = TaskKey(event.job, event.attempt, task.placement.rank)
                stream.push(Signal(key=key, epoch=self._committer.state.epoch, signal=event.signal))

    def _secrets(self, stream: InstructionStream, job: Job) -> dict[str, str]:
        if not job.spec.secrets:
            return {}
        if not stream.private:
            raise refusal_error(
                "secret_in_clear",
                f"node {stream.node} is on another machine and is reached without TLS, and the job has secrets",
                "let the control plane and its agents speak TLS (`tls.mode`, `stoker agent join`)",
            )
        return secret_variables(self._committer.state, self._vault, job)

    def _start(self, key: TaskKey, job: Job, attempt: Attempt, task: Task, opened: dict[str, str]) -> Start:
        state, placement = self._committer.state, task.placement
        inventory = state.nodes[placement.node].inventory
        devices = {placement.node: inventory.gpus}
        addresses = {
            node: state.nodes[node].inventory.address for node in {task.placement.node: None for task in attempt.tasks}
        }
        ports = (0, 0) if attempt.master_port else (state.policy.port_min, state.policy.port_max)
        return Start(
            key=key,
            epoch=state.epoch,
            command=job.spec.command,
            env=task_environment(job, attempt, key.rank, devices, opened) | share_variables(placement, inventory.mps),
            workdir=job.spec.workdir,
            gpus=placement.gpus,
            cpus=placement.cpus,
            gpu_share=placement.gpu_share,
            memory_mb=placement.memory_mb,
            user=job.spec.user,
            tenant=job.spec.tenant,
            output=output_path(job.spec.output, job, placement.node, key.rank),
            error=output_path(job.spec.error, job, placement.node, key.rank),
            append=must_append(job.spec.output, key.rank) or must_append(job.spec.error, key.rank),
            probe_port=attempt.master_port if key.rank == 0 else 0,
            lease_ms=attempt.lease_ms,
            gang_port_min=ports[0],
            gang_port_max=ports[1],
            host_file=host_file(attempt, addresses),
            encoding=job.spec.encoding,
            script=job.spec.script,
            tty=job.spec.tty and key.rank == 0,
            stays=job.spec.detached,
            image=job.spec.image,
            container=job.spec.container,
        )


def _notice(state: ClusterState, job: Job, stop: StopRequest) -> StopNotice | None:
    """Return the notice that a job is given with a stop; None = it is given none."""
    if stop.cause not in TAKEN_BACK:
        return None
    warn = job.spec.warn
    return StopNotice(
        cause=stop.cause,
        lead_ms=lead_ms(job.spec, stop.cause, state.policy),
        signal=warn.signal if warn else 0,
        for_job=stop.for_label,
    )


def _key(orphan: OrphanTask) -> TaskKey:
    return TaskKey(orphan.job, orphan.attempt, orphan.rank)


def _may_start(attempt: Attempt, task: Task) -> bool:
    """Return whether a task may start now: of a job with a rendezvous port rank 0 goes first (O3)."""
    return not attempt.master_port or task.placement.rank == 0 or attempt.tasks[0].started_at != NEVER
