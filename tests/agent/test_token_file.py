"""The file with the token to join with."""

import os
from pathlib import Path

import pytest

from stoker.adapters.entropy import SystemEntropy
from stoker.agent.token_file import read_token
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.wire.token import fresh_token


def kept(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def refusal_of(file: Path) -> Refusal:
    with pytest.raises(StokerError) as refused:
        read_token(file)
    refusal = refused.value.refusal
    assert refusal.code == "bad_token_file"
    assert str(file) in refusal.message
    return refusal


@pytest.mark.parametrize("end", [b"", b"\n", b" \r\n"])
def test_the_token_is_what_the_file_holds_without_its_end_of_line(tmp_path: Path, end: bytes) -> None:
    token = fresh_token(SystemEntropy())
    assert read_token(kept(tmp_path, token.encode() + end)) == token


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    file = kept(tmp_path, fresh_token(SystemEntropy()).encode())
    read_token(file)
    another = fresh_token(SystemEntropy())
    kept(tmp_path, another.encode())
    assert read_token(file) == another


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused_with_the_command_that_closes_it(
    tmp_path: Path, mode: int
) -> None:
    file = kept(tmp_path, fresh_token(SystemEntropy()).encode(), mode)
    refusal = refusal_of(file)
    assert f"{mode:04o}" in refusal.message
    assert f"chmod 600 {file}" in refusal.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT PROVED HERE: only root can give a file away")
def test_a_file_of_another_account_is_refused_however_closed_it_is(tmp_path: Path) -> None:
    """That account reads it, and may write another token into it."""
    file = kept(tmp_path, fresh_token(SystemEntropy()).encode())
    os.chown(file, 65_534, 65_534)
    refusal = refusal_of(file)
    assert "belongs to another account (uid 65534)" in refusal.message
    assert f"chown 0 {file}" in refusal.hint


@pytest.mark.parametrize("content", [b"secret-of-mine", b"stoker_abcdefgh_short", b"\xff\x00", b"x" * 5_000])
def test_what_is_no_token_is_refused_and_never_repeated(tmp_path: Path, content: bytes) -> None:
    refusal = refusal_of(kept(tmp_path, content))
    said = f"{refusal.message} {refusal.hint} {refusal.facts}"
    assert "doesn't hold one token" in said
    assert content.decode("ascii", "replace") not in said
    assert "stoker token create --role agent" in refusal.hint


def test_two_tokens_in_one_file_are_refused_and_neither_is_repeated(tmp_path: Path) -> None:
    tokens = [fresh_token(SystemEntropy()) for _ in range(2)]
    refusal = refusal_of(kept(tmp_path, "\n".join(tokens).encode()))
    assert not any(token[16:] in f"{refusal.message}{refusal.hint}" for token in tokens)


@pytest.mark.parametrize("content", [b"", b" \n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "is empty" in refusal_of(kept(tmp_path, content)).message


def test_a_missing_file_is_refused_by_its_setting(tmp_path: Path) -> None:
    refusal = refusal_of(tmp_path / "nowhere" / "token")
    assert "No such file" in refusal.message
    assert "control.token_file" in refusal.hint


def test_a_folder_or_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (tmp_path, pipe):
        assert "no regular file" in refusal_of(path).message


def test_a_path_that_no_file_can_have_is_refused() -> None:
    assert "can't be read" in refusal_of(Path("a\0b")).message
