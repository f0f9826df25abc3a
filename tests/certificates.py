"""Authorities and certificates of a test's own: good ones, and such as no authority of Stoker's would make."""

from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stoker.adapters.authority import Authority
from stoker.adapters.clock import SystemClock

DAY: Final = timedelta(days=1)


def authority_in(folder: Path) -> Authority:
    """The authority of a control plane, or a new one."""
    return Authority(folder, SystemClock().now)


class Certified(NamedTuple):
    """Key and chain of a server, as PEM."""

    key: bytes
    chain: bytes


class Site:
    """An authority."""

    def __init__(self, name: str = "a site's authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._root = self._signed(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None))
        self.root = self._root.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        return urlsafe_b64encode(self._root.fingerprint(hashes.SHA256())).decode().rstrip("=")

    def server(self, *names: str, begins_in: timedelta = -DAY, ends_in: timedelta = DAY) -> Certified:
        """The chain ends with the root, as those of Stoker's authority do."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        served = x509.SubjectAlternativeName([_named(name) for name in names])
        leaf = self._signed(subject, key, served, begins_in, ends_in)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certified(text, leaf.public_bytes(serialization.Encoding.PEM) + self.root)

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extension: x509.ExtensionType,
        begins_in: timedelta = -DAY,
        ends_in: timedelta = DAY,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins_in)
            .not_valid_after(now + ends_in)
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
            .sign(self._key, hashes.SHA256())
        )


def _named(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
