"""Health of a node as a whole, by `brain/domain/node_health.py`."""

from msgspec.structs import replace

from stoker.brain.domain.health import GpuCondition, HealthKind, HealthState
from stoker.brain.domain.ids import GpuUuid, Principal
from stoker.brain.domain.node import NodePause
from stoker.brain.domain.node_health import CLOCK_OFF_MS, node_health
from stoker.brain.domain.units import Instant
from tests.builders import node

WELL = node("n1")
HOT = GpuCondition(uuid=GpuUuid("a"), index=0, state=HealthState.DRAINED, kind=HealthKind.HOT, reason="it has 99 C")


def test_a_node_is_as_ill_as_the_gravest_that_ails_it() -> None:
    assert node_health(WELL) == (HealthState.HEALTHY, ())
    ill = replace(WELL, inventory=replace(WELL.inventory, conditions=(HOT,)))
    assert node_health(ill) == (HealthState.SUSPECT, ("1 GPU drained: it has 99 C",))
    odd = replace(HOT, state=HealthState.SUSPECT, kind=HealthKind.XID, reason="the driver reports XID 999")
    ill = replace(WELL, inventory=replace(WELL.inventory, conditions=(odd,)))
    assert node_health(ill) == (HealthState.SUSPECT, ("GPU 0: the driver reports XID 999",))
    paused = replace(ill, pause=NodePause(until=Instant(9), error="no space left on device"))
    assert node_health(paused).state is HealthState.REPAIRING
    faulty = replace(paused, inventory=replace(ill.inventory, fault="health.check (exit 1): no"))
    found = node_health(faulty)
    assert (found.state, found.reasons[0]) == (HealthState.DRAINED, "health.check (exit 1): no")


def test_a_clock_makes_a_node_suspect_once_it_is_clearly_wrong() -> None:
    assert node_health(WELL, CLOCK_OFF_MS).state is HealthState.HEALTHY
    assert node_health(WELL, CLOCK_OFF_MS + 1).reasons == ("its clock is 5 s ahead",)
    assert node_health(WELL, -3_600_000).reasons == ("its clock is 3600 s behind",)


def test_a_drain_by_a_person_is_no_illness_and_one_by_the_nodes_own_program_is() -> None:
    drained = replace(WELL, drain="new RAM", drained_by=Principal("user:ada"))
    assert node_health(drained).state is HealthState.HEALTHY
    own = replace(drained, drain="epilog: scratch is full", drained_by=Principal("node:n1"))
    assert node_health(own) == (HealthState.DRAINED, ("epilog: scratch is full",))
