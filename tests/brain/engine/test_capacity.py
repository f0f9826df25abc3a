"""What `Capacity` looks up is what going through all nodes would find."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.fit import tasks_that_fit
from stoker.brain.engine.demand_cache import UNBOUNDED, Capacity, CapacityRow, CapacityRows

_ROWS = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 20), st.integers(0, 400)), max_size=6)
"""Slots, free CPUs and free memory of nodes."""
_DEMANDS = st.lists(
    st.builds(
        Demand, gpu_count=st.just(1), cpus=st.integers(0, 7), memory_mb=st.integers(0, 200), tasks=st.integers(1, 9)
    ),
    min_size=1,
    max_size=30,
)


def _capacity(rows: list[CapacityRow]) -> Capacity:
    return Capacity(lambda: [CapacityRows(rows[:1]), CapacityRows(rows[1:])])


def _naive(rows: list[CapacityRow], demand: Demand) -> int:
    alone = Demand(gpu_count=1, cpus=demand.cpus, memory_mb=demand.memory_mb, tasks=99)
    return sum(tasks_that_fit(*row, alone) for row in rows)


@given(_ROWS, _DEMANDS)
def test_the_tasks_that_find_room_are_those_that_a_walk_over_all_nodes_finds(
    rows: list[CapacityRow], demands: list[Demand]
) -> None:
    """Also after many questions, when the walk has given way to a sorted list."""
    capacity = _capacity(rows)
    for demand in demands:
        with_cpus = capacity.with_cpus(demand.cpus)
        assert with_cpus.tasks == _naive(rows, Demand(cpus=demand.cpus))
        assert with_cpus.tasks_with(demand.memory_mb) == _naive(rows, demand)
        assert capacity.holds(demand) == (_naive(rows, demand) >= demand.tasks)


@given(_ROWS, st.integers(0, 7), st.integers(1, 200), st.integers(1, 9))
def test_a_walk_that_stops_when_it_has_seen_enough_says_the_same(
    rows: list[CapacityRow], cpus: int, memory_mb: int, enough: int
) -> None:
    whole = _capacity(rows).with_cpus(cpus).tasks_with(memory_mb)
    assert (_capacity(rows).with_cpus(cpus).tasks_with(memory_mb, enough) >= enough) == (whole >= enough)


@given(_ROWS)
def test_the_best_numbers_are_those_of_nodes_that_count(rows: list[CapacityRow]) -> None:
    capacity = _capacity(rows)
    assert capacity.best_cpus == max((cpus for _, cpus, _ in rows), default=0)
    assert capacity.with_cpus(3).best_memory == max((memory for _, cpus, memory in rows if cpus >= 3), default=0)


def test_tasks_without_gpus_are_bounded_by_cpus_alone_and_never_listed_one_by_one() -> None:
    """As many slots as these would fill the memory of any machine."""
    with_cpus = _capacity([(UNBOUNDED, 0, 1_000)]).with_cpus(0)
    for memory_mb in range(1, 1_000):
        assert with_cpus.tasks_with(memory_mb) == 1_000 // memory_mb
    assert _capacity([(UNBOUNDED, 64, 1_000)]).with_cpus(3).tasks == 21
