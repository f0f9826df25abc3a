"""Tokens as people make and use them: by the command line, on stopped and running control planes."""

import http.client
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from stoker.adapters.data_folder.marks import ELSEWHERE_NAME, STORE_NAME
from stoker.adapters.data_folder.ownership import hold_folder
from stoker.adapters.entropy import SystemEntropy
from stoker.brain.domain.access import Role
from stoker.brain.domain.errors import Refusal
from stoker.cli.wiring import token_store
from stoker.cli.wiring.token_store import FolderTokens
from stoker.control.rate_limit import WRONG_MAX
from stoker.wire.client import Client, StokerError
from stoker.wire.local_socket import SOCKET_NAME
from stoker.wire.rest.token import NewTokenBody
from stoker.wire.token import bearer, fresh_token, id_of, is_token
from tests.real.agent_process import AgentProcess
from tests.real.control_process import ControlProcess
from tests.real.forks import ran_text
from tests.real.up_process import UpProcess, environment, stoker, until

NOBODY: Final = 65_534
_SHOWING: Final = ("/metrics", "/openapi.json", "/api/v1/tokens", "/api/v1/audit", "/api/v1/jobs")


def run(folder: Path, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    done = environment(folder, XDG_CONFIG_HOME=str(folder), **environ)
    return ran_text(stoker(*words), env=done)


def token(folder: Path, *words: str) -> str:
    """The text that a command printed, which is all it printed."""
    made = run(folder, "token", "create", *words)
    assert made.returncode == 0, made.stderr
    assert made.stderr == ""
    text = made.stdout.removesuffix("\n")
    assert is_token(text), made.stdout
    return text


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    with ControlProcess(tmp_path / "data") as started:
        yield started


def refused(ask: Callable[[], object]) -> Refusal:
    with pytest.raises(StokerError) as caught:
        ask()
    return caught.value.refusal


def refusal(client: Client) -> str:
    return refused(client.jobs).code


def test_the_first_token_is_made_where_no_control_plane_has_ever_run(tmp_path: Path) -> None:
    data = tmp_path / "data"
    text = token(tmp_path, "--role", "admin", "--comment", "the first", "--data-dir", str(data))
    with ControlProcess(data) as control, Client(control.url, token=text) as client:
        assert client.jobs().total == 0
        assert "the first" in [each.comment for each in client.tokens().tokens]


def test_a_token_is_made_while_the_control_plane_runs_and_holds_at_once(control: ControlProcess) -> None:
    where = ("--data-dir", str(control.folder))
    text = token(control.folder.parent, "--role", "viewer", *where)
    with Client(control.url, token=text) as client:
        assert client.jobs().total == 0
    listed = run(control.folder.parent, "token", "list", *where)
    assert id_of(text) in listed.stdout
    assert text not in listed.stdout


def test_a_token_made_on_a_stopped_control_plane_holds_after_its_start_and_nothing_else_changed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    control = ControlProcess(data)
    with control:
        before = control.ask("GET", "/api/v1/cluster/status")[1]["cluster_id"]
        control.terminate()
    text = token(tmp_path, "--role", "admin", "--data-dir", str(data))
    gone = run(tmp_path, "token", "revoke", id_of(control.tokens.admin), "--data-dir", str(data))
    assert gone.returncode == 0, gone.stderr
    with control, Client(control.url, token=text) as client, Client(control.url, token=control.tokens.admin) as old:
        assert client.status().cluster_id == before
        assert refusal(old) == "token_unknown"


def test_revoking_ends_a_token_at_once_also_on_an_open_stream(control: ControlProcess) -> None:
    text = token(control.folder.parent, "--role", "viewer", "--data-dir", str(control.folder))
    line = http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)
    line.request("GET", "/api/v1/events", headers={"authorization": bearer(text)})
    stream = line.getresponse()
    assert stream.status == 200
    gone = run(control.folder.parent, "token", "revoke", id_of(text), "--data-dir", str(control.folder))
    assert gone.returncode == 0, gone.stderr
    began = time.monotonic()
    stream.read()  # to its end
    assert time.monotonic() - began < 3
    line.close()
    with Client(control.url, token=text) as client:
        assert refusal(client) == "token_unknown"


def test_a_token_that_expires_ends_by_itself(control: ControlProcess) -> None:
    text = token(control.folder.parent, "--role", "viewer", "--expires", "1s", "--data-dir", str(control.folder))
    with Client(control.url, token=text) as client:
        until(lambda: _is_refused(client), 10, "the token to expire")
        assert refusal(client) == "token_unknown"
    with control.client() as admin:
        assert id_of(text) not in [each.id for each in admin.tokens().tokens]


def _is_refused(client: Client) -> bool:
    try:
        client.jobs()
    except StokerError:
        return True
    return False


def test_every_way_in_wants_a_token_but_for_health(control: ControlProcess, tmp_path: Path) -> None:
    for path, status in (("/health", 200), ("/api/v1/health", 200), ("/ready", 200), ("/metrics", 401)):
        assert _status(control, path) == status, path
    assert _status(control, "/api/v1/jobs") == 401
    done = run(tmp_path, "list", STOKER_SERVER=control.url)
    assert (done.returncode, done.stdout) == (4, "")
    assert "[token_missing]" in done.stderr
    assert "hint: set STOKER_TOKEN" in done.stderr
    wrong = run(tmp_path, "list", STOKER_SERVER=control.url, STOKER_TOKEN=fresh_token(SystemEntropy()))
    assert wrong.returncode == 4
    assert "[token_unknown]" in wrong.stderr


def _status(control: ControlProcess, path: str) -> int:
    line = http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)
    line.request("GET", path)
    status = line.getresponse().status
    line.close()
    return status


def test_what_a_killed_control_plane_left_does_not_hinder_the_next_one(tmp_path: Path) -> None:
    control = ControlProcess(tmp_path / "data")
    left = control.folder / SOCKET_NAME
    with control:
        assert left.is_socket()
        assert left.stat().st_mode & 0o777 == 0o600
        control.kill()
    assert left.is_socket()
    assert run(tmp_path, "token", "list", "--data-dir", str(control.folder)).returncode == 0, "as of a stopped one"
    with control:
        assert run(tmp_path, "token", "list", "--data-dir", str(control.folder)).returncode == 0
        control.terminate()
    assert not left.exists()


def test_a_data_folder_with_a_long_path_has_its_socket_too(tmp_path: Path) -> None:
    """A socket's address holds 107 bytes."""
    data = tmp_path / ("d" * 100) / ("e" * 100)
    with ControlProcess(data) as control:
        text = token(tmp_path, "--role", "viewer", "--data-dir", str(data))
        with Client(control.url, token=text) as client:
            assert client.jobs().total == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
def test_root_makes_a_token_that_the_account_of_the_control_plane_can_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        data.mkdir()
        os.chmod(name, 0o755)
        os.chown(data, NOBODY, NOBODY)
        token(Path(name), "--role", "admin", "--data-dir", str(data))
        assert {path.stat().st_uid for path in data.iterdir()} == {NOBODY}


def test_what_can_not_be_done_is_told_alike_whether_the_control_plane_runs_or_not(control: ControlProcess) -> None:
    bodies = (
        NewTokenBody(role=Role.USER),
        NewTokenBody(role=Role.USER, tenant="nix"),
        NewTokenBody(role=Role.ADMIN, expires="yesterday"),
        NewTokenBody(role=Role.USER, tenant="default", user="no body"),
    )

    def told() -> list[Refusal]:
        tokens = FolderTokens(control.folder)
        asked = [*(partial(tokens.create_token, body) for body in bodies), partial(tokens.revoke_token, "aaaaaaaa")]
        return [refused(ask) for ask in asked]

    served = told()
    control.terminate()
    assert [refusal.code for refusal in served] == [
        *("bad_token", "unknown_tenant", "bad_token", "bad_user", "token_not_found")
    ]
    assert told() == served


def test_a_refusal_ends_with_its_status_and_prints_no_token(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    for words, status in ((("create", "--role", "user"), 4), (("create", "--role", "boss"), 2), (("revoke", "a"), 3)):
        done = run(tmp_path, "token", *words, "--data-dir", data)
        assert (done.returncode, done.stdout) == (status, ""), words


def test_a_control_plane_that_just_starts_or_ends_is_waited_for(tmp_path: Path) -> None:
    held = hold_folder(tmp_path / "data")
    command = stoker("token", "create", "--role", "admin", "--data-dir", str(held.path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(tmp_path)) as maker:
        until(lambda: _about_to_open(maker.pid), 30, "it to try")
        held.release()
        said, _ = maker.communicate(timeout=30)
    assert is_token(said.strip())


def _about_to_open(pid: int) -> bool:
    """Has it loaded all that it needs?"""
    return "_sqlite3" in Path(f"/proc/{pid}/maps").read_text()


def test_a_folder_that_another_program_holds_is_told_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_store, "HELD_PAUSE_S", 0.0)
    held = hold_folder(tmp_path / "data")
    tokens = FolderTokens(held.path)
    (held.path / STORE_NAME).touch()
    refusal = refused(tokens.tokens)
    held.release()
    assert refusal.code == "data_dir_held"
    assert str(os.getpid()) in refusal.message


def test_where_the_log_is_in_a_database_a_stopped_control_plane_is_not_asked_in_its_folder(tmp_path: Path) -> None:
    """An empty list would say that nobody has a token."""
    (tmp_path / ELSEWHERE_NAME).write_text("")
    tokens = FolderTokens(tmp_path)
    create = partial(tokens.create_token, NewTokenBody(role=Role.ADMIN))
    for ask in (tokens.tokens, create, partial(tokens.revoke_token, "t1")):
        refusal = refused(ask)
        assert refusal.code == "store_moved"
        assert "start it" in refusal.hint
    assert not (tmp_path / STORE_NAME).exists()


def test_one_whose_log_is_in_a_database_is_waited_for_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ELSEWHERE_NAME).write_text("")
    held = hold_folder(tmp_path)
    monkeypatch.setattr(token_store, "HELD_TRIES", 2)
    tokens = FolderTokens(tmp_path)
    assert refused(tokens.tokens).code == "data_dir_held"
    held.release()
    assert refused(tokens.tokens).code == "store_moved"


def test_the_folder_of_stoker_up_is_told_from_that_of_its_control_plane(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--nodes", "1", "--gpus-per-node", "1", data_dir=tmp_path / "up"):
        done = run(tmp_path, "token", "list", "--data-dir", str(tmp_path / "up"))
        assert done.returncode == 1
        assert f"hint: name {tmp_path / 'up' / 'control'}" in done.stderr


def test_up_serves_this_machine_alone_unless_it_is_told_that_everybody_may(tmp_path: Path) -> None:
    done = run(tmp_path, "up", "--host", "0.0.0.0", "--nodes", "1")
    assert done.returncode == 2
    assert "loopback" in done.stderr
    assert "--insecure" in done.stderr
    with UpProcess(tmp_path, "--host", "0.0.0.0", "--insecure", "--nodes", "1", "--gpus-per-node", "1") as up:
        assert "WARNING: whoever reaches" in up.said
        line = http.client.HTTPConnection("127.0.0.1", up.http_port, timeout=20)
        line.request("GET", "/api/v1/jobs", headers={"host": "gpu-head.example.org"})
        assert line.getresponse().status == 200
        line.close()


def _every_command_line() -> bytes:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines.append((entry / "cmdline").read_bytes())
            except OSError:
                continue
    return b"\n".join(lines)


@contextmanager
def _watching(control: ControlProcess, text: str) -> Iterator[None]:
    """A command that was given its token the careless way, while it runs."""
    words = stoker("list", "--watch", "--token", text, "--server", control.url)
    folder = control.folder.parent
    with (folder / "watch.out").open("wb") as out:
        watcher = subprocess.Popen(words, stdout=out, stderr=out, env=environment(folder))
    try:
        until(lambda: b"STATE" in (folder / "watch.out").read_bytes(), 30, "the first look")
        yield
    finally:
        watcher.kill()
        watcher.wait()


def test_no_token_is_to_be_seen_in_logs_meters_command_lines_errors_or_on_the_disk(
    control: ControlProcess, tmp_path: Path
) -> None:
    """But in the files that hold them on purpose."""
    wrong, admin = fresh_token(SystemEntropy()), control.tokens.admin
    made = token(tmp_path, "--role", "viewer", "--data-dir", str(control.folder))
    agent_text = control.tokens.agent_file.read_text().strip()
    secrets = [text.rpartition(id_of(text))[2].encode() for text in (wrong, admin, made, agent_text)]
    said = []
    with AgentProcess(tmp_path / "agent", control) as agent, control.client() as client, _watching(control, made):
        until(lambda: client.status().online_nodes == 1, 30, "the node to join")
        for text in (wrong, made):
            done = run(
                tmp_path,
                *(("submit", "--", "id") if text is made else ("list",)),
                STOKER_SERVER=control.url,
                STOKER_TOKEN=text,
            )
            said.append((done.stdout + done.stderr).encode())
        said += [_body(control, path, text) for path in _SHOWING for text in (wrong, made)]
        client.revoke_token(id_of(made))
        seen = [_every_command_line(), control.output().encode(), agent.output().encode(), *said]
        control.terminate()
    kept = [path.read_bytes() for path in [*control.folder.rglob("*"), *agent.data_dir.rglob("*")] if path.is_file()]
    for text in secrets:
        for where in (*seen, *kept):
            assert text not in where, where[:200]


def _body(control: ControlProcess, path: str, text: str) -> bytes:
    line = http.client.HTTPConnection("127.0.0.1", control.http_port, timeout=20)
    line.request("GET", path, headers={"authorization": bearer(text)})
    response = line.getresponse()
    body = response.read(64 * 1024) if response.getheader("content-length") else b""
    line.close()
    return body


def test_ten_thousand_wrong_tokens_are_refused_one_by_one_and_the_next_told_to_wait(control: ControlProcess) -> None:
    wrong = fresh_token(SystemEntropy())
    ask = f"GET /api/v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {bearer(wrong)}\r\n\r\n".encode()
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", control.http_port), timeout=30) as line:
        statuses = [status for _ in range(WRONG_MAX // 100) for status in _asked(line, ask, 100)]
        assert time.monotonic() - began < 60, "else the minute was over, and nothing is proved"
        assert set(statuses) == {b"401"}
        assert _asked(line, ask, 3) == [b"429"] * 3
    with control.client() as client:
        assert client.jobs().total == 0, "a good token goes on"
        assert b"stoker_wrong_tokens_total 10003.0" in _body(control, "/metrics", control.tokens.admin)
    assert control.output().count("too_many_wrong_tokens") == 1
    assert control.output().count("\n") < 100, "the log must not grow with them"


def _asked(line: socket.socket, ask: bytes, times: int) -> list[bytes]:
    """The statuses of as many requests, sent in one go."""
    line.sendall(ask * times)
    got = bytearray()
    while got.count(b"HTTP/1.1 ") < times or not got.endswith(b"}"):
        got += line.recv(1 << 20)
    return [part[:3] for part in bytes(got).split(b"HTTP/1.1 ")[1:]]
