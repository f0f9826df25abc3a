"""What a body may say of a selection, of a job or of a partition."""

import json

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.units import HOUR_MS, MINUTE_MS, Instant
from stoker.brain.domain.where import ANYWHERE, Where, make_where
from stoker.wire.rest.decode import decode_body
from stoker.wire.rest.partition import PartitionBody, partition_of
from stoker.wire.rest.submit import JobBody, spec_of


def partition(**fields: object) -> Partition:
    return partition_of("p", decode_body(PartitionBody, json.dumps(fields).encode()))


def job_where(**fields: object) -> Where:
    body = decode_body(JobBody, json.dumps({"command": "true", **fields}).encode())
    return spec_of(body, Instant(1_700_000_000_000)).where


@pytest.mark.parametrize("exclude", ["a,b", "b, a,", ["a", "b"], ["b,a"], ["a,b", "", "a"]])
def test_names_are_a_list_or_have_commas_between_them_or_both(exclude: object) -> None:
    wanted = make_where(exclude=["a", "b"])
    assert job_where(exclude=exclude) == partition(exclude=exclude).where == wanted


def test_tolerations_are_given_in_the_same_forms() -> None:
    wanted = make_where(tolerate=["a", "b=1"])
    assert job_where(tolerate="a,b=1") == partition(tolerate=["b=1", "a"]).where == wanted


def test_a_partition_of_which_nothing_is_said_is_every_node_with_the_clusters_times() -> None:
    nothing = partition(where=None, exclude=None, tolerate=[], time_default=None, time_max=None, comment=None)
    assert nothing == partition() == Partition(name=nothing.name, where=ANYWHERE)


def test_a_time_is_minutes_or_any_form_of_a_submit() -> None:
    read = partition(time_default=30, time_max="2h")
    assert (read.time_default_ms, read.time_max_ms) == (30 * MINUTE_MS, 2 * HOUR_MS)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"where": "zone=a,,b"}, "bad_selector"),
        ({"where": 7}, "bad_field"),
        ({"tolerate": ["a b"]}, "bad_toleration"),
        ({"time_max": "25:99"}, "bad_time"),
        ({"time_max": 0}, "bad_field"),
        ({"time_max": 1.5}, "bad_field"),
        ({"time_default": True}, "bad_field"),
        ({"exclude": {"a": 1}}, "bad_field"),
        ({"nodes": 3}, "unknown_field"),
    ],
)
def test_what_can_not_be_read_is_refused_by_name(fields: dict[str, object], code: str) -> None:
    with pytest.raises(StokerError) as refused:
        partition(**fields)
    assert refused.value.refusal.code == code
