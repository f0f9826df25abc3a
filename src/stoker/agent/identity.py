"""Identity of a node that has joined: its key, and the certificate by which control planes know it.

It is the file `identity.json` in the agent's data folder (mode 0600). The key is made on the node and never leaves it;
`stoker agent join` writes the file, and the agent renews the certificate in it.

Rules: I1  a file that others may read, or that isn't whole, is refused and never replaced in silence
       I2  the request is kept beside the key, so that a running agent renews its certificate without a library for it
       I3  a join that fails leaves the identity that was there, and its key for the next try (`joining.json`): where
           only the answer was lost, the control plane knows that key already
"""

import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult

import msgspec
from msgspec.structs import replace

from stoker.agent.runner.files import replace_file
from stoker.agent.settings import ADDRESS, AgentSettings
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.units import NEVER, Instant
from stoker.wire.address import address_faults

NAME: Final = "identity.json"
ASKED_NAME: Final = "joining.json"
DIAL_S: Final = 10.0
_BYTES_MAX: Final = 1 << 20
_AGAIN: Final = "join again: `stoker agent join HOST:9090 --token T`"


class Certificates(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a control plane to a request for a certificate. All is PEM."""

    chain: str
    roots: str
    renew_at: Instant
    cluster_id: str
    ends_at: Instant = NEVER
    """When the certificate expires. NEVER = a control plane of an older version has made it."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """All that a node proves itself with, and recognises control planes by."""

    node: NodeName
    addresses: tuple[str, ...]
    """Where it joined: the control planes to ask unless the settings name others."""
    key: str
    """Private key, PEM."""
    request: str
    """Certificate request for it, PEM."""
    certificates: Certificates


def with_addresses(settings: AgentSettings, identity: Identity | None) -> AgentSettings:
    """Return the settings with the control planes to ask: those that they name, or where the node joined."""
    named = settings.control.addresses or (identity.addresses if identity is not None else ()) or (ADDRESS,)
    return replace(settings, control=replace(settings.control, addresses=named))


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Name and key with which a node joins."""

    node: NodeName
    key: str
    request: str


class IdentityFile:
    """The identity of the node whose agent has this data folder."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / NAME
        self._asked = data_dir / ASKED_NAME

    def ask(self, node: NodeName) -> JoinRequest:
        """Return the key that the node joins with, kept before anybody hears of it (I3).

        Raises: StokerError `identity_unusable`.
        """
        with suppress(OSError, msgspec.DecodeError):
            kept = msgspec.json.decode(self._asked.read_bytes(), type=JoinRequest)
            if kept.node == node:
                return kept
        key, request = _fresh_key()
        asked = JoinRequest(node=node, key=key, request=request)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(str(self._asked), msgspec.json.encode(asked))
        except OSError as fault:
            raise self._not_written(fault) from fault
        return asked

    def read(self) -> Identity | None:
        """Return the identity; None = this node hasn't joined. Raises: StokerError `identity_unusable` (I1)."""
        try:
            with self._path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                content = file.read(_BYTES_MAX)
        except FileNotFoundError:
            return None
        except OSError as fault:
            raise self._unusable(f"it can't be read: {fault.strerror}", f"see who owns it, or {_AGAIN}") from fault
        if mode & 0o077:
            hint = f"whoever has read it can pass for this node: `stoker node reset NAME`, then {_AGAIN}"
            raise self._unusable(f"others may read its key (mode {mode:04o})", hint)
        try:
            return msgspec.json.decode(content, type=Identity)
        except msgspec.DecodeError as fault:
            raise self._unusable(f"it isn't what was written: {fault}", _AGAIN) from fault

    def write(self, identity: Identity) -> None:
        """Keep it for good. Raises: StokerError `identity_unusable`."""
        try:
            replace_file(str(self._path), msgspec.json.encode(identity))
            self._asked.unlink(missing_ok=True)
        except OSError as fault:
            raise self._not_written(fault) from fault

    def _not_written(self, fault: OSError) -> StokerError:
        hint = "see whether the disk is full, and whether this account may write there; nothing is lost: try again"
        return self._unusable(f"it can't be written: {fault.strerror}", hint)

    def _unusable(self, known: str, hint: str) -> StokerError:
        return refusal_error("identity_unusable", f"the identity of this node in {self._path}: {known}", hint)


def root_shown(addresses: Sequence[str], token: str) -> bytes:
    """Return the root (PEM) that a join token names and one of the control planes presents. Blocks.

    Nothing is sent but the beginning of a TLS handshake. Raises: StokerError `bad_token`, `bad_address`, `no_server`,
    `server_not_proved`.
    """
    # A running agent needs none of these, which would be a tenth of its memory.
    import ssl

    from stoker.wire.client.trust import Credentials, ServerProof

    proof = ServerProof(Credentials(token=token))
    if not proof.wants_root:
        hint = (
            "give the whole token that `stoker token create --role join` printed, with what stands after the dot. If "
            "it has none, its control plane has `tls.mode: off`: no node joins there, agents show a token of role agent"
        )
        raise refusal_error("bad_token", "the token doesn't say by which authority the cluster proves itself", hint)
    faults = address_faults(addresses)
    if faults:
        raise refusal_error("bad_address", faults[0], "give HOST:PORT of the gRPC listener, such as gpu1:9090")
    context = proof.looking_context()
    context.set_alpn_protocols(["h2"])
    silent: list[str] = []
    for address in addresses:
        server = SplitResult("https", address, "", "", "")
        try:
            with (
                socket.create_connection((server.hostname, server.port), DIAL_S) as plain,
                context.wrap_socket(plain, server_hostname=server.hostname) as shown,
            ):
                return ssl.DER_cert_to_PEM_cert(proof.learn_root(server, shown)).encode()
        except OSError as fault:
            is_plain = isinstance(fault, ssl.SSLError) and fault.reason == "WRONG_VERSION_NUMBER"
            silent.append(f"{address} speaks no TLS" if is_plain else f"{address}: {fault}")
    hint = "is the control plane up, and its port open? It must speak TLS there (its `tls.mode` isn't off)"
    raise refusal_error("no_server", "; ".join(silent), hint)


def _fresh_key() -> tuple[str, str]:
    """Make a key; return it and a certificate request for it, both as PEM."""
    # A running agent does without this library, which would be a third of its memory.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return text.decode(), request.public_bytes(pem).decode()
