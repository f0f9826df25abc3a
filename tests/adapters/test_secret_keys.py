"""The file with the keys of secrets, rules Y1 to Y5."""

import os
from functools import partial
from pathlib import Path

import pytest

from stoker.adapters.secret_keys import KEYS_MAX, SecretKeys
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.secret import SealedValue

VALUE = b"correct horse battery staple"


def refused(work: object) -> Refusal:
    with pytest.raises(StokerError) as fault:
        work()  # type: ignore[operator]  # a call that fails
    assert fault.value.refusal.code == "secret_key_unusable"
    assert fault.value.refusal.hint
    return fault.value.refusal


def keys_in(folder: Path) -> SecretKeys:
    return SecretKeys(folder / "keys" / "secrets.key")


def sealed_in(folder: Path, label: str = "t/a/n", value: bytes = VALUE) -> SealedValue:
    return keys_in(folder).seal(label, value, first=True)


def test_what_is_sealed_opens_again_in_another_process_and_is_not_to_be_read_before(tmp_path: Path) -> None:
    sealed = sealed_in(tmp_path)
    assert keys_in(tmp_path).open("t/a/n", sealed) == VALUE
    assert VALUE.decode() not in repr(sealed)


def test_the_file_is_its_owners_alone_and_so_is_its_folder(tmp_path: Path) -> None:
    sealed_in(tmp_path)
    path = tmp_path / "keys" / "secrets.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["secrets.key"]


def test_a_value_opens_under_its_own_label_alone(tmp_path: Path) -> None:
    """Else a record could be given another one's value."""
    sealed = sealed_in(tmp_path, "lab/user:anna/A")
    assert "changed outside" in refused(lambda: keys_in(tmp_path).open("lab/user:bert/A", sealed)).hint


def test_y1_a_lost_key_is_told_and_not_replaced(tmp_path: Path) -> None:
    sealed = sealed_in(tmp_path)
    path = tmp_path / "keys" / "secrets.key"
    kept = path.read_bytes()
    path.unlink()
    for work in (
        lambda: keys_in(tmp_path).open("t/a/n", sealed),
        lambda: keys_in(tmp_path).seal("t/a/m", VALUE, first=False),
    ):
        refusal = refused(work)
        assert "isn't there" in refusal.message
        assert "put a copy of it back" in refusal.hint
    assert not path.exists()
    path.touch(0o600)
    path.write_bytes(kept)
    assert keys_in(tmp_path).open("t/a/n", sealed) == VALUE


def test_y1_a_key_that_is_there_is_taken_for_the_first_secret_too(tmp_path: Path) -> None:
    first = sealed_in(tmp_path)
    assert sealed_in(tmp_path, "t/a/m").key == first.key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_y2_a_file_that_others_may_read_is_refused_until_it_is_closed(tmp_path: Path, mode: int) -> None:
    keys = keys_in(tmp_path)
    sealed = keys.seal("t/a/n", VALUE, first=True)
    path = tmp_path / "keys" / "secrets.key"
    path.chmod(mode)
    refusal = refused(lambda: keys.open("t/a/n", sealed))
    assert f"others may read it (mode {mode:04o})" in refusal.message
    assert f"chmod 600 {path}" in refusal.hint
    path.chmod(0o600)
    assert keys.open("t/a/n", sealed) == VALUE  # Y5


def test_what_is_no_file_is_told_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path):
        assert "it isn't a file" in refused(partial(SecretKeys(path).seal, "a", b"b", first=True)).message


def test_the_key_of_another_cluster_is_told(tmp_path: Path) -> None:
    sealed = sealed_in(tmp_path / "one")
    sealed_in(tmp_path / "two")
    refusal = refused(lambda: keys_in(tmp_path / "two").open("t/a/n", sealed))
    assert f"lacks the key {sealed.key}" in refusal.message


def test_y3_a_peers_keys_come_first_and_none_is_lost(tmp_path: Path) -> None:
    one, two = sealed_in(tmp_path / "one"), sealed_in(tmp_path / "two")
    taker = keys_in(tmp_path / "two")
    assert taker.lacking({one.key, two.key}) == {one.key}
    taker.add(keys_in(tmp_path / "one").exported())
    assert taker.lacking({one.key, two.key}) == set()
    assert [taker.open("t/a/n", each) for each in (one, two)] == [VALUE, VALUE]
    assert taker.seal("t/a/n", VALUE, first=False).key == one.key
    assert (tmp_path / "two" / "keys" / "secrets.key").stat().st_mode & 0o777 == 0o600


def test_y3_a_standby_without_a_file_gets_one(tmp_path: Path) -> None:
    one = sealed_in(tmp_path / "one")
    taker = keys_in(tmp_path / "two")
    assert taker.exported() == b""
    assert taker.lacking({one.key}) == {one.key}
    taker.add(keys_in(tmp_path / "one").exported())
    assert taker.open("t/a/n", one) == VALUE


def test_a_file_holds_so_many_keys(tmp_path: Path) -> None:
    taker = keys_in(tmp_path / "taker")
    for number in range(KEYS_MAX):
        sealed_in(tmp_path / str(number))
        taker.add(keys_in(tmp_path / str(number)).exported())
    sealed_in(tmp_path / "more")
    assert f"{KEYS_MAX} at most" in refused(lambda: taker.add(keys_in(tmp_path / "more").exported())).hint


@pytest.mark.parametrize(
    "content", [b"", b"# only words\n", b"stoker-secret-key\n", b"stoker-secret-key AAAA\n", b"hunter2\n", b"\xff\n"]
)
def test_y4_a_file_that_is_no_key_is_refused_by_its_line_and_never_repeated(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys" / "secrets.key"
    path.parent.mkdir()
    path.touch(0o600)
    path.write_bytes(content)
    refusal = refused(lambda: sealed_in(tmp_path))
    assert "no key" in refusal.message
    assert "hunter2" not in f"{refusal}"


def test_a_folder_that_can_not_be_written_is_told_with_the_setting(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        (tmp_path / "keys").write_text("a file in its place")
    else:
        (tmp_path / "keys").mkdir(0o500)
    assert "secrets.key_file" in refused(lambda: sealed_in(tmp_path)).hint
