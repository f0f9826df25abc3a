"""The nouns: how they are read, matched, named and moved."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.allocation import TaskPlacement
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.environment import host_file, share_variables, task_environment
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.fit import tasks_that_fit
from stoker.brain.domain.gpu import (
    Gpu,
    asks_for_mig,
    gpus_number,
    index_parts,
    index_text,
    mig_index,
    mig_profile,
    model_matches,
    parse_gpu_share,
)
from stoker.brain.domain.ids import Epoch, GpuUuid, JobId, NodeName, Principal, parse_job_id
from stoker.brain.domain.job import Attempt, Job, JobSpec, Task, Visible
from stoker.brain.domain.lifecycle import (
    FINAL,
    JOB_MOVES,
    JOB_STATES,
    LIVE,
    IllegalMove,
    JobState,
    check_move,
    states_named,
)
from stoker.brain.domain.node import Free
from stoker.brain.domain.reason import Reason, ReasonCode, describe, hint_for
from stoker.brain.domain.units import Instant, human_duration


@pytest.mark.parametrize(
    ("wish", "model"),
    [
        ("", "anything"),
        ("V100", "Tesla V100-SXM2-32GB"),
        ("v100-sxm2", "Tesla V100-SXM2-32GB"),
        ("Tesla V100-SXM2-32GB", "Tesla V100-SXM2-32GB"),
        ("H100 80GB", "NVIDIA H100 80GB HBM3"),
        ("a100", "NVIDIA A100-SXM4-40GB"),
    ],
)
def test_a_short_name_finds_the_drivers_long_one(wish: str, model: str) -> None:
    assert model_matches(wish, model)


@pytest.mark.parametrize(
    ("wish", "model"),
    [
        ("V100", "Tesla V1000"),
        ("A10", "NVIDIA A100-SXM4-40GB"),
        ("H100", "NVIDIA A100"),
        ("*", "NVIDIA A100"),
        ("V100 32GB", "Tesla V100-SXM2-32GB"),
    ],
)
def test_only_whole_words_in_order_match(wish: str, model: str) -> None:
    assert not model_matches(wish, model)


SLICE = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"


@pytest.mark.parametrize(
    "wish",
    ["mig", "MIG", "1g.10gb", "mig-1g.10gb", "MIG 1g.10gb", "H100 1G.10GB", "h100-mig-1g.10gb", "H100 MIG", SLICE],
)
def test_who_asks_for_a_mig_instance_by_the_word_or_the_profile_gets_one_and_no_whole_gpu(wish: str) -> None:
    assert model_matches(wish, SLICE)
    assert not model_matches(wish, "NVIDIA H100 80GB HBM3")
    assert asks_for_mig(wish)


@pytest.mark.parametrize("wish", ["", "H100", "NVIDIA H100 80GB HBM3", "10gb", "80GB", "migraine", "*"])
def test_who_does_not_ask_for_a_mig_instance_gets_none(wish: str) -> None:
    assert not model_matches(wish, SLICE)
    assert not asks_for_mig(wish)


@pytest.mark.parametrize("wish", ["2g.20gb", "1g.10gb+me", "1c.1g.10gb", "A100 1g.10gb", "A100 mig", "11g.10gb"])
def test_a_mig_instance_of_another_profile_or_gpu_is_another(wish: str) -> None:
    assert not model_matches(wish, SLICE)


def test_the_number_of_a_mig_instance_is_that_of_its_gpu_and_its_own() -> None:
    assert [index_text(index) for index in (0, 15, mig_index(0, 3), mig_index(12, 0))] == ["0", "15", "0:3", "12:0"]
    assert [index_parts(index) for index in (15, mig_index(12, 6))] == [(15, None), (12, 6)]
    assert (mig_profile(SLICE), mig_profile("NVIDIA H100 80GB HBM3")) == ("1g.10gb", "")


@pytest.mark.parametrize("text", ["0", "-1", "1.0", "", " 7", "٣", "1" * 17, "123_4", "job-1", "9" * 16 + "9"])
def test_what_is_not_a_job_id_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(StokerError) as error:
        parse_job_id(text)
    assert error.value.refusal.code == "bad_job_id"


def test_a_job_id_reads_back() -> None:
    assert parse_job_id("42") == 42


def test_every_state_has_words_and_moves_and_from_final_ones_only_a_new_wait_follows() -> None:
    assert set(JOB_STATES) == set(JOB_MOVES) == set(JobState)
    assert all(JOB_MOVES[state] == {JobState.PENDING} for state in FINAL)
    assert not LIVE & FINAL


def test_an_illegal_move_tells_the_jobs_story() -> None:
    with pytest.raises(IllegalMove, match="job 7 did this"):
        check_move(JobState.SUCCEEDED, JobState.RUNNING, "job 7 did this")


def test_filters_understand_every_dialect() -> None:
    assert states_named("completed") == (JobState.SUCCEEDED,)
    assert states_named("success") == (JobState.SUCCEEDED,)
    assert states_named("CG") == (JobState.STOPPING,)
    assert states_named("pending") == (JobState.PENDING,), "Stoker's own word means itself"
    assert states_named("nonsense") == ()


@pytest.mark.parametrize("code", list(ReasonCode))
def test_every_reason_has_a_sentence_and_a_hint_even_without_facts(code: ReasonCode) -> None:
    assert describe(Reason(code))
    assert hint_for(Reason(code))


@pytest.mark.parametrize("word", ["unreachable", "faulty", "draining", "paused", "forgotten"])
def test_a_resume_is_advised_only_of_nodes_that_it_brings_back(word: str) -> None:
    facts: dict[str, str | int] = {"unreachable": 0, "faulty": 0, "draining": 0, "paused": 0, "forgotten": 0}
    hint = hint_for(Reason(ReasonCode.NODES_UNAVAILABLE, {"fitting": 1, **facts, word: 1}))
    assert "`stoker node list`" in hint
    assert ("`stoker node resume NODE`" in hint) is (word in ("draining", "paused"))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"succeeded": 2, "failed": 1, "cancelled": 0, "others": 1}, True),
        ({"succeeded": 3, "failed": 0, "cancelled": 0, "others": 0}, False),
        ({"succeeded": 0, "failed": 0, "cancelled": 3, "others": 3}, False),
        ({"succeeded": 2, "others": 1}, True),
        ({"succeeded": 3, "others": 0}, False),
    ],
)
def test_a_requeue_of_an_array_is_advised_only_where_members_may_have_failed(
    facts: dict[str, str | int], told: bool
) -> None:
    reason = Reason(ReasonCode.MEMBERS_ENDED, facts)
    assert ("`stoker requeue ID`" in hint_for(reason)) is told
    assert "`stoker requeue ID`" not in hint_for(reason, forgotten=True), "that is refused"


def test_whoever_asks_for_more_than_the_whole_limit_is_not_told_to_wait_for_the_end_of_other_jobs() -> None:
    facts: dict[str, str | int] = {"tenant": "vision", "what": "GPUs", "used": 0, "limit": 2}
    assert "starts when jobs" in hint_for(Reason(ReasonCode.TENANT_LIMIT, {**facts, "asked": 2}))
    hint = hint_for(Reason(ReasonCode.TENANT_LIMIT, {**facts, "asked": 4}))
    assert "can't start" in hint
    assert "`stoker tenant set vision`" in hint


@pytest.mark.parametrize("code", [ReasonCode.INSUFFICIENT_CPUS, ReasonCode.INSUFFICIENT_MEMORY])
def test_a_job_without_gpus_that_waits_for_cpus_is_not_told_that_gpus_are_free(code: ReasonCode) -> None:
    said = describe(Reason(code, {"tasks": 1, "needed": 1, "best": 0, "room": 0}))
    assert ("at most 0" in said, "GPUs are" in said) == (True, False)


def test_whoever_waits_beside_free_gpus_is_told_how_many_of_them_are_kept_and_not_that_all_are() -> None:
    said = describe(Reason(ReasonCode.GUARANTEE_KEPT, {"free": 5, "kept": 4, "asked": 2}))
    assert said.startswith("5 GPUs are free, and 4 are kept for whoever is within a guarantee")
    assert "asks for 2" in said


def test_a_class_that_waits_for_what_the_other_one_holds_beyond_its_share_is_told_so() -> None:
    assert "of the other one that are beyond its share" in hint_for(Reason(ReasonCode.POOL_LIMIT))


@given(st.integers(min_value=0, max_value=10**12))
def test_a_duration_is_always_readable(ms: int) -> None:
    assert human_duration(ms)[0].isdigit()


@given(
    st.integers(0, 20),
    st.integers(0, 64),
    st.integers(0, 4096),
    st.integers(0, 4),
    st.integers(0, 8),
    st.integers(1, 9),
)
def test_what_fits_never_needs_more_than_there_is(gpus: int, cpus: int, mem: int, g: int, c: int, tasks: int) -> None:
    demand = Demand(gpu_count=g, cpus=c, memory_mb=100, tasks=tasks)
    fit = tasks_that_fit(gpus, cpus, mem, demand)
    assert 0 <= fit <= tasks
    assert fit * g <= gpus
    assert fit * c <= cpus
    assert fit * 100 <= mem


def _attempt(*ranks: tuple[str, tuple[str, ...]], port: int = 0) -> tuple[Job, Attempt]:
    tasks = tuple(
        Task(
            placement=TaskPlacement(
                rank=i, node=NodeName(node), gpus=tuple(GpuUuid(g) for g in gpus), cpus=1, memory_mb=0
            )
        )
        for i, (node, gpus) in enumerate(ranks)
    )
    attempt = Attempt(
        number=2, epoch=Epoch(1), tasks=tasks, placed_at=Instant(1), master_addr="10.0.0.1", master_port=port
    )
    spec = JobSpec(
        name="train",
        demand=Demand(gpu_count=len(ranks[0][1]), tasks=len(ranks)),
        command="true",
        priority=500,
        time_limit_ms=1,
        env={"CUDA_VISIBLE_DEVICES": "7", "MINE": "1"},
    )
    job = Job(id=JobId(9), uid="u", spec=spec, by=Principal("user:anna"), submitted_at=Instant(1), attempts=(attempt,))
    return job, attempt


def test_a_job_sees_its_gpus_by_uuid_in_pci_order_whatever_it_set_itself() -> None:
    """Faults 47, 48, 52: binding by index, in an order that CUDA doesn't share."""
    job, attempt = _attempt(("n1", ("GPU-b", "GPU-a")))
    env = task_environment(job, attempt, 0, {}, {})
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == "GPU-b,GPU-a"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["MINE"] == "1"
    assert (env["STOKER_JOB_ID"], env["STOKER_ATTEMPT"], env["STOKER_RESTART_COUNT"]) == ("9", "2", "1")


def test_a_job_may_ask_for_integers() -> None:
    job, attempt = _attempt(("n1", ("GPU-b", "GPU-a")))

    job = replace(job, spec=replace(job.spec, visible=Visible.INDEX))
    gpus = [Gpu(uuid=GpuUuid(f"GPU-{c}"), index=i, model="m", memory_mb=1) for i, c in enumerate("ab")]
    assert task_environment(job, attempt, 0, {NodeName("n1"): gpus}, {})["CUDA_VISIBLE_DEVICES"] == "1,0"


def test_a_job_without_gpus_sees_none() -> None:
    job, attempt = _attempt(("n1", ()))
    env = task_environment(job, attempt, 0, {}, {})
    assert (env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")


def test_a_task_is_what_torch_calls_a_node_and_torchrun_starts_a_process_for_each_of_its_gpus() -> None:
    job, attempt = _attempt(("n1", ("a", "b")), ("n1", ("c", "d")), ("n2", ("e", "f")), port=20_123)
    envs = [task_environment(job, attempt, rank, {}, {}) for rank in range(3)]
    everywhere = {
        "WORLD_SIZE": "3", "NNODES": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20123", "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "20123",
    }  # fmt: skip
    assert all(everywhere.items() <= env.items() for env in envs)
    names = ("RANK", "NODE_RANK", "PET_NODE_RANK")
    assert [[env[name] for name in names] for env in envs] == [[str(rank)] * 3 for rank in range(3)]


def test_a_task_knows_its_place_within_its_machine() -> None:
    job, attempt = _attempt(("n1", ("a",)), ("n1", ("b",)), ("n2", ("c",)), port=20_123)
    envs = [task_environment(job, attempt, rank, {}, {}) for rank in range(3)]
    places = [(env["STOKER_LOCAL_RANK"], env["STOKER_LOCAL_SIZE"]) for env in envs]
    assert places == [("0", "2"), ("1", "2"), ("0", "1")]


def test_a_job_of_one_task_without_gpus_is_a_world_of_one_whose_place_its_node_chooses() -> None:
    job, attempt = _attempt(("n1", ()))
    env = task_environment(job, attempt, 0, {}, {})
    world = {"RANK": "0", "WORLD_SIZE": "1", "NNODES": "1", "LOCAL_RANK": "0", "PET_NNODES": "1"}
    assert world.items() <= env.items()
    assert (env["PET_NPROC_PER_NODE"], "MASTER_PORT" in env, "PET_MASTER_ADDR" in env) == ("1", False, False)


def test_a_host_file_names_each_machine_once_in_the_order_of_ranks_with_its_slots() -> None:
    """DeepSpeed refuses a file that names a machine twice; two nodes may be one machine."""
    _, attempt = _attempt(("n1", ("a", "b")), ("n2", ("c", "d")), ("n3", ("e", "f")), ("n3", ("g", "h")))
    addresses = {NodeName("n1"): "10.0.0.1", NodeName("n2"): "10.0.0.1", NodeName("n3"): "h3"}
    assert host_file(attempt, addresses) == "10.0.0.1 slots=4\nh3 slots=4\n"


def test_tasks_without_gpus_are_one_slot_each_of_a_host_file() -> None:
    _, attempt = _attempt(("n1", ()), ("n1", ()), ("n2", ()))
    addresses = {NodeName("n1"): "10.0.0.1", NodeName("n2"): "10.0.0.2"}
    assert host_file(attempt, addresses) == "10.0.0.1 slots=2\n10.0.0.2 slots=1\n"


def test_what_a_placement_takes_is_free_no_more_and_the_rest_is() -> None:
    gpus = tuple(Gpu(uuid=GpuUuid(f"G{n}"), index=n, model="H100", memory_mb=81_920) for n in range(2))
    placement = TaskPlacement(rank=0, node=NodeName("n"), gpus=(gpus[0].uuid,), cpus=3, memory_mb=10)
    assert Free(gpus, 8, 100).take(placement) == Free(gpus[1:], 5, 90)


# -- shares of a GPU ---------------------------------------------------------------------------------------------


def test_a_sharer_is_told_its_share_and_bound_and_those_of_mps_only_where_there_is_one() -> None:
    whole = TaskPlacement(rank=0, node=NodeName("n"), gpus=(GpuUuid("g"),), cpus=1, memory_mb=0)
    share = replace(whole, gpu_share=335, gpu_memory_mb=10_240)
    assert share_variables(whole, "/tmp/mps") == {}
    assert share_variables(share, "") == {"STOKER_GPU_SHARE": "0.335", "STOKER_GPU_MEMORY_MB": "10240"}
    told = share_variables(share, "/tmp/mps")
    assert told["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/mps"
    assert told["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "33"
    assert told["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
    tiny = share_variables(replace(share, gpu_share=1), "/tmp/mps")
    assert tiny["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1", "0 would mean no bound"


def test_where_the_memory_of_a_device_is_not_known_no_bound_of_none_is_set() -> None:
    """A driver that answers `[N/A]` for it: a limit of 0 MiB would leave the program without any memory."""
    bare = TaskPlacement(rank=0, node=NodeName("n"), gpus=(GpuUuid("g"),), cpus=1, memory_mb=0, gpu_share=500)
    assert share_variables(bare, "") == {"STOKER_GPU_SHARE": "0.5"}
    assert set(share_variables(bare, "/tmp/mps")) == {
        *("STOKER_GPU_SHARE", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
    }


@pytest.mark.parametrize(("text", "milli"), [("0.25", 250), ("1", 1_000), (" .5 ", 500), ("1e-3", 1), ("0.250", 250)])
def test_a_share_is_read_in_thousandths(text: str, milli: int) -> None:
    assert parse_gpu_share(text) == milli
    assert parse_gpu_share(repr(milli / 1_000)) == milli


def test_thousandths_are_shown_as_people_write_gpus() -> None:
    assert [gpus_number(milli) for milli in (0, 250, 1_000, 2_500)] == [0, 0.25, 1, 2.5]
    assert isinstance(gpus_number(2_000), int)
