"""Proof of who a server is, before a client shows it a token.

Standard library only; `ssl` is imported for https alone, since it costs a command line a fifth of its time.

Rules: V1  https: the server's certificate is verified, name and all, against the authority of `ca_file`; without one
           against that whose fingerprint the token carries; without either against this system's authorities
       V2  an authority is found by its fingerprint in the chain that the server presents on a connection of its own,
           over which nothing is sent; the next connection is verified against it alone
       V3  http: a token is sent over loopback alone, to a server whose process, by the kernel, belongs to this account,
           to root or to the account `stoker`; `insecure` sends it to whoever answers
       V4  without a token http needs no proof: there is nothing to lose, unless what is sent is itself a secret; such
           goes to nobody by V3's `insecure`
       V5  a server that hasn't proved itself gets nothing; what was seen is said in one refusal, and time doesn't heal
           it. One that breaks off its handshake is no more than away
Source: RFC 9525 (names in certificates), RFC 8446 (TLS 1.3); OpenSSL's x509_vfy.h.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from stoker.brain.domain.errors import StokerError, refuse
from stoker.wire.client import http_message as http
from stoker.wire.client.servers import server_label
from stoker.wire.socket_owner import GONE, is_loopback, server_owner
from stoker.wire.token import fingerprint_in, without_fingerprint

if TYPE_CHECKING:
    import ssl
    from urllib.parse import SplitResult

ACCOUNT: Final = "stoker"
"""Account that packages run a control plane as."""
CHAIN_MAX: Final = 32
_ROOT: Final = 0
_WRONG_NAME: Final = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_ANYWAY: Final = "STOKER_INSECURE=1, `insecure: true` in config.yaml, or Client(insecure=True) sends it nonetheless"


class Credentials(NamedTuple):
    """The token of a client, and by what its servers prove that they may see it."""

    token: str = ""
    """Empty = none is sent."""
    ca_file: str = ""
    """File with the certificates of authorities that are trusted, as PEM. Empty = V1."""
    insecure: bool = False
    """Whether the token is sent over plain http to whoever answers."""
    private: bool = False
    """Whether more than the token is secret of what is sent (V4)."""


NO_CREDENTIALS: Final = Credentials()


class ServerProof:
    """The proof that one client wants of its servers, and what it has learnt of their authority."""

    def __init__(self, credentials: Credentials) -> None:
        """Raises: StokerError `bad_token`."""
        text = http.checked_token(credentials.token)
        self.token = without_fingerprint(text)
        self._ca_file = credentials.ca_file
        self._trusts_all = not (self.token or credentials.private) or (credentials.insecure and not credentials.private)
        self._private = credentials.private
        self._fingerprint = fingerprint_in(text)
        self._context: ssl.SSLContext | None = None
        self.root = b""
        """Certificate (DER) of the authority that was found by its fingerprint; empty = none was looked for."""

    @property
    def wants_root(self) -> bool:
        """Whether the authority must be found by its fingerprint first (V2)."""
        return self._context is None and bool(self._fingerprint) and not self._ca_file

    def check_plain(self, server: SplitResult, connection: socket.socket) -> None:
        """Check who answers a connection without TLS (V3, V4).

        Raises: NotProved; OSError where the server has hung up.
        """
        if self._trusts_all:
            return
        if not is_loopback(connection):
            raise _secret_in_clear(server) if self._private else _in_the_clear(server)
        owner = server_owner(connection)
        if owner == GONE:
            raise ConnectionResetError("the server hung up")
        if owner is None or not _may_see_tokens(owner):
            raise _foreign(server, owner, "secret" if self._private else "token")

    def context(self) -> ssl.SSLContext:
        """Return what verifies a server, name and all (V1). Raises: StokerError `bad_ca_file`."""
        assert not self.wants_root, "its authority is found first"
        if self._context is None:
            self._context = _verifying()
            if self._ca_file:
                _load(self._context, self._ca_file)
            else:
                self._context.load_default_certs()
        return self._context

    def looking_context(self) -> ssl.SSLContext:
        """Return what accepts any server, for a look at its certificates (V2)."""
        import ssl

        context = _verifying()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def learn_root(self, server: SplitResult, connection: ssl.SSLSocket | ssl.SSLObject) -> bytes:
        """Take the authority with the token's fingerprint from the chain that the server presents, and return it (DER).

        Raises: NotProved where it isn't there.
        """
        root = root_in(_chain_of(connection), self._fingerprint)
        if root is None:
            raise _another_authority(server)
        self._context = _verifying()
        self._context.load_verify_locations(cadata=root)
        self.root = root
        return root

    def fault_of(self, server: SplitResult, fault: OSError) -> Exception:
        """Return what is raised instead of an error of a connection or of its TLS handshake."""
        if server.scheme != "https":
            return http.Unreachable(fault)
        import ssl

        if isinstance(fault, ssl.SSLCertVerificationError):
            return self._not_verified(server, fault)
        if not isinstance(fault, ssl.SSLError):
            return http.Unreachable(fault)
        if fault.reason in _NO_TLS:
            return _speaks_no_tls(server)
        if isinstance(fault, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return http.Unreachable(OSError("it hung up in the middle of the TLS handshake"))
        said = (fault.reason or str(fault)).replace("_", " ").lower()
        message = f"{server_label(server)} and this client can't agree on TLS: {said}"
        return _not_proved(server, message, "TLS 1.2 or newer is wanted; is a proxy in between?")

    def _not_verified(self, server: SplitResult, fault: ssl.SSLCertVerificationError) -> http.NotProved:
        label, why = server_label(server), fault.verify_message
        if fault.verify_code in _WRONG_NAME:
            message = f"the certificate of {label} is for other names: {why}"
            hint = f"ask under a name that it has, or add {server.hostname} to `tls.names` of the control plane"
        elif fault.verify_code == _EXPIRED:
            message = f"the certificate of {label}, or that of its authority, has expired"
            hint = "a running control plane renews its own: see whether the clocks here and there are right"
        elif fault.verify_code == _NOT_YET_VALID:
            message = f"the certificate of {label} isn't valid yet"
            hint = "see whether the clocks here and there are right"
        else:
            message = f"the certificate of {label} isn't signed by {self._trusted}: {why}"
            hint = (
                f"`stoker login {server.geturl()} --token T` trusts the authority that a token of that cluster names,"
                " `--ca FILE` one that you know"
            )
        return _not_proved(server, message, hint)

    @property
    def _trusted(self) -> str:
        if self._ca_file:
            return f"the authority in {self._ca_file}"
        return "the authority that the token names" if self._fingerprint else "an authority that this system trusts"


def root_in(chain: list[bytes], fingerprint: str) -> bytes | None:
    """Return the certificate (DER) with this fingerprint; None where it isn't in the chain."""
    return next((each for each in chain[:CHAIN_MAX] if fingerprint_of(each) == fingerprint), None)


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate (DER) as tokens carry it."""
    import binascii
    import hashlib

    packed = binascii.b2a_base64(hashlib.sha256(certificate).digest(), newline=False).decode()
    return packed.rstrip("=").translate(str.maketrans("+/", "-_"))


def _chain_of(connection: ssl.SSLSocket | ssl.SSLObject) -> list[bytes]:
    """Return the certificates that a server presented (DER). Python 3.13 has a public method for it."""
    public = getattr(connection, "get_unverified_chain", None)
    if public is not None:
        return list(public() or ())
    import _ssl

    chain = connection._sslobj.get_unverified_chain()  # type: ignore[union-attr]  # no stub has it
    return [each.public_bytes(_ssl.ENCODING_DER) for each in chain or ()]


def _verifying() -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # What is named as trusted is trusted, also where it was signed by another one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _load(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except OSError as fault:  # an SSLError is one
        why = fault.strerror if isinstance(fault, FileNotFoundError | PermissionError) else "it holds no certificate"
        message = f"the file of certificates {path} can't be used: {why}"
        hint = "log in again (`stoker login`), or name a PEM file: `stoker ca export` prints one"
        raise StokerError(refuse("bad_ca_file", message, hint, path=path)) from fault


def _may_see_tokens(owner: int) -> bool:
    return owner in (os.geteuid(), _ROOT) or _name_of(owner) == ACCOUNT


def _name_of(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _not_proved(server: SplitResult, message: str, hint: str) -> http.NotProved:
    return http.NotProved(refuse("server_not_proved", message, hint, server=server_label(server)))


def _foreign(server: SplitResult, owner: int | None, what: str) -> http.NotProved:
    label = server_label(server)
    if owner is None:
        seen = f"the kernel doesn't tell whose process serves {label}"
    else:
        seen = f"account {_name_of(owner) or 'without a name'} (uid {owner}) serves {label}"
    message = f"{seen}, so the {what} wasn't sent: it goes to this account's own, root's and {ACCOUNT}'s servers alone"
    hint = f"ask over https (`tls.mode: on`, then `stoker login https://{label} --token T`)"
    hint = f"{hint}; {_ANYWAY}" if what == "token" else hint
    return _not_proved(server, message, hint)


def _in_the_clear(server: SplitResult) -> http.NotProved:
    label = server_label(server)
    message = (
        f"{server.geturl()} is plain http to another machine, so the token wasn't sent: whoever is between reads it"
    )
    hint = f"ask over https: `stoker login https://{label} --token T`; {_ANYWAY}"
    return _not_proved(server, message, hint)


def _secret_in_clear(server: SplitResult) -> http.NotProved:
    message = f"{server.geturl()} is plain http to another machine, where others could read the secret; it wasn't sent"
    hint = "ask over https, or on the machine where the control plane runs"
    return http.NotProved(refuse("secret_in_clear", message, hint, server=server_label(server)))


def _another_authority(server: SplitResult) -> http.NotProved:
    message = f"{server_label(server)} doesn't show the authority that the token names, so the token wasn't sent"
    hint = (
        "the token is of another cluster, or somebody else answers there. Behind a proxy with a certificate of its own "
        "name that one's authority: `stoker login URL --ca FILE`"
    )
    return _not_proved(server, message, hint)


def _speaks_no_tls(server: SplitResult) -> http.NotProved:
    label = server_label(server)
    hint = f"write http://{label} if it is on this machine; else set `tls.mode: on` in its control.yaml"
    message = f"{label} doesn't speak TLS, and https:// was asked for"
    return http.NotProved(refuse("tls_not_spoken", message, hint, server=label))
