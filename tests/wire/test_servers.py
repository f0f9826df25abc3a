"""Which addresses may be asked, in which order, and how an answer says that it may be old."""

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.wire.client.servers import SERVERS_MAX, Servers, each_alone, local_server, parsed_servers, server_label
from stoker.wire.client.staleness import Stale, Waiting, stale_answer

A, B, C = parsed_servers("http://a:1,http://b:1,https://c")


def test_several_are_written_with_commas_and_each_is_meant_once() -> None:
    found = parsed_servers(" a:1 , http://A:1,https://a:1,[::1]:8080")
    assert [each.geturl() for each in found] == ["http://a:1", "https://a:1", "http://[::1]:8080"]
    assert each_alone(" a:1 , http://A:1,https://a:1,[::1]:8080") == ["a:1", "https://a:1", "[::1]:8080"], "as typed"


@pytest.mark.parametrize("text", ["a,,b", "a,", ",a", " ", "a b", ",".join("a" * (SERVERS_MAX + 1))])
def test_what_is_no_list_of_addresses_is_refused(text: str) -> None:
    with pytest.raises(StokerError) as caught:
        parsed_servers(text)
    assert caught.value.refusal.code == "bad_server"


def test_the_one_that_is_preferred_comes_first_and_the_others_keep_their_order() -> None:
    servers = Servers([A, B, C])
    servers.prefer(C)
    assert list(servers.in_turn) == [C, A, B]
    assert servers.others(A) == [C, B]


@pytest.mark.parametrize("url", ["http://b:1", "http://B:1/", "b:1", "HTTP://b:1"])
def test_an_address_is_known_again_however_it_is_written(url: str) -> None:
    assert Servers([A, B, C]).named(url) == B


@pytest.mark.parametrize(
    "url", ["", "https://b:1", "http://b:2", "http://b", "http://b:1@evil", "http://evil/b:1", "x:y"]
)
def test_an_address_that_only_looks_alike_is_another_one(url: str) -> None:
    assert Servers([A, B, C]).named(url) is None


def test_a_local_one_is_called_by_its_path_and_others_by_host_and_port() -> None:
    assert [server_label(each) for each in (local_server("/d/control.sock"), C)] == ["/d/control.sock", "c:443"]


@pytest.mark.parametrize(
    ("lag", "tried", "text"),
    [
        ("0", 2, "answered by a standby, 0.0 s behind; no active control plane answers"),
        ("1234", 2, "answered by a standby, 1.2 s behind; no active control plane answers"),
        ("90000", 1, "answered by a standby, 90 s behind"),
        ("-1", 1, "answered by a standby, how far behind isn't known"),
        ("", 1, "answered by a standby, how far behind isn't known"),
    ],
)
def test_an_answer_of_a_standby_says_how_old_it_may_be(lag: str, tried: int, text: str) -> None:
    assert str(stale_answer("b:1", {"stoker-role": "standby", "stoker-lag-ms": lag}, tried)) == text


def test_an_answer_of_an_active_or_of_a_lone_one_is_fresh() -> None:
    assert stale_answer("b:1", {"stoker-role": "active"}, 2) is None
    assert stale_answer("b:1", {}, 2) is None


def test_notices_are_one_line_each() -> None:
    assert "\n" not in f"{Stale('b', 1, 2)}{Waiting('no control plane answers')}"
