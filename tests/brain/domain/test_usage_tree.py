"""Sums up the tree of tenants: nothing is lost on the way, and nothing counted twice."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.usage import TreeSum, UsageSum, as_tree

PARENTS = {"org": "", "vision": "org", "cameras": "vision", "speech": "org", "other": ""}
TENANTS = {TenantName(name): Tenant(name=TenantName(name), parent=TenantName(above)) for name, above in PARENTS.items()}


def used(key: str, gpu_ms: int) -> UsageSum:
    return UsageSum(key=key, jobs=1, gpu_ms=gpu_ms, cpu_ms=2 * gpu_ms)


def shown(*lines: UsageSum, top: str = "") -> list[tuple[str, int, int]]:
    """Path, own and all GPU-milliseconds of each line."""
    return [(line.path, line.own.gpu_ms, line.all.gpu_ms) for line in as_tree(lines, TENANTS, TenantName(top))]


def test_each_tenant_stands_before_those_beneath_it_the_largest_first() -> None:
    lines = (used("cameras", 3), used("speech", 5), used("vision", 1), used("other", 7))
    assert shown(*lines) == [
        ("org", 0, 9),
        ("org/speech", 5, 5),
        ("org/vision", 1, 4),
        ("org/vision/cameras", 3, 3),
        ("other", 7, 7),
    ]


def test_who_used_nothing_is_not_there_and_of_nothing_there_is_nothing() -> None:
    assert shown() == []
    assert shown(used("other", 1)) == [("other", 1, 1)]


def test_a_tenant_that_is_no_more_stands_at_the_top() -> None:
    assert shown(used("gone", 2), used("vision", 1)) == [("gone", 2, 2), ("org", 0, 1), ("org/vision", 1, 1)]


def test_nothing_above_the_top_is_summed_up() -> None:
    lines = (used("cameras", 3), used("vision", 1))
    assert shown(*lines, top="vision") == [("vision", 1, 4), ("vision/cameras", 3, 3)]


@given(st.dictionaries(st.sampled_from([*PARENTS, "gone"]), st.integers(0, 100)))
def test_what_stands_at_the_top_adds_up_to_all_and_each_line_to_its_own_and_those_beneath(sums: dict[str, int]) -> None:
    lines = as_tree([used(key, gpu_ms) for key, gpu_ms in sums.items()], TENANTS)
    assert sum(line.all.gpu_ms for line in lines if "/" not in line.path) == sum(sums.values())
    assert sum(line.all.jobs for line in lines if "/" not in line.path) == len(sums)
    for line in lines:
        assert line.all.gpu_ms == line.own.gpu_ms + sum(each.all.gpu_ms for each in lines if beneath(each, line))
        assert line.own.gpu_ms == sums.get(line.all.key, 0)
        assert line.all.cpu_ms == 2 * line.all.gpu_ms


def beneath(one: TreeSum, other: TreeSum) -> bool:
    return one.path.rpartition("/")[0] == other.path
