"""A token goes only to a server that has proved who it is: V3 to V5 of `wire.client.trust`, over plain http."""

import os
import socket
import time
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from stoker.adapters.entropy import SystemEntropy
from stoker.agent.machine import local_address
from stoker.cli.main import root
from stoker.wire import socket_owner
from stoker.wire.client import trust
from stoker.wire.socket_owner import GONE, server_owner
from stoker.wire.token import fresh_token
from tests.real.asking import CLIENTS, Asks, refused
from tests.real.serving import free_port, serving
from tests.real.squatter import NAME, NOBODY, as_root, listening, squatting

TOKEN: Final = fresh_token(SystemEntropy())
HERE: Final = local_address("192.0.2.1:9")
"""An address of this machine by which others reach it."""
as_neighbour = pytest.mark.skipif(HERE.startswith("127."), reason="NOT PROVED HERE: this machine has loopback alone")
WAYS: Final = pytest.mark.parametrize("way", ["netlink", "table"])
FAMILIES: Final = pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])


def without_netlink(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_to_be_had(one: object, other: object, diag: object) -> int:
        raise OSError("no netlink here")

    if way == "table":
        monkeypatch.setattr(socket_owner, "_from_netlink", not_to_be_had)


@as_root
@CLIENTS
@WAYS
def test_another_accounts_server_gets_no_token(asks: Asks, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_netlink(way, monkeypatch)
    with squatting() as squatter:
        refusal = refused(asks, squatter.url, token=TOKEN)
        assert squatter.heard() == b""
    assert refusal.code == "server_not_proved"
    assert f"account {NAME} (uid {NOBODY}) serves {squatter.label}" in refusal.message
    assert "STOKER_INSECURE=1" in refusal.hint
    assert TOKEN[16:] not in f"{refusal}"


@as_root
@CLIENTS
def test_it_gets_none_either_while_it_has_not_taken_the_connection(asks: Asks) -> None:
    with squatting(takes=False) as squatter:
        assert f"(uid {NOBODY})" in refused(asks, squatter.url, token=TOKEN).message


@as_root
@CLIENTS
def test_that_is_said_at_once_and_not_after_the_patience_for_servers_that_are_away(asks: Asks) -> None:
    with squatting() as squatter:
        begun = time.monotonic()
        refused(asks, squatter.url, token=TOKEN, patience_s=300.0)
        assert time.monotonic() - begun < 100


@as_root
@CLIENTS
def test_without_a_token_or_where_it_is_spelled_out_whoever_answers_is_asked(asks: Asks) -> None:
    with squatting() as squatter:
        assert refused(asks, squatter.url).code == "bad_answer"
        assert b"GET /api/v1/cluster/status" in squatter.heard()
        assert TOKEN.encode() not in squatter.heard()
        refused(asks, squatter.url, token=TOKEN, insecure=True)
        assert TOKEN.encode() in squatter.heard(), "which is what the other tests would find"


@as_root
@CLIENTS
def test_the_account_that_packages_make_for_stoker_is_trusted(asks: Asks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "ACCOUNT", NAME)
    with squatting() as squatter:
        assert refused(asks, squatter.url, token=TOKEN).code == "bad_answer"
        assert TOKEN.encode() in squatter.heard()


@as_root
@CLIENTS
def test_of_several_servers_the_one_that_proves_itself_is_asked(asks: Asks, tmp_path: Path) -> None:
    with serving(tmp_path / "control", free_port()) as served, squatting() as squatter:
        asks(f"{squatter.url},{served.url}", token=served.token)
        assert squatter.heard() == b""
    with squatting() as squatter:
        refusal = refused(asks, f"{squatter.url},http://127.0.0.1:{free_port()}", token=TOKEN)
        assert refusal.code == "server_not_proved", "what is away isn't what has to be mended"


@as_root
def test_a_command_says_so_and_its_environment_or_the_persons_file_may_allow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config = tmp_path / "stoker" / "config.yaml"
    config.parent.mkdir()

    def run(**more: str) -> tuple[int, str]:
        done = CliRunner().invoke(root, ["list"], env={"STOKER_SERVER": squatter.url, "STOKER_TOKEN": TOKEN, **more})
        return done.exit_code, done.stderr

    with squatting() as squatter:
        status, said = run()
        assert (status, f"(uid {NOBODY}) serves" in said, "hint:" in said) == (4, True, True)
        assert squatter.heard() == b""
        config.write_text("insecure: true\n")
        assert "is not a Stoker control plane" in run()[1]
        before = squatter.heard()
        config.write_text("insecure: false\n")
        assert "is not a Stoker control plane" in run(STOKER_INSECURE="1")[1]
        assert squatter.heard().count(TOKEN.encode()) == 2 * before.count(TOKEN.encode()) > 0


@as_neighbour
@CLIENTS
def test_over_plain_http_no_token_leaves_the_machine(asks: Asks) -> None:
    with listening(HERE) as other:
        refusal = refused(asks, other.url, token=TOKEN)
        assert other.heard() == b""
        assert (refusal.code, f"https://{other.label}" in refusal.hint) == ("server_not_proved", True)
        refused(asks, other.url, token=TOKEN, insecure=True)
        assert TOKEN.encode() in other.heard()


@CLIENTS
def test_where_the_kernel_does_not_tell_nothing_is_proved(
    asks: Asks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_netlink("table", monkeypatch)
    monkeypatch.setattr(socket_owner, "_TABLES", dict.fromkeys(socket_owner._TABLES, str(tmp_path / "none")))
    with listening("127.0.0.1") as server:
        assert "the kernel doesn't tell" in refused(asks, server.url, token=TOKEN).message
        assert server.heard() == b""


@FAMILIES
@WAYS
@pytest.mark.parametrize("host", ["loopback", "any"])
def test_a_server_is_known_before_and_after_it_takes_a_connection(
    family: int, way: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3. Else a server that is busy for a moment would be taken for a stranger's."""
    without_netlink(way, monkeypatch)
    near = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    address = near if host == "loopback" else "::" if family == socket.AF_INET6 else "0.0.0.0"
    listener = socket.create_server((address, 0), family=family)
    with listener, socket.create_connection((near, listener.getsockname()[1])) as ours:
        assert server_owner(ours) == os.geteuid()
        theirs, _ = listener.accept()
        with theirs:
            assert server_owner(ours) == os.geteuid()


@WAYS
def test_a_listener_for_both_kinds_of_addresses_is_found_by_either(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_netlink(way, monkeypatch)
    both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with both, socket.create_connection(("127.0.0.1", both.getsockname()[1])) as ours:
        assert server_owner(ours) == os.geteuid()


def test_a_server_that_has_hung_up_is_away_and_not_a_strangers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        listener.accept()[0].close()
    with ours:
        assert server_owner(ours) == GONE
