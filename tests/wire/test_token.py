"""The text of a token."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.adapters.entropy import SystemEntropy
from stoker.wire.token import (
    bearer,
    digest_of,
    fingerprint_in,
    fresh_token,
    id_of,
    is_token,
    token_in,
    with_fingerprint,
    without_fingerprint,
    without_secrets,
)

FINGERPRINT = "AZ_-" * 10 + "09z"


class _Same:
    """Dice that always fall alike."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def seed(self) -> int:
        return self._seed

    def uid(self) -> str:
        raise AssertionError

    def jitter(self, low: float, high: float) -> float:
        raise AssertionError


@given(st.integers(0, 2**63 - 1))
def test_whatever_is_drawn_the_text_has_the_agreed_form(seed: int) -> None:
    text = fresh_token(_Same(seed))
    assert is_token(text)
    assert len(text) == 59
    assert text == f"stoker_{id_of(text)}_{text[16:]}"


def test_two_tokens_share_neither_id_nor_secret() -> None:
    texts = [fresh_token(SystemEntropy()) for _ in range(200)]
    assert len({id_of(text) for text in texts}) == len({text[16:] for text in texts}) == 200


def test_the_digest_is_of_the_whole_text() -> None:
    text = fresh_token(SystemEntropy())
    assert digest_of(text) == hashlib.sha256(text.encode()).hexdigest()


def test_a_header_gives_back_the_text_that_it_sends() -> None:
    text = fresh_token(SystemEntropy())
    assert token_in(bearer(text)) == token_in(f"bearer  {text} ") == text


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer x", "Basic dXNlcjpwYXNz", "Bearer stoker_short_x", "x" * 9_999]
)
def test_a_header_that_sends_no_token_sends_none(value: str) -> None:
    assert token_in(value) == ""


def test_another_scheme_sends_no_token() -> None:
    assert token_in(f"Basic {fresh_token(SystemEntropy())}") == ""


def test_a_token_with_the_fingerprint_of_an_authority_is_the_same_token_wherever_one_is_taken() -> None:
    bare = fresh_token(SystemEntropy())
    text = with_fingerprint(bare, FINGERPRINT)
    assert is_token(text)
    assert (fingerprint_in(text), without_fingerprint(text), id_of(text)) == (FINGERPRINT, bare, id_of(bare))
    assert (fingerprint_in(bare), without_fingerprint(bare), with_fingerprint(bare, "")) == ("", bare, bare)
    assert digest_of(text) == digest_of(bare)


def test_a_fingerprint_is_not_sent_and_where_somebody_sends_it_nothing_comes_of_it() -> None:
    bare = fresh_token(SystemEntropy())
    assert bearer(with_fingerprint(bare, FINGERPRINT)) == f"Bearer {bare}"
    assert token_in(f"Bearer {with_fingerprint(bare, FINGERPRINT)}") == bare


@pytest.mark.parametrize(
    "rest", [".", f".{FINGERPRINT[:-1]}", f".{FINGERPRINT}x", f".{FINGERPRINT}.{FINGERPRINT}", "x"]
)
def test_what_follows_a_token_and_is_no_fingerprint_makes_it_none(rest: str) -> None:
    assert not is_token(fresh_token(SystemEntropy()) + rest)


def test_a_text_for_others_has_neither_secret_nor_fingerprint() -> None:
    bare = fresh_token(SystemEntropy())
    shown = f"stoker_{id_of(bare)}_..."
    assert without_secrets(f"take {with_fingerprint(bare, FINGERPRINT)}, or {bare}. Or not") == (
        f"take {shown}, or {shown}. Or not"
    )
