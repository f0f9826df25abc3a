"""The agents' service: decode, hand over to `live.sessions`, encode.

A stream ends with a status, never by cancelling it from our side: grpc.aio keeps a little memory of each cancelled one.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, NoReturn

from grpc import aio

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.live.rpc.status import abort
from stoker.live.sessions import AgentStream, Sessions
from stoker.live.streams import BeatAnswer, Message
from stoker.wire import agent_codec as codec
from stoker.wire.gen import agent_pb2 as pb
from stoker.wire.gen.agent_pb2_grpc import SchedulerServiceServicer
from stoker.wire.versions import PRODUCT

SESSION_KEY: Final = "stoker-session"
"""Metadata of the two streams: the session that RegisterAgent answered."""

_Context = aio.ServicerContext[Any, Any]


class AgentService(SchedulerServiceServicer):
    """The gRPC face of `Sessions`."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def RegisterAgent(self, request: pb.RegisterRequest, context: _Context) -> pb.RegisterResponse:
        try:
            welcome = await self._sessions.register(codec.decode_registration(request))
        except (StokerError, codec.Malformed) as fault:
            await _refuse(context, fault)
        return pb.RegisterResponse(
            epoch=welcome.epoch,
            cluster_id=welcome.cluster_id,
            session=welcome.session,
            heartbeat_ms=welcome.heartbeat_ms,
            version=PRODUCT,
        )

    async def TaskFinished(self, request: pb.TaskFinishedRequest, context: _Context) -> pb.TaskFinishedResponse:
        try:
            epoch = await self._sessions.finished(codec.decode_finished(request))
        except (StokerError, codec.Malformed) as fault:
            await _refuse(context, fault)
        return pb.TaskFinishedResponse(epoch=epoch)

    async def Heartbeat(
        self, request_iterator: AsyncIterator[pb.AgentReport], context: _Context
    ) -> AsyncIterator[pb.ControlMessage]:
        try:
            stream = self._sessions.attach(_session(context))
        except StokerError as fault:
            await _refuse(context, fault)
        reading = asyncio.create_task(self._read(request_iterator, stream))
        try:
            async for message in stream.outgoing():
                yield _encode(message)
            if reading.done():
                reading.result()  # a defect of ours in the reader shows as one
        except StokerError as fault:
            await _refuse(context, fault)
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
            why = _refusal(fault)
        finally:
            stream.close(why)

    async def Logs(
        self, request_iterator: AsyncIterator[pb.LogChunk], context: _Context
    ) -> AsyncIterator[pb.LogRequest]:
        session = _session(context)
        try:
            requests = self._sessions.log_requests(session)
        except StokerError as fault:
            await _refuse(context, fault)
        reading = asyncio.create_task(self._read_chunks(request_iterator, session))
        try:
            async for request in requests:
                yield codec.encode_log_request(request)
        finally:
            reading.cancel()

    async def _read_chunks(self, chunks: AsyncIterator[pb.LogChunk], session: str) -> None:
        try:
            async for wire in chunks:
                self._sessions.log_chunk(session, codec.decode_log_chunk(wire))
        except (StokerError, codec.Malformed):
            return  # whoever waits for the chunk is answered by its own limit


def _session(context: _Context) -> str:
    for key, text in context.invocation_metadata() or ():
        if key == SESSION_KEY:
            return text if isinstance(text, str) else text.decode("ascii", "replace")
    return ""


def _encode(message: Message) -> pb.ControlMessage:
    if isinstance(message, BeatAnswer):
        return codec.encode_beat_answer(message.sequence, message.epoch)
    return codec.encode_instruction(message)


def _refusal(fault: StokerError | codec.Malformed) -> Refusal:
    if isinstance(fault, StokerError):
        return fault.refusal
    return refuse("malformed_message", f"the message can't be understood: {fault}", "is the agent of this version?")


async def _refuse(context: _Context, fault: StokerError | codec.Malformed) -> NoReturn:
    await abort(context, _refusal(fault))
