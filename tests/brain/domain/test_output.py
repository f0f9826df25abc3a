"""Files that tasks write to, by pattern."""

import pytest

from stoker.brain.domain.output import must_append


@pytest.mark.parametrize(
    ("pattern", "rank", "appends"),
    [
        ("logs/%j.out", 0, False),
        ("logs/%j.out", 1, True),
        ("logs/%j-%%t.out", 1, True),
        ("logs/%j-%t.out", 1, False),
        ("logs/%N.out", 1, False),
        ("", 1, False),
    ],
)
def test_of_ranks_that_share_a_file_only_the_first_may_empty_it(pattern: str, rank: int, *, appends: bool) -> None:
    """P4. Else a rank that starts later, on another node, would wipe what the others wrote."""
    assert must_append(pattern, rank) is appends
