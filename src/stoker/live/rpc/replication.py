"""gRPC service for other control planes: pings, and streams of the log for their followers.

Rules: P1  whoever calls shows the secret that lies beside the marker, or is refused before anything he sent is looked
           at; it takes the same time whatever he shows. Without a secret of our own nobody is let in
       P2  a stream begins with an offer within OFFER_S, and ends with a status that says why
       P3  a message that can't be understood ends its stream, and nothing else
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from stoker.api.rpc.callers import Context
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.failover.inputs import PeerState
from stoker.live.failover.links import Offer
from stoker.live.failover.sender import Sender
from stoker.live.rpc import replication_codec as codec
from stoker.live.rpc.refusals import refusing
from stoker.wire.agent_codec import Malformed
from stoker.wire.gen import replication_pb2 as pb
from stoker.wire.gen.replication_pb2_grpc import ReplicationServiceServicer

SECRET_KEY: Final = "stoker-peer-secret"
OFFER_S: Final = 10.0
FRAME_BYTES_MAX: Final = 64 << 20
"""A frame is below 1 MiB unless it is one record. A record has up to six times the bytes of the request that it came
of (a byte may become six in JSON), which is below 8 MiB."""
_HINT: Final = "are both control planes of this version, or neighbours?"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEndpoint:
    """Functions of a control plane that the service calls."""

    secret: Callable[[], str]
    """What peers must show. Empty = it isn't known now."""
    pinged: Callable[[PeerState], PeerState]
    """Told how a peer is, it answers how we are."""
    accept: Callable[[Offer], Sender]
    """`Replication.accept`."""


class ReplicationService(ReplicationServiceServicer):
    """gRPC servicer of one control plane for its peers."""

    def __init__(self, endpoint: PeerEndpoint) -> None:
        self._endpoint = endpoint

    async def Ping(self, request: pb.PeerState, context: Context) -> pb.PeerState:
        async with refusing(context, _HINT):
            self._check(context)
            return codec.encode_state(self._endpoint.pinged(codec.decode_state(request)))

    async def Follow(
        self, request_iterator: AsyncIterator[pb.FollowerMessage], context: Context
    ) -> AsyncIterator[pb.LeaderMessage]:
        async with refusing(context, _HINT):
            self._check(context)
            sender = self._endpoint.accept(await _offer(request_iterator))
            reading = asyncio.create_task(_read(request_iterator, sender), name="replication-confirmations")
            try:
                async with aclosing(sender.frames()) as frames:
                    async for frame in frames:
                        yield codec.encode_frame(frame)
                if reading.done():
                    reading.result()
            finally:
                sender.close()
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    def _check(self, context: Context) -> None:
        """Refuse a call without our secret (P1). Raises: StokerError `peer_secret_unknown` or `peer_secret_wrong`."""
        secret = self._endpoint.secret()
        if not secret:
            message = "the secret of the control planes can't be read from the folder of the marker now"
            raise StokerError(refuse("peer_secret_unknown", message, "it is tried again; see whether it is mounted"))
        shown = [value for key, value in context.invocation_metadata() or () if key == SECRET_KEY]
        found = shown[0] if len(shown) == 1 else ""
        text = found.encode() if isinstance(found, str) else bytes(found)
        if not hmac.compare_digest(text, secret.encode()):
            message = "the call shows another secret than that of this pair of control planes, or none"
            hint = (
                "let `failover.marker` of all of them name the same folder, and give it to nobody else; if they do, "
                "its secret was exchanged while one of them ran: stop all of them, and start them"
            )
            raise StokerError(refuse("peer_secret_wrong", message, hint))


async def _offer(messages: AsyncIterator[pb.FollowerMessage]) -> Offer:
    """Return the offer that a stream begins with, if it comes in time (P2). Raises: Malformed."""
    try:
        async with asyncio.timeout(OFFER_S):
            return codec.decode_offer(await anext(messages))
    except StopAsyncIteration:
        raise Malformed("the stream ended before an offer came") from None
    except TimeoutError:
        raise Malformed(f"no offer came within {OFFER_S:g} s") from None


async def _read(messages: AsyncIterator[pb.FollowerMessage], sender: Sender) -> None:
    """P3: until the follower stops talking or says something that ends the stream."""
    try:
        async for message in messages:
            position = codec.decode_confirmation(message)
            if position is not None:
                sender.confirm(position)
    finally:
        sender.close()
