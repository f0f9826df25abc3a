"""Bad input at submit: one clear refusal with a hint, and nothing is taken."""

import pytest
from msgspec.structs import replace

from stoker.brain.domain.array import ArraySpec
from stoker.brain.domain.container import BindMount, ContainerOptions
from stoker.brain.domain.demand import Demand
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.ids import NodeName, TenantName
from stoker.brain.domain.job import JobSpec, TextEncoding
from stoker.brain.domain.label import labels_of
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.where import admits
from stoker.brain.state.commands import NodeSilent, Submit
from tests.brain.state.story import ANNA, Story, inventory, spec

GOOD = spec()
LONG = "x" * 10_000_000


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (replace(GOOD, command=""), "empty_command"),
        (replace(GOOD, command="  \n "), "empty_command"),
        (replace(GOOD, command=()), "empty_command"),
        (replace(GOOD, command=("", "x")), "empty_command"),
        (replace(GOOD, command="a\0b"), "bad_text"),
        (replace(GOOD, name="\ud800"), "bad_text"),
        (replace(GOOD, name=LONG), "text_too_long"),
        (replace(GOOD, command=LONG), "text_too_long"),
        (replace(GOOD, command=("echo", LONG)), "text_too_long"),
        (replace(GOOD, env={"A": LONG}), "text_too_long"),
        (replace(GOOD, env={f"V{i}": "x" * 1000 for i in range(200)}), "text_too_long"),
        (replace(GOOD, env={"A=B": "1"}), "bad_env"),
        (replace(GOOD, env={"": "1"}), "bad_env"),
        (replace(GOOD, env={"A": "\0"}), "bad_text"),
        (replace(GOOD, workdir="relative/path"), "bad_workdir"),
        (replace(GOOD, demand=Demand(gpu_count=-1)), "out_of_range"),
        (replace(GOOD, demand=Demand(gpu_count=10**9)), "out_of_range"),
        (replace(GOOD, demand=Demand(gpu_count=1, tasks=0)), "out_of_range"),
        (replace(GOOD, demand=Demand(gpu_count=1, cpus=-1)), "out_of_range"),
        (replace(GOOD, demand=Demand(gpu_count=1, memory_mb=-5)), "out_of_range"),
        (replace(GOOD, demand=Demand(gpu_count=1, gpu_model=LONG)), "text_too_long"),
        (replace(GOOD, priority=10**12), "out_of_range"),
        (replace(GOOD, retries_max=-1), "out_of_range"),
        (replace(GOOD, retries_max=10**6), "out_of_range"),
        (replace(GOOD, time_limit_ms=-1), "bad_time"),
        (replace(GOOD, time_limit_ms=10**15), "time_limit_too_long"),
        (replace(GOOD, tenant=TenantName("vision")), "unknown_tenant"),
        (replace(GOOD, user="an anna"), "bad_user"),
        (replace(GOOD, image="nvidia/cuda:12.0-base"), "no_container_runtime"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_can_not_be_run_is_refused_by_name(bad: JobSpec, code: str) -> None:
    story = Story()
    refusal = story.refused(Submit(by=ANNA, specs=(bad,)))
    assert refusal.code == code
    assert len(refusal.message) < 500, "a refusal never repeats ten megabytes"


def test_a_job_in_latin_1_runs_only_where_its_bytes_arrive_as_they_are() -> None:
    story = Story()
    older, newer = NodeName("n1"), NodeName("n2")
    story.register("n1", replace(inventory("n1"), reads_latin_1=False))
    bytes_ = replace(GOOD, command="caf\xe9", encoding=TextEncoding.LATIN_1)
    refusal = story.refused(Submit(by=ANNA, specs=(bytes_,)))
    assert (refusal.code, "all nodes (1) are too old" in refusal.message) == ("encoding_unknown", True)
    story.node("n2")
    where = story.job(story.submit(bytes_)).spec.where
    nodes = story.state.nodes
    assert [admits(where, name, labels_of(nodes[name]), ()) for name in (older, newer)] == [False, True]
    assert admits(story.job(story.submit(GOOD)).spec.where, older, labels_of(nodes[older]), ())
    story.register("n1", inventory("n1"))
    assert admits(where, older, labels_of(nodes[older]), ()), "its agent was upgraded"


def test_a_job_with_a_script_runs_only_where_the_agent_keeps_scripts() -> None:
    story = Story()
    older, newer = NodeName("n1"), NodeName("n2")
    story.register("n1", replace(inventory("n1"), keeps_scripts=False))
    script = replace(GOOD, command=("train.sh",), script="echo\n")
    refusal = story.refused(Submit(by=ANNA, specs=(script,)))
    assert (refusal.code, "all nodes (1) are too old" in refusal.message) == ("scripts_unknown", True)
    story.node("n2")
    where = story.job(story.submit(script)).spec.where
    nodes = story.state.nodes
    assert [admits(where, name, labels_of(nodes[name]), ()) for name in (older, newer)] == [False, True]


@pytest.mark.parametrize(
    ("bad", "code", "word"),
    [
        ({"command": "train.sh"}, "bad_script", "a command that is a list"),
        ({"command": ()}, "empty_command", "empty"),
        ({"script": " \n"}, "bad_script", "the script is empty"),
        ({"script": "x" * (2 << 20)}, "text_too_long", "script has 2097152 bytes; at most 1048576 are taken"),
        ({"script": "\u00e4" * (1 << 20)}, "text_too_long", "2097152 bytes"),
        ({"script": "a\0"}, "bad_text", "NUL"),
        ({"script": "\u20ac", "encoding": TextEncoding.LATIN_1}, "bad_text", "lacks it"),
    ],
)
def test_a_script_that_can_not_be_kept_is_refused(bad: dict[str, object], code: str, word: str) -> None:
    refusal = Story().refused(Submit(by=ANNA, specs=(replace(GOOD, **{"command": ("a.sh",), "script": "x", **bad}),)))
    assert (refusal.code, word in refusal.message) == (code, True), refusal.message
    assert len(refusal.message) < 500


@pytest.mark.parametrize("name", ["Müller", "🔥 train", "a\nb", "pipe|quote'\"", "x" * 300])
def test_any_readable_name_is_kept_as_it_is(name: str) -> None:
    """Fault 167."""
    story = Story()
    assert story.job(story.submit(spec(name=name))).spec.name == name


def test_a_bulk_is_taken_whole_or_not_at_all_and_names_the_job_at_fault() -> None:
    story = Story()
    refusal = story.refused(Submit(by=ANNA, specs=(GOOD, GOOD, replace(GOOD, command=""))))
    assert refusal.message.startswith("jobs[2]: ")
    assert refusal.facts["index"] == 2
    assert not story.state.jobs


def test_an_empty_list_and_an_endless_one_are_refused() -> None:
    story = Story(Policy(jobs_per_submit_max=3))
    assert story.refused(Submit(by=ANNA, specs=())).code == "no_jobs"
    assert story.refused(Submit(by=ANNA, specs=(GOOD,) * 4)).code == "too_many_jobs"


def test_the_conditions_of_all_jobs_of_one_request_have_a_bound_and_the_refusal_says_which() -> None:
    """Ten thousand jobs with a hundred each on one job would cost a million verdicts whenever that one changes."""
    story = Story(Policy(dependencies_per_submit_max=5))
    first = story.submit(GOOD)
    waits = replace(GOOD, after=(Dependency(kind=DependencyKind.ANY, job=first),) * 3)
    refusal = story.refused(Submit(by=ANNA, specs=(waits, waits)))
    assert (refusal.code, refusal.facts) == ("too_many_dependencies", {"dependencies": 6, "dependencies_max": 5})
    assert "several requests" in refusal.hint
    assert story.submit(waits, replace(waits, after=waits.after[:2])), "as many as the bound are taken"


def test_the_queue_has_a_bound_and_the_refusal_says_which() -> None:
    story = Story(Policy(tenant_pending_jobs_max=2))
    story.submit(GOOD, GOOD)
    assert story.refused(Submit(by=ANNA, specs=(GOOD,))).facts["pending_max"] == 2


def test_ids_last_in_order_of_submission_and_are_never_reused() -> None:
    story = Story()
    ids = [story.submit() for _ in range(3)]
    story.cancel(ids[-1])
    assert [*ids, story.submit()] == [1, 2, 3, 4]


def test_a_demand_that_no_node_could_ever_meet_is_refused_with_the_largest_node() -> None:
    story = Story()
    assert story.submit(spec(64)) == 1, "with no node ever registered a job waits"
    story.node("n1", 8)
    story.node("n2", 4)
    story.do(NodeSilent(by=ANNA, node=NodeName("n1")))
    assert story.submit(spec(8)), "an unreachable node counts"
    refusal = story.refused(Submit(by=ANNA, specs=(spec(9),)))
    assert refusal.code == "demand_unsatisfiable"
    assert "8 GPUs" in refusal.message
    assert "--tasks" in refusal.hint
    gang = story.refused(Submit(by=ANNA, specs=(spec(4, tasks=4),)))
    assert "hold 3 of them" in gang.message


def test_an_unknown_model_is_refused_with_the_models_there_are() -> None:
    story = Story()
    story.node("n1", 8)
    wish = JobSpec(
        name="j", demand=Demand(gpu_count=1, gpu_model="A100"), command="true", priority=500, time_limit_ms=0
    )
    assert "H100" in story.refused(Submit(by=ANNA, specs=(wish,))).hint


def test_a_job_with_an_image_runs_only_where_containers_run_and_never_as_a_bare_process() -> None:
    story = Story()
    bare, able = NodeName("n1"), NodeName("n2")
    story.register("n1", inventory("n1"))
    boxed = replace(GOOD, image="nvidia/cuda:12.0-base", command=())
    assert story.refused(Submit(by=ANNA, specs=(boxed,))).code == "no_container_runtime"
    story.register("n2", replace(inventory("n2"), containers_fault="its engine is down"))
    waits = story.submit(boxed)
    assert story.job(waits).state is JobState.PENDING, "one that can't just now is waited for"
    story.register("n2", replace(inventory("n2"), executors=("process", "container")))
    where = story.job(story.submit(boxed)).spec.where
    nodes = story.state.nodes
    assert [admits(where, name, labels_of(nodes[name]), ()) for name in (bare, able)] == [False, True]
    assert admits(story.job(story.submit(GOOD)).spec.where, bare, labels_of(nodes[bare]), ())


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"image": "", "container": ContainerOptions()}, "image_required"),
        ({"image": "../x"}, "bad_image"),
        ({"image": "x", "container": ContainerOptions(shm_mb=1 << 40)}, "bad_shm_size"),
        ({"image": "x", "container": ContainerOptions(entrypoint="a\0")}, "bad_text"),
        ({"image": "x", "container": ContainerOptions(mounts=(BindMount("/a", "/b"),) * 2)}, "bad_mount"),
    ],
)
def test_what_a_job_says_of_its_container_is_checked(bad: dict[str, object], code: str) -> None:
    story = Story()
    story.register("n1", replace(inventory("n1"), executors=("container",)))
    assert story.refused(Submit(by=ANNA, specs=(replace(GOOD, **bad),))).code == code  # type: ignore[arg-type]  # a test names them


@pytest.mark.parametrize(
    ("beside", "words"),
    [
        ({"output": "/tmp/o"}, "files for its output"),
        ({"array": ArraySpec(indexes=((0, 3, 1),))}, "members of an array"),
        ({"demand": Demand(gpu_count=0, tasks=2)}, "several tasks"),
    ],
)
def test_a_job_has_no_terminal_beside_what_can_have_none(beside: dict[str, object], words: str) -> None:
    story = Story()
    asked = replace(GOOD, tty=True, **beside)  # type: ignore[arg-type]  # a test names them
    refusal = story.refused(Submit(by=ANNA, specs=(asked,)))
    assert (refusal.code, words in refusal.message) == ("bad_terminal", True), refusal
