"""The command line against a real cluster: what is typed, what is answered, what a shell learns."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from stoker.cli.main import root
from tests.real.say import Say
from tests.real.up_process import UpProcess, environment, stoker, until

pytestmark = pytest.mark.timeout(120)


def test_submit_prints_the_id_and_nothing_else(say: Say) -> None:
    done = say("submit", "--", "true")
    assert done.stdout.strip().isdigit()
    assert done.stderr == ""


def test_submit_with_json_prints_the_job(say: Say) -> None:
    flags = (
        "--name",
        "as-json",
        "--gpus",
        "1",
        "--time",
        "30",
        "--priority",
        "high",
        "--class",
        "online",
        "--retries",
        "2",
    )
    done = say("submit", "--json", *flags, "--visible", "index", "--no-requeue", "--", "true")
    job = json.loads(done.stdout)
    assert (job["name"], job["gpu_count"], job["time_limit_ms"]) == ("as-json", 1, 1_800_000)
    assert (job["priority"], job["class"], job["retries"]) == (1_000, "online", 2)
    assert (job["visible"], job["requeue"], job["command"]) == ("index", False, ["true"])


def test_submit_and_wait_with_json_prints_the_job_as_it_ended(say: Say) -> None:
    done = say("submit", "--json", "--wait", "--", "exit 5 ")
    assert (done.exit_code, json.loads(done.stdout)["state"]) == (5, "failed")


def test_bytes_of_another_locale_reach_the_job_as_they_were_typed(up: UpProcess, say: Say, tmp_path: Path) -> None:
    """Argument, name and value of a variable, working directory and output file, with all bytes but NUL and `/`."""
    odd = bytes(number for number in range(1, 256) if number not in b"/=%")
    folder = os.fsencode(tmp_path) + b"/\xe9 \xc3\xa9"
    os.mkdir(folder)
    shown = b'printf "%s|%s|" "$1" "$(printenv "V\xff")"; pwd | tr -d "\\n"'
    words = ["submit", "--wait", "--export", "NONE", "--name", "€", "--output", b"out \xfc %x", "--workdir", folder]
    command = [*words, "--env", b"V\xff=" + odd, "--", "bash", "-c", shown, "bash", odd]
    done = subprocess.run(
        [sys.executable, "-m", "stoker", *command],
        env={**os.environ, "STOKER_SERVER": up.url, "LC_ALL": "C"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (out,) = os.listdir(folder)
    assert out == b"out \xfc ?", "Latin-1 has no letter for the name"
    with open(folder + b"/" + out, "rb") as file:
        assert file.read() == odd + b"|" + odd + b"|" + folder
    job = json.loads(say("status", "--json", done.stdout.decode().strip()).stdout)
    assert (job["encoding"], job["workdir"]) == ("latin-1", folder.decode("latin-1"))


def test_a_refused_submit_prints_no_id_and_says_why_with_a_hint(say: Say) -> None:
    done = say("submit", "--gpus", "64", "--", "true")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "error: " in done.stderr
    assert "[demand_unsatisfiable]" in done.stderr
    assert "hint: " in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("status", "999999"), 3, "job_unknown"),
        (("why", "seven"), 2, "bad_job_id"),
        (("list", "--state", "dreaming"), 2, "unknown_state"),
        (("submit", "--priority", "very", "--", "true"), 2, "bad_priority"),
        (("submit", "--time", "soon", "--", "true"), 2, "bad_time"),
        (("submit", "--image", "nvidia/cuda", "--", "true"), 4, "no_container_runtime"),
        (("node", "show", "nowhere"), 3, "node_unknown"),
        (("wait", "999999"), 3, "job_unknown"),
        (("logs", "999999"), 3, "job_unknown"),
    ],
)
def test_each_refusal_has_its_code_and_exit_status(say: Say, words: tuple[str, ...], status: int, code: str) -> None:
    done = say(*words)
    assert (done.exit_code, done.stdout) == (status, "")
    assert f"[{code}]" in done.stderr


def test_without_a_server_the_status_is_5_and_the_address_is_named() -> None:
    done = CliRunner().invoke(root, ["list", "--server", "http://127.0.0.1:1"])
    assert done.exit_code == 5
    assert "127.0.0.1:1" in done.stderr


def test_a_server_named_after_the_command_wins_over_the_environment(say: Say) -> None:
    assert say("list", "--server", "http://127.0.0.1:1").exit_code == 5
    assert say("--server", "http://127.0.0.1:1", "list").exit_code == 5


@pytest.mark.parametrize(
    ("line", "status"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
def test_wait_exits_as_the_job_did(say: Say, line: str, status: int) -> None:
    assert say("wait", say.submit("--", f"{line} ")).exit_code == status


def test_submit_and_wait_in_one_exits_as_the_job_did(say: Say) -> None:
    done = say("submit", "--wait", "--", "sleep 0.1; exit 9")
    assert done.exit_code == 9
    assert done.stdout.strip().isdigit()


def test_a_job_out_of_time_has_a_status_of_its_own(say: Say) -> None:
    assert say("submit", "--wait", "--time", "1s", "--", "sleep", "60").exit_code == 124


def test_a_program_that_is_not_there_is_a_start_that_failed(say: Say) -> None:
    done = say("submit", "--wait", "--", "/no/such/program")
    assert done.exit_code == 126
    assert "could not start" in say("status", done.stdout.strip()).stdout


def test_of_several_jobs_the_first_failure_counts(say: Say) -> None:
    ids = [say.submit("--", f"exit {code} ") for code in (0, 4, 5)]
    assert say("wait", *ids).exit_code == 4


def test_cancel_ends_a_job_and_tries_every_id(say: Say) -> None:
    job_id = say.submit("--", "sleep", "600")
    done = say("cancel", "999999", job_id)
    assert done.exit_code == 3
    assert f"job {job_id} is" in done.stdout
    assert say("wait", job_id).exit_code == 143


def test_list_shows_only_the_states_asked_for(say: Say) -> None:
    running = say.submit("--name", "long", "--", "sleep", "600")
    ended = say.submit("--wait", "--name", "short", "--", "true")
    until(lambda: say.json("status", running)["state"] == "running", what="it to run")
    shown = say.json("list", "--state", "running", "--all")
    assert isinstance(shown["jobs"], list)
    assert {job["state"] for job in shown["jobs"]} == {"running"}
    assert ended in [job["id"] for job in say.json("list", "--state", "completed", "--all")["jobs"]]  # type: ignore[attr-defined]  # a list
    assert [job["id"] for job in say.json("list", "--name", "long", "--state", "R")["jobs"]] == [running]  # type: ignore[attr-defined]  # a list
    say("cancel", running)


def test_a_list_cut_short_says_so(say: Say) -> None:
    for _ in range(3):
        say.submit("--name", "many", "--", "true")
    done = say("list", "--name", "many", "--limit", "2")
    assert len(done.stdout.splitlines()) == 3
    assert "more" in done.stderr
    assert len(say("list", "--name", "many", "--all").stdout.splitlines()) >= 4


MOVING = r"\d{4}-\d\d-\d\dT[\d:.]+Z|'(age|idle|clock_ahead)_s': -?[\d.]+"
"""Some answers say when they were made, or what is measured again and again."""
AWKWARD = [
    "Größe naïve",
    "👩‍🚀 to the moon",
    "two\nlines",
    "a|b",
    'it\'s "quoted" `too`',
    "\x1b[31mred\x1b[0m",
    "n" * 300,
    "训练",
    "../../etc/passwd",
    "-rf",
    "$(reboot)",
]


@pytest.mark.parametrize("name", AWKWARD, ids=range(len(AWKWARD)))
def test_any_name_survives_and_stays_one_harmless_line(say: Say, name: str) -> None:
    """faults.md 167: accents in a job's name crashed a client."""
    job_id = say.submit("--name", name, "--", "true")
    assert say("wait", job_id).exit_code == 0
    assert say.json("status", job_id)["name"] == name
    assert yaml.safe_load(say("status", job_id, "-o", "yaml").stdout)["name"] == name
    shown = say("list", "--name", name, "--limit", "1").stdout
    assert len(shown.splitlines()) == 2
    assert "\x1b" not in shown + say("status", job_id).stdout


def test_yaml_and_json_say_the_same(say: Say) -> None:
    say.submit("--wait", "--", "true")
    for words in (("list",), ("node", "list"), ("gpu", "list"), ("status", "1"), ("why", "1")):
        from_yaml, from_json = (
            yaml.safe_load(say(*words, "-o", "yaml").stdout),
            json.loads(say(*words, "--json").stdout),
        )
        assert re.sub(MOVING, "", repr(from_yaml)) == re.sub(MOVING, "", repr(from_json))


def test_the_command_is_an_argv_and_a_single_line_is_for_the_shell(say: Say) -> None:
    argv = say.submit("--wait", "--", "printf", "%s|", "a b", "$HOME")
    line = say.submit("--wait", "--", "printf '%s|' a b && echo done")
    assert say("logs", argv).stdout == "a b|$HOME|"
    assert say("logs", line).stdout == "a|b|done\n"


def test_a_job_gets_the_working_directory_and_only_the_usual_variables(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MY_SECRET", "x")
    job_id = say.submit("--wait", "--env", "SPOKEN=a=b", "--", "pwd; env")
    written = say("logs", job_id).stdout
    assert written.startswith(f"{tmp_path}\n")
    assert "MY_SECRET" not in written
    assert "SPOKEN=a=b\n" in written
    assert f"PATH={os.environ['PATH']}\n" in written
    exported = say("logs", say.submit("--wait", "--export", "MY_SECRET", "--", "env", "-u", "PATH")).stdout
    assert "MY_SECRET=x\n" in exported
    monkeypatch.setenv("BASH_FUNC_greet%%", "() { echo hello; }")
    whole = say.submit("--wait", "--export", "ALL,X=1", "--", "bash", "-c", 'greet; echo "$MY_SECRET $X"')
    assert say("logs", whole).stdout == "hello\nx 1\n"


def test_following_a_job_that_is_cancelled_while_it_waits_ends(say: Say) -> None:
    holder = say.submit("--gpus", "2", "--tasks", "2", "--", "sleep", "600")
    waiting = say.submit("--gpus", "1", "--", "true")
    said = say("why", waiting).stdout
    assert "insufficient" in str(say.json("why", waiting)["code"]), said
    assert "hint: " in said
    assert "queue: 1 of 1" in said
    say("cancel", waiting)
    assert say("logs", "-f", waiting).exit_code == 0
    say("cancel", holder)
    assert say("wait", holder).exit_code == 143


def test_a_node_can_be_drained_and_resumed(say: Say) -> None:
    assert "node-1 is dr" in say("node", "drain", "node-1", "--reason", "new\nfan").stdout
    shown = say("node", "list").stdout
    assert "new\\nfan" in shown
    assert len(shown.splitlines()) == 3
    assert "node-1 is ready" in say("node", "resume", "node-1").stdout
    assert "simulated" in say("node", "show", "node-1").stdout


def test_a_node_that_holds_a_job_is_not_forgotten_without_force(say: Say) -> None:
    job_id = say.submit("--gpus", "1", "--", "sleep", "600")
    until(lambda: say.json("status", job_id)["state"] == "running", what="it to run")
    node = say.json("status", job_id)["attempts"][0]["tasks"][0]["node"]  # type: ignore[index]  # JSON
    done = say("node", "forget", str(node))
    assert done.exit_code == 4
    say("cancel", job_id)
    say("wait", job_id)


def test_gpus_are_listed_with_who_holds_them(say: Say) -> None:
    job_id = say.submit("--gpus", "1", "--", "sleep", "600")
    until(
        lambda: any({job_id, "busy"} <= set(row.split()) for row in say("gpu", "list").stdout.splitlines()),
        what="the GPU to be held",
    )
    say("cancel", job_id)
    say("wait", job_id)


def test_the_cluster_has_a_status(say: Say) -> None:
    said = say("status").stdout
    assert "2 of 2 online" in said
    assert "(simulated)" in said


def test_on_a_narrow_terminal_a_row_is_one_coloured_line_and_only_texts_are_shortened(
    up: UpProcess, say: Say, tmp_path: Path
) -> None:
    name = "a\nlong\x1b[2Jname " * 5
    job_id = say("submit", "--wait", "--name", name, "--", "exit 3 ").stdout.strip()
    seen = on_a_terminal(stoker("list", "--limit", "1"), environment(tmp_path, STOKER_SERVER=up.url, COLUMNS="90"))
    assert "\x1b[31mfailed" in seen, "bad news is red"
    assert "\x1b[2J" not in seen
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen).split("\r\n")
    (row,) = (line for line in lines if line.strip().startswith(f"{job_id} "))
    assert "…" in row
    assert len(row.rstrip()) <= 90
    assert row.split()[-1] != "failed"


def on_a_terminal(command: list[str], env: dict[str, str]) -> str:
    """Everything the command writes to a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, {**env, "TERM": "xterm-256color"})
    seen = b""
    with contextlib.suppress(OSError):  # how a terminal says that the other side is gone
        while more := os.read(terminal, 65_536):
            seen += more
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, seen
    return seen.decode()


@pytest.mark.parametrize("words", [("wait",), ("logs", "-f")])
def test_ctrl_c_stops_waiting_and_the_job_goes_on(
    up: UpProcess, say: Say, tmp_path: Path, words: tuple[str, ...]
) -> None:
    job_id = say.submit("--", "echo started; sleep 600")
    until(lambda: say("logs", job_id).stdout, what="it to write")
    waiting = subprocess.Popen(
        stoker(*words, job_id),
        env=environment(tmp_path, STOKER_SERVER=up.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # It is in its loop once it has asked; before that Python itself answers Ctrl-C.
    until(lambda: _sleeps(waiting.pid), what="it to wait")
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    assert f"only the waiting has ended; `stoker cancel {job_id}` ends job {job_id}" in said
    assert say.json("status", job_id)["state"] == "running"
    say("cancel", job_id)


def _sleeps(pid: int) -> bool:
    """Whether it has a connection and has come to rest."""
    try:
        sockets = [os.readlink(entry).startswith("socket:") for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(sockets)


def test_a_script_is_kept_as_it_was_when_it_was_submitted(say: Say, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    before = "#!/bin/bash\n#STOKER --hold\n#SBATCH -J mine --qos=x\necho first $1\n"
    script.write_text(before)
    done = say("submit", str(script), "a b")
    assert done.stderr == f"note: {script}: ignored, for want of a counterpart: --qos (line 3)\n"
    job = done.stdout.strip()
    script.write_text("#!/bin/bash\necho second\n")
    assert say("status", job, "--script").stdout == before
    assert [say(word, job).exit_code for word in ("release", "wait")] == [0, 0]
    assert say("logs", job).stdout == "first a b\n"
    shown = say.json("status", job)
    assert (shown["name"], shown["command"], shown["script_bytes"]) == ("mine", ["train.sh", "a b"], len(before))
    assert "echo first" not in say("list", "--all", "--json").stdout
    none = say("status", say.submit("--", "true"), "--script")
    assert (none.exit_code, "without a script" in none.stderr) == (1, True)
