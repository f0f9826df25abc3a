"""Keys of the live view: what each does to the picture, and what is said to the cluster. No server is needed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Input

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.lifecycle import JobState
from stoker.cli.display.messages import NoticeBuffer
from stoker.cli.top.app import KEYS, TopApp
from stoker.cli.top.widgets import RowList
from stoker.wire.client import JobListQuery, LogPart, LogQuery
from stoker.wire.client.staleness import Stale
from stoker.wire.rest.cluster import ClusterView
from stoker.wire.rest.job import JobListView, JobsToldView, JobView
from stoker.wire.rest.node import NodeView
from stoker.wire.rest.why import WhyView
from tests.cli.views import attempt, cluster, job, node, task, why


class Cluster:
    """Answers as a control plane would, and remembers what it was told."""

    def __init__(self) -> None:
        tried = attempt(tasks=(task(0, "node-1", ("GPU-1",)),))
        pending = {"started_at": None, "ended_at": None, "exit_code": None}
        self.all = [
            job(7, "train", JobState.RUNNING, (tried,), ended_at=None, exit_code=None),
            job(8, "wait-a-while", JobState.PENDING, priority=100, **pending),
            job(9, "urgent", JobState.PENDING, priority=2000, **pending),
            job(5, "old", JobState.FAILED, exit_code=3),
        ]
        self.told: list[str] = []
        self.fault: StokerError | None = None
        self.looks = 0
        self.stuck: asyncio.Event | None = None
        self.closed = False

    async def jobs(self, query: JobListQuery) -> JobListView:
        self.looks += 1
        if self.stuck is not None:
            await self.stuck.wait()
        if self.fault is not None:
            raise self.fault
        words = query.state.split(",")
        found = [each for each in self.all if each.state in words]
        shown = found[query.offset :][: query.limit]
        return JobListView(jobs=shown, total=len(found), limit=query.limit, next=None)

    async def status(self) -> ClusterView:
        return cluster()

    async def nodes(self) -> list[NodeView]:
        return [node("node-1"), node("node-2", ("idle", "idle"))]

    async def job(self, job_id: str) -> JobView:
        return next(each for each in self.all if each.id == job_id)

    async def why(self, job_id: str) -> WhyView:
        return why(id=job_id, facts={"free": 2})

    async def logs(self, job_id: str, query: LogQuery) -> LogPart:
        return LogPart(b"step 1\nstep 2\n", 0, 14, ended=False)

    async def cancel(self, job_id: str) -> JobsToldView:
        return self._tell("cancel", job_id)

    async def hold(self, job_id: str) -> JobsToldView:
        return self._tell("hold", job_id)

    async def release(self, job_id: str) -> JobsToldView:
        return self._tell("release", job_id)

    def _tell(self, verb: str, job_id: str) -> JobsToldView:
        if job_id == "7" and verb != "cancel":
            raise StokerError(refuse("job_live", "job 7 runs", "cancel it"))
        self.told.append(f"{verb} {job_id}")
        return JobsToldView(jobs=[next(each for each in self.all if each.id == job_id)], total=1, changed=1)

    async def close(self) -> None:
        self.closed = True


class Seat:
    """A person before the screen."""

    def __init__(self, app: TopApp, pilot: Pilot[int]) -> None:
        self.app = app
        self._pilot = pilot

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self._pilot.pause()

    async def look(self) -> None:
        """One second later."""
        self.app._look()
        await self.app.workers.wait_for_complete()
        await self._pilot.pause()

    @property
    def lines(self) -> list[str]:
        """What is seen, as text."""
        width, height = self.app.size
        rows = self.app.screen._compositor.render_strips()
        return [strip.text.rstrip() for strip in rows[:height] if width]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@asynccontextmanager
async def seat(served: Cluster, size: tuple[int, int] = (80, 24), told: Callable[[], str] = str) -> AsyncIterator[Seat]:
    app = TopApp(served, told=told, every_s=3_600)  # type: ignore[arg-type]  # as far as it is used
    async with app.run_test(size=size) as pilot:
        await app.workers.wait_for_complete()
        await pilot.pause()
        yield Seat(app, pilot)
    assert served.closed


async def test_nodes_and_queue_are_seen_at_once_and_nothing_is_folded() -> None:
    async with seat(Cluster()) as person:
        lines = person.lines
        assert len(lines) == 24
        assert lines[0].startswith(" stoker top  2/2 nodes  2/4 GPUs busy")
        assert [line.split()[1] for line in lines if line.startswith((" ■", " □"))] == ["node-1", "node-2"]
        order = [line.split()[0] for line in lines if " running " in line or " pending " in line][1:]
        assert order == ["7", "9", "8"], "what runs, then what waits in the order of priority"
        assert lines[-1].strip() == KEYS


async def test_arrows_choose_a_job_and_it_stays_chosen_when_others_come() -> None:
    served = Cluster()
    async with seat(served) as person:
        await person.press("down")
        chosen = person.app.query_one("#jobs", RowList)
        assert chosen.key == "9"
        served.all.insert(0, job(11, "new", JobState.RUNNING))
        await person.look()
        assert chosen.key == "9"
        await person.press("end")
        assert chosen.key == "8"
        served.all = served.all[:2]
        await person.look()
        assert chosen.key == "7", "the last that is left"


async def test_enter_opens_a_job_with_its_last_output_and_escape_closes_it() -> None:
    async with seat(Cluster()) as person:
        await person.press("enter")
        await person.look()
        assert "─ job 7 ─" in person.text
        assert "step 2" in person.text
        assert "node-1 [GPU-1]" not in person.text, "that is further down"
        await person.press("end")
        assert "node-1 [GPU-1]" in person.text
        await person.press("escape")
        assert "─ nodes (2) ─" in person.text


async def test_tab_goes_to_the_nodes_and_enter_opens_one() -> None:
    async with seat(Cluster()) as person:
        await person.press("tab", "down", "enter")
        assert "─ node node-2 ─" in person.text
        assert "GPU-node-2-1" in person.text
        await person.press("q")
        assert "─ jobs (3) ─" in person.text


async def test_nothing_is_cancelled_before_a_person_said_yes() -> None:
    served = Cluster()
    async with seat(served) as person:
        await person.press("c")
        assert "Cancel job 7 (train), running on 1 GPUs?" in person.text
        for no in ("n", "escape", "enter", "q"):
            await person.press(no, "c")
        assert served.told == []
        await person.press("y")
        await person.app.workers.wait_for_complete()
        assert served.told == ["cancel 7"]


async def test_h_holds_and_r_releases_the_chosen_job_and_a_refusal_is_shown() -> None:
    served = Cluster()
    async with seat(served) as person:
        await person.press("h")
        await person.app.workers.wait_for_complete()
        await person.press()
        assert "job 7 runs [job_live]" in person.lines[-1]
        await person.press("down", "h", "r")
        await person.app.workers.wait_for_complete()
        assert served.told == ["hold 9", "release 9"]


async def test_w_says_why_with_its_numbers_and_any_key_closes_it() -> None:
    async with seat(Cluster()) as person:
        await person.press("w")
        await person.app.workers.wait_for_complete()
        assert "hint: wait" in person.text
        assert "free: 2" in person.text
        await person.press("q")
        assert "hint: wait" not in person.text
        assert person.app.is_running, "it closed the words, not the program"


@pytest.mark.parametrize("opened", ["w", "question_mark", "enter", "c"])
async def test_keys_that_come_faster_than_something_closes_close_nothing_else(opened: str) -> None:
    async with seat(Cluster()) as person:
        await person.press(opened)
        await person.app.workers.wait_for_complete()
        for _ in range(3):
            person.app.post_message(Key("escape", None))
        await person.press()
        assert "─ nodes (2) ─" in person.text
        assert person.app.is_running


async def test_a_filter_leaves_only_jobs_with_its_words_and_escape_shows_all_again() -> None:
    async with seat(Cluster()) as person:
        field = person.app.query_one(Input)
        assert not field.display
        await person.press("slash", *"urg")
        assert field.display, "what is typed is seen"
        assert "─ jobs (1) with: urg ─" in person.text
        await person.press("enter")
        assert not field.display
        assert person.app.query_one("#jobs", RowList).key == "9"
        await person.press("slash", *"x")
        assert "no job here has the words: urgx" in person.text
        await person.press("escape")
        assert "─ jobs (3) ─" in person.text


async def test_what_has_ended_is_shown_when_wanted() -> None:
    async with seat(Cluster()) as person:
        assert "exit 3" not in person.text
        await person.press("a")
        await person.app.workers.wait_for_complete()
        await person.press()
        assert "exit 3" in person.text


async def test_a_server_that_went_away_is_waited_for_and_the_picture_stays() -> None:
    served = Cluster()
    async with seat(served) as person:
        served.fault = StokerError(refuse("no_server", "no control plane answers", "start one"))
        await person.look()
        assert person.lines[1] == " waiting: no control plane answers"
        assert "train" in person.text
        served.fault = None
        await person.look()
        assert "waiting" not in person.text.replace("wait-a-while", "")


async def test_a_picture_that_comes_from_a_standby_is_drawn_and_said_to_be_one() -> None:
    kept = NoticeBuffer()
    kept(Stale("b:1", 3_200, 2))
    async with seat(Cluster(), told=kept.take) as person:
        assert person.lines[1] == " answered by a standby, 3.2 s behind; no active control plane answers"
        assert "train" in person.text
        await person.look()
        assert "standby" not in person.text


async def test_no_second_question_is_asked_while_the_first_waits_for_its_answer_and_keys_work_on() -> None:
    served = Cluster()
    async with seat(served) as person:
        served.stuck, before = asyncio.Event(), served.looks
        for _ in range(3):
            person.app._look()
        await person.press("down", "question_mark")
        assert served.looks == before + 1
        assert "choose a row" in person.text
        served.stuck.set()
        await person.app.workers.wait_for_complete()


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (200, 60)], ids=str)
async def test_any_window_is_filled_and_none_is_overrun(size: tuple[int, int]) -> None:
    served = Cluster()
    served.all += [job(number, "x" * 100, JobState.RUNNING) for number in range(100, 180)]
    async with seat(served, size) as person:
        assert len(person.lines) == size[1]
        assert max(map(len, person.lines)) <= size[0]
        await person.press("end")
        assert "8 " in person.text, "the last one came into sight"


async def test_a_queue_longer_than_what_is_shown_says_so_and_shows_those_that_wait_longest() -> None:
    served = Cluster()
    waiting = {"started_at": None, "ended_at": None, "exit_code": None}
    served.all = [job(number, "w", JobState.PENDING, **waiting) for number in range(500, 0, -1)]
    async with seat(served) as person:
        assert "of 200), 300 more wait" in person.text
        assert person.app.query_one("#jobs", RowList).key == "1"


@pytest.mark.parametrize(("key", "status"), [("q", 0), ("ctrl+c", 0)])
async def test_q_and_ctrl_c_end_it(key: str, status: int) -> None:
    async with seat(Cluster()) as person:
        await person.press(key)
    assert person.app.return_value == status


async def test_only_what_changed_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Cluster()
    monkeypatch.setattr("stoker.cli.top.app.now_ms", lambda: 10_000)
    monkeypatch.setattr("stoker.cli.top.app.clock_text", lambda: "12:00:00")
    async with seat(served) as person:
        rows = person.app.query_one("#jobs", RowList)
        drawn: list[object] = []
        monkeypatch.setattr(rows, "refresh", lambda *regions, **flags: drawn.extend(regions or ["all"]))
        await person.look()
        assert drawn == []
        served.all[0] = job(
            7, "train", JobState.RUNNING, served.all[0].attempts, ended_at=None, exit_code=None, priority=501
        )
        await person.look()
        (region,) = drawn
        assert (region.y, region.height, region.width) == (1, 1, 1)  # type: ignore[attr-defined]  # a Region
