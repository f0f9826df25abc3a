"""People and programs before a real pair whose active half is killed or stopped meanwhile."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.wire.client import AsyncClient, Client, JobBody, JobListQuery, Notice, Stale
from tests.real.forks import started
from tests.real.pair_process import Pair
from tests.real.say import Say
from tests.real.up_process import environment, stoker, until

pytestmark = pytest.mark.timeout(180)
ONE = JobBody(command="true", name="one", hold=True)
MANY = JobBody(command="true", name="many", hold=True)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("halves") / "pair") as made:
        yield made.start()


@pytest.fixture
def pair(kept: Pair) -> Pair:
    """Whole again, whatever the test before did to it."""
    for half in kept.halves:
        if half.lives:
            half.go_on()
        else:
            half.start()
    kept.until_whole()
    return kept


def test_a_client_goes_over_to_the_new_active_and_the_same_submit_stays_one_job(pair: Pair) -> None:
    with pair.client() as client:
        first = client.submit(ONE, key="one")
        pair.active.kill()
        again = client.submit(ONE, key="one")
        assert (again.id, again.uid) == (first.id, first.uid)
        assert [job.id for job in client.each_job(JobListQuery(name="one"))] == [first.id]


def test_a_stopped_active_holds_up_a_client_no_longer_than_the_take_over_takes(pair: Pair) -> None:
    old = pair.active
    noticed: list[Notice] = []
    with Client(f"{old.url},{pair.other(old).url}", token=pair.token, notify=noticed.append) as client:
        client.submit(ONE)
        old.stop()
        began = time.monotonic()
        client.submit(ONE)
        assert time.monotonic() - began < 10
        assert client.server == pair.other(old).url
        assert not any(isinstance(each, Stale) for each in noticed)


def test_output_is_followed_over_a_take_over_and_every_line_comes_once(pair: Pair, tmp_path: Path) -> None:
    pair.agent("n1").start()
    with pair.client() as client:
        until(lambda: len(client.nodes()) == 1, what="the node")
        job = client.submit(JobBody(command="for i in $(seq 1 60); do echo line $i; sleep 0.1; done; exit 3"))
        env = environment(tmp_path, **pair.environ)
        out, err = tmp_path / "out", tmp_path / "err"
        with out.open("wb") as to_out, err.open("wb") as to_err:
            follower = started(stoker("logs", "-f", job.id), env=env, out=to_out, err=to_err)
            waiter = started(stoker("wait", job.id), env=env, out=to_err)
        until(lambda: b"line 5\n" in out.read_bytes(), what="the first lines")
        pair.active.kill()
        assert (follower.wait(60), waiter.wait(60)) == (0, 3), err.read_text()
        assert out.read_text() == "".join(f"line {number}\n" for number in range(1, 61)), err.read_text()


def test_a_standby_that_may_not_take_over_answers_reads_and_the_command_line_says_so(pair: Pair) -> None:
    say = Say(pair.servers, pair.token)
    job_id = say.submit("--hold", "--", "true")
    standby = pair.standby
    standby.kill()
    until(lambda: pair.active.standing().get("in_sync") == [pair.active.name], what="the active to go on alone")
    more = say.submit("--hold", "--", "true")
    old = pair.active
    old.kill()
    standby.start()
    until(lambda: standby.answers, what="the standby")
    done = say("list", "--json")
    assert (done.exit_code, f'"id": "{job_id}"' in done.stdout, f'"id": "{more}"' in done.stdout) == (0, True, False)
    assert done.stderr.startswith("answered by a standby, ")
    assert done.stderr.endswith(" behind; no active control plane answers\n")
    old.start()
    assert say.submit("--hold", "--", "true") > more


def test_orders_through_the_standby_alone_are_refused_with_the_actives_address(pair: Pair) -> None:
    standby, active = pair.standby, pair.active
    done = Say(standby.url, pair.token)("token", "create", "--role", "viewer")
    assert done.exit_code == 5
    assert f"the active control plane is {active.url} [not_active]" in done.stderr
    local = Say(standby.url)("token", "create", "--role", "viewer", "--data-dir", str(standby.folder))
    assert local.exit_code == 5
    assert f"{standby.folder}/control.sock is a standby" in local.stderr
    assert f"the active control plane is {active.url} [not_active]" in local.stderr
    assert Say(pair.servers, pair.token)("token", "create", "--role", "viewer").exit_code == 0


def test_no_token_is_made_in_the_folder_of_a_half_that_is_stopped(pair: Pair) -> None:
    standby = pair.standby
    assert standby.terminate() == 0
    done = Say(pair.servers)("token", "create", "--role", "admin", "--data-dir", str(standby.folder))
    assert (done.exit_code, "one of several, which doesn't run [not_active]" in done.stderr) == (5, True)


async def test_many_tasks_go_over_together(pair: Pair) -> None:
    async with AsyncClient(pair.servers, token=pair.token) as client:
        tasks = [asyncio.create_task(client.submit(MANY)) for _ in range(50)]
        await asyncio.sleep(0.02)
        old = pair.active
        old.kill()
        tasks += [asyncio.create_task(client.submit(MANY)) for _ in range(50)]
        await asyncio.sleep(0.02)
        old.start()  # on a busy machine the other may have been too far behind to take over
        jobs = await asyncio.gather(*tasks)
        assert len({job.id for job in jobs}) == 100
        assert (await client.jobs(JobListQuery(name="many"))).total == 100
