"""Files that tasks write to, by pattern."""

import pytest

from stoker.brain.domain.ids import JobId, NodeName, Principal
from stoker.brain.domain.job import Job
from stoker.brain.domain.output import must_append, output_path
from stoker.brain.domain.units import Instant
from tests.brain.state.story import spec


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


@pytest.mark.parametrize("name", ["..", ".", "../..", "..."])
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    """P3."""
    job = Job(id=JobId(7), uid="u", spec=spec(name=name), by=Principal("user:anna"), submitted_at=Instant(1))
    for pattern in ("logs/%x/%j.out", "logs/.%x", "logs/%x%x"):
        parts = output_path(pattern, job, NodeName("n1"), 0).split("/")
        assert ".." not in parts
        assert len(parts) == len(pattern.split("/"))
