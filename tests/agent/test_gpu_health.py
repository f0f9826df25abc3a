"""Rules Q1 to Q11 of `agent/gpu_health.py`: faults 31, 60, 61, 62, 63, 64, 65, 68, 150 and 151."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.agent.gpu_health import CLEAN_LOOKS, GpuHealth, HealthMemory, HealthRules, carried_over
from stoker.brain.domain.gpu_telemetry import GpuLook, GpuProcess, GpuSample, RemappedRows, throttled_by
from stoker.brain.domain.health import GpuCondition
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.units import Instant

A, B = GpuUuid("GPU-a"), GpuUuid("GPU-b")
WELL = GpuSample(uuid=A, index=0, temperature_c=40, memory_used_mb=3, ecc_errors=5, processes=())
OTHER = replace(WELL, uuid=B, index=1)
NAMES = {7: "python", 8: "nv-hostengine", 999: ""}


class Node:
    """Looks five seconds apart at two GPUs, of which the second is well."""

    def __init__(self, memory: HealthMemory | None = None, **rules: object) -> None:
        self.health = GpuHealth(HealthRules(**rules), memory, NAMES.__getitem__)  # type: ignore[arg-type]  # of any type
        self.mono_s = 0.0
        self.changes = 0

    def look(self, *samples: GpuSample, held: Collection[GpuUuid] | None = (), times: int = 1) -> list[str]:
        for _ in range(times):
            self.mono_s += 5.0
            look = GpuLook(samples=samples or (WELL, OTHER))
            self.changes += self.health.fold(look, held, Instant(int(self.mono_s * 1_000)), self.mono_s)
        return self.told

    @property
    def told(self) -> list[str]:
        return [f"{each.index} {each.state} {each.kind}" for each in self.health.conditions]

    @property
    def one(self) -> GpuCondition:
        (only,) = self.health.conditions
        return only


def test_healthy_gpus_have_no_condition_whatever_runs_on_those_that_tasks_have() -> None:
    node = Node()
    full = replace(WELL, memory_used_mb=79_000, processes=(GpuProcess(7, 79_000),))
    assert node.look(full, OTHER, held=(A,), times=3) == []
    assert node.look(full, OTHER, held=None) == [], "after its start an agent doesn't know yet what tasks have"
    assert node.changes == 0


@pytest.mark.parametrize("lost", [(replace(WELL, fault="GPU is lost"), OTHER), (OTHER,)])
def test_a_gpu_is_lost_at_the_second_look_and_offered_after_three_clean_ones(lost: tuple[GpuSample, ...]) -> None:
    node = Node()
    node.look()
    assert node.look(*lost) == [], "a driver may hiccup"
    assert node.look(*lost, times=9) == ["0 drained lost"]
    assert (node.one.since, node.one.ends_work, node.changes) == (15_000, True, 1)
    assert node.look() == ["0 repairing lost"]
    assert not node.one.offered
    assert node.look(times=CLEAN_LOOKS - 2) == ["0 repairing lost"]
    assert node.look() == []


def test_an_uncorrected_memory_error_drains_a_gpu_and_older_ones_do_not() -> None:
    node = Node(error_clean_s=100.0)
    assert node.look(held=(A,)) == []
    worse = replace(WELL, ecc_errors=6)
    assert node.look(worse, OTHER, held=(A,)) == ["0 drained ecc"]
    assert node.one.reason == "1 more uncorrected memory errors"
    assert node.look(worse, OTHER, times=19) == ["0 repairing ecc"]
    assert node.look(worse, OTHER) == [], "nothing more for as long as it takes"
    node.look(replace(WELL, ecc_errors=7), OTHER)
    assert node.look(replace(WELL, ecc_errors=7), OTHER, times=38) == ["0 repairing ecc"], "twice as long"
    assert node.look(replace(WELL, ecc_errors=7), OTHER, times=4) == []
    assert node.look(replace(WELL, ecc_errors=0), OTHER) == [], "the driver was loaded anew"


@pytest.mark.parametrize(
    ("xid", "told"), [(31, []), (45, []), (79, ["0 drained xid"]), (94, ["0 drained xid"]), (999, ["0 suspect xid"])]
)
def test_errors_of_programs_cost_no_gpu_those_of_the_device_do_and_others_make_it_suspect(
    xid: int, told: list[str]
) -> None:
    node = Node(error_clean_s=60.0)
    assert node.look(replace(WELL, xids=(xid,)), OTHER, held=(A,)) == told
    assert node.look(times=20) == []
    assert node.changes == {0: 0, 1: 3 if "drained" in str(told) else 2}[len(told)]


def test_which_errors_drain_is_the_sites_to_say() -> None:
    assert Node(xids_drain=(79,)).look(replace(WELL, xids=(94,)), OTHER) == ["0 suspect xid"]


def test_a_warm_gpu_is_suspect_until_it_is_clearly_cooler_and_no_numbers_move_it() -> None:
    """Thermal headroom: others are preferred to it, and each change is an event."""
    node = Node()
    assert node.look(replace(WELL, temperature_c=84), OTHER) == []
    for celsius in (85, 89, 81, 86):
        assert node.look(replace(WELL, temperature_c=celsius), OTHER) == ["0 suspect warm"]
    assert (node.changes, node.one.offered, node.one.ends_work) == (1, True, False)
    assert node.look(replace(WELL, temperature_c=90), OTHER) == ["0 drained hot"]
    cooler = replace(WELL, temperature_c=79)
    assert node.look(cooler, OTHER, times=CLEAN_LOOKS) == []
    assert node.look(replace(WELL, temperature_c=86), OTHER) == ["0 suspect warm"]
    assert node.look(cooler, OTHER, times=CLEAN_LOOKS) == []
    assert Node(hot_c=0).look(replace(WELL, temperature_c=99), OTHER) == []
    unknown = replace(WELL, temperature_c=None), replace(OTHER, temperature_c=None)
    assert Node(hot_c=4).look(*unknown) == [], "what isn't told is no temperature"


def test_a_warm_gpu_comes_back_clean_as_soon_as_any_other() -> None:
    node, warm = Node(), replace(WELL, temperature_c=87)
    assert node.look(replace(warm, processes=(GpuProcess(7, 5),)), OTHER) == ["0 drained process"]
    assert node.look(warm, OTHER) == []
    assert node.look(warm, OTHER) == ["0 suspect warm"]
    assert node.look(replace(warm, fault="GPU is lost"), OTHER) == ["0 drained lost"]
    assert node.look(warm, OTHER) == ["0 repairing lost"]
    assert node.look(warm, OTHER, times=CLEAN_LOOKS) == ["0 suspect warm"]
    assert node.look(replace(warm, xids=(999,)), OTHER) == ["0 suspect xid"], "what is graver is told"


THROTTLED = replace(WELL, clock_events=0x48)


def test_a_gpu_whose_clocks_are_held_down_for_long_is_suspect_until_they_are_its_own() -> None:
    node = Node()
    assert node.look(THROTTLED, OTHER, held=(A,), times=2) == [], "for a moment any large GPU is"
    assert node.look(THROTTLED, OTHER, held=(A,), times=9) == ["0 suspect throttled"]
    assert node.one.reason == "its driver holds its clocks down: it is too hot"
    assert (node.changes, node.one.offered) == (1, True)
    assert node.look(times=CLEAN_LOOKS - 1) == ["0 suspect throttled"]
    assert node.look() == []
    limited = replace(WELL, clock_events=0x4 | 0x2 | 0x1)
    assert node.look(limited, OTHER, times=9) == [], "a power limit is how large GPUs run"
    assert throttled_by(0x8) == ("slowed",)
    assert throttled_by(0x20 | 0x80 | 0x8) == ("hot", "power_brake")
    assert node.look(replace(THROTTLED, temperature_c=95), OTHER, times=9) == ["0 drained hot"], (
        "what is graver is told"
    )


def test_a_row_of_memory_that_cannot_be_replaced_takes_a_gpu_out_and_one_that_waits_for_a_reset_does_not() -> None:
    node = Node()
    pending, failed = (replace(WELL, rows=RemappedRows(0, 3, each == 0, each == 1)) for each in (0, 1))
    assert node.look(pending, OTHER, held=(A,), times=9) == ["0 suspect rows"]
    assert (node.changes, node.one.offered) == (1, True)
    assert node.look(failed, OTHER, held=(A,), times=9) == ["0 drained rows"]
    assert (node.changes, node.one.ends_work) == (2, False), "what runs there goes on, until an error hits it"
    assert node.look(replace(failed, ecc_errors=6), OTHER, held=(A,)) == ["0 drained ecc"]
    assert node.look(replace(failed, ecc_errors=6), OTHER) == ["0 drained rows"]
    assert node.look(replace(WELL, ecc_errors=6), OTHER, times=200) == [], "it was replaced"


def test_a_hot_gpu_is_offered_again_only_once_it_is_clearly_cooler() -> None:
    node = Node(hot_c=90)
    assert node.look(replace(WELL, temperature_c=90), OTHER) == ["0 drained hot"]
    assert not node.one.ends_work, "what runs there goes on"
    for celsius in (89, 95, 80):
        assert node.look(replace(WELL, temperature_c=celsius), OTHER) == ["0 drained hot"]
    assert (node.changes, node.one.reason) == (1, "it has 90 C; 90 are too hot")
    cooler = replace(WELL, temperature_c=79)
    assert node.look(cooler, OTHER) == ["0 repairing hot"]
    assert node.look(cooler, OTHER, times=2) == []
    assert Node(hot_c=0).look(replace(WELL, temperature_c=120), OTHER) == []


def test_a_foreign_process_or_leftover_memory_keeps_a_free_gpu_back_until_it_is_clean() -> None:
    node = Node(leftover_mb=500, ignored=("nv-",))
    foreign = replace(WELL, processes=(GpuProcess(7, 300), GpuProcess(8, 1)))
    assert node.look(foreign, OTHER) == ["0 drained process"]
    assert node.one.reason == "process 7 (python) with 300 MiB is on it, and no task of this node"
    assert node.look(replace(WELL, memory_used_mb=501), OTHER) == ["0 drained memory"]
    assert node.look(replace(WELL, memory_used_mb=500), OTHER) == []
    gone = replace(WELL, processes=(GpuProcess(999),))
    node.look(gone, OTHER)
    assert "process 999 (not to be seen from here) is on it" in node.one.reason
    node.health = GpuHealth(
        HealthRules(), name_of=NAMES.__getitem__, container_of={7: "0123456789ab", 8: ""}.__getitem__
    )
    node.look(foreign, OTHER)
    assert node.one.reason.startswith("process 7 (python) in container 0123456789ab with 300 MiB, process 8")
    assert Node(leftover_mb=0).look(replace(WELL, memory_used_mb=70_000), OTHER) == []


def test_a_gpu_that_was_dirty_after_an_error_stays_out_until_the_error_is_old() -> None:
    node = Node(error_clean_s=60.0)
    node.look(replace(WELL, xids=(48,)), OTHER)
    assert node.look(replace(WELL, memory_used_mb=9_999), OTHER) == ["0 drained memory"]
    assert node.look() == ["0 repairing xid"]
    assert node.look(replace(WELL, xids=(999,)), OTHER) == ["0 repairing xid"], "a lesser one doesn't let it back in"


def test_an_error_that_makes_a_gpu_suspect_alone_keeps_it_out_for_nothing_else() -> None:
    node = Node(error_clean_s=60.0)
    assert node.look(replace(WELL, xids=(999,)), OTHER) == ["0 suspect xid"]
    assert node.look(replace(WELL, memory_used_mb=9_999), OTHER) == ["0 drained memory"]
    assert node.look() == ["0 suspect xid"], "as it was"
    assert node.look(replace(WELL, fault="GPU is lost"), OTHER) == ["0 drained lost"]
    assert node.look() == ["0 repairing lost"]
    assert node.look(times=CLEAN_LOOKS - 1) == ["0 suspect xid"]
    assert node.look(times=9) == [], "the error is old"


def test_after_a_task_its_end_names_faults_that_may_have_caused_it() -> None:
    node = Node()
    node.look()
    ended = (replace(WELL, xids=(31,)), replace(OTHER, ecc_errors=6))
    node.health.judge_ended(ended, Instant(1), 6.0)
    assert node.told == ["1 drained ecc"]
    assert node.health.faults_of((A, B)) == "GPU 1 (GPU-b): 1 more uncorrected memory errors"
    assert node.health.faults_of((A,)) == ""
    node.health.judge_ended((replace(WELL, fault="GPU is lost"),), Instant(1), 7.0)
    assert node.health.faults_of((A,)) == "GPU 0 (GPU-a): GPU is lost"
    node.health.judge_ended((replace(WELL, uuid=GpuUuid("GPU-c"), xids=(31,)),), Instant(1), 7.0)
    assert node.health.faults_of((GpuUuid("GPU-c"),)) == ""


def test_an_agent_that_starts_anew_knows_what_ailed_its_gpus() -> None:
    before = Node(error_clean_s=100.0)
    before.look()
    before.look(replace(WELL, xids=(79,)), OTHER)
    after = Node(carried_over(before.health.memory, mono_s=0.0), error_clean_s=100.0)
    assert after.look(times=19) == ["0 repairing xid"]
    assert after.look(replace(WELL, ecc_errors=6), OTHER) == ["0 drained ecc"], "errors count on from before"


samples = st.builds(
    GpuSample,
    uuid=st.just(A),
    index=st.just(0),
    fault=st.sampled_from(["", "", "", "GPU is lost"]),
    temperature_c=st.none() | st.integers(20, 110),
    clock_events=st.none() | st.sampled_from([0, 0x4, 0x40]),
    rows=st.none() | st.builds(RemappedRows, pending=st.booleans(), failed=st.booleans()),
    memory_used_mb=st.none() | st.integers(0, 4_000),
    ecc_errors=st.none() | st.integers(0, 3),
    xids=st.lists(st.sampled_from([13, 79, 999]), max_size=1).map(tuple),
    processes=st.none() | st.just((GpuProcess(7),)) | st.just(()),
)


@given(st.lists(st.tuples(samples, st.booleans()), max_size=30))
def test_whatever_happened_a_gpu_that_is_well_for_long_is_offered(looks: list[tuple[GpuSample, bool]]) -> None:
    node = Node(error_clean_s=10.0)
    for sample, is_held in looks:
        node.look(sample, OTHER, held=(A,) if is_held else ())
        assert len(node.health.conditions) <= 1
    last = node.health.memory.ecc.get(A, 0)
    node.mono_s += 200_000.0
    assert node.look(replace(WELL, ecc_errors=last), OTHER, times=CLEAN_LOOKS) == []


def test_a_gpu_that_does_not_answer_where_others_do_is_kept_back_alone_while_no_task_has_it() -> None:
    node, silent = Node(), replace(OTHER, unanswered="NVML didn't answer within 10 s")
    assert node.look(WELL, silent, held=(B,), times=3) == [], "what runs there goes on"
    assert node.look(WELL, silent) == ["1 drained unanswered"]
    assert node.look() == []


SLICE = replace(WELL, uuid=GpuUuid("MIG-a"), index=2_000, parent=GpuUuid("GPU-c"))


def divided(*samples: GpuSample) -> GpuLook:
    return GpuLook(samples=(WELL, *samples), divided=(GpuUuid("GPU-c"),))


def fold(node: Node, look: GpuLook, held: Collection[GpuUuid] = (), times: int = 1) -> list[str]:
    for _ in range(times):
        node.mono_s += 5.0
        node.health.fold(look, held, Instant(int(node.mono_s * 1_000)), node.mono_s)
    return node.told


def test_q9_a_mig_instance_that_was_taken_away_under_a_task_is_lost_until_that_is_gone_and_then_forgotten() -> None:
    node = Node()
    assert fold(node, divided(SLICE), held=(SLICE.uuid,)) == []
    assert fold(node, divided(), held=(SLICE.uuid,), times=2) == ["2000 drained lost"]
    assert node.one.ends_work
    assert fold(node, divided()) == []
    assert fold(node, divided(), times=5) == []


def test_q9_one_that_no_task_had_is_forgotten_at_once_and_so_is_a_gpu_that_was_divided_or_put_together() -> None:
    node = Node()
    fold(node, divided(SLICE, replace(SLICE, uuid=GpuUuid("MIG-b"), index=2_001)))
    assert fold(node, divided(SLICE), times=3) == []
    whole = replace(WELL, uuid=GpuUuid("GPU-c"), index=1)
    assert fold(node, GpuLook(samples=(WELL, whole)), times=3) == []
    assert fold(node, divided(), times=3) == [], "MIG is on again, and nobody has made instances yet"


def test_q9_one_that_is_gone_is_lost_for_as_long_as_the_node_offers_it() -> None:
    """The node learns which GPUs it has by looks of their own: meanwhile nobody gets it."""
    node = Node()
    fold(node, divided(SLICE))
    node.health.offered = (SLICE.uuid,)
    assert fold(node, divided(), times=9) == ["2000 drained lost"]
    node.health.offered = ()
    assert fold(node, divided()) == []


def test_q9_what_is_wrong_with_a_gpu_is_wrong_with_each_of_its_instances() -> None:
    node = Node()
    other = replace(SLICE, uuid=GpuUuid("MIG-b"), index=2_001)
    sick = [replace(each, ecc_errors=6) for each in (SLICE, other)]
    fold(node, divided(SLICE, other))
    assert fold(node, divided(*sick)) == ["2000 drained ecc", "2001 drained ecc"]
    lost = [replace(each, fault="GPU is lost") for each in (SLICE, other)]
    node = Node()
    fold(node, divided(SLICE, other))
    assert fold(node, GpuLook(samples=(WELL, *lost)), times=2) == ["2000 drained lost", "2001 drained lost"]


def test_q9_what_an_agent_before_this_one_knew_of_an_instance_that_is_gone_is_forgotten() -> None:
    node = Node()
    fold(node, divided(SLICE), held=(SLICE.uuid,))
    fold(node, divided(), held=(SLICE.uuid,), times=2)
    later = Node(carried_over(node.health.memory, 0.0))
    assert fold(later, divided(), held=(SLICE.uuid,)) == ["2000 drained lost"]
    assert fold(later, divided()) == []
