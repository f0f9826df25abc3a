"""Keys that are meant for the client of a session, and not for its program."""

import pytest

from stoker.cli.session_command import split_rank
from stoker.cli.session_terminal import EscapeKeys


@pytest.mark.parametrize(
    ("typed", "sent", "told"),
    [
        (b"ls\r", b"ls\r", ""),
        (b"~.", b"", "hangup"),
        (b"\r~.", b"\r", "hangup"),
        (b"ls\r~d", b"ls\r", "detach"),
        (b"a~.", b"a~.", ""),
        (b"~~.", b"~.", ""),
        (b"~x", b"~x", ""),
        (b"~?", b"", "help"),
        (b"cd ~\r", b"cd ~\r", ""),
        (b"\x03\x1a\x04", b"\x03\x1a\x04", ""),
    ],
)
def test_a_tilde_after_enter_is_the_clients_and_every_other_key_the_programs(
    typed: bytes, sent: bytes, told: str
) -> None:
    keys = EscapeKeys(detaches=True)
    assert keys.take(typed) == (sent, told)
    one_by_one = EscapeKeys(detaches=True)
    taken = [one_by_one.take(bytes((key,))) for key in typed]
    assert (b"".join(part for part, _ in taken), "".join(word for _, word in taken)) == (sent, told)


def test_nothing_is_detached_from_that_would_end_without_a_client() -> None:
    assert EscapeKeys(detaches=False).take(b"~d") == (b"~d", "")


def test_a_rank_stands_behind_a_dot() -> None:
    assert [split_rank(text) for text in ("7", "7.1", "123_4", "123_4.2")] == [
        ("7", 0),
        ("7", 1),
        ("123_4", 0),
        ("123_4", 2),
    ]
