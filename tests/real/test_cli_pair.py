"""The command line before an active control plane and its standby: it finds the active one, outlives a take-over, and
says on stderr whose answer is old."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.adapters.entropy import SystemEntropy
from stoker.cli import server
from stoker.wire.token import fresh_token
from tests.contracts.client import unused
from tests.contracts.client_of_pair import meanwhile
from tests.real.fake_pair import Pair, fake_pair
from tests.real.forks import ran_text, started
from tests.real.say import Say
from tests.real.up_process import environment, stoker, until

pytestmark = pytest.mark.timeout(60)
TOKEN = fresh_token(SystemEntropy())


@pytest.fixture
def pair() -> Iterator[Pair]:
    with fake_pair() as made:
        yield made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.connect, "__defaults__", (0.4, None))


def test_commands_find_the_active_one_wherever_it_stands_in_the_list(pair: Pair) -> None:
    say = Say(f"{pair.b.url},{pair.a.url}", TOKEN)
    job_id = say.submit("--", "true")
    for words in (("cancel", job_id), ("requeue", job_id), ("signal", job_id, "USR1"), ("status", job_id), ("list",)):
        done = say(*words)
        assert (done.exit_code, done.stderr) == (0, "")
    assert say("token", "create", "--role", "viewer").stdout.startswith("stoker_")
    assert pair.cluster.orders == ["submit", "cancel", "requeue", "signal", "token"]


def test_a_command_with_many_orders_asks_a_standby_once(pair: Pair) -> None:
    say = Say(f"{pair.b.url},{pair.a.url}")
    job_id = say.submit("--", "true")
    pair.b.heard.clear()
    assert say("hold", *[job_id] * 20).exit_code == 0
    assert len(pair.b.heard) == 1


def test_no_active_one_is_exit_status_5_and_one_line_that_says_what_each_said(pair: Pair, impatient: None) -> None:
    pair.a.kill()
    done = Say(pair.servers)("submit", "--", "true")
    error, hint = done.stderr.splitlines()
    assert (done.exit_code, done.stdout) == (5, "")
    assert error == (
        f"error: no control plane is active (127.0.0.1:{pair.a.port}: Connection refused; "
        f"127.0.0.1:{pair.b.port}: control plane b is a standby) [not_active]"
    )
    assert hint.startswith("hint: a standby that may take over does so within seconds")


@pytest.mark.parametrize("form", ["json", "yaml", "table"])
def test_a_read_that_only_a_standby_answers_says_so_on_stderr_in_one_line(
    pair: Pair, form: str, impatient: None
) -> None:
    Say(pair.servers).submit("--", "true")
    pair.a.kill()
    done = Say(pair.servers)("list", "-o", form)
    assert (done.exit_code, "train" in done.stdout) == (0, True)
    assert done.stderr == "answered by a standby, 0.2 s behind; no active control plane answers\n"
    if form == "json":
        assert json.loads(done.stdout)["total"] == 1


def test_a_standby_that_is_asked_alone_answers_reads_and_names_the_active_for_the_rest(pair: Pair) -> None:
    pair.b.says_active = pair.a.url
    pair.cluster.submit("k")
    say = Say(pair.b.url, TOKEN)
    read = say("status", "1")
    assert (read.exit_code, read.stderr) == (0, "answered by a standby, 0.2 s behind\n")
    done = say("submit", "--", "true")
    assert done.exit_code == 5
    assert f"the active control plane is {pair.a.url} [not_active]" in done.stderr
    assert f"`--server {pair.b.url},{pair.a.url}`" in done.stderr
    assert pair.a.heard == [], "nobody is asked, and shown a token, who wasn't named"


def test_a_token_of_the_persons_file_goes_to_all_servers_in_it_and_to_each_of_them(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stoker").mkdir()
    config = tmp_path / "stoker" / "config.yaml"
    config.write_text(f"server: {pair.b.url}, {pair.a.url}\ntoken: {TOKEN}\n")
    config.chmod(0o600)
    env = environment(tmp_path)
    done = ran_text(stoker("submit", "--", "true"), env=env)
    assert (done.stdout, done.stderr) == ("1\n", "")
    for plane in pair[:2]:
        assert [each.headers["authorization"] for each in plane.heard] == [f"Bearer {TOKEN}"]


def test_the_look_at_who_is_active_meanwhile_shows_no_token(pair: Pair) -> None:
    say = Say(pair.servers, TOKEN)
    pair.a.stop()
    with meanwhile(0.7, pair.take_over):
        say.submit("--", "true")
    looks = [each for each in pair.b.heard if each.path.endswith("/health")]
    assert looks
    assert not any("authorization" in each.headers for each in looks)


def test_following_output_and_waiting_outlive_a_take_over(pair: Pair, tmp_path: Path) -> None:
    Say(pair.servers).submit("--", "true")
    env = environment(tmp_path, STOKER_SERVER=pair.servers)
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as to_out, err.open("wb") as to_err:
        follower = started(stoker("logs", "-f", "1"), env=env, out=to_out, err=to_err)
        waiter = started(stoker("wait", "1"), env=env, out=to_err)
    first = pair.cluster.log
    until(lambda: out.read_bytes() == first, what="the first lines")
    pair.a.kill()
    until(lambda: "waiting: no control plane is active" in err.read_text(), what="it to say that it waits")
    pair.take_over()
    pair.cluster.write(b"after the take-over\n", ended=True)
    pair.cluster.end("1")
    assert (follower.wait(20), waiter.wait(20)) == (0, 0)
    assert out.read_bytes() == first + b"after the take-over\n"


def test_a_watched_list_says_that_its_picture_comes_from_a_standby(pair: Pair, tmp_path: Path) -> None:
    Say(pair.servers).submit("--", "true")
    env = environment(tmp_path, STOKER_SERVER=pair.servers)
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as to_out, err.open("wb") as to_err:
        watch = started(stoker("list", "--watch", "0.1"), env=env, out=to_out, err=to_err)
    try:
        until(lambda: out.read_bytes().count(b"train") > 1, what="two pictures")
        pair.a.kill()
        until(lambda: "answered by a standby" in err.read_text(), what="it to say so")
        seen = out.read_bytes().count(b"train")
        until(lambda: out.read_bytes().count(b"train") > seen + 3, what="more pictures")
        assert err.read_text().count("answered by a standby") == 1
        pair.take_over()
        pair.b.heard.clear()
        until(lambda: len(pair.b.heard) > 3, what="looks at the new active")
        assert "waiting" not in err.read_text()
    finally:
        watch.terminate()
        watch.wait(10)


def test_a_server_of_several_that_never_was_there_holds_up_nothing(pair: Pair) -> None:
    done = Say(f"{unused()},{pair.a.url}")("submit", "--", "true")
    assert (done.exit_code, done.stderr) == (0, "")
    nobody = Say(f"{unused()},{unused()}")("list")
    assert (nobody.exit_code, "no control plane answers" in nobody.stderr) == (5, True)
