"""Which request does a command line mean?"""

import time
from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner

from stoker.brain.domain.errors import StokerError
from stoker.cli.clock import LocalZone
from stoker.cli.commands.submit import job_body
from stoker.cli.main import root
from stoker.wire.client import JobBody
from stoker.wire.text import begin_text

ENVIRON = {"PATH": "/bin", "LANG": "C.UTF-8", "SECRET": "x", "BASH_FUNC_f%%": "() { :; }", "BROKEN": "\udcff"}


def body(*command: str, **given: object) -> JobBody:
    return job_body({"command": command, **given}, ENVIRON, lambda: "/here")


def test_several_words_are_an_argv() -> None:
    assert body("python", "train.py", "--x", "a b").command == ["python", "train.py", "--x", "a b"]


def test_one_word_is_an_argv_of_one() -> None:
    assert body("nvidia-smi").command == ["nvidia-smi"]


def test_one_argument_with_blanks_is_a_shell_line() -> None:
    assert body("a && b").command == "a && b"


def test_gpus_without_a_command_are_looked_at_with_nvidia_smi() -> None:
    """The seed's users type `submit --name job-1 --gpus 1 --priority 100`, and their script is `nvidia-smi` then."""
    assert body(gpu_count=1, name="job-1", priority="100").command == ["nvidia-smi"]
    assert body(gpu_count=1, image="nvidia/cuda").command == [], "an image has a command of its own"
    assert body(gpu_count=0).command == [], "the brain says that there is nothing to run"


def test_only_what_was_said_is_sent() -> None:
    assert body("true") == JobBody(command=["true"], env={"PATH": "/bin", "LANG": "C.UTF-8"}, workdir="/here")


def test_secrets_stay_at_home_unless_exported() -> None:
    assert "SECRET" not in (body("true").env or {})
    assert body("true", export="SECRET,PATH").env == {"SECRET": "x", "PATH": "/bin"}
    environ = {**ENVIRON, "STOKER_TOKEN": "stoker_x"}
    sent = job_body({"command": ("true",), "export": "ALL"}, environ, lambda: "/here").env or {}
    assert (sent["SECRET"], "STOKER_TOKEN" in sent) == ("x", False)


def test_all_variables_are_sent_with_functions_of_the_shell_and_bytes_that_are_not_utf_8() -> None:
    sent = body("true", "ü", export="ALL")
    rest = {"PATH": "/bin", "LANG": "C.UTF-8", "SECRET": "x", "BASH_FUNC_f%%": "() { :; }"}
    assert (sent.env, sent.encoding) == ({**rest, "BROKEN": "\xff"}, "latin-1")
    assert [word.encode("latin-1") for word in sent.command or ()] == [b"true", "ü".encode()]


def test_all_or_none_of_the_variables_and_some_of_ones_own() -> None:
    """As sbatch reads them."""
    sent = body("true", export="ALL,LANG=de,X=1").env or {}
    assert (sent["PATH"], sent["LANG"], sent["X"]) == ("/bin", "de", "1")
    alone = body("true", export="NONE,X=1,SECRET")
    assert (alone.env, alone.workdir) == ({"X": "1", "SECRET": "x"}, "")
    for wrong in ("ALL,NONE", "ALL,NOWHERE", "X=1,X=2"):
        with pytest.raises(click.UsageError):
            body("true", export=wrong)


def test_what_was_typed_in_another_locale_is_sent_as_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Latin-1 Python reads the two bytes of a UTF-8 letter as two letters, and one byte as another letter (U6)."""
    monkeypatch.setattr("os.fsencode", lambda text: text.encode("latin-1", "surrogateescape"))
    typed = "é".encode().decode("latin-1")
    sent = body("echo", typed, variables=(f"A={typed}",), workdir=f"/{typed}", output=typed)
    assert (sent.command, (sent.env or {})["A"], sent.workdir, sent.output) == (["echo", "é"], "é", "/é", "é")
    assert sent.encoding == "utf-8"
    sent = body("echo", "é", variables=("é=é",), workdir="/é", output="é")
    assert (sent.command, (sent.env or {})["é"], sent.workdir, sent.output) == (["echo", "é"], "é", "/é", "é")
    assert sent.encoding == "latin-1"


def test_export_none_sends_neither_variables_nor_the_working_directory() -> None:
    sent = body("true", export="none", variables=("A=b=c",))
    assert sent.env == {"A": "b=c"}
    assert sent.workdir == ""


def test_a_spoken_variable_wins_over_an_inherited_one() -> None:
    assert (body("true", variables=("PATH=/mine",)).env or {})["PATH"] == "/mine"


def test_a_relative_workdir_is_meant_from_here() -> None:
    assert body("true", workdir="data/../run").workdir == "/here/run"
    assert body("true", workdir="/abs").workdir == "/abs"


def test_a_share_is_sent_as_a_number_however_it_was_asked_for() -> None:
    assert body("x", gpu_share="0.25", gpu_memory="10GiB").gpu_share == 0.25
    assert (body("x", gpu_count="0.5").gpu_share, body("x", gpu_count="0.5").gpu_count) == (0.5, 0)
    assert (body("x", gpu_count="2").gpu_share, body("x", gpu_count="2").gpu_count) == (None, 2)
    assert body(gpu_share="0.5").command == ["nvidia-smi"]


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "0.0001", "0.0", "1e-9", "nan", "0_1"])
def test_neither_a_number_of_gpus_nor_a_share_is_refused_in_one_clear_sentence(text: str) -> None:
    for word in ("gpu_count", "gpu_share"):
        with pytest.raises(StokerError, match="must be above 0 and at most 1"):
            body("x", **{word: text})


def test_a_share_that_is_said_twice_is_a_usage_error() -> None:
    with pytest.raises(click.UsageError, match="both ask for a share"):
        body("x", gpu_count="0.5", gpu_share="0.25")
    with pytest.raises(click.UsageError, match="--gpus 0 asks for no GPU"):
        body("x", gpu_count="0", gpu_share="0.25")


@pytest.mark.parametrize("option", ["--gpus", "--gpu-share"])
def test_a_share_finer_than_a_thousandth_is_refused_for_that(option: str) -> None:
    said = CliRunner().invoke(root, ["submit", option, "0.0005", "--", "true"])
    assert said.exit_code == 2
    assert "three decimals at most" in said.output


def test_sizes_are_read_as_people_type_them() -> None:
    sent = body("true", gpu_memory="16GiB", memory="512M")
    assert (sent.gpu_memory_mb, sent.memory_mb) == (16_384, 512)


def test_a_size_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(StokerError) as refused:
        body("true", gpu_memory="lots")
    assert refused.value.refusal.code == "bad_size"


@pytest.mark.parametrize("given", [{"variables": ("A",)}, {"variables": ("=b",)}, {"export": "NOWHERE"}])
def test_a_variable_that_cannot_be_sent_is_a_usage_error(given: dict[str, object]) -> None:
    with pytest.raises(click.UsageError):
        body("true", **given)


def test_flags_become_fields() -> None:
    sent = body("true", no_requeue=True, gpu_count=2, tasks=3, priority="high", time_limit="30", job_class="online")
    assert (sent.requeue, sent.gpu_count, sent.tasks, sent.priority, sent.time_limit) == (False, 2, 3, "high", "30")
    assert sent.job_class == "online"
    assert sent.lost_after is None
    assert body("true", lost_after="10m").lost_after == "10m"


def test_where_when_and_how_often_it_runs_become_fields() -> None:
    sent = body(
        "true",
        array="0-9%3",
        after=("ok:7", "any:8"),
        hold=True,
        comment="for Ada",
        where="zone=a",
        exclude=("gpu-1,gpu-2", "gpu-3"),
        tolerate=("dedicated=vision", "*"),
        partition="long",
        tasks_per_node=2,
        output="logs/%A_%a.txt",
        error="/tmp/err",
    )
    assert (sent.array, sent.after, sent.hold, sent.comment) == ("0-9%3", ["ok:7", "any:8"], True, "for Ada")
    assert (sent.where, sent.partition, sent.tasks_per_node) == ("zone=a", "long", 2)
    assert (sent.exclude, sent.tolerate) == (["gpu-1,gpu-2", "gpu-3"], ["dedicated=vision", "*"])
    assert (sent.output, sent.error) == ("logs/%A_%a.txt", "/tmp/err"), "relative to where it runs, not to here"


def test_a_wall_clocks_time_is_sent_with_its_zone_and_what_counts_from_now_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0")
    time.tzset()
    try:
        assert body("true", begin="2199-07-01T10:00").begin == "2199-07-01T10:00:00+02:00"
        assert body("true", begin="2199-12-01").begin == "2199-12-01T00:00:00+01:00"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert body("true", begin="now+30minutes").begin == "now+30minutes"


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("2199-03-31T01:59", "2199-03-31T01:59:00+01:00"),
        ("2199-03-31T02:30", "2199-03-31T02:30:00+01:00"),  # which is 03:30 there
        ("2199-03-31T03:00", "2199-03-31T03:00:00+02:00"),
        ("2199-10-27T02:30", "2199-10-27T02:30:00+02:00"),  # the first of two
        ("2199-10-27T03:00", "2199-10-27T03:00:00+01:00"),
    ],
)
def test_a_time_in_the_hour_that_summer_time_skips_never_begins_early(
    typed: str, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert body("true", begin=typed).begin == sent
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_second_of_two_hours_is_meant_when_the_first_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        here = datetime(2026, 10, 25, 1, 15, tzinfo=UTC).astimezone(LocalZone())  # 02:15, for the second time
        assert here.isoformat() == "2026-10-25T02:15:00+01:00"
        assert begin_text("02:30", here, LocalZone()) == "2026-10-25T02:30:00+01:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_time_that_is_none_is_refused_with_the_forms_that_work() -> None:
    with pytest.raises(StokerError, match="is over"):
        body("true", begin="0001-01-01")
    assert body("true", begin="9999-12-31T23:59").begin == "9999-12-31T23:59:00+00:00"
    with pytest.raises(StokerError) as refused:
        body("true", begin="25:99")
    assert refused.value.refusal.code == "bad_begin"
    assert "`now+2h`" in refused.value.refusal.hint


def test_an_array_is_not_followed_and_nothing_is_submitted_then() -> None:
    """Refused before a server is asked: a status of 2 with a job in the queue would be a lie."""
    nowhere = ("--server", "http://127.0.0.1:1")
    done = CliRunner().invoke(root, ["submit", *nowhere, "--follow", "--array", "0-3", "--", "true"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--wait" in done.stderr
    assert CliRunner().invoke(root, ["submit", *nowhere, "--wait", "--array", "0-3", "--", "true"]).exit_code == 5


def test_how_a_job_gives_way_becomes_fields_and_what_is_not_said_is_left_out() -> None:
    sent = body("true", preemptible=True, checkpoint="10m", signal="USR1@90")
    assert (sent.preemptible, sent.checkpoint, sent.signal) == (True, "10m", "USR1@90")
    plain = body("true", preemptible=None)
    assert (plain.preemptible, plain.checkpoint, plain.signal) == (False, None, None)


def test_a_job_in_a_container_is_given_neither_the_path_nor_the_folder_of_here_unless_that_is_said() -> None:
    sent = body("python", "x", image="i", mounts=("/data:/in:ro",), shm_size="16GiB", network="none", entrypoint="")
    assert (sent.image, sent.mounts, sent.shm_mb, sent.network) == ("i", ["/data:/in:ro"], 16_384, "none")
    assert (sent.entrypoint, sent.env, sent.workdir) == ("", {}, "")
    said = body("x", image="i", export="PATH", workdir="sub")
    assert (list(said.env or {}), said.workdir) == (["PATH"], "/here/sub")
    assert body(image="i", gpu_count=1).command == [], "what its maker chose, and not nvidia-smi"
