"""Rules O1 to O3 of `engine/order.py`, seen through whole plans and the queue itself."""

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import JobId
from stoker.brain.engine.order import in_order
from stoker.brain.state.view import Bucket
from tests.builders import cluster, job, node, where


def _shape(gpus: int) -> Shape:
    return job(1, gpus=gpus).spec.shape


def test_higher_priority_goes_first_even_if_it_came_later() -> None:
    here = cluster(node("a", gpus=1), job(1, gpus=1, priority=500), job(2, gpus=1, priority=1_000))
    assert list(where(here.plan())) == [2]


def test_negative_priority_goes_last() -> None:
    here = cluster(node("a", gpus=1), job(1, gpus=1, priority=-1), job(2, gpus=1, priority=0))
    assert list(where(here.plan())) == [2]


def test_among_equals_the_first_submitted_goes_first_across_shapes() -> None:
    here = cluster(node("a", gpus=8), job(3, gpus=1), job(1, gpus=2), job(4, gpus=2), job(2, gpus=1))
    assert list(where(here.plan())) == [1, 2, 3, 4]


def test_the_order_of_buckets_in_the_view_does_not_matter() -> None:
    one, two = Bucket(500, _shape(1), [JobId(1), JobId(4)]), Bucket(500, _shape(2), [JobId(2), JobId(3)])
    forward = [id_ for id_, _ in in_order([one, two], blocked=())]
    assert forward == [id_ for id_, _ in in_order([two, one], blocked=())] == [1, 2, 3, 4]


def test_a_blocked_shape_does_not_come_up_again_at_any_priority() -> None:
    high, low = Bucket(1_000, _shape(1), [JobId(5), JobId(6)]), Bucket(100, _shape(1), [JobId(1), JobId(2)])
    other = Bucket(500, _shape(2), [JobId(3), JobId(4)])
    blocked: set[Shape] = set()
    seen = []
    for id_, shape in in_order([high, low, other], blocked):
        seen.append(id_)
        if shape == _shape(1):
            blocked.add(shape)
    assert seen == [5, 3, 4]
