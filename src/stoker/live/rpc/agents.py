"""gRPC service for agents: decodes, hands over to `live.sessions`, encodes.

A stream ends with a status, never by cancelling it from our side: grpc.aio keeps a little memory of each cancelled one.

Rules: A1  every call wants the certificate of a node that has joined, or without TLS an agent's token, and a session is
           spoken for by the one that opened it
       A2  when that is revoked or expires, the streams it opened end at once; what runs on their nodes goes on
       A3  an end is taken from the node it names only; a node that has joined registers under its own name only
       A4  a node gets a certificate for the key in its request, and only that: its key never leaves it
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from stoker.api.rpc.callers import Callers, Context, is_on_this_machine
from stoker.api.rpc.status import refusal_of, refusing
from stoker.brain.domain.access import Caller, Role, Token
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.gpu_telemetry import FigureWatch
from stoker.brain.domain.ids import NodeName, Principal, node_principal
from stoker.brain.domain.instruction import Instruction
from stoker.brain.state.commands import JoinNode
from stoker.control.access import Access, certificate_expired, node_key_unknown, not_allowed, token_unknown
from stoker.live.control_plane import LiveControlPlane
from stoker.live.sessions import AgentStream, Sessions
from stoker.live.streams import BeatAnswer, Message
from stoker.live.tls import ServerTls
from stoker.wire import agent_codec as codec
from stoker.wire.endpoints import PRODUCT
from stoker.wire.gen import agent_pb2 as pb
from stoker.wire.gen.agent_pb2_grpc import JoinServiceServicer, SchedulerServiceServicer
from stoker.wire.token import fresh_token, id_of

SESSION_KEY: Final = "stoker-session"
"""Metadata of the two streams: the session that RegisterAgent answered."""
BATCHES_KEY: Final = "stoker-batches"
"""Metadata of an agent that reads `ControlMessage.more`."""
TOGETHER_MAX: Final = 16
"""Instructions of one message: at their bounds, a third of what an agent takes."""
_HINT: Final = "is the agent of this version?"


class AgentService(SchedulerServiceServicer):
    """gRPC servicer of `Sessions`."""

    def __init__(self, control: LiveControlPlane, callers: Callers, tls: ServerTls | None) -> None:
        """`tls`: None = agents show tokens."""
        self._control = control
        self._callers = callers
        self._tls = tls
        self._sessions: Sessions = control.sessions
        self._access: Access = control.access

    async def RegisterAgent(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterResponse:
        async with refusing(context, _HINT):
            agent = self._agent(context)
            registration = codec.decode_registration(request)
            if self._tls is not None and agent.principal != node_principal(registration.node):
                raise not_allowed(
                    f"this certificate is that of {agent.principal}, and the agent registers node {registration.node}",
                    "give the agent the name that it joined under (`node.name`), or join again: `stoker agent join`",
                )
            welcome = await self._sessions.register(registration, agent.token)
        return pb.RegisterResponse(
            epoch=welcome.epoch,
            cluster_id=welcome.cluster_id,
            session=welcome.session,
            heartbeat_ms=welcome.heartbeat_ms,
            version=PRODUCT,
            batches=True,
        )

    async def Renew(self, request: pb.CertificateRequest, context: Context) -> pb.CertificateResponse:
        async with refusing(context, _HINT):
            agent = self._agent(context)
            if self._tls is None:
                raise not_allowed("this control plane has no TLS", "set `tls.mode` there")
            known = self._control.committer.state.tokens.get(agent.token)
            if known is None or known.digest != self._tls.authority.key_in(request.request):
                raise not_allowed("the request is for another key than that of this node", "`stoker agent join` again")
            return _signed(self._control, self._tls, request.request, agent.principal)

    def _gone(self, agent: Caller, node: NodeName) -> StokerError:
        """The refusal of an agent whose certificate, key or token is no longer good."""
        if self._tls is None:
            return token_unknown()
        return certificate_expired(node) if self._access.is_unproved(agent) else node_key_unknown(node)

    def _agent(self, context: Context) -> Caller:
        """Return the agent that calls (A1). Raises: StokerError."""
        if self._tls is None:
            return self._callers.agent_of(context)
        node = self._tls.caller("node", context.auth_context())
        if node is None:
            raise not_allowed("this certificate is no node's", "`stoker agent join` gets one")
        return self._access.node(NodeName(node.subject), node.key_digest, node.ends_at)

    async def TaskFinished(self, request: pb.TaskFinishedRequest, context: Context) -> pb.TaskFinishedResponse:
        async with refusing(context, _HINT):
            agent = self._agent(context)
            ends = [codec.decode_finished(each) for each in (request, *request.more)]
            node = self._sessions.opened(_session(context), agent.token).node
            for finished in ends:
                _check_node(node, finished.node)
            epoch = await self._sessions.finished(*ends)
        return pb.TaskFinishedResponse(epoch=epoch)

    async def Heartbeat(
        self, request_iterator: AsyncIterator[pb.AgentReport], context: Context
    ) -> AsyncIterator[pb.ControlMessage]:
        async with refusing(context, _HINT):
            agent = self._agent(context)
            private = self._tls is not None or is_on_this_machine(context.peer())
            more_max = TOGETHER_MAX - 1 if _said(context, BATCHES_KEY) else 0
            stream = self._sessions.attach(_session(context), agent.token, private=private)
            reading = asyncio.create_task(self._read(request_iterator, stream))
            try:
                with self._while_good(agent, lambda: stream.close(self._gone(agent, stream.node).refusal)):
                    async for message in stream.outgoing():
                        yield _encode(message, stream.waiting(more_max))
                if reading.done():
                    reading.result()  # a defect of ours in the reader shows as one
            finally:
                reading.cancel()
                self._sessions.detach(stream)

    async def _read(self, reports: AsyncIterator[pb.AgentReport], stream: AgentStream) -> None:
        """Take reports until the agent stops talking or says something that ends the stream."""
        why: Refusal | None = None
        try:
            async for wire in reports:
                for each in (wire, *wire.more):
                    report = codec.decode_report(each)
                    if report is not None:
                        await stream.receive(report)
        except (StokerError, codec.Malformed) as fault:
            why = refusal_of(fault, _HINT)
        finally:
            stream.close(why)

    async def Logs(
        self, request_iterator: AsyncIterator[pb.LogChunk], context: Context
    ) -> AsyncIterator[pb.LogRequest]:
        async with refusing(context, _HINT):
            agent = self._agent(context)
            stream = self._sessions.opened(_session(context), agent.token)
            reading = asyncio.create_task(self._read_chunks(request_iterator, stream))
            try:
                with self._while_good(agent, stream.log.close):
                    async for request in stream.log.requests():
                        yield codec.encode_log_request(request)
                if not self._access.holds(agent):
                    raise self._gone(agent, stream.node)
            finally:
                reading.cancel()

    async def Tunnels(
        self, request_iterator: AsyncIterator[pb.TunnelFrame], context: Context
    ) -> AsyncIterator[pb.TunnelFrame]:
        async with refusing(context, _HINT):
            agent = self._agent(context)
            stream = self._sessions.opened(_session(context), agent.token)
            reading = asyncio.create_task(self._read_frames(request_iterator, stream))
            stream.tunnels.attached = True
            try:
                with self._while_good(agent, stream.tunnels.close):
                    async for frame in stream.tunnels.frames():
                        yield codec.encode_frame(frame)
                if not self._access.holds(agent):
                    raise self._gone(agent, stream.node)
            finally:
                stream.tunnels.close()
                reading.cancel()

    async def _read_frames(self, frames: AsyncIterator[pb.TunnelFrame], stream: AgentStream) -> None:
        try:
            async for wire in frames:
                frame = codec.decode_frame(wire)
                if frame is not None:
                    stream.tunnels.take(frame)
        except codec.Malformed:
            stream.tunnels.close()

    async def _read_chunks(self, chunks: AsyncIterator[pb.LogChunk], stream: AgentStream) -> None:
        try:
            async for wire in chunks:
                stream.log.answer(codec.decode_log_chunk(wire))
        except codec.Malformed:
            return  # whoever waits for the chunk is answered by its own limit

    @contextmanager
    def _while_good(self, agent: Caller, close: Callable[[], None]) -> Iterator[None]:
        """A2: calls `close` when the token or certificate stops being good in here."""
        if not agent.token:
            yield
            return

        async def watch() -> None:
            await self._access.watch(agent)
            close()

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()


class JoinService(JoinServiceServicer):
    """gRPC servicer for nodes that join, and for agents and peers that look for the port of certificates."""

    def __init__(self, control: LiveControlPlane, callers: Callers, tls: ServerTls, node_port: int) -> None:
        self._control = control
        self._callers = callers
        self._tls = tls
        self._node_port = node_port

    async def Locate(self, request: pb.LocateRequest, context: Context) -> pb.LocateResponse:
        return pb.LocateResponse(node_port=self._node_port)

    async def Join(self, request: pb.CertificateRequest, context: Context) -> pb.CertificateResponse:
        async with refusing(context, _HINT):
            caller = self._callers.joining(context)
            committer = self._control.committer
            digest = self._tls.authority.key_in(request.request)
            text = fresh_token(self._control.entropy, committer.state.tokens)  # of which only the id is used
            key = Token(id=id_of(text), digest=digest, role=Role.AGENT, node=request.node)
            await committer.ask(JoinNode(by=caller.principal, token=key, join=caller.token))
            return _signed(self._control, self._tls, request.request, node_principal(NodeName(request.node)))


def _signed(control: LiveControlPlane, tls: ServerTls, request: bytes, subject: Principal) -> pb.CertificateResponse:
    made = tls.authority.sign(request, subject)
    return pb.CertificateResponse(
        chain=made.chain,
        roots=tls.authority.roots,
        renew_at=made.renew_at,
        ends_at=made.ends_at,
        cluster_id=control.committer.state.cluster_id,
    )


def _check_node(mine: NodeName, named: NodeName) -> None:
    """Refuse a message that names another node than that of its session (A3)."""
    if mine != named:
        message = f"this session is of node {mine}, and tells the end of a task of node {named[:80]}"
        raise StokerError(refuse("not_allowed", message, "each agent tells the ends of its own tasks"))


def _session(context: Context) -> str:
    return _said(context, SESSION_KEY)


def _said(context: Context, name: str) -> str:
    """Return a word of the call's metadata; empty = it has none of that name."""
    text = next((text for key, text in context.invocation_metadata() or () if key == name), "")
    return text if isinstance(text, str) else text.decode("ascii", "replace")


def _encode(message: Message, more: Sequence[Instruction]) -> pb.ControlMessage:
    if isinstance(message, BeatAnswer):
        wire = codec.encode_beat_answer(message.sequence, message.epoch)
    elif isinstance(message, FigureWatch):
        wire = codec.encode_figure_watch(message)
    else:
        wire = codec.encode_instruction(message)
    wire.more.extend(map(codec.encode_instruction, more))
    return wire
