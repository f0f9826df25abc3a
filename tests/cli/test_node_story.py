"""What `stoker node show` tells of a node."""

import pytest

from stoker.cli.node_story import node_pairs
from tests.cli.views import node


@pytest.mark.parametrize(
    ("account", "allow_root", "words"),
    [
        ("root", False, "their own users"),
        ("root", True, "their own users, or root where none is named"),
        ("stoker-agent", False, "stoker-agent"),
    ],
)
def test_as_whom_its_jobs_run_is_told(account: str, allow_root: bool, words: str) -> None:
    assert dict(node_pairs(node(account=account, allow_root=allow_root)))["jobs run as"] == words
