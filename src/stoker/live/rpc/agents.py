"""gRPC service for agents: decodes, hands over to `live.sessions`, encodes.

A stream ends with a status, never by cancelling it from our side: grpc.aio keeps a little memory of each cancelled one.

Rules: A1  every call wants an agent's token, and a session is spoken for by the token that opened it
       A2  when the token is revoked or expires, the streams it opened end at once; what runs on their nodes goes on
       A3  an end is taken from the node it names only
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from stoker.api.rpc.callers import Callers, Context
from stoker.api.rpc.status import refusal_of, refusing
from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import NodeName
from stoker.control.access import Access, token_unknown
from stoker.live.control_plane import LiveControlPlane
from stoker.live.sessions import AgentStream, Sessions
from stoker.live.streams import BeatAnswer, Message
from stoker.wire import agent_codec as codec
from stoker.wire.endpoints import PRODUCT
from stoker.wire.gen import agent_pb2 as pb
from stoker.wire.gen.agent_pb2_grpc import SchedulerServiceServicer

SESSION_KEY: Final = "stoker-session"
"""Metadata of the two streams: the session that RegisterAgent answered."""
_HINT: Final = "is the agent of this version?"


class AgentService(SchedulerServiceServicer):
    """gRPC servicer of `Sessions`."""

    def __init__(self, control: LiveControlPlane, callers: Callers) -> None:
        self._callers = callers
        self._sessions: Sessions = control.sessions
        self._access: Access = control.access

    async def RegisterAgent(self, request: pb.RegisterRequest, context: Context) -> pb.RegisterResponse:
        async with refusing(context, _HINT):
            agent = self._callers.agent_of(context)
            welcome = await self._sessions.register(codec.decode_registration(request), agent.token)
        return pb.RegisterResponse(
            epoch=welcome.epoch,
            cluster_id=welcome.cluster_id,
            session=welcome.session,
            heartbeat_ms=welcome.heartbeat_ms,
            version=PRODUCT,
        )

    async def TaskFinished(self, request: pb.TaskFinishedRequest, context: Context) -> pb.TaskFinishedResponse:
        async with refusing(context, _HINT):
            agent = self._callers.agent_of(context)
            finished = codec.decode_finished(request)
            _check_node(self._sessions.opened(_session(context), agent.token).node, finished.node)
            epoch = await self._sessions.finished(finished)
        return pb.TaskFinishedResponse(epoch=epoch)

    async def Heartbeat(
        self, request_iterator: AsyncIterator[pb.AgentReport], context: Context
    ) -> AsyncIterator[pb.ControlMessage]:
        async with refusing(context, _HINT):
            agent = self._callers.agent_of(context)
            stream = self._sessions.attach(_session(context), agent.token)
            reading = asyncio.create_task(self._read(request_iterator, stream))
            try:
                with self._while_good(agent, lambda: stream.close(token_unknown().refusal)):
                    async for message in stream.outgoing():
                        yield _encode(message)
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
                report = codec.decode_report(wire)
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
            agent = self._callers.agent_of(context)
            stream = self._sessions.opened(_session(context), agent.token)
            reading = asyncio.create_task(self._read_chunks(request_iterator, stream))
            try:
                with self._while_good(agent, stream.log.close):
                    async for request in stream.log.requests():
                        yield codec.encode_log_request(request)
                self._access.check(agent)
            finally:
                reading.cancel()

    async def _read_chunks(self, chunks: AsyncIterator[pb.LogChunk], stream: AgentStream) -> None:
        try:
            async for wire in chunks:
                stream.log.answer(codec.decode_log_chunk(wire))
        except codec.Malformed:
            return  # whoever waits for the chunk is answered by its own limit

    @contextmanager
    def _while_good(self, agent: Caller, close: Callable[[], None]) -> Iterator[None]:
        """A2: calls `close` when the token stops being good in here."""
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


def _check_node(mine: NodeName, named: NodeName) -> None:
    """Refuse a message that names another node than that of its session (A3)."""
    if mine != named:
        message = f"this session is of node {mine}, and tells the end of a task of node {named[:80]}"
        raise StokerError(refuse("not_allowed", message, "each agent tells the ends of its own tasks"))


def _session(context: Context) -> str:
    text = next((text for key, text in context.invocation_metadata() or () if key == SESSION_KEY), "")
    return text if isinstance(text, str) else text.decode("ascii", "replace")


def _encode(message: Message) -> pb.ControlMessage:
    if isinstance(message, BeatAnswer):
        return codec.encode_beat_answer(message.sequence, message.epoch)
    return codec.encode_instruction(message)
