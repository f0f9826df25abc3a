"""Authentication of gRPC callers.

Rules: C1  a call of one of our services without a token that is good is refused before its message is read; the
           standard health and reflection services are open, and peers show another secret (see `replication`)
       C2  only an agent's token joins nodes, and it does nothing else; where no token is wanted, whoever sends none may
       C3  where no token is wanted, a peer of another account of this machine is refused, as far as the kernel tells
       C4  who is refused for what he shows or may not do is told to the audit trail, as by REST
       C5  streams of the open services, which want no token, are bounded: all of them together
       C6  a message that can't be decoded is refused as one, and is no defect of ours
"""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from stoker.api.peer_credentials import foreign_peer
from stoker.api.rpc.status import abort, refusing
from stoker.brain.domain.access import Caller, Role
from stoker.brain.domain.audit import NOBODY
from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import Principal
from stoker.control.access import not_allowed
from stoker.control.audit_actions import AuditAction
from stoker.control.control_plane import ControlPlane
from stoker.control.settings import GrpcSettings, is_loopback
from stoker.wire.agent_codec import Malformed
from stoker.wire.socket_owner import tcp_owner
from stoker.wire.token import HEADER

Context = aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Find: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]"

_KEY: Final = HEADER.lower()
_OURS: Final = "/stoker."
_OPEN: Final = ("/stoker.v1.ReplicationService/", "/stoker.v1.JoinService/Locate")
"""Peers show another secret (see `replication`); where to go for more is told to all."""
_JOIN: Final = AuditAction("node_join")
OPEN_STREAMS_MAX: Final = 256
"""Of health and reflection. Each costs about 16 KiB, and one per prober is enough."""
_LOOPBACK: Final = {"ipv4": "127.0.0.1", "ipv6": "::1"}


def is_on_this_machine(peer: str) -> bool:
    """Return whether a peer, as gRPC names it (`ipv4:127.0.0.1:50123`), is reached without a network."""
    family, _, rest = peer.partition(":")
    host = unquote(rest).rpartition(":")[0].strip("[]")
    return family == "unix" or (family in _LOOPBACK and is_loopback(host))


def authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The one value of that key; several make none that anybody could have meant."""
    found = [value for key, value in metadata if key == _KEY]
    texts = [value if isinstance(value, str) else value.decode("ascii", "replace") for value in found]
    return ", ".join(texts) if texts else None


class Callers:
    """Everyone who calls one listener."""

    def __init__(self, settings: GrpcSettings, control: ControlPlane) -> None:
        self._access = control.access
        self._audit_trail = control.audit_trail
        self._now = control.committer.now
        self._host = settings.host
        self._for_owner_alone = control.access.open_to_owner and is_loopback(settings.host)
        self.port = settings.port
        """Known once it is listened on."""

    def check(self, metadata: Iterable[tuple[str, str | bytes]], method: str) -> None:
        """Return the caller of a call; refuse it before its message is read when its token isn't good (C1).

        Raises: StokerError `token_missing`, `token_unknown` or `too_many_wrong_tokens`.
        """
        try:
            self._access.caller(authorization(metadata))
        except StokerError as fault:
            self.note(NOBODY, AuditAction("ask", method), fault.refusal)
            raise

    def of(self, context: Context) -> Caller:
        """Raises: StokerError as `check`, and `foreign_user` (C3)."""
        if self._for_owner_alone:
            refusal = self._foreign(context.peer())
            if refusal is not None:
                self.note(NOBODY, _JOIN, refusal)
                raise StokerError(refusal)
        return self._access.caller(authorization(context.invocation_metadata() or ()))

    def agent_of(self, context: Context) -> Caller:
        """Return the node that calls, for which only an agent's token will do (C2).

        Raises: StokerError as `of`, and `not_allowed`.
        """
        caller = self.of(context)
        if caller.token and caller.role is not Role.AGENT:
            wanted = f"only agents join nodes, and this token has the role {caller.role}"
            raise self._no_joiner(caller, wanted, "make one for them: `stoker token create --role agent`")
        return caller

    def joining(self, context: Context) -> Caller:
        """Return who calls to join as a node, for which only a join token will do.

        Raises: StokerError as `of`, and `not_allowed`.
        """
        caller = self.of(context)
        if caller.role is not Role.JOIN:
            wanted = f"a node joins with a token of role join, and this one has the role {caller.role}"
            raise self._no_joiner(caller, wanted, "make one: `stoker token create --role join --nodes NAME`")
        return caller

    def _no_joiner(self, caller: Caller, message: str, hint: str) -> StokerError:
        """Note a caller whose token joins no node (C4), and return its refusal."""
        fault = not_allowed(message, hint)
        self.note(caller.principal, _JOIN, fault.refusal)
        return fault

    def note(self, by: Principal, asked: AuditAction, refusal: Refusal) -> None:
        """Tell the audit trail of a refused call (C4)."""
        self._audit_trail.refused(by, asked, refusal, self._now())

    def _foreign(self, peer: str) -> Refusal | None:
        """`peer` is as gRPC names it: `ipv4:127.0.0.1:50123`, `ipv6:%5B::1%5D:50123`."""
        family, _, rest = peer.partition(":")
        host, _, port = unquote(rest).rpartition(":")
        if family not in _LOOPBACK or not port.isdigit():
            return None
        here = _LOOPBACK[family] if self._host == "localhost" else self._host
        return foreign_peer(tcp_owner((host.strip("[]"), int(port)), (here, self.port)))


class Gate(aio.ServerInterceptor):
    """C1 and C5. It stands before every service of the listener."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._open_streams = 0

    async def intercept_service(
        self, continuation: "_Find", handler_call_details: grpc.HandlerCallDetails
    ) -> "_Handler | None":
        method = handler_call_details.method
        if method.startswith(_OURS) and not method.startswith(_OPEN):
            try:
                self._callers.check(handler_call_details.invocation_metadata or (), method)
            except StokerError as fault:
                return _refusing(fault.refusal)
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(_OURS) or not handler.response_streaming:
            return handler
        return self._counted(handler)

    def _counted(self, handler: "_Handler") -> "_Handler":
        """Return a handler that counts its streams while they are open (C5)."""
        real: Any = handler.stream_stream or handler.unary_stream
        assert real is not None, "its answer is a stream"

        async def stream(request: object, context: Context) -> None:
            if self._open_streams >= OPEN_STREAMS_MAX:
                await abort(context, _too_many_streams())
            self._open_streams += 1
            try:
                await _streamed(real, request, context)
            finally:
                self._open_streams -= 1

        kind = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )
        return kind(stream, handler.request_deserializer, handler.response_serializer)


class Decoding(aio.ServerInterceptor):
    """C6. It stands before every service of a listener."""

    async def intercept_service(
        self, continuation: "_Find", handler_call_details: grpc.HandlerCallDetails
    ) -> "_Handler | None":
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        return _decoding(handler, handler.request_deserializer)


class _Undecodable:
    """Placeholder of a message that couldn't be decoded."""

    def __init__(self, why: str) -> None:
        self.fault = Malformed(why)


def _decoding(handler: "_Handler", decode: Callable[[bytes], object]) -> "_Handler":
    """Return a handler whose undecodable messages end the call with a refusal (C6)."""
    behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream

    def decoded(data: bytes) -> object:
        try:
            return decode(data)
        except DecodeError as fault:
            return _Undecodable(str(fault))

    async def sound(messages: AsyncIterable[object]) -> AsyncIterator[object]:
        async for message in messages:
            if isinstance(message, _Undecodable):
                raise message.fault
            yield message

    async def answer(request: Any, context: Context) -> Any:  # noqa: ANN401  # as gRPC hands it in
        async with refusing(context, _DECODED_HINT):
            if isinstance(request, _Undecodable):
                raise request.fault
            given = sound(request) if handler.request_streaming else request
            if not handler.response_streaming:
                return await behaviour(given, context)
            await _streamed(behaviour, given, context)
        return None

    return _KINDS[handler.request_streaming, handler.response_streaming](answer, decoded, handler.response_serializer)


async def _streamed(behaviour: Callable[[Any, Context], Any], request: object, context: Context) -> None:
    """Write the answer of a method, which may be an iterator or write by itself."""
    said = behaviour(request, context)
    if isinstance(said, AsyncIterable):
        async for message in said:
            await context.write(message)
    else:
        await said


_KINDS: Final[dict[tuple[bool, bool], Callable[..., _Handler]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}
_DECODED_HINT: Final = "send the message of this method as its .proto has it; is the client of another version?"


def _refusing(refusal: Refusal) -> "_Handler":
    """A method of streams is called before any message came; on the wire it looks like any other."""

    async def refuse_call(requests: object, context: Context) -> None:
        await abort(context, refusal)

    return grpc.stream_stream_rpc_method_handler(refuse_call)


def _too_many_streams() -> Refusal:
    message = f"{OPEN_STREAMS_MAX} streams of health and reflection are open already"
    return refuse(
        "too_many_streams", message, "ask with Health.Check instead, again and again", streams=OPEN_STREAMS_MAX
    )
