"""What a body of a submit may say: both seed dialects, and one clear error for anything else."""

import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.array import parse_array
from stoker.brain.domain.container import BindMount, Network
from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.job import JobSpec, TextEncoding, Visible, WarnSignal
from stoker.brain.domain.label import parse_job_labels
from stoker.brain.domain.notify import Notify, NotifyEvent
from stoker.brain.domain.tenant import UNSTATED
from stoker.brain.domain.units import HOUR_MS, MINUTE_MS, Instant
from stoker.brain.domain.where import make_where
from stoker.wire.dependency_text import parse_dependencies
from stoker.wire.rest.decode import decode_body
from stoker.wire.rest.submit import JobBody, spec_of
from stoker.wire.rest.task import TaskBody, task_spec

NOW = Instant(1_700_000_000_000)


def spec(**fields: object) -> JobSpec:
    return spec_of(decode_body(JobBody, json.dumps({"command": "true", **fields}).encode()), NOW)


def refused(body: object) -> Refusal:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(StokerError) as caught:
        spec_of(decode_body(JobBody, data), NOW)
    return caught.value.refusal


def test_a_job_that_may_not_be_requeued_can_not_give_way() -> None:
    refusal = refused({"command": "true", "preemptible": True, "requeue": False})
    assert (refusal.code, refusal.facts["other"]) == ("conflicting_fields", "requeue")
    assert spec(preemptible=True).preemptible


def test_the_mvps_body_is_read_by_its_own_bytes() -> None:
    data = (
        b'{"tenant_id":"default","name":"api-job","priority":500,"gpu_count":1,"gpu_memory_mb":16000,"cpu_cores":4,'
        b'"memory_mb":32000,"image":"nvidia/cuda:12.0-base"}'
    )
    read = spec_of(decode_body(JobBody, data), NOW)
    assert read.name == "api-job"
    assert read.image == "nvidia/cuda:12.0-base"
    assert read.demand == Demand(gpu_count=1, gpu_memory_mb=16_000, cpus=4, memory_mb=32_000)


@pytest.mark.parametrize(
    ("share", "milli"), [(0.25, 250), (0.001, 1), (0.999, 999), (1, 1_000), (0.3, 300), (0.1 + 0.2, None), (0.29, 290)]
)
def test_a_share_of_a_gpu_is_of_one_gpu_and_exactly_what_its_digits_say(share: float, milli: int | None) -> None:
    if milli is None:
        assert refused({"command": "true", "gpu_share": share}).code == "bad_gpu_share"
    else:
        assert spec(gpu_share=share).demand == Demand(gpu_count=1, gpu_share=milli)
    assert spec(gpu_share=0.5, gpu_count=2).demand.gpu_count == 2, "the brain refuses that"


@pytest.mark.parametrize("share", [0, -0.25, 1.5, 2, 0.0005, 1e300])
def test_what_is_no_share_of_a_gpu_is_refused_with_its_field(share: float) -> None:
    refusal = refused({"command": "true", "gpu_share": share})
    assert (refusal.code, refusal.facts["path"]) == ("bad_gpu_share", "gpu_share")
    assert "0.25" in refusal.hint


def test_the_dgpu_body_is_read_by_its_own_bytes() -> None:
    data = b'{"priority":"high","gpu_count":2,"command":"python train.py"}'
    read = task_spec(decode_body(TaskBody, data))
    assert (read.priority, read.job_class, read.demand.gpu_count) == (1000, JobClass.ONLINE, 2)
    assert (read.command, read.name) == ("python train.py", "python")


def test_low_of_the_dgpu_dialect_is_class_batch_with_priority_100() -> None:
    read = task_spec(decode_body(TaskBody, b'{"priority":"low","gpu_count":1,"command":"x"}'))
    assert (read.priority, read.job_class) == (100, JobClass.BATCH)


def test_what_is_left_out_has_the_defaults_of_the_design() -> None:
    read = spec()
    assert read.demand == Demand(gpu_count=0, cpus=1, memory_mb=0, tasks=1)
    assert (read.priority, read.job_class, read.tenant, read.requeue) == (UNSTATED, JobClass.BATCH, "default", True)
    assert read.time_limit_ms == 0, "0 asks the brain for the policy's default; it never means unlimited"


@pytest.mark.parametrize(("word", "number"), [("low", 100), ("normal", 500), ("high", 1000), ("urgent", 2000), (7, 7)])
def test_priority_is_a_word_or_a_number(word: str | int, number: int) -> None:
    assert spec(priority=word).priority == number


def test_a_command_that_is_text_is_a_shell_line_and_a_list_is_an_argv() -> None:
    assert spec(command="a && b").command == "a && b"
    assert spec(command=["a", "&&", "b"]).command == ("a", "&&", "b")


def test_a_script_is_lines_for_the_shell() -> None:
    body = {"script": "#!/bin/sh\necho one\necho two\n"}
    assert spec_of(decode_body(JobBody, json.dumps(body).encode()), NOW).command == body["script"]


def test_a_script_beside_a_list_is_kept_as_it_is_and_the_list_is_its_name_and_arguments() -> None:
    read = spec(command=["train.sh", "--epochs", "3"], script="#!/bin/sh\necho $1\n")
    assert (read.command, read.script) == (("train.sh", "--epochs", "3"), "#!/bin/sh\necho $1\n")
    assert (read.name, spec(command=None, script="echo one").script) == ("train.sh", "")


def test_args_are_appended_to_an_argv_and_refused_beside_a_shell_line() -> None:
    assert spec(command=["python"], args=["train.py", "a b"]).command == ("python", "train.py", "a b")
    assert refused({"command": "python", "args": ["x"]}).facts["path"] == "args"
    assert refused({"args": ["x"]}).code == "bad_field"


def test_args_alone_go_with_an_image() -> None:
    assert spec_of(decode_body(JobBody, b'{"image":"i","args":["--serve"]}'), NOW).command == ("--serve",)


@pytest.mark.parametrize(
    ("fields", "ms"),
    [
        ({"max_runtime_minutes": 30}, 30 * MINUTE_MS),
        ({"time_limit": "2h"}, 2 * HOUR_MS),
        ({"time_limit": "1-00"}, 24 * HOUR_MS),
        ({"time_limit": 30}, 30 * MINUTE_MS),
    ],
)
def test_a_time_limit_is_minutes_or_text(fields: dict[str, object], ms: int) -> None:
    assert spec(**fields).time_limit_ms == ms


@pytest.mark.parametrize("limit", ["25:99", "-5", "", "unlimited", "0", 0, -1])
def test_a_bad_time_limit_is_refused_and_never_unlimited(limit: object) -> None:
    assert refused({"command": "true", "time_limit": limit}).code == "bad_time"


def test_gang_scheduling_is_harmless_where_it_says_what_is_so_anyway() -> None:
    assert spec(gang_scheduling=True).demand.tasks == 1
    assert spec(gang_scheduling=True, tasks=4).demand.tasks == 4
    assert refused({"command": "x", "gang_scheduling": False, "tasks": 2}).code == "bad_field"


EVERY: dict[str, tuple[object, Callable[[JobSpec], object], object]] = {
    "name": ("n", lambda job: job.name, "n"),
    "tenant": ("ml", lambda job: job.tenant, "ml"),
    "tenant_id": ("ml", lambda job: job.tenant, "ml"),
    "user": ("ada", lambda job: job.user, "ada"),
    "class": ("online", lambda job: job.job_class, JobClass.ONLINE),
    "priority": (7, lambda job: job.priority, 7),
    "gpu_count": (3, lambda job: job.demand.gpu_count, 3),
    "gpu_memory_mb": (5, lambda job: job.demand.gpu_memory_mb, 5),
    "gpu_model": ("V100", lambda job: job.demand.gpu_model, "V100"),
    "cpus": (3, lambda job: job.demand.cpus, 3),
    "cpu_cores": (3, lambda job: job.demand.cpus, 3),
    "memory_mb": (9, lambda job: job.demand.memory_mb, 9),
    "tasks": (2, lambda job: job.demand.tasks, 2),
    "tasks_per_node": (2, lambda job: job.demand.tasks_per_node, 2),
    "mounts": (
        ["/a:/b:ro", "/c"],
        lambda job: job.container and job.container.mounts,
        (BindMount("/a", "/b", True), BindMount("/c", "/c")),
    ),
    "shm_mb": (7, lambda job: job.container and job.container.shm_mb, 7),
    "network": ("none", lambda job: job.container and job.container.network, Network.NONE),
    "entrypoint": ("", lambda job: job.container and job.container.entrypoint, ""),
    "image": ("i", lambda job: job.image, "i"),
    "command": (["a", "b"], lambda job: job.command, ("a", "b")),
    "script": ("a\nb", lambda job: job.command, "a\nb"),
    "env": ({"A": "1"}, lambda job: job.env, {"A": "1"}),
    "environment": ({"A": "1"}, lambda job: job.env, {"A": "1"}),
    "workdir": ("/data", lambda job: job.workdir, "/data"),
    "max_runtime_minutes": (2, lambda job: job.time_limit_ms, 120_000),
    "time_limit": ("2m", lambda job: job.time_limit_ms, 120_000),
    "retries": (2, lambda job: job.retries_max, 2),
    "requeue": (False, lambda job: job.requeue, False),
    "tty": (True, lambda job: job.tty, True),
    "detached": (True, lambda job: job.detached, True),
    "lost_after": ("60s", lambda job: job.lost_after_ms, 60_000),
    "preemptible": (True, lambda job: job.preemptible, True),
    "checkpoint": ("10m", lambda job: job.checkpoint_ms, 600_000),
    "signal": ("USR1@90", lambda job: job.warn, WarnSignal(10, 90_000)),
    "visible": ("index", lambda job: job.visible, Visible.INDEX),
    "array": ("0-9%3", lambda job: job.array, parse_array("0-9%3")),
    "after": ("ok:7", lambda job: job.after, parse_dependencies(["ok:7"])),
    "hold": (True, lambda job: job.hold, True),
    "begin": ("2030-01-01T00:00:00Z", lambda job: job.begin, Instant(1_893_456_000_000)),
    "comment": ("c", lambda job: job.comment, "c"),
    "output": ("/o", lambda job: job.output, "/o"),
    "error": ("/e", lambda job: job.error, "/e"),
    "where": ("zone=a", lambda job: job.where, make_where("zone=a")),
    "exclude": ("n1", lambda job: job.where, make_where("", ["n1"])),
    "tolerate": ("big", lambda job: job.where, make_where("", [], ["big"])),
    "partition": ("long", lambda job: job.partition, "long"),
    "encoding": ("latin-1", lambda job: job.encoding, TextEncoding.LATIN_1),
    "notify": (
        "end, wait>1h",
        lambda job: job.notify,
        Notify(on=(NotifyEvent.END, NotifyEvent.WAIT), wait_ms=3_600_000),
    ),
    "notify_to": ("team", lambda job: job.notify, Notify(to=("webhook:team",))),
    "gpu_share": (0.25, lambda job: job.demand.gpu_share, 250),
    "labels": ({"team": "nlp"}, lambda job: job.labels, {"team": "nlp"}),
    "secrets": ({"A": "HF_TOKEN"}, lambda job: job.secrets, {"A": "HF_TOKEN"}),
}
"""Each field with what is said, and what of the job that becomes."""


@pytest.mark.parametrize("field", EVERY)
def test_every_field_reaches_the_job(field: str) -> None:
    said, of, becomes = EVERY[field]
    fields = {field: said} if field in ("command", "script") else {"command": "true", field: said}
    job = spec_of(decode_body(JobBody, json.dumps(fields).encode()), NOW)
    assert of(job) == becomes
    assert of(spec()) != becomes, "it is another than what stands for it when it is left out"


def test_every_field_that_there_is_was_tried_above() -> None:
    """`args` and `gang_scheduling` have tests of their own."""
    assert {each.encode_name for each in msgspec.structs.fields(JobBody)} - EVERY.keys() == {"args", "gang_scheduling"}


@pytest.mark.parametrize(
    ("pair", "values"),
    [
        (("tenant", "tenant_id"), ("default", "default")),
        (("cpus", "cpu_cores"), (1, 1)),
        (("env", "environment"), ({}, {})),
        (("command", "script"), ("a", "b")),
        (("time_limit", "max_runtime_minutes"), ("1h", 60)),
    ],
)
def test_two_words_for_one_thing_are_refused(pair: tuple[str, str], values: tuple[object, object]) -> None:
    refusal = refused({"command": "true", **dict(zip(pair, values, strict=True))})
    assert refusal.code == "conflicting_fields"
    assert all(f"`{word}`" in refusal.message for word in pair)


@pytest.mark.parametrize(
    ("typo", "nearest"), [("gpus_count", "gpu_count"), ("comand", "command"), ("retry", "retries"), ("Name", "name")]
)
def test_an_unknown_field_is_named_with_the_nearest_known_one(typo: str, nearest: str) -> None:
    refusal = refused({"command": "true", typo: 1})
    assert (refusal.code, refusal.facts["field"], refusal.facts["nearest"]) == ("unknown_field", typo, nearest)
    assert f"`{nearest}`" in refusal.hint


def test_an_unknown_field_that_resembles_nothing_gets_the_list() -> None:
    assert "gpu_count" in refused({"command": "true", "zzzzzz": 1}).hint


@pytest.mark.parametrize(
    ("fields", "path", "got"),
    [
        ({"gpu_count": "two"}, "gpu_count", "str"),
        ({"gpu_count": 1.5}, "gpu_count", "float"),
        ({"gpu_count": True}, "gpu_count", "bool"),
        ({"gpu_count": None}, "gpu_count", "null"),
        ({"command": {"a": 1}}, "command", "object"),
        ({"command": ["a", 1]}, "command[1]", "int"),
        ({"env": {"A": 1}}, "env[...]", "int"),
        ({"requeue": "yes"}, "requeue", "str"),
        ({"priority": [1]}, "priority", "array"),
    ],
)
def test_a_wrong_type_is_named_with_path_and_both_types(fields: dict[str, object], path: str, got: str) -> None:
    refusal = refused({"command": "true", **fields})
    assert (refusal.code, refusal.facts["path"], refusal.facts["got"]) == ("bad_field", path, got)
    assert refusal.facts["wanted"]
    assert path in refusal.message
    assert got in refusal.message


@pytest.mark.parametrize(("field", "words"), [("class", "online, batch"), ("visible", "uuid, index")])
def test_a_word_that_is_none_of_those_there_are_gets_them_named(field: str, words: str) -> None:
    refusal = refused({"command": "true", field: "gold"})
    assert (refusal.code, refusal.facts["path"], refusal.facts["got"]) == ("bad_field", field, "'gold'")
    assert words in refusal.message
    assert words in refusal.hint


@pytest.mark.parametrize("value", [-1, 2**53, 10**30])
@pytest.mark.parametrize("field", ["gpu_count", "gpu_memory_mb", "cpus", "memory_mb", "tasks", "retries"])
def test_a_count_below_zero_or_beyond_what_json_keeps_is_refused(field: str, value: int) -> None:
    refusal = refused({"command": "true", field: value})
    assert (refusal.code, refusal.facts["path"]) == ("bad_field", field)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"{]", b'{"command":"a"}x', b'{"command":"\xff"}', b"\x00", b'{"command":"a\nb"}'),
        *(b'{"gpu_count":NaN}', b'{"command":"\\ud800"}', b'{"command":"\\udc00 x"}', b'{"command":"\\ud800\\u0041"}'),
    ],
)
def test_what_is_not_json_is_refused_in_one_sentence(data: bytes) -> None:
    refusal = refused(data)
    assert refusal.code == "bad_json"
    assert len(refusal.message) < 400


@pytest.mark.parametrize("data", [b"[]", b"null", b'"x"', b"7", b"true"])
def test_a_body_that_is_no_object_is_refused(data: bytes) -> None:
    assert refused(data).code == "bad_field"


def test_a_body_nested_without_end_is_refused_and_breaks_nothing() -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    assert refused(b'{"command":' + deep + b"}").code in ("bad_json", "bad_field")


def test_unicode_newlines_and_quotes_pass_unchanged() -> None:
    line = "echo 'ä\u2028\"$HOME\"' \\\n && printf '\U0001f600'\t`id`"
    read = spec(command=line, name='jöb "1"\n', env={"A": line})
    assert (read.command, read.name, read.env["A"]) == (line, 'jöb "1"\n', line)


def test_a_name_is_made_from_the_program_when_none_is_given() -> None:
    assert spec(command="/usr/bin/python3 train.py").name == "python3"
    assert spec(command=["/opt/x/run.sh"]).name == "run.sh"
    assert spec(command="   ").name == "job"


def refusal_of(data: bytes) -> Refusal | None:
    """None when it is a job."""
    try:
        spec_of(decode_body(JobBody, data), NOW)
    except StokerError as fault:
        return fault.refusal
    return None


_LEAVES = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(_LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_json_is_a_job_or_a_refusal_with_a_hint(value: object) -> None:
    refusal = refusal_of(json.dumps(value).encode())
    assert refusal is None or refusal.hint


@given(st.binary(max_size=200))
def test_any_bytes_are_a_job_or_a_refusal(data: bytes) -> None:
    refusal = refusal_of(data)
    assert refusal is None or refusal.code in ("bad_json", "bad_field", "unknown_field")


@pytest.mark.parametrize(
    ("said", "ms"), [(None, None), ("10m", 600_000), (10, 600_000), ("never", 0), (0, 0), ("0", 0)]
)
def test_how_long_its_nodes_may_be_silent_is_said_as_other_durations_are(said: object, ms: int | None) -> None:
    assert spec(**({} if said is None else {"lost_after": said})).lost_after_ms == ms


@pytest.mark.parametrize("said", ["soon", "-5", -5, ""])
def test_a_silence_that_can_not_be_read_is_refused_with_its_place(said: object) -> None:
    refusal = refused({"command": "true", "lost_after": said})
    assert (refusal.code, refusal.facts["path"]) == ("bad_time", "lost_after")


@pytest.mark.parametrize("word", ["team=nlp,cv", "team", "=x", "te am=x", "stoker.io/team=x", "team=" + "x" * 64])
def test_a_label_that_is_none_is_one_clear_error(word: str) -> None:
    with pytest.raises(StokerError) as fault:
        parse_job_labels([word])
    assert fault.value.refusal.code == "bad_label"
    assert fault.value.refusal.hint


def test_labels_add_up_and_one_key_has_one_value() -> None:
    assert parse_job_labels(["team=nlp", "x.y/stage=", "team=nlp"]) == {"team": "nlp", "x.y/stage": ""}
    with pytest.raises(StokerError, match="two values"):
        parse_job_labels(["team=nlp", "team=cv"])
    with pytest.raises(StokerError, match="at most 32"):
        parse_job_labels([f"k{number}=v" for number in range(33)])
