"""What a filter of jobs finds: F3 of `job_filter`."""

import pytest

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import JobId, Principal
from stoker.brain.domain.job import Job, JobSpec
from stoker.brain.domain.job_filter import JobFilter
from stoker.brain.domain.units import Instant
from stoker.brain.domain.where import parse_selector


def job(name: str, **labels: str) -> Job:
    spec = JobSpec(name=name, demand=Demand(), command="true", priority=500, time_limit_ms=1, labels=labels)
    return Job(id=JobId(1), uid="u", spec=spec, by=Principal("user:ada"), submitted_at=Instant(1))


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("train", "train", True),
        ("train", "train-1", False),
        ("train-*", "train-1", True),
        ("train-*", "Train-1", False),
        ("*", "", True),
        ("t?ain", "train", True),
        ("t?ain", "trrain", False),
        ("[ab]*", "[ab]c", True),
        ("[ab]*", "ac", False),
        ("a*b", "a*b", True),
        ("a.*", "axb", False),
        ("a*", "a\nb", True),
    ],
)
def test_f3_a_star_stands_for_any_letters_and_every_other_letter_for_itself(
    pattern: str,
    name: str,
    found: bool,  # a column of the table
) -> None:
    one = job(name)
    assert JobFilter(name=pattern).matches(one, one.state) is found


@pytest.mark.parametrize(
    ("selector", "found"),
    [("team=nlp", True), ("team=cv", False), ("team", True), ("!draft", True), ("team in (cv,nlp),!draft", True)],
)
def test_labels_are_selected_as_those_of_nodes_are(selector: str, found: bool) -> None:  # a column of the table
    one = job("j", team="nlp")
    assert JobFilter(labels=parse_selector(selector)).matches(one, one.state) is found
