"""A pair under steady work whose active half is killed again and again: what is counted, and what must hold afterwards.

Used by the test that CI runs and by `benchmarks/take_over.py`.
"""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stoker.wire.client import Client
from stoker.wire.rest.job import JobView
from tests.real.pair_process import Half, Pair, until

RUNNING: Final = 50
"""Processes that run through all of it."""
EXIT_CODE: Final = 7
"""With which they end."""
NOT_NOW: Final = (OSError, http.client.HTTPException, AssertionError, json.JSONDecodeError)
FINAL: Final = frozenset({"succeeded", "failed", "cancelled", "timeout", "out_of_memory", "node_failed"})


@dataclass(slots=True)
class Work:
    """What people asked for meanwhile."""

    folder: Path
    runners: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    take_overs_s: list[float] = field(default_factory=list)
    """From kill to the first acknowledged write."""

    @property
    def starts(self) -> Counter[str]:
        """Each job writes its id once when it starts."""
        path = self.folder / "starts"
        return Counter(path.read_text().split() if path.exists() else ())

    @property
    def pids(self) -> dict[str, int]:
        return {path.name: int(path.read_text()) for path in (self.folder / "pids").iterdir()}


def begin(pair: Pair, nodes: int = 2, running: int = RUNNING) -> Work:
    """So many processes that sleep until a file tells them to end, on `nodes` nodes."""
    work = Work(pair.folder / "work")
    (work.folder / "pids").mkdir(parents=True)
    for number in range(1, nodes + 1):
        pair.agent(f"n{number}", gpus=8).start()
    with pair.client() as client:
        until(lambda: len(client.nodes()) == nodes, pair.story)
    for _ in range(running):
        command = (
            f"echo $STOKER_JOB_ID >> {work.folder}/starts; echo $$ > {work.folder}/pids/$STOKER_JOB_ID; "
            f"while [ ! -e {work.folder}/end ]; do sleep 0.5; done; exit {EXIT_CODE}"
        )
        work.runners.append(post(pair.active, {"command": command, "cpu_cores": 1}))
    until(lambda: len(work.starts) == running, pair.story, 60)
    return work


def post(half: Half, job: Mapping[str, object], key: str = "", timeout_s: float = 5.0) -> str:
    """Raises: OSError, http.client.HTTPException, AssertionError when it isn't taken."""
    headers = {"idempotency-key": key} if key else {}
    status, answer = half.ask("POST", "/api/v1/jobs", job, timeout_s=timeout_s, **headers)
    assert status in (200, 201), (status, answer)
    return str(answer["id"])


def acknowledged(pair: Pair, job: Mapping[str, object], key: str, within_s: float = 60.0) -> str:
    """Ask one half and the other by turns until one of them says yes."""
    deadline, halves, why = time.monotonic() + within_s, list(pair.halves), ""
    while True:
        for half in halves:
            try:
                return post(half, job, key, timeout_s=2.0)
            except NOT_NOW as fault:
                why = str(fault)
        assert time.monotonic() < deadline, f"nobody took it: {why}\n{pair.story()}"
        time.sleep(0.005)


class Submitter(threading.Thread):
    """Submits small jobs, one after the other, until it is told to stop."""

    def __init__(self, pair: Pair, work: Work, pause_s: float = 0.05) -> None:
        super().__init__(name="submitter", daemon=True)
        self._pair, self._work, self._pause_s = pair, work, pause_s
        self._stop_wanted = threading.Event()
        self.fault = ""

    def run(self) -> None:
        number = 0
        job = {"command": f"echo $STOKER_JOB_ID >> {self._work.folder}/starts"}
        while not self._stop_wanted.wait(self._pause_s):
            number += 1
            try:
                self._work.acknowledged.append(acknowledged(self._pair, job, f"steady-{number}"))
            except AssertionError as fault:
                self.fault = str(fault)
                return

    def end(self) -> None:
        self._stop_wanted.set()
        self.join(90)
        assert not self.fault, self.fault


def kill_and_measure(pair: Pair, work: Work, number: int) -> None:
    """kill -9 of the active half; how long until the other one acknowledges is noted; then it is started again."""
    pair.until_whole(60)
    half = pair.active
    other = pair.other(half)
    began = time.monotonic()
    half.kill()
    key = f"after-kill-{number}"
    job = {"command": f"echo $STOKER_JOB_ID >> {work.folder}/starts"}
    deadline, why = began + 60, ""
    while True:
        try:
            work.acknowledged.append(post(other, job, key, timeout_s=2.0))
            break
        except NOT_NOW as fault:
            why = str(fault)
        assert time.monotonic() < deadline, f"nobody took over: {why}\n{pair.story()}"
        time.sleep(0.002)
    work.take_overs_s.append(time.monotonic() - began)
    half.start()


def reckon(pair: Pair, work: Work) -> None:
    """Nothing lost, nothing twice, nobody disturbed, every exit code kept."""
    pids = work.pids
    assert len(pids) == len(work.runners)
    assert all(Path(f"/proc/{pid}").exists() for pid in pids.values()), "a process that ran was disturbed"
    (work.folder / "end").touch()
    with pair.client() as client:
        known = _ended(client, [*work.runners, *work.acknowledged])
    for job in work.runners:
        view = known[job]
        assert (view.state, view.exit_code, len(view.attempts)) == ("failed", EXIT_CODE, 1), view
    for job in work.acknowledged:
        assert (known[job].state, known[job].exit_code) == ("succeeded", 0), known[job]
    starts = work.starts
    twice = [job for job, times in starts.items() if times > 1]
    assert not twice, f"started twice: {twice}"
    lost = [job for job in (*work.runners, *work.acknowledged) if job not in starts]
    assert not lost, f"never started: {lost}"


def _ended(client: Client, jobs: Sequence[str]) -> dict[str, JobView]:
    known: dict[str, JobView] = {}
    deadline = time.monotonic() + 120
    for job in jobs:
        view = client.job(job)
        while view.state not in FINAL:
            assert time.monotonic() < deadline, f"job {job} is still {view.state}: {view}"
            time.sleep(0.1)
            view = client.job(job)
        known[job] = view
    return known
