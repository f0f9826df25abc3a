"""The text of a token."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.adapters.entropy import SystemEntropy
from stoker.wire.token import bearer, digest_of, fresh_token, id_of, is_token, token_in


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
