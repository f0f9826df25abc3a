"""Certificate authority of a cluster, kept in a folder of its control planes.

One file, `ca.pem` (mode 0600), holds the private key and the certificates: the root that signs, and after a rotation
the roots before it. A site's own authority is the same file with the site's key and certificate. `ca.crt` beside it
has the certificates alone, for curl, browsers and Prometheus; it is written from `ca.pem` and never read.

Rules: C1  of several control planes that make it at once all end up with the same one
       C2  a key that others may read, a certificate without its key, or no folder where somebody relies on what was in
           it, is refused and never replaced in silence
       C3  after a rotation both roots are trusted until the old one expires, and the new one is also signed by the old
           one (a cross certificate in every chain), so whoever trusts one of them trusts each new certificate
       C4  a node's certificate proves who a client is and never serves; a control plane's does both
       C5  each chain ends with every root that is trusted, so who knows only a root's fingerprint finds it in the
           handshake
Source: RFC 5280; the keys are ECDSA P-256 (RFC 5480).
"""

import os
import socket
import stat
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stoker.adapters.atomic_file import sync, write_atomic, written_apart
from stoker.adapters.bounded_thread import BoundedThread, TookTooLong
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.units import SECOND_MS, Instant
from stoker.ports import CertificateHolder, KeyAndChain

FILE_NAME: Final = "ca.pem"
PUBLIC_NAME: Final = "ca.crt"
ROOT_DAYS: Final = 3_650
LEAF_DAYS: Final = 90
"""A server makes another at two thirds of it, and an agent asks for one."""
BACKDATED: Final = timedelta(hours=1)
"""Clocks of a cluster may differ by as much."""
LOOK_S_MAX: Final = 5.0
OPEN_S_MAX: Final = 30.0
ROOTS_MAX: Final = 8
HOSTS_MAX: Final = 256
"""Names and addresses of a machine that stand in a certificate."""
REQUEST_BYTES_MAX: Final = 16_384
_BYTES_MAX: Final = 1 << 20
_RSA_BITS: Final = range(2_048, 8_193)
_SCHEME: Final = "stoker://"
_NAME_MAX: Final = 64
"""Of a common name, which is for people; whom a certificate names is in its URI (RFC 5280, appendix A.1)."""

_Key: TypeAlias = "ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey"


@dataclass(frozen=True, slots=True)
class _Held:
    """The content of the file."""

    key: _Key
    root: x509.Certificate
    """It signs."""
    earlier: tuple[x509.Certificate, ...] = ()
    """Roots before it, newest first, that haven't expired."""
    crossed: tuple[x509.Certificate, ...] = ()
    """The key of each later root, signed by the one before it."""


class Authority:
    """Authority of one cluster. Reading and writing its folder blocks for as long as a disk does."""

    def __init__(self, folder: Path, now: Callable[[], Instant], *, in_use: str = "") -> None:
        """Read it, or make it where the folder has none. `in_use`: a sentence that says who relies on it (C2).

        Raises: StokerError `authority_unusable`.
        """
        self._path = folder / FILE_NAME
        self._now = now
        self._thread = BoundedThread("authority", (StokerError,))
        try:
            if in_use and not os.path.lexists(folder):
                raise self._unusable(f"its folder isn't there, and {in_use}", _LOST.format(folder))
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.path.lexists(self._path):
                self._make(folder)
            self._seen = _seen(self._path)
            self._held = self._read()
            self._publish()
        except OSError as fault:
            hint = "let the control plane's account own the folder; `tls.dir` names it"
            raise self._unusable(f"{fault.strerror or fault}", hint) from fault

    @property
    def roots(self) -> bytes:
        """The certificates that are trusted, newest first, as PEM."""
        return b"".join(map(_pem, (self._held.root, *self._held.earlier)))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the root that signs (its DER), in 43 characters of URL-safe base64."""
        return fingerprint_of(self._held.root)

    @property
    def expires_at(self) -> Instant:
        """End of the validity of the root that signs."""
        return _instant(self._held.root.not_valid_after_utc)

    @classmethod
    async def opened(cls, folder: Path, now: Callable[[], Instant], *, in_use: str = "") -> "Authority":
        """Read it or make it while others are served. Raises: StokerError `authority_unusable`."""
        thread = BoundedThread("authority", (StokerError,))
        try:
            return await thread.ask(lambda: cls(folder, now, in_use=in_use), OPEN_S_MAX)
        except TookTooLong as fault:
            hint = "is the storage of that folder in order?"
            message = f"the certificate authority in {folder} can't be read: {fault}"
            raise refusal_error("authority_unusable", message, hint, path=str(folder)) from fault
        finally:
            thread.close()

    def server(self, name: str, hosts: Sequence[str]) -> KeyAndChain:
        """Make the credentials of a control plane: it serves under these host names and addresses (C4)."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [_host(each) for each in dict.fromkeys(hosts)]
        leaf = self._leaf(f"control:{name}", key.public_key(), names)
        return KeyAndChain(key=_key_pem(key), chain=self._chain(leaf), renew_at=renewal_of(leaf), ends_at=end_of(leaf))

    def sign(self, request: bytes, subject: str) -> KeyAndChain:
        """Sign a client's certificate, whatever names the request has (C4)."""
        leaf = self._leaf(subject, read_request(request))
        return KeyAndChain(key=b"", chain=self._chain(leaf), renew_at=renewal_of(leaf), ends_at=end_of(leaf))

    def key_in(self, request: bytes) -> str:
        return key_digest(read_request(request))

    def holder(self, certificate: bytes) -> CertificateHolder:
        return _holder(certificate)

    async def look(self) -> bool:
        """Read what `stoker ca rotate` has written. What can't be used is left alone: the one in memory goes on."""
        try:
            return await self._thread.ask(self._look, LOOK_S_MAX)
        except TookTooLong:
            return False  # a storage that hangs is told by whatever else is on it

    def _look(self) -> bool:
        try:
            seen = _seen(self._path)
            if seen == self._seen:
                return False
            self._seen = seen
            before, self._held = self._held, self._read()
        except OSError as fault:
            raise self._unusable(
                f"{fault.strerror or fault}", "this control plane goes on with what it has read"
            ) from fault
        return before.root != self._held.root

    def rotate(self) -> None:
        """Make another root, which signs from now on; the old one stays trusted (C3).

        Raises: StokerError `authority_unusable`.
        """
        held = self._held
        key = ec.generate_private_key(ec.SECP256R1())
        root = _root(key, self._time())
        crossed = _certified(root.subject, key.public_key(), held.root, held.key, self._time(), held.root)
        earlier = (held.root, *held.earlier)[: ROOTS_MAX - 1]
        try:
            write_atomic(self._path, _file_text(_Held(key, root, earlier, (crossed, *held.crossed)[: ROOTS_MAX - 1])))
            self._held = self._read()
            self._publish()
        except OSError as fault:
            raise self._unusable(f"{fault.strerror or fault}", "see whether the disk is full") from fault

    # --- certificates -------------------------------------------------------------------------------------------

    def _leaf(
        self, subject: str, public: CertificatePublicKeyTypes, serves: Sequence[x509.GeneralName] = ()
    ) -> x509.Certificate:
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if serves else [])]
        names = [x509.UniformResourceIdentifier(_uri(subject)), *serves]
        ends = min(self._time() + timedelta(days=LEAF_DAYS), self._held.root.not_valid_after_utc)
        return (
            _certificate(_name(subject), public, self._held.root, self._time(), ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._held.key, hashes.SHA256())
        )

    def _chain(self, leaf: x509.Certificate) -> bytes:
        held = self._held
        return b"".join(map(_pem, (leaf, *held.crossed, held.root, *held.earlier)))

    def _time(self) -> datetime:
        return datetime.fromtimestamp(self._now() / SECOND_MS, UTC).replace(microsecond=0)

    # --- the file -----------------------------------------------------------------------------------------------

    def _make(self, folder: Path) -> None:
        if os.path.lexists(folder / PUBLIC_NAME) and not os.path.lexists(self._path):  # C2, and not another's just now
            hint = (
                f"put {FILE_NAME} of a copy back; without one remove {folder / PUBLIC_NAME}: another authority is "
                "made, every node joins again and every person logs in again"
            )
            raise self._unusable(f"{PUBLIC_NAME} is there, and its key isn't", hint)
        key = ec.generate_private_key(ec.SECP256R1())
        text = _file_text(_Held(key, _root(key, self._time())))
        with written_apart(folder, "authority-", text) as temporary:
            with suppress(FileExistsError):
                os.link(temporary, self._path)  # C1
            sync(folder)

    def _read(self) -> _Held:
        """Raises: StokerError `authority_unusable`, OSError."""
        with self._path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_BYTES_MAX)
        if mode & 0o077:
            hint = (
                f"whoever read it can pass for this cluster: remove {self._path.parent}, and let every node join again"
            )
            raise self._unusable(f"others may read its key (mode {mode:04o})", f"chmod 600 {self._path}; {hint}")
        try:
            key = serialization.load_pem_private_key(text, None)
            found = x509.load_pem_x509_certificates(text)
        except (ValueError, TypeError, UnsupportedAlgorithm) as fault:
            raise self._unusable(f"it can't be understood: {fault}", _WANTED) from fault
        if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise self._unusable("its key is neither an ECDSA nor an RSA key", _WANTED)
        root = found[0]
        if root.public_key() != key.public_key():
            raise self._unusable("its first certificate is of another key", _WANTED)
        now = self._time()
        if not root.not_valid_before_utc <= now < root.not_valid_after_utc:
            known = f"its certificate is valid from {root.not_valid_before_utc:%F} to {root.not_valid_after_utc:%F}"
            raise self._unusable(known, "see whether the clock of this machine is right; else put another one there")
        if not _may_sign(root):
            raise self._unusable("its certificate is not that of an authority (CA:TRUE is missing)", _WANTED)
        valid = [each for each in found[1:] if now < each.not_valid_after_utc]
        earlier = tuple(each for each in valid if each.issuer == each.subject)
        crossed = tuple(each for each in valid if each.issuer != each.subject)
        return _Held(key, root, earlier, crossed)

    def _publish(self) -> None:
        public = self._path.parent / PUBLIC_NAME
        with suppress(FileNotFoundError):
            if public.read_bytes() == self.roots:
                return
        with written_apart(public.parent, "authority-", self.roots) as temporary:  # others may do the same now (C1)
            os.chmod(temporary, 0o644)
            os.replace(temporary, public)

    def _unusable(self, known: str, hint: str) -> StokerError:
        message = f"the certificate authority in {self._path} can't be used: {known}"
        return refusal_error("authority_unusable", message, hint, path=str(self._path))


_LOST: Final = (
    "put ca.pem of a copy into it; without one make an empty folder {}: another authority is made, every node joins "
    "again and every person logs in again"
)
_WANTED: Final = "it is wanted as PEM: a private key without a password, then its certificate, then earlier roots"


def read_request(request: bytes) -> CertificatePublicKeyTypes:
    """Return the public key in a certificate request (PEM) that was signed with its private half.

    Raises: StokerError `bad_certificate_request`.
    """
    hint = "let `stoker agent join` make it"
    try:
        if len(request) > REQUEST_BYTES_MAX:
            raise ValueError(f"it has more than {REQUEST_BYTES_MAX} bytes")
        asked = x509.load_pem_x509_csr(request)
        public = asked.public_key()
        if not asked.is_signature_valid:
            raise ValueError("its signature doesn't fit its key")
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm) as fault:
        known = f"the certificate request can't be used: {str(fault)[:200] or type(fault).__name__}"
        raise refusal_error("bad_certificate_request", known, hint) from fault
    if isinstance(public, rsa.RSAPublicKey) and public.key_size in _RSA_BITS:
        return public
    if isinstance(public, ed25519.Ed25519PublicKey):
        return public
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1 | ec.SECP384R1):
        return public
    known = "the certificate request is for a key that isn't taken: ECDSA (P-256, P-384), Ed25519 or RSA from 2048 bits"
    raise refusal_error("bad_certificate_request", known, hint)


def hosts_of_machine() -> list[str]:
    """Return the host name of this machine, `localhost`, and every address that it has.

    Source: proc_pid_net(5), `fib_trie` and `if_inet6`.
    """
    found = [socket.gethostname(), "localhost", "127.0.0.1", "::1"]
    with suppress(OSError):
        lines = Path("/proc/net/fib_trie").read_text().splitlines()
        # An address of the machine stands in the line before the words that say so.
        found += [line.split()[-1] for line, after in pairwise(lines) if "host LOCAL" in after]
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            found.append(str(ip_address(bytes.fromhex(line.split()[0]))))
    return list(dict.fromkeys(each for each in found if each))[:HOSTS_MAX]


def key_digest(public: CertificatePublicKeyTypes) -> str:
    """Return the SHA-256 of a public key (its SubjectPublicKeyInfo), in hex."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex()


def _holder(certificate: bytes) -> CertificateHolder:
    read = x509.load_pem_x509_certificate(certificate)
    try:
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = [each for each in names.get_values_for_type(x509.UniformResourceIdentifier) if each.startswith(_SCHEME)]
    except x509.ExtensionNotFound:
        found = []
    subject = found[0].removeprefix(_SCHEME).replace("/", ":", 1) if len(found) == 1 else ""
    return CertificateHolder(subject, key_digest(read.public_key()), end_of(read))


def fingerprint_of(certificate: x509.Certificate) -> str:
    return urlsafe_b64encode(certificate.fingerprint(hashes.SHA256())).decode().rstrip("=")


def renewal_of(certificate: x509.Certificate) -> Instant:
    """Return when two thirds of a certificate's time have passed."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return _instant(begins + (ends - begins) * 2 / 3)


def end_of(certificate: x509.Certificate) -> Instant:
    return _instant(certificate.not_valid_after_utc)


def _root(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    # A name of its own for each, so that no chain is built through the wrong one.
    subject = _name(f"Stoker authority {key_digest(key.public_key())[:8]}")
    return _certified(subject, key.public_key(), None, key, now, None)


def _certified(
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Certificate | None,
    key: _Key,
    now: datetime,
    within: x509.Certificate | None,
) -> x509.Certificate:
    """Sign the certificate of an authority, by itself without an `issuer`; it ends no later than `within`."""
    ends = now + timedelta(days=ROOT_DAYS)
    if within is not None:
        ends = min(ends, within.not_valid_after_utc)
    return (
        _certificate(subject, public, issuer, now, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _certificate(
    subject: x509.Name,
    public: CertificatePublicKeyTypes,
    issuer: x509.Certificate | None,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    by = x509.SubjectKeyIdentifier.from_public_key(issuer.public_key() if issuer is not None else public)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer is not None else subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(by), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _seen(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text.strip("[]")))
    except ValueError:
        return x509.DNSName(text.encode("idna").decode())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_NAME_MAX])])


def _uri(subject: str) -> str:
    kind, _, name = subject.partition(":")
    return f"{_SCHEME}{kind}/{name}"


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: _Key) -> bytes:
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


def _file_text(held: _Held) -> bytes:
    return _key_pem(held.key) + b"".join(map(_pem, (held.root, *held.crossed, *held.earlier)))


def _instant(moment: datetime) -> Instant:
    return Instant(round(moment.timestamp() * SECOND_MS))
