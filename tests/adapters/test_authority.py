"""The certificate authority of a cluster: its file, what it signs, its rotation, and handshakes of real TLS."""

import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from stoker.adapters.authority import LEAF_DAYS, Authority, fingerprint_of, key_digest
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.units import Instant

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000


def authority_in(folder: Path, at_ms: int = NOW_MS, in_use: str = "") -> Authority:
    return Authority(folder, lambda: Instant(at_ms), in_use=in_use)


def request_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def refused(work: Callable[[], object], code: str) -> str:
    with pytest.raises(StokerError) as fault:
        work()
    assert fault.value.refusal.code == code
    return f"{fault.value.refusal.message}. {fault.value.refusal.hint}"


def handshake(tmp_path: Path, server: tuple[bytes, bytes], roots: bytes, host: str = "localhost") -> bytes | None:
    """What the server's leaf is, as a client with these roots sees it. Raises: ssl.SSLError."""
    files = tmp_path / "server.key", tmp_path / "server.crt"
    for path, content in zip(files, server, strict=True):
        path.write_bytes(content)
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    serving.load_cert_chain(files[1], files[0])
    asking.load_verify_locations(cadata=roots.decode())
    asking.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, served = asking.wrap_bio(down, up, server_hostname=host), serving.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (client, served):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert(binary_form=True)


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL reads the machine's clock: certificates of these tests are of today."""
    import time

    monkeypatch.setattr("tests.adapters.test_authority.NOW_MS", int(time.time() * 1_000))


def test_the_authority_that_was_made_is_read_again_and_its_key_is_the_owners_alone(tmp_path: Path) -> None:
    made = authority_in(tmp_path / "ca")
    assert authority_in(tmp_path / "ca").fingerprint == made.fingerprint
    assert (tmp_path / "ca" / "ca.pem").stat().st_mode & 0o777 == 0o600
    public = (tmp_path / "ca" / "ca.crt").read_bytes()
    assert public == made.roots
    assert b"PRIVATE" not in public


def test_control_planes_that_make_it_at_once_have_the_same(tmp_path: Path) -> None:
    found: list[str] = []
    together = threading.Barrier(8)

    def make() -> None:
        together.wait()
        found.append(authority_in(tmp_path / "ca").fingerprint)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_key_that_others_may_read_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    authority_in(tmp_path)
    path = tmp_path / "ca.pem"
    before = path.read_bytes()
    path.chmod(0o640)
    assert "others may read its key (mode 0640). chmod 600" in refused(
        lambda: authority_in(tmp_path), "authority_unusable"
    )
    assert path.read_bytes() == before


def test_a_lost_key_is_told_and_not_replaced(tmp_path: Path) -> None:
    authority_in(tmp_path)
    (tmp_path / "ca.pem").unlink()
    said = refused(lambda: authority_in(tmp_path), "authority_unusable")
    assert "ca.crt is there, and its key isn't" in said
    assert "every node joins again" in said
    assert not (tmp_path / "ca.pem").exists()


def test_where_somebody_relies_on_it_a_folder_that_is_gone_is_told_and_an_empty_one_means_another_authority(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "ca"
    said = refused(lambda: authority_in(folder, in_use="2 node(s) have joined by it"), "authority_unusable")
    assert "its folder isn't there, and 2 node(s) have joined by it" in said
    assert "every node joins again" in said
    assert not folder.exists()
    folder.mkdir()
    made = authority_in(folder, in_use="2 node(s) have joined by it")
    assert authority_in(folder, in_use="2 node(s) have joined by it").fingerprint == made.fingerprint


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it can't be understood"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "it can't be understood"),
        (None, "its first certificate is of another key"),
    ],
)
def test_a_file_that_is_no_authority_is_refused_with_what_is_wanted(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    authority_in(tmp_path / "one")
    path = tmp_path / "one" / "ca.pem"
    path.write_bytes(content if content is not None else _key_text() + authority_in(tmp_path / "two").roots)
    said = refused(lambda: authority_in(tmp_path / "one"), "authority_unusable")
    assert why in said
    assert "it is wanted as PEM" in said


def _key_text() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, pkcs8, plain)


def test_an_authority_that_has_expired_is_refused(tmp_path: Path) -> None:
    authority_in(tmp_path)
    said = refused(lambda: authority_in(tmp_path, NOW_MS + 3_651 * DAY_MS), "authority_unusable")
    assert "its certificate is valid from" in said


def test_a_client_with_the_root_trusts_the_server_under_its_names_and_under_no_other(tmp_path: Path) -> None:
    authority = authority_in(tmp_path)
    key, chain, *_ = authority.server("a", ["localhost", "127.0.0.1", "::1", "gpu.example.org"])
    for host in ("localhost", "127.0.0.1", "::1", "gpu.example.org"):
        assert handshake(tmp_path, (key, chain), authority.roots, host)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(tmp_path, (key, chain), authority.roots, "other.example.org")
    stranger = authority_in(tmp_path / "another").roots
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, (key, chain), stranger)


def test_a_node_can_not_serve_in_the_place_of_a_control_plane(tmp_path: Path) -> None:
    authority = authority_in(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret = key.private_bytes(serialization.Encoding.PEM, pkcs8, plain)
    chain = authority.sign(request_of(key), "node:localhost").chain
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(tmp_path, (secret, chain), authority.roots)


def test_a_certificate_names_its_node_and_its_key_whatever_the_request_says(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = "n" * 63
    authority = authority_in(tmp_path)
    made = authority.sign(request_of(key), f"node:{name}")
    chain = made.chain
    assert authority.holder(chain) == (f"node:{name}", key_digest(key.public_key()), made.ends_at)
    leaf = x509.load_pem_x509_certificates(chain)[0]
    assert (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days == LEAF_DAYS


def test_a_certificate_of_a_sites_own_authority_for_something_else_names_nobody(tmp_path: Path) -> None:
    authority = authority_in(tmp_path)
    assert authority.holder(authority.roots).subject == ""


@pytest.mark.parametrize("request_text", [b"", b"no request", b"-----BEGIN CERTIFICATE REQUEST-----\n" + b"A" * 20_000])
def test_a_request_that_is_none_is_refused(tmp_path: Path, request_text: bytes) -> None:
    authority = authority_in(tmp_path)
    assert "stoker agent join" in refused(lambda: authority.sign(request_text, "node:a"), "bad_certificate_request")


def test_after_a_rotation_who_trusts_either_root_trusts_old_and_new_certificates(tmp_path: Path) -> None:
    authority = authority_in(tmp_path / "ca")
    old_roots, old = authority.roots, authority.server("a", ["localhost"])
    authority.rotate()
    new_roots, new = authority.roots, authority.server("a", ["localhost"])
    assert handshake(tmp_path, new[:2], old_roots), "by the cross certificate"
    assert handshake(tmp_path, new[:2], new_roots)
    assert handshake(tmp_path, old[:2], new_roots)
    authority.rotate()
    assert handshake(tmp_path, authority.server("a", ["localhost"])[:2], old_roots), "over two of them"
    again = authority_in(tmp_path / "ca")
    assert (again.roots, again.fingerprint) == (authority.roots, authority.fingerprint)


def test_each_chain_ends_with_the_roots_so_that_a_fingerprint_is_enough_to_find_one(tmp_path: Path) -> None:
    authority = authority_in(tmp_path)
    first = authority.fingerprint
    authority.rotate()
    chain = x509.load_pem_x509_certificates(authority.server("a", ["localhost"]).chain)
    assert {first, authority.fingerprint} <= {fingerprint_of(each) for each in chain}


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    said = refused(lambda: authority_in(tmp_path / "file"), "authority_unusable")
    assert os.strerror(17) in said


async def test_one_that_runs_reads_what_another_process_has_rotated(tmp_path: Path) -> None:
    running = authority_in(tmp_path)
    assert not await running.look()
    authority_in(tmp_path).rotate()
    before = running.fingerprint
    assert await running.look()
    assert running.fingerprint != before
    assert not await running.look()


async def test_one_that_runs_goes_on_with_what_it_has_read_when_the_file_is_spoilt(tmp_path: Path) -> None:
    running = authority_in(tmp_path)
    before = running.fingerprint
    (tmp_path / "ca.pem").write_bytes(b"")
    with pytest.raises(StokerError):
        await running.look()
    assert not await running.look(), "it is said once"
    assert running.fingerprint == before
    assert running.server("a", ["localhost"]).chain
