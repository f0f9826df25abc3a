"""A secret from the command line to the process, through real daemons: the job gets it, and nothing else shows it.

The value is looked for in every file and in every stream of the test: data folders, agents' folders, the runner's
journal, backups, metrics, answers of REST, outputs of commands, command lines of all processes. It may be in the memory
of those who hand it on, and in the environment of the job.
"""

import hashlib
import json
import os
import socket
import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.adapters.authority import hosts_of_machine
from stoker.wire.client import JobBody
from tests.real.agent_process import AgentProcess
from tests.real.agent_process import until as until_node
from tests.real.control_process import ControlProcess
from tests.real.forks import SRC
from tests.real.pair_process import Pair, until
from tests.real.test_pair_tls import join
from tests.real.up_process import UpProcess, run, stoker

pytestmark = pytest.mark.timeout(300)

VALUE = "Tr0ub4dor-and-3-secret-value"
DIGEST = hashlib.sha256(VALUE.encode()).hexdigest()
TELLS = 'printf %s "$HF_TOKEN" | sha256sum'
"""A job that shows that it has the value without showing the value."""
FORMS = tuple(
    form
    for text in (VALUE.encode(), VALUE.encode("utf-16-le"))
    for form in (
        text,
        b64encode(text),
        b64encode(b"x" + text)[4:-4],
        b64encode(b"xx" + text)[4:-4],
        text.hex().encode(),
    )
)
"""How the value would look in a file, also where base64 or hex has been made of it."""


class Watched:
    """Command lines of all processes of the machine, again and again, and all that was said to the test."""

    def __init__(self) -> None:
        self.said: list[bytes] = []

    def look(self) -> None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    self.said.append((entry / "cmdline").read_bytes())
                except OSError:
                    continue

    def check(self, *folders: Path) -> int:
        """How many bytes were looked through; none of them is of the value."""
        size = 0
        places = ((str(path), path.read_bytes()) for folder in folders for path in files_of(folder))
        for where, content in (*places, *(("what was said", text) for text in self.said)):
            size += len(content)
            for form in FORMS:
                assert form not in content, f"the value is in {where}"
        return size


def files_of(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def asked(watched: Watched, server: str, token: str, *words: str, said: str | None = None) -> str:
    """What one command of the command line prints; all of it is watched. `said`: its standard input."""
    env = {**os.environ, "PYTHONPATH": str(SRC), "STOKER_SERVER": server, "STOKER_TOKEN": token}
    done = subprocess.run(
        stoker(*words), env=env, input=said or "", capture_output=True, text=True, timeout=90, check=False
    )
    watched.said.append(f"{done.stdout}\n{done.stderr}".encode())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_jobs_process_gets_a_secret_and_nothing_else_ever_shows_it(tmp_path: Path) -> None:
    watched = Watched()
    control = ControlProcess(tmp_path / "control")
    with control, AgentProcess(tmp_path / "n", control) as agent:
        token = control.tokens.admin
        until_node(lambda: control.ask("GET", "/api/v1/nodes")[1]["nodes"], "the node is there")
        said = asked(watched, control.url, token, "secret", "set", "HF_TOKEN", said=f"{VALUE}\n")
        assert said == "secret HF_TOKEN is set in tenant default"
        assert "HF_TOKEN" in asked(watched, control.url, token, "secret", "list")
        words = ("submit", "--retries", "1", "--secret", "HF_TOKEN", "--secret", "HF_TOKEN=AGAIN", "--array", "0-1")
        array = asked(watched, control.url, token, *words, "--", f"{TELLS}; sleep 1; exit 3")
        deadline = time.monotonic() + 60
        while control.ask("GET", f"/api/v1/jobs/{array}")[1]["state"] not in ("succeeded", "failed"):
            assert time.monotonic() < deadline, control.output()
            watched.look()
            time.sleep(0.05)
        for path in (
            *("jobs?members=true&full=true", f"jobs/{array}", f"jobs/{array}_0/events", f"jobs/{array}_0/why"),
            *("audit", "secrets", "tasks", "usage"),
        ):
            status, answer = control.ask("GET", f"/api/v1/{path}")
            assert status == 200, (path, answer)
            watched.said.append(json.dumps(answer, ensure_ascii=False).encode())
        with control.client() as client:
            written = client.logs(f"{array}_0").data
            assert DIGEST.encode() in written
            assert client.job(array).secrets == {"HF_TOKEN": "HF_TOKEN", "AGAIN": "HF_TOKEN"}
            watched.said += [written, str(client.job(array)).encode()]
        asked(watched, control.url, token, "status", array, "-o", "wide")
        asked(watched, control.url, token, "backup", str(tmp_path / "backup.tar"))
        watched.said.append(control.metrics())
        # A restart of each replays and compares: none of it needs the value again.
        assert agent.terminate() == 0
        agent.start()
        control.terminate()
        watched.said.append(control.output().encode())
        control.start()
        asked(watched, control.url, token, "secret", "delete", "HF_TOKEN")
    key = tmp_path / "control-keys" / "secrets.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert watched.check(tmp_path) > 100_000
    material = key.read_text().split()[1].encode()
    for file in files_of(tmp_path):
        assert file == key or material not in file.read_bytes(), f"the key is in {file}"


def test_a_standby_gets_the_key_over_tls_and_starts_jobs_with_secrets_after_a_take_over(tmp_path: Path) -> None:
    watched = Watched()
    pair = Pair(tmp_path, profile="default")  # whose lease outlives a busy machine
    pair.extra = {"tls": {"mode": "auto"}}
    with pair:
        pair.start()
        agent = AgentProcess(tmp_path / "n-1", name="n-1")
        join(pair, agent, "n-*")
        pair.agents.append(agent.start())
        first, second = pair.active, pair.standby
        asked(watched, pair.servers, pair.token, "secret", "set", "HF_TOKEN", said=VALUE)
        keys = {half.name: tmp_path / f"{half.name}-keys" / "secrets.key" for half in pair.halves}
        until(lambda: keys[second.name].exists(), pair.story)
        assert keys[second.name].read_bytes() == keys[first.name].read_bytes()
        assert keys[second.name].stat().st_mode & 0o777 == 0o600
        first.kill()
        pair.until_active(second)
        with pair.client() as client:
            job = client.submit(JobBody(command=TELLS, secrets={"HF_TOKEN": "HF_TOKEN"}))
            until(lambda: client.job(job.id).state.value == "succeeded", pair.story)
            assert DIGEST.encode() in client.logs(job.id).data
        first.start()
        pair.until_whole()
    watched.check(tmp_path)


def test_a_cluster_of_one_account_keeps_secrets_with_that_accounts_own_state(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--nodes", "1", data_dir=tmp_path / "data") as up:
        assert (
            run(tmp_path, "secret", "set", "--server", up.url, "HF_TOKEN", "--from-file", "/dev/null").returncode == 4
        )
        (tmp_path / "value").write_text(VALUE)
        done = run(tmp_path, "secret", "set", "--server", up.url, "HF_TOKEN", "--from-file", str(tmp_path / "value"))
        assert done.returncode == 0, done.stderr
        (tmp_path / "value").unlink()
        done = run(tmp_path, "submit", "--server", up.url, "--secret", "HF_TOKEN", "--follow", "--", TELLS)
        assert DIGEST in done.stdout, done.stderr
    assert (tmp_path / "stoker" / "secrets.key").exists()
    Watched().check(tmp_path)


def test_a_value_never_leaves_for_another_machine_in_clear(tmp_path: Path) -> None:
    """Nothing is sent, though `insecure` would send the token."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        here = next(iter(addresses_here()), "")
        if not here:
            pytest.skip("this machine has no address but the loopback")
        url = f"http://{here}:{listener.getsockname()[1]}"
        done = run(
            *(tmp_path, "secret", "set", "--server", url, "HF_TOKEN", "--from-file", "/etc/hostname"),
            env={"STOKER_INSECURE": "1"},
        )
        assert done.returncode == 4, done.stderr
        assert "plain http to another machine" in done.stderr
        listener.settimeout(0)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(5)
            assert connection.recv(1_000) == b""


def addresses_here() -> list[str]:
    return [text for text in hosts_of_machine() if "." in text and not text.startswith("127.") and text[:1].isdigit()]
