"""gRPC between control planes: the service for peers, and the link to one of them.

Pings, and streams of the log for followers.

Rules: P1  whoever calls shows the secret that lies beside the marker, or is refused before anything he sent is looked
           at; it takes the same time whatever he shows. Without a secret of our own nobody is let in
       P2  a stream begins with an offer within OFFER_S, and ends with a status that says why
       P3  a message that can't be understood ends its stream, and nothing else
       K1  a stream has a connection of its own, so a new try never inherits a half-dead one; so has the first ping
           after one that wasn't answered in time
       K2  a peer that stops answering is noticed: a ping within `within_s`, a stream within KEEPALIVE_S +
           KEEPALIVE_WAIT_S, also when nothing is sent
       K3  whatever gRPC raises is PeerDown, or PeerRefused when the peer itself said no
       K4  what isn't read yet is bounded by gRPC's window; the active waits beyond it
       K5  who has our own name is no peer: the settings are wrong, and whoever mends them must hear of it
       P4  the keys of secrets are told to peers that have proved themselves by a certificate, and to nobody without TLS
       K6  with TLS both sides show a certificate of the cluster's authority that names a control plane; each peer is
           asked at which port it wants that
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc
from grpc import aio

from stoker.api.rpc.callers import Context
from stoker.api.rpc.status import CODE_KEY, refusing
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Position
from stoker.brain.failover.inputs import PeerState
from stoker.live.failover.links import Following, Frame, Offer, PeerDown, PeerRefused
from stoker.live.failover.sender import Sender
from stoker.live.rpc import replication_codec as codec
from stoker.live.tls import ServerTls
from stoker.wire.agent_codec import Malformed
from stoker.wire.gen import replication_pb2 as pb
from stoker.wire.gen.agent_pb2 import LocateRequest
from stoker.wire.gen.agent_pb2_grpc import JoinServiceStub
from stoker.wire.gen.replication_pb2_grpc import ReplicationServiceServicer, ReplicationServiceStub

SECRET_KEY: Final = "stoker-peer-secret"
OFFER_S: Final = 10.0
FRAME_BYTES_MAX: Final = 64 << 20
"""A frame is below 1 MiB unless it is one record. A record has up to six times the bytes of the request that it came
of (a byte may become six in JSON), which is below 8 MiB."""
_HINT: Final = "are both control planes of this version, or neighbours?"
KEEPALIVE_S: Final = 10.0
KEEPALIVE_WAIT_S: Final = 5.0
DIAL_MS: Final = 1_000
"""How long a connection may take to be made, and the longest pause before it is tried again."""

_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1_000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_WAIT_S * 1_000)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # K1
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", DIAL_MS),
    ("grpc.max_reconnect_backoff_ms", DIAL_MS),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),  # a proxy for the web is not the way to a peer
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
)

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class ReplicationService(ReplicationServiceServicer):
    """gRPC servicer of one control plane for its peers."""

    secret: Callable[[], str]
    """What peers must show. Empty = it isn't known now."""
    pinged: Callable[[PeerState], PeerState]
    """Told how a peer is, it answers how we are."""
    accept: Callable[[Offer], Sender]
    """`Replication.accept`."""
    tls: ServerTls | None = None
    """None = all is plain text."""
    secret_keys: Callable[[], bytes] = bytes
    """The keys of secrets that are here. Raises: StokerError."""

    async def Ping(self, request: pb.PeerState, context: Context) -> pb.PeerState:
        async with refusing(context, _HINT):
            self._check(context)
            return codec.encode_state(self.pinged(codec.decode_state(request)))

    async def Follow(
        self, request_iterator: AsyncIterator[pb.FollowerMessage], context: Context
    ) -> AsyncIterator[pb.LeaderMessage]:
        async with refusing(context, _HINT):
            self._check(context)
            sender = self.accept(await _offer(request_iterator))
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

    async def SecretKeys(self, request: pb.SecretKeysRequest, context: Context) -> pb.SecretKeysResponse:
        async with refusing(context, _HINT):
            self._check(context)
            if self.tls is None:  # P4
                hint = "leave `tls.mode` out, or copy the file of `secrets.key_file` by hand"
                raise StokerError(refuse("secret_in_clear", "keys of secrets are not sent without TLS", hint))
            return pb.SecretKeysResponse(keys=self.secret_keys())

    def _check(self, context: Context) -> None:
        """Refuse a call without our secret (P1). Raises: StokerError `peer_secret_unknown` or `peer_secret_wrong`."""
        if self.tls is not None and self.tls.caller("control", context.auth_context()) is None:
            hint = "let `tls.dir` of all control planes name the same folder"
            raise StokerError(refuse("not_allowed", "this certificate is no control plane's", hint))
        secret = self.secret()
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


class GrpcPeerLink:
    """The PeerLink of one other control plane."""

    def __init__(
        self, address: str, secret: Callable[[], str], *, within_s: float, tls: ServerTls | None = None
    ) -> None:
        """`address` is HOST:PORT. `secret` is asked for with each call; empty = it isn't known now. `within_s`: how
        long a ping is waited for. `tls`: None = plain text."""
        self._tls = tls
        self.address = address
        self._secret = secret
        self._within_s = within_s
        self._channel: aio.Channel | None = None

    async def ping(self, me: PeerState) -> PeerState:
        metadata = self._metadata()
        try:
            if self._channel is None:
                self._channel = await self._dialled()
            stub = ReplicationServiceStub(self._channel)
            answer = await stub.Ping(codec.encode_state(me), timeout=self._within_s, metadata=metadata)
            said = codec.decode_state(answer)
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                await self.close()  # K1
            raise _fault(self.address, error) from error
        except Malformed as fault:
            raise PeerRefused(f"{self.address} answered what can't be understood: {fault}") from fault
        if said.member.name == me.member.name:  # K5
            itself = "this control plane itself" if said.member == me.member else f"called {me.member.name} as well"
            hint = "let failover.peers name the others, and give each a failover.name of its own"
            raise PeerRefused(f"{self.address} is {itself}; {hint}")
        return said

    async def secret_keys(self) -> bytes:
        """Return the keys of secrets that the peer has; empty = it has none. Raises: PeerDown, PeerRefused."""
        metadata = self._metadata()
        try:
            channel = await self._dialled()
            try:
                stub = ReplicationServiceStub(channel)
                answer = await stub.SecretKeys(pb.SecretKeysRequest(), timeout=self._within_s, metadata=metadata)
            finally:
                await channel.close()
        except aio.AioRpcError as error:
            raise _fault(self.address, error) from error
        return answer.keys

    @asynccontextmanager
    async def follow(self, offer: Offer) -> AsyncIterator[Following]:
        metadata = self._metadata()
        try:
            channel = await self._dialled()
        except aio.AioRpcError as error:
            raise _fault(self.address, error) from error
        call = ReplicationServiceStub(channel).Follow(metadata=metadata)
        following = _GrpcFollowing(self.address, call)
        try:
            await following.send(codec.encode_offer(offer))
            yield following
        finally:
            following.closed = True
            call.cancel()
            await channel.close()

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _dialled(self) -> aio.Channel:
        """Raises: AioRpcError."""
        if self._tls is None:
            return aio.insecure_channel(self.address, options=_OPTIONS)
        roots, mine = self._tls.authority.roots, self._tls.credentials
        async with aio.secure_channel(self.address, grpc.ssl_channel_credentials(roots), options=_OPTIONS) as asked:
            port = (await JoinServiceStub(asked).Locate(LocateRequest(), timeout=self._within_s)).node_port  # K6
        host = self.address.rpartition(":")[0]
        shown = grpc.ssl_channel_credentials(roots, mine.key, mine.chain)
        return aio.secure_channel(f"{host}:{port}", shown, options=_OPTIONS)

    def _metadata(self) -> aio.Metadata:
        secret = self._secret()
        if not secret:
            raise PeerRefused("the secret of the control planes can't be read from the folder of the marker now")
        return aio.Metadata((SECRET_KEY, secret))


class _GrpcFollowing:
    """The follower's end of one stream."""

    def __init__(self, address: str, call: "aio.StreamStreamCall[pb.FollowerMessage, pb.LeaderMessage]") -> None:
        self._address = address
        self._call = call
        self.closed = False

    async def frames(self) -> AsyncIterator[Frame]:
        while True:
            message = await self._told(self._call.read)
            if not isinstance(message, pb.LeaderMessage):
                raise PeerDown(f"{self._address} has ended the stream")
            try:
                frame = codec.decode_frame(message)
            except Malformed as fault:
                raise PeerDown(f"{self._address} sent what can't be understood: {fault}") from fault
            if frame is not None:
                yield frame

    async def confirm(self, position: Position) -> None:
        await self.send(codec.encode_confirmation(position))

    async def send(self, message: pb.FollowerMessage) -> None:
        await self._told(lambda: self._call.write(message))

    async def _told(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Return what the call answers. Raises: PeerDown or PeerRefused, whatever gRPC raises (K3)."""
        if self.closed:
            raise PeerDown(f"the stream to {self._address} was closed")
        try:
            return await call()
        except aio.AioRpcError as error:
            raise _fault(self._address, error) from error
        except (aio.UsageError, asyncio.InvalidStateError) as error:  # the call had ended before
            raise PeerDown(f"the stream to {self._address} has ended") from error
        except asyncio.CancelledError:
            # grpc cancels whoever waits on a call that is cancelled. When it is not the task that was cancelled, the
            # call was: by leaving `follow`, or by the library when the stream broke.
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                raise PeerDown(f"the stream to {self._address} was broken off") from None
            raise


def _fault(address: str, error: aio.AioRpcError) -> PeerDown | PeerRefused:
    if dict(error.trailing_metadata() or ()).get(CODE_KEY):
        return PeerRefused(f"{address}: {error.details()}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return PeerRefused(f"{address} is no control plane of a pair: has it `failover.enabled`, and this version?")
    return PeerDown(f"{address}: {error.code().name.lower()}: {error.details()}")
