"""Sessions of agents: their registration, their reports, their instructions and reads of output.

It is free of gRPC, and called by `rpc.agents` and by the test rig alike. A session is one registration: its two
streams (reports up and instructions down; output of tasks) are attached to it by its id.

Rules: S1  the newest session of a node replaces the older one, whose stream is closed
       S2  the first report of a stream is the inventory of tasks; only when its comparison with the ledger is durable
           does any instruction leave on this stream
       S3  an end is answered when it is durable; a late or repeated one is answered like any other
       S4  every report is a sign of life
       S5  a node that was forgotten, or whose work was settled for its silence, loses its stream, so that its agent
           registers anew by itself and what it runs is compared
       S6  a report that is refused, for whatever reason, ends the stream: a lost `started` would leave its job
           `starting` for as long as the stream lasts, while the next stream's inventory says it again
       S7  a session belongs to the token that opened it: with any other it is unknown, and it speaks for its own node
       S8  while a node's stream is open, another data folder with another token doesn't get its name
       S9  an end that the node keeps and this control plane lacks, since its log is older, is asked for again: else its
           task would be taken for gone, and run once more
       S10 no instruction and no answer to a beat leaves once our lease is over
Limits: INSTRUCTIONS_MAX messages wait for a slow agent, LOG_REQUESTS_MAX reads of output for a slow runner; at the
        former the stream is closed (the agent returns and is compared anew), at the latter the read is refused.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, assert_never

import msgspec

from stoker.brain.domain.access import TokenId
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import CONTROL, Epoch, GpuUuid, JobId, NodeName, node_principal
from stoker.brain.domain.instruction import Instruction, TaskKey
from stoker.brain.domain.report import (
    Beat,
    LogChunk,
    Preparation,
    Registration,
    Report,
    SessionOpening,
    Started,
    TaskFinished,
    TaskInventory,
    TaskPhase,
    TaskStatus,
)
from stoker.brain.domain.units import Mono
from stoker.brain.state.commands import (
    CompareInventory,
    Register,
    ReportEnding,
    ReportFinished,
    ReportStarted,
    WithholdStart,
)
from stoker.brain.state.events.node import NodeForgotten, NodeLost
from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts, Duty, FigurePoint, LogPlace, NodeFigures
from stoker.control.feed import Entry
from stoker.live.liveness import Liveness
from stoker.live.node_figures import WATCH, WATCHED_MAX, FigureBook, FigureWatches
from stoker.live.outbox import InstructionStream, Outbox
from stoker.live.settings.control import ControlSettings
from stoker.live.streams import LOG_REQUESTS_MAX, LogChannel, Message, Outgoing, TunnelChannel
from stoker.wire.tunnel import SESSION, TCP, TunnelBroken, TunnelEnd

NODE_TUNNELS_MAX: Final = 128
"""Half of what an agent takes, since those of an older stream may not be gone yet."""
OPEN_TIMEOUT_S: Final = 15.0
LOG_TIMEOUT_S: Final = 10.0
"""An agent reads output from a local file: far longer than that takes, shorter than a person's patience."""
LOG_LIMIT_MAX: Final = 1 << 20
"""Bytes of one answer; who asks for more gets this much and asks again."""
NO_TOKEN: Final = TokenId("")
"""Of agents that needn't show one."""


class RegistrationReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a registration."""

    epoch: Epoch
    cluster_id: str
    session: str
    heartbeat_ms: int


class AgentStream:
    """The heartbeat stream of one session."""

    def __init__(self, owner: "Sessions", node: NodeName, session: str, token: TokenId) -> None:
        self.node = node
        self.session = session
        self.token = token
        self.log = LogChannel(LOG_REQUESTS_MAX)
        self.tunnels = TunnelChannel()
        self.private = False
        """Nobody between reads it."""
        self._owner = owner
        self._outgoing = Outgoing()
        self._instructions: InstructionStream | None = None
        self.attached = False
        self.tasks_said: tuple[int, Mono] | None = None
        """The sum of the newest beat, and when that came."""
        self.preparing: tuple[Preparation, ...] = ()
        """As of the newest beat."""

    async def receive(self, report: Report) -> None:
        """Take one report. Raises: StokerError when this stream must end."""
        self._check_open()
        if self._instructions is None:
            self._owner.liveness.note(self.node)
        else:
            self._owner.liveness.heard(self.node)
        match report:
            case TaskInventory():
                await self._compare(report)
            case _ if self._instructions is None:
                message = f"the first report of node {self.node} is a {type(report).__name__}"
                hint = "an agent sends the inventory of its tasks first on each stream; is it of this version?"
                raise StokerError(refuse("inventory_first", message, hint, node=self.node))
            case Started():
                self._owner.tell(ReportStarted(by=node_principal(self.node), node=self.node, started=report))
            case Beat():
                if report.ending:
                    by = node_principal(self.node)
                    self._owner.tell(ReportEnding(by=by, node=self.node, keys=report.ending))
                self._owner.book.take(self.node, report, self._owner.now(), self._owner.mono())
                self.tasks_said = None if report.tasks_sum is None else (report.tasks_sum, self._owner.mono())
                self.preparing = report.preparing
                self._outgoing.answer(report.sequence, self._owner.epoch)
            case _:
                assert_never(report)

    def outgoing(self) -> AsyncIterator[Message]:
        """Return what to send, until the stream is closed.

        Raises: StokerError when it was closed for a reason to be told, and `lease_lost` (S10).
        """
        return self._outgoing.messages(self._owner.committer.check_lease)

    def waiting(self, most: int) -> list[Instruction]:
        """Return instructions that leave together with the newest message of `outgoing`."""
        return self._outgoing.waiting(most)

    @property
    def is_compared(self) -> bool:
        """Whether anything may be told it (S2)."""
        return self._instructions is not None

    def watch(self) -> None:
        """Ask for figures more often, for a while."""
        self._outgoing.watch(WATCH)

    def close(self, why: Refusal | None = None) -> None:
        """End both streams of this session. Nothing of the node's work is touched, and silence is only counted."""
        self._outgoing.close(why)
        self.log.close()
        self.tunnels.close()
        if self._instructions is not None:
            self._owner.outbox.close(self._instructions)

    async def _compare(self, inventory: TaskInventory) -> None:
        inventory, lacking = self._with_lacking(inventory)
        command = CompareInventory(by=node_principal(self.node), node=self.node, inventory=inventory)
        await self._owner.committer.ask(command)
        self._check_open()  # replaced while the disk was busy, this stream may say nothing any more
        reported = [status.key for status in inventory.tasks]
        self._instructions = self._owner.outbox.open(self.node, reported, self._outgoing.push, private=self.private)
        self._owner.outbox.stop(self._instructions, lacking)  # S9

    def _check_open(self) -> None:
        if self._outgoing.closed:
            closed = refuse("session_unknown", "this stream was closed", "an agent registers again by itself")
            raise StokerError(self._outgoing.why or closed)

    def _with_lacking(self, inventory: TaskInventory) -> tuple[TaskInventory, list[TaskKey]]:
        """Return the inventory with those ends that the node keeps and the log lacks, and the keys of these (S9).

        The node keeps ends of thousands of tasks, and hardly ever is one of them live in the ledger.
        """
        held = self._owner.committer.state.indexes.held.get(self.node, {})
        lacking = [key for key in inventory.kept if (key.job, key.attempt, key.rank) in held]
        ended = (TaskStatus(key=key, phase=TaskPhase.ENDED) for key in lacking)
        tasks = (*inventory.tasks, *ended)
        return TaskInventory(boot_id=inventory.boot_id, tasks=tasks), lacking


class Sessions:
    """Sessions of all agents that are registered now: the `Nodes` of a cluster of its own."""

    def __init__(self, committer: Committer, settings: ControlSettings, ports: ControlPorts) -> None:
        self.committer = committer
        self.settings = settings
        self.liveness = Liveness(committer, ports, unreachable_after_s=settings.agents.unreachable_after_s)
        self.outbox = Outbox(committer, ports.vault, self._withhold)
        self.mono = ports.clock.mono
        self.now = ports.clock.now
        self.book = FigureBook()
        self.watches = FigureWatches()
        self._entropy = ports.entropy
        self._telemetry = ports.telemetry
        self._heartbeat_ms = round(settings.agents.heartbeat_s * 1_000)
        self._by_node: dict[NodeName, AgentStream] = {}
        self._by_id: dict[str, AgentStream] = {}
        committer.on_durable(self._committed)

    def begin(self) -> None:
        """Count the silence of nodes from now: this control plane becomes active."""
        self.liveness.begin()

    def duties(self) -> Sequence[Duty]:
        """Return the duties that run while this control plane is active."""
        return (Duty("liveness", self.liveness.run),)

    @property
    def epoch(self) -> Epoch:
        return self.committer.state.epoch

    def connected(self, node: NodeName) -> bool:
        """Return whether the node has an open stream."""
        stream = self._by_node.get(node)
        return stream is not None and stream.attached

    def task_sums(self) -> dict[NodeName, tuple[int, Mono]]:
        """Return, of each node whose inventory was compared, the checksum of its tasks and when it was said."""
        return {name: stream.tasks_said for name, stream in self._by_node.items() if stream.tasks_said is not None}

    def figures(self, node: NodeName) -> NodeFigures | None:
        """Return the newest figures of a node's GPUs."""
        return self.book.figures(node, self.mono())

    def last_hour(self, node: NodeName) -> Mapping[GpuUuid, list[FigurePoint]]:
        """Return the points of the last hour of each GPU of a node."""
        return self.book.last_hour(node, self.mono())

    def watch_figures(self, nodes: Collection[NodeName]) -> None:
        """Have the GPUs of these nodes looked at more often for a while, unless they are too many."""
        if len(nodes) <= WATCHED_MAX:
            told = [name for name in nodes if (stream := self._by_node.get(name)) is not None and stream.is_compared]
            for name in self.watches.take(told, self.mono()):
                self._by_node[name].watch()

    def clock_ahead_ms(self, node: NodeName) -> int:
        """Return by how much a node's clock is ahead of ours."""
        return self.book.clock_ahead_ms(node)

    def preparations(self, job: JobId) -> list[tuple[NodeName, Preparation]]:
        """Return what nodes say that they still do for tasks of a job before they start, in order of ranks."""
        streams = [(name, stream.preparing) for name, stream in self._by_node.items() if stream.preparing]
        found = [(name, each) for name, preparing in streams for each in preparing if each.key.job == job]
        return sorted(found, key=lambda said: said[1].key)

    def compare_anew(self, node: NodeName) -> None:
        """Let the agent open another stream, which begins with its inventory."""
        self._drop_node(node, None)

    async def register(self, registration: Registration, token: TokenId = NO_TOKEN) -> RegistrationReply:
        """Begin a session. Raises: StokerError as the brain refuses, or `node_name_taken` (S8)."""
        node = registration.node
        self._check_name(registration, token)
        await self.committer.ask(Register(by=node_principal(node), registration=registration))
        self._drop_node(node, _replaced(node))
        stream = AgentStream(self, node, self._entropy.uid(), token)
        self._by_node[node] = self._by_id[stream.session] = stream
        self.liveness.note(node)
        state = self.committer.state
        self._telemetry.event("agent_connected", agent_id=node, gpus=len(registration.inventory.gpus))
        return RegistrationReply(
            epoch=state.epoch, cluster_id=state.cluster_id, session=stream.session, heartbeat_ms=self._heartbeat_ms
        )

    def attach(self, session: str, token: TokenId = NO_TOKEN, *, private: bool = True) -> AgentStream:
        """Return the heartbeat stream of a session. `private`: nobody between reads it.

        Raises: StokerError `session_unknown`.
        """
        stream = self.opened(session, token)
        if stream.attached:
            raise StokerError(_replaced(stream.node))
        stream.attached, stream.private = True, private
        return stream

    def detach(self, stream: AgentStream) -> None:
        """Drop a session whose connection is over."""
        if self._by_id.get(stream.session) is stream:
            self._telemetry.event("agent_disconnected", agent_id=stream.node)
        self._drop(stream, None)

    def opened(self, session: str, token: TokenId = NO_TOKEN) -> AgentStream:
        """Return the session of this id that this token opened (S7). Raises: StokerError `session_unknown`."""
        stream = self._by_id.get(session)
        if stream is None or stream.token != token:
            raise StokerError(
                refuse("session_unknown", "this session isn't open (any more)", "an agent registers again by itself")
            )
        return stream

    async def finished(self, *ends: TaskFinished) -> Epoch:
        """Take ends of tasks; return our epoch once all are durable."""
        for finished in ends:
            if self.connected(finished.node):
                self.liveness.note(finished.node)
            self.committer.check_room()
            self.committer.tell(ReportFinished(by=node_principal(finished.node), finished=finished))
        await self.committer.settled()
        return self.epoch

    async def read_log(self, place: LogPlace, offset: int, limit: int, wait_ms: int = 0) -> LogChunk:
        """Read a task's output on its node, whose agent waits that long for bytes beyond `offset`.

        Raises: StokerError `node_unreachable`, `log_unavailable` or `too_many_streams`.
        """
        node, key = place
        stream = self._by_node.get(node)
        if stream is None or not stream.attached:
            raise StokerError(_unreachable(node, "it has no open stream"))
        timeout_s = LOG_TIMEOUT_S + wait_ms / 1_000
        try:
            async with asyncio.timeout(timeout_s):
                chunk = await stream.log.read(key, offset, min(limit, LOG_LIMIT_MAX), wait_ms)
        except TimeoutError:
            raise StokerError(_unreachable(node, f"it didn't answer within {timeout_s:.0f} s")) from None
        if chunk is None:
            raise StokerError(_unreachable(node, "its stream ended"))
        if chunk.error:
            raise StokerError(_log_unavailable(node, key, chunk.error))
        return chunk

    @asynccontextmanager
    async def tunnel(self, place: LogPlace, port: int) -> AsyncIterator[TunnelEnd]:
        """Have a connection to a port on which a task listens, from entry to exit.

        Raises: StokerError `node_unreachable`, `forward_unavailable`, `too_many_forwards` or `port_not_listening`.
        """
        channel = self._tunnels_of(place.node, "forward_unavailable", "lets nobody through to ports of its tasks")
        with channel.opening(place.key, TCP, port=port) as tunnel:
            fault = await self._fault_of(tunnel, place.node)
            if fault:
                hint = "start the server in the job, on 127.0.0.1 or all addresses, and connect once more"
                raise StokerError(refuse("port_not_listening", fault, hint, node=place.node, port=port))
            yield tunnel

    @asynccontextmanager
    async def session(self, place: LogPlace, opening: SessionOpening) -> AsyncIterator[TunnelEnd]:
        """Have a session in a task, from entry to exit. What follows are frames of the node's runner.

        Raises: StokerError `node_unreachable`, `exec_unavailable` or `too_many_forwards`.
        """
        channel = self._tunnels_of(place.node, "exec_unavailable", "lets nobody into its tasks")
        with channel.opening(place.key, SESSION, session=opening) as tunnel:
            fault = await self._fault_of(tunnel, place.node)
            if fault:
                hint = "see that agent and runner there are of this version; what runs there goes on"
                raise StokerError(refuse("exec_unavailable", f"node {place.node}: {fault}", hint, node=place.node))
            yield tunnel

    def _tunnels_of(self, node: NodeName, code: str, words: str) -> TunnelChannel:
        """Raises: StokerError `node_unreachable`, `too_many_forwards` or `code`, where its agent is too old."""
        stream = self._by_node.get(node)
        if stream is None or not stream.attached:
            raise StokerError(_unreachable(node, "it has no open stream", "task"))
        if not stream.tunnels.attached:
            hint = "it is of an older version: upgrade it; what runs there goes on"
            raise StokerError(refuse(code, f"the agent of {node} {words}", hint, node=node))
        if stream.tunnels.count >= NODE_TUNNELS_MAX:
            message = f"{NODE_TUNNELS_MAX} connections to tasks of {node} are open already"
            hint = "close some, or try again later"
            raise StokerError(refuse("too_many_forwards", message, hint, forwards_max=NODE_TUNNELS_MAX))
        return stream.tunnels

    async def _fault_of(self, tunnel: TunnelEnd, node: NodeName) -> str:
        """Return why the agent doesn't connect; empty = it has. Raises: StokerError `node_unreachable`."""
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await tunnel.until_open()
        except TimeoutError:
            raise StokerError(_unreachable(node, f"it didn't connect within {OPEN_TIMEOUT_S:.0f} s", "task")) from None
        except TunnelBroken as fault:
            return str(fault)
        return ""

    def close(self) -> None:
        """End every stream: this control plane stops. Agents keep their jobs running and come back."""
        for stream in list(self._by_node.values()):
            self._drop(stream, None)

    def tell(self, command: ReportStarted | ReportEnding) -> None:
        """Carry a report out; if it is refused, end the stream of its node (S6)."""
        try:
            self.committer.tell(command)
        except StokerError as refused:
            self._telemetry.warn("report_refused", agent_id=command.node, error=refused.refusal.message)
            self._drop_node(command.node, refused.refusal)
            raise

    def _withhold(self, key: TaskKey, fault: StokerError) -> None:
        """Note that a start wasn't sent; the attempt ends once the writer is through with what it does now."""
        refusal = fault.refusal
        self._telemetry.count("starts_withheld_total")
        self._telemetry.warn("start_withheld", task_id=str(key.job), error=refusal.message, hint=refusal.hint)
        why = f"{refusal.message}; {refusal.hint}"
        if refusal.code == "secret_key_unusable":  # where the key is, and what is wrong with it, is for admins
            why = "the control plane can't open its secrets; its log says why, for an admin to mend it"
        asyncio.get_running_loop().call_soon(self._withheld, WithholdStart(by=CONTROL, key=key, error=why))

    def _withheld(self, command: WithholdStart) -> None:
        with suppress(StokerError):  # it stops, and who is active next finds the task unsent
            self.committer.tell(command)

    # --- the set of sessions ------------------------------------------------------------------------------------

    def _check_name(self, registration: Registration, token: TokenId) -> None:
        """Refuse the name of a node whose stream is open (S8). Raises: StokerError `node_name_taken`.

        With the same token or data folder it is the same agent, whose old connection is not known to be dead.
        """
        node = registration.node
        held = self._by_node.get(node)
        known = self.committer.state.nodes.get(node)
        if held is None or not held.attached or held.token == token or known is None:
            return
        if known.inventory.agent_uid != registration.inventory.agent_uid:
            message = f"node {node} is connected, with another token and from another data folder"
            hint = "give this agent another name (`node.name`), or stop the other one"
            raise StokerError(refuse("node_name_taken", message, hint, node=node))

    def _drop_node(self, node: NodeName, why: Refusal | None) -> None:
        if node in self._by_node:
            self._drop(self._by_node[node], why)

    def _drop(self, stream: AgentStream, why: Refusal | None) -> None:
        stream.close(why)
        self._by_id.pop(stream.session, None)
        if self._by_node.get(stream.node) is stream:
            del self._by_node[stream.node]
            self.watches.forget(stream.node)

    def _committed(self, entries: Sequence[Entry]) -> None:
        for _, fact in entries:
            if isinstance(fact.event, NodeForgotten):
                self.book.forget(fact.event.node)
                self._drop_node(fact.event.node, _forgotten(fact.event.node))
            elif isinstance(fact.event, NodeLost):
                self._drop_node(fact.event.node, _lost(fact.event.node))


def _replaced(node: NodeName) -> Refusal:
    return refuse(
        "session_replaced",
        f"node {node} has registered again since",
        "if two agents run under this name, give one of them another",
        node=node,
    )


def _forgotten(node: NodeName) -> Refusal:
    return refuse("node_forgotten", f"node {node} was forgotten", "its agent registers again by itself", node=node)


def _lost(node: NodeName) -> Refusal:
    return refuse(
        "node_lost",
        f"node {node} was silent for so long that its work was settled",
        "its agent registers again by itself and says what it runs",
        node=node,
    )


def _unreachable(node: NodeName, why: str, what: str = "output") -> Refusal:
    """`what`: the output or the task that is wanted of the node."""
    goes_on = "is kept there and can be read" if what == "output" else "goes on there and can be reached"
    return refuse(
        "node_unreachable",
        f"the {what} is on node {node}, which can't be asked: {why}",
        f"`stoker node show` says since when; the {what} {goes_on} once its agent is back",
        node=node,
    )


def _log_unavailable(node: NodeName, key: TaskKey, error: str) -> Refusal:
    return refuse(
        "log_unavailable",
        f"node {node} has no output of job {key.job}, attempt {key.attempt}, rank {key.rank}: {error}",
        "a node keeps output for 24 hours after a task's end, or less where it has run 10,000 more, kept 16 GiB of it, "
        "or its disk is nearly full; submit with `--output FILE` to keep it longer",
        node=node,
        job_id=key.job,
    )
