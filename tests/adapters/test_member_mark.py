"""A data folder of one of several control planes says so to whoever opens it by itself."""

from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.adapters.data_folder.marks import MARK_NAME, mark_member, member_in, unmark_member
from stoker.brain.domain.access import Role
from stoker.brain.domain.errors import StokerError
from stoker.cli.wiring.token_store import FolderTokens
from stoker.wire.rest.token import NewTokenBody

ADMIN = NewTokenBody(role=Role.ADMIN)


def test_a_folder_is_marked_and_unmarked_by_whoever_starts_on_it(tmp_path: Path) -> None:
    assert member_in(tmp_path) == ""
    mark_member(tmp_path, "a")
    mark_member(tmp_path, "b")
    assert member_in(tmp_path) == "b"
    unmark_member(tmp_path)
    unmark_member(tmp_path)
    assert member_in(tmp_path) == ""


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"x" * 10_000])
def test_a_mark_that_holds_nonsense_is_a_mark(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MARK_NAME).write_bytes(content)
    assert member_in(tmp_path)


def test_no_token_is_made_or_revoked_behind_the_back_of_other_control_planes(tmp_path: Path) -> None:
    tokens = FolderTokens(tmp_path)
    made = tokens.create_token(ADMIN)
    mark_member(tmp_path, "a")
    changes: list[Callable[[], object]] = [
        lambda: tokens.create_token(ADMIN),
        lambda: tokens.revoke_token(made.id),
    ]
    for change in changes:
        with pytest.raises(StokerError) as caught:
            change()
        assert caught.value.refusal.code == "not_active"
        assert "ask the active one" in caught.value.refusal.hint
    assert [each.id for each in tokens.tokens().tokens] == [made.id]
