"""Link port over gRPC, and the agent's only module that imports that library.

Rules: K1  each `connect` makes a channel of its own, so a new try never inherits the pause or the half-dead connection
           of an old one
       K2  a peer that stops answering is noticed within `KEEPALIVE_S` + `KEEPALIVE_WAIT_S`, also when nothing is sent
       K3  after `close`, or once a stream has broken, every call raises LinkDown, and nothing waits for ever
       K4  with an identity all is mutual TLS, at the port that the control plane names for it; the certificate of each
           new connection is the newest. Without one the token is asked for anew at each `connect`, and goes with every
           call of the connection that it opened
       K5  which address is tried when, and what follows when none takes us, is up to `addresses`
       K6  a control plane that doesn't prove itself is refused, and told nothing
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import grpc
from grpc import aio

from stoker.agent.addresses import Addresses, first_of
from stoker.agent.identity import Certificates, Identity
from stoker.agent.ports import BeatAnswered, LinkDown, LinkRefused, LinkSession, LinkStandby
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.gpu_telemetry import FigureWatch
from stoker.brain.domain.ids import Epoch, NodeName
from stoker.brain.domain.instruction import Instruction
from stoker.brain.domain.report import LogChunk, LogRequest, Registration, Report, TaskFinished, TunnelFrame
from stoker.brain.domain.units import Instant
from stoker.wire import agent_codec as codec
from stoker.wire.gen import agent_pb2 as pb
from stoker.wire.gen import agent_pb2_grpc
from stoker.wire.token import HEADER, bearer

SESSION_KEY: Final = "stoker-session"
BATCHES_KEY: Final = "stoker-batches"
"""Metadata by which it says that it reads `ControlMessage.more`."""
REGISTER_TIMEOUT_S: Final = 10.0
"""Includes the commit of the registration. Longer than a slow disk needs, shorter than a person waits."""
FINISH_TIMEOUT_S: Final = 30.0
"""After that the end is offered again, which is safe; a control plane that lost the call must not keep an end back."""
KEEPALIVE_S: Final = 10.0
KEEPALIVE_WAIT_S: Final = 10.0
MESSAGE_BYTES_MAX: Final = 16 << 20
"""An inventory of 10,000 tasks is about 1 MiB, a start at every bound 0.3 MiB. Larger messages break the stream."""
HEARTBEAT_DEFAULT_S: Final = 5.0
"""For a control plane that names no period."""

_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_UNKNOWN_CALL: Final = grpc.StatusCode.UNIMPLEMENTED
_CODE_KEY: Final = "stoker-code"
_NOT_ACTIVE: Final = "not_active"
_MAKE: Final = "`stoker token create --role agent` on the control plane's machine prints one, and no restart is needed"
_TOKEN_HINTS: Final = {
    "token_missing": f"let `control.token_file` name a file with an agent's token; {_MAKE}",
    "token_unknown": f"put another token of role agent into the file that `control.token_file` names; {_MAKE}",
    "not_allowed": f"`control.token_file` must name a file with a token of role agent; {_MAKE}",
}
"""What an agent that shows a token can do about it, instead of what the control plane advises people."""
_UNPROVED: Final = {
    "CERTIFICATE_VERIFY_FAILED": "isn't a control plane of the cluster that this node has joined, or its certificate "
    "has expired: nothing was told it. If the cluster was set up anew, join again: `stoker agent join`",
    "Hostname Verification Check failed": "has a certificate for other names: add this one to its `tls.names`",
    "missing selected ALPN": "speaks TLS, and no gRPC: name the port of `grpc.port` (9090), not that of REST",
    "WRONG_VERSION_NUMBER": "speaks no TLS: its `tls.mode` is off, or something else listens there",
}
"""What gRPC says of a handshake that failed, and what that means (K6)."""
_HUNG_UP: Final = ("Socket closed", "Connection reset by peer")
_MAY_BE_TLS: Final = "; if it speaks TLS, leave `control.insecure` out and let the node join: `stoker agent join`"
"""To one who asked in plain text, which a server that speaks TLS ends without a word."""
_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1_000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_WAIT_S * 1_000)),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # K1
    ("grpc.enable_retries", 0),  # whether repeating is safe is ours to know
    ("grpc.enable_http_proxy", 0),  # a proxy for the web is not the way to the control plane
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)

_T = TypeVar("_T")
_U = TypeVar("_U")
_Metadata = tuple[tuple[str, str], ...]


class GrpcLink:
    """Link to the active control plane, which is at one of `addresses` (HOST:PORT)."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        identity: Callable[[], Identity] | None = None,
        token: Callable[[], str] | None = None,
        register_timeout_s: float = REGISTER_TIMEOUT_S,
    ) -> None:
        """`identity`: that of the node now; None = plain text. `token` answers the one to show then, or raises
        StokerError; None = show none."""
        self.addresses = Addresses(addresses)
        self._identity = identity
        self._token = token
        self._register_timeout_s = register_timeout_s

    @property
    def has_alternatives(self) -> bool:
        return len(self.addresses.all) > 1

    async def connect(self, registration: Registration) -> LinkSession:
        proof = self._proof()
        identity = self._identity() if self._identity is not None else None
        _, session = await first_of(
            self.addresses, lambda address: _open(address, registration, proof, identity, self._register_timeout_s)
        )
        session.on_good = self.addresses.good
        return session

    async def renewed(self) -> Certificates:
        """Ask for another certificate for the key of this node, at each address in turn.

        Raises: LinkDown, LinkRefused.
        """
        assert self._identity is not None, "only who has joined has one"
        identity = self._identity()
        asked = pb.CertificateRequest(node=identity.node, request=identity.request.encode())

        async def ask(address: str) -> pb.CertificateResponse:
            async with await _channel(address, identity) as channel:
                stub = agent_pb2_grpc.SchedulerServiceStub(channel)
                answer: pb.CertificateResponse = await stub.Renew(asked, timeout=REGISTER_TIMEOUT_S)
                return answer

        return _certificates(await _in_turn(self.addresses.in_order, ask))

    def _proof(self) -> _Metadata:
        """The token as metadata (K4). Raises: LinkRefused."""
        if self._token is None:
            return ()
        try:
            return ((HEADER.lower(), bearer(self._token())),)
        except StokerError as fault:
            raise LinkRefused(f"{fault.refusal.message}. {fault.refusal.hint}") from fault


async def join(addresses: Sequence[str], roots: bytes, token: str, node: NodeName, request: str) -> Certificates:
    """Let a node be known by the key of this certificate request (PEM), with a join token.

    `roots` (PEM): by which a control plane proves itself before the token is shown. Raises: LinkDown, LinkRefused.
    """
    asked = pb.CertificateRequest(node=node, request=request.encode())
    proof = aio.Metadata((HEADER.lower(), bearer(token)))

    async def ask(address: str) -> pb.CertificateResponse:
        async with _public(address, roots) as channel:
            stub = agent_pb2_grpc.JoinServiceStub(channel)
            answer: pb.CertificateResponse = await stub.Join(asked, timeout=REGISTER_TIMEOUT_S, metadata=proof)
            return answer

    return _certificates(await _in_turn(addresses, ask))


async def _in_turn(addresses: Sequence[str], ask: Callable[[str], Awaitable[_T]]) -> _T:
    """Return the first answer. Raises: LinkDown, LinkRefused, with what each address said."""
    failures: list[LinkDown | LinkRefused] = []
    for address in addresses:
        try:
            return await ask(address)
        except aio.AioRpcError as error:
            failures.append(_failure(address, error, {}))
    words = "; ".join(map(str, failures))
    raise LinkRefused(words) if any(isinstance(each, LinkRefused) for each in failures) else LinkDown(words)


def _public(address: str, roots: bytes) -> aio.Channel:
    return aio.secure_channel(address, grpc.ssl_channel_credentials(roots), options=_OPTIONS)


async def _channel(address: str, identity: Identity | None) -> aio.Channel:
    """Return the channel for one who has joined (K4), or one of plain text. Raises: AioRpcError."""
    if identity is None:
        return aio.insecure_channel(address, options=_OPTIONS)
    held = identity.certificates
    roots = held.roots.encode()
    async with _public(address, roots) as asked:
        stub = agent_pb2_grpc.JoinServiceStub(asked)
        port = (await stub.Locate(pb.LocateRequest(), timeout=REGISTER_TIMEOUT_S)).node_port
    mine = grpc.ssl_channel_credentials(roots, identity.key.encode(), held.chain.encode())
    return aio.secure_channel(f"{address.rpartition(':')[0]}:{port}", mine, options=_OPTIONS)


def _certificates(answer: pb.CertificateResponse) -> Certificates:
    return Certificates(
        chain=answer.chain.decode("ascii", "replace"),
        roots=answer.roots.decode("ascii", "replace"),
        renew_at=Instant(answer.renew_at),
        cluster_id=answer.cluster_id,
        ends_at=Instant(answer.ends_at),
    )


async def _open(
    address: str, registration: Registration, proof: _Metadata, identity: Identity | None, timeout_s: float
) -> "_Session":
    channel, session = None, None
    try:
        channel = await _channel(address, identity)
        stub = agent_pb2_grpc.SchedulerServiceStub(channel)
        message = codec.encode_registration(registration)
        welcome = await stub.RegisterAgent(message, timeout=timeout_s, metadata=aio.Metadata(*proof))
        session = _Session(address, channel, stub, welcome, aio.Metadata(*proof, (SESSION_KEY, welcome.session)))
    except aio.AioRpcError as error:
        if identity is None and any(sign in (error.details() or "") for sign in _HUNG_UP):
            raise LinkDown(_words(address, error) + _MAY_BE_TLS) from error
        raise _failure(address, error, _TOKEN_HINTS if identity is None else {}) from error
    finally:
        if session is None and channel is not None:  # refused, broken or cancelled: left open it would keep its socket
            await channel.close()
    return session


def _failure(address: str, error: aio.AioRpcError, hints: Mapping[str, str]) -> LinkDown | LinkRefused:
    """Return what a call that failed means. `hints`: by the code of a refusal, better ones than the control plane's."""
    if _code(error) == _NOT_ACTIVE:
        return LinkStandby(f"{address} is a standby")
    if error.code() in _REFUSALS:
        return LinkRefused(f"{address} refused: {_advice(error, hints)}")
    why = next((why for sign, why in _UNPROVED.items() if sign in (error.details() or "")), "")
    return LinkRefused(f"{address} {why}") if why else LinkDown(_words(address, error))


class _Session:
    """Streams of one registration."""

    def __init__(
        self,
        address: str,
        channel: aio.Channel,
        stub: agent_pb2_grpc.SchedulerServiceStub,
        welcome: pb.RegisterResponse,
        metadata: aio.Metadata,
    ) -> None:
        self.address = address
        self._channel = channel
        self._stub = stub
        self._metadata = metadata
        self._batches = welcome.batches
        self._heartbeat = stub.Heartbeat(metadata=aio.Metadata(*metadata, (BATCHES_KEY, "1")))
        self._logs = stub.Logs(metadata=metadata)
        self._tunnels = stub.Tunnels(metadata=metadata)
        self._closed = False
        self.on_good: Callable[[str], None] | None = None
        """Told once of the address, when something comes down the stream."""
        self.epoch = Epoch(welcome.epoch)
        self.cluster_id = welcome.cluster_id
        self.heartbeat_s = welcome.heartbeat_ms / 1_000 if welcome.heartbeat_ms > 0 else HEARTBEAT_DEFAULT_S

    async def send(self, *reports: Report) -> None:
        first, *others = map(codec.encode_report, reports)
        if self._batches:
            first.more.extend(others)
            others.clear()
        for message in (first, *others):
            await self._call(partial(self._heartbeat.write, message))

    async def instructions(self) -> AsyncGenerator[Instruction | BeatAnswered | FigureWatch, None]:
        while True:
            received = await self._read(self._heartbeat.read, pb.ControlMessage)
            if self.on_good is not None:
                self.on_good(self.address)
                self.on_good = None
            for message in (received, *received.more):
                kind = message.WhichOneof("message")
                if kind == "beat":
                    yield BeatAnswered(sequence=message.beat.sequence, epoch=Epoch(message.beat.epoch))
                    continue
                if kind == "figures":
                    yield self._understood(codec.decode_figure_watch, message)
                    continue
                instruction = self._understood(codec.decode_instruction, message)
                if instruction is not None:
                    yield instruction

    async def finish(self, *ends: TaskFinished) -> None:
        first, *others = map(codec.encode_finished, ends)
        if self._batches:
            first.more.extend(others)
            await self._finish(first)
        else:
            await asyncio.gather(*map(self._finish, (first, *others)))

    async def _finish(self, request: pb.TaskFinishedRequest) -> None:
        await self._call(lambda: self._stub.TaskFinished(request, timeout=FINISH_TIMEOUT_S, metadata=self._metadata))

    async def log_requests(self) -> AsyncGenerator[LogRequest, None]:
        while True:
            message = await self._read(self._logs.read, pb.LogRequest)
            yield self._understood(codec.decode_log_request, message)

    async def send_log(self, chunk: LogChunk) -> None:
        message = codec.encode_log_chunk(chunk)
        await self._call(lambda: self._logs.write(message))

    async def tunnel_frames(self) -> AsyncGenerator[TunnelFrame, None]:
        while True:
            try:
                message = await self._read(self._tunnels.read, pb.TunnelFrame)
            except LinkDown as fault:
                if isinstance(fault.__cause__, aio.AioRpcError) and fault.__cause__.code() is _UNKNOWN_CALL:
                    await asyncio.Event().wait()  # a control plane of an older version: it opens none
                raise
            frame = self._understood(codec.decode_frame, message)
            if frame is not None:
                yield frame

    async def send_frame(self, frame: TunnelFrame) -> None:
        message = codec.encode_frame(frame)
        await self._call(lambda: self._tunnels.write(message))

    async def close(self) -> None:
        self._closed = True
        self._heartbeat.cancel()
        self._logs.cancel()
        self._tunnels.cancel()
        await self._channel.close()

    async def _read(self, read: Callable[[], Awaitable[object]], kind: type[_T]) -> _T:
        message = await self._call(read)
        if isinstance(message, kind):
            return message
        raise LinkDown(f"{self.address} ended the stream")

    def _understood(self, decode: Callable[[_T], _U], message: _T) -> _U:
        try:
            return decode(message)
        except codec.Malformed as error:
            raise LinkDown(f"{self.address} sent what this agent can't understand: {error}") from error

    async def _call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Await a call, and raise LinkDown for all that gRPC may raise on a broken or closed one."""
        if self._closed:
            raise LinkDown(f"the connection to {self.address} was closed")
        try:
            return await call()
        except aio.AioRpcError as error:
            raise LinkDown(_words(self.address, error)) from error
        except (aio.UsageError, asyncio.InvalidStateError) as error:  # the call had ended before
            raise LinkDown(f"the stream to {self.address} has ended") from error
        except asyncio.CancelledError:
            # grpc cancels the task that waits on a call that is cancelled. When it is not the task that was cancelled,
            # the call was: by `close`, or by the library when the stream broke.
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                raise LinkDown(f"the stream to {self.address} was broken off") from None
            raise


def _advice(error: aio.AioRpcError, hints: Mapping[str, str]) -> str:
    """The message of a refusal, and what to do."""
    hint = hints.get(_code(error))
    details = error.details() or ""
    return details if hint is None else f"{details.partition('. ')[0]}; {hint}"


def _code(error: aio.AioRpcError) -> str:
    """The code of a refusal; empty = it is none of a control plane's."""
    return str(dict(error.trailing_metadata() or ()).get(_CODE_KEY, ""))


def _words(address: str, error: aio.AioRpcError) -> str:
    return f"{address}: {error.code().name.lower()}: {error.details()}"
