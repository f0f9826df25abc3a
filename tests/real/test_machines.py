"""Machines whose power is cut in the middle of steady submissions, starts and ends, and which go on from the same disk.

`STOKER_POWER_CUTS=20 make test-heavy ARGS="-k power_cuts --rewrite"` does twenty of each, and writes what it counted
into `benchmarks/results/power_cuts.md`. Without that variable there are three.
"""

import os
import random
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from stoker.wire.client import Client, JobBody
from stoker.wire.rest.job import JobListQuery, JobView
from tests.real.control_process import ControlProcess
from tests.real.failing_over import FINAL
from tests.real.machine_image import ROOT, alone, run
from tests.real.stoker_machine import (
    CUTS,
    HTTP,
    MANY,
    PATIENCE_S,
    agents,
    control_machine,
    node_machine,
    start,
    until,
    wanted,
)
from tests.real.virtual_machine import MEMORY_MB, Machine, Template

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3_600 + 300 * CUTS), wanted]

BOOTED_EACH: Final = 7
"""Of so many cuts one is followed by a boot of kernel and systemd, the others go on from the template's memory."""
PAUSE_S: Final = 0.05
OPEN_MAX: Final = 8
"""Jobs that run or wait to: the next one is submitted when fewer do."""
WAITING_MAX: Final = 2_000
"""Jobs that wait for another day: no more are submitted once there are so many."""


class CutMachine:
    """A machine and its disk, with files on it that tell whether a cut loses what nobody synced, and only that."""

    def __init__(self, machine: Machine, unit: str, made: Template) -> None:
        self.machine, self.unit, self.made = machine, unit, made
        self.cuts = self.booted = self.unsynced_lost = 0

    def up(self) -> None:
        if self.cuts % BOOTED_EACH == 3:
            self.machine.boot(self.made)
            self.booted += 1
        else:
            self.machine.revive(self.made)
        if self.cuts:
            kept = self.machine.do(
                "cd /srv; for each in synced unsynced; do [ -s $each ] && echo $each; done; rm -f synced unsynced; sync"
            ).split()
            assert "synced" in kept, "the disk lost what was synced: this is no power cut"
            self.unsynced_lost += "unsynced" not in kept
        start(self.machine, self.unit)

    def cut(self) -> None:
        self.machine.do("cd /srv; echo kept >synced; sync synced; echo lost >unsynced", timeout_s=120)
        time.sleep(random.uniform(0, 0.3))  # anywhere in what it does
        self.machine.cut()
        self.cuts += 1


class Work(threading.Thread):
    """Submits jobs all the time, through every cut, and notes what was acknowledged and which ends were told.

    An answer that was lost is asked for again under the same key. Of three jobs two wait for another day: they cost
    nothing but their record.
    """

    def __init__(self, url: str, token: str, command: str) -> None:
        super().__init__(name="work", daemon=True)
        self._client = Client(url, token=token, patience_s=PATIENCE_S)
        self._command = command
        self._over = threading.Event()
        self.waiting: list[str] = []
        self.runs: list[str] = []
        self.told: dict[str, JobView] = {}
        """Jobs that were final in an answer."""
        self.fault = ""

    def run(self) -> None:
        try:
            while not self._over.wait(PAUSE_S):
                for _ in range(2 if len(self.waiting) < WAITING_MAX else 0):
                    later = JobBody(command="true", begin="now+30d")
                    self.waiting.append(self._client.submit(later).id)
                if len(self.runs) - len(self.told) < OPEN_MAX:
                    self.runs.append(self._client.submit(JobBody(command=self._command)).id)
                self.look()
        except Exception as fault:  # told by whoever waits for this thread
            self.fault = repr(fault)
            self._client.close()

    def look(self) -> None:
        """At the oldest of those that haven't ended."""
        for job_id in [each for each in self.runs if each not in self.told][:2]:
            job = self._client.job(job_id)
            if job.state in FINAL:
                self.told[job_id] = job

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.waiting) + len(self.runs), len(self.told)

    def progress(self, acknowledged: int, ended: int) -> None:
        """Until so many more were acknowledged, and so many more ends told."""
        before = self.counts
        until(
            lambda: self.fault or (self.counts[0] >= before[0] + acknowledged and self.counts[1] >= before[1] + ended),
            lambda: f"{before} -> {self.counts}",
        )
        assert not self.fault, self.fault

    def finish(self) -> None:
        """Submit no more, and wait until what runs has ended."""
        self._over.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        assert not self.fault, self.fault
        deadline = time.monotonic() + PATIENCE_S
        while len(self.told) < len(self.runs):
            assert time.monotonic() < deadline, set(self.runs) - set(self.told)
            self.look()

    def all_jobs(self) -> dict[str, JobView]:
        found: dict[str, JobView] = {}
        after: str | None = ""
        while after is not None:
            page = self._client.jobs(JobListQuery(limit=500, after=after, full=True))
            found |= {job.id: job for job in page.jobs}
            after = page.next
        self._client.close()
        return found


def through_cuts(cut: CutMachine, work: Work) -> None:
    """Steady work, and the power goes as often as is asked for; until what was begun has ended."""
    cut.up()
    work.start()
    for _ in range(CUTS):
        work.progress(acknowledged=12, ended=4)
        cut.cut()
        cut.up()
    work.finish()


def reckon(work: Work, ran: Counter[tuple[str, int]], cut: CutMachine) -> list[int | str]:
    """Nothing acknowledged is lost, nothing ran twice, each end that was told is as it was.

    `ran`: how often each attempt began, once all has ended. Returns what `TABLE` has a column for.
    """
    found = work.all_jobs()
    lost = [each for each in (*work.waiting, *work.runs) if each not in found]
    assert not lost, f"{len(lost)} acknowledged jobs are lost: {lost[:20]}"
    twice = {attempt: times for attempt, times in ran.items() if times > 1}
    assert not twice, f"ran twice: {twice}"
    changed = [(job, found[job.id]) for job in work.told.values() if job != found[job.id]]
    assert not changed, f"ends that are other than they were told: {changed[:3]}"
    for job_id in work.runs:
        job = found[job_id]
        assert (job.state, job.exit_code) == ("failed", 7), job
        attempts = sorted(number for ran_id, number in ran if ran_id == job_id)
        assert attempts[-1:] == [len(job.attempts)], (attempts, job)
    assert {found[each].state for each in work.waiting} == {"pending"}
    assert len({found[each].uid for each in found}) == len(found)
    assert cut.unsynced_lost, "nothing that was not synced was ever lost: this test could not fail"
    unsynced = f"{cut.unsynced_lost} of {cut.cuts}"
    counts = (cut.cuts, cut.booted, work.counts[0], len(lost), len(work.told), len(changed), len(ran), len(twice))
    return [*counts, unsynced]


ABOVE: Final = """# Power cuts: what outlives them

`STOKER_POWER_CUTS=20 make test-heavy ARGS="-k power_cuts --rewrite"` writes this table. A virtual machine of Debian
with systemd ({memory} MiB, two CPUs, without KVM on a machine of {cpus} CPUs) ends in the middle of steady submissions,
starts and ends, and goes on from the same disk: most times from the memory of a machine that has booted, which has
nothing of that disk in it, some times by a boot of kernel and systemd. What a control plane was asked while it was away
is asked again under its key. "Ends told" are jobs that were final in an answer, "changed" those of them that were shown
otherwise later.

"""
TABLE: Final = ROOT / "benchmarks" / "results" / "power_cuts.md"
COLUMNS: Final = (
    *("whose power", "cuts", "followed by a boot", "acknowledged jobs", "of them lost", "ends told", "of them changed"),
    *("attempts that ran", "of them twice", "cuts that lost what nobody had synced", "seconds", "commit"),
)


def tell(whose: str, counts: list[int | str], began: float, *, keep: bool) -> None:
    """Print the row, and `keep` it in the table instead of the former one of that kind."""
    commit = run("git", "-C", ROOT, "log", "-1", "--format=%h", "--", "src", "deploy").strip()
    row = f"| {' | '.join(map(str, (whose, *counts, round(time.monotonic() - began), f'`{commit}`')))} |"
    print(row)
    if not keep:
        return
    with alone(ROOT / "build" / "power_cuts"):
        before = TABLE.read_text().splitlines() if TABLE.exists() else []
        others = [line for line in before if line.startswith(("| the", "| a")) and not line.startswith(f"| {whose} ")]
        rows = (f"| {' | '.join(COLUMNS)} |", f"|---|{'---:|' * (len(COLUMNS) - 1)}", *sorted([*others, row]))
        TABLE.write_text(ABOVE.format(memory=MEMORY_MB, cpus=os.cpu_count()) + "\n".join(rows) + "\n")


def ran_here(text: str) -> Counter[tuple[str, int]]:
    """(job, attempt) -> how often it wrote that it began.

    Where a cut lost a line that nobody had synced yet, the next one stands behind as many zeros.
    """
    return Counter((job, int(attempt)) for job, attempt in re.findall(r"(\d+) (\d+)\n", text))


def test_a_line_behind_the_zeros_of_one_that_a_cut_lost_is_counted() -> None:
    assert ran_here("1 1\n\0\0\0\0" + "12 2\n") == {("1", 1): 1, ("12", 2): 1}


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--rewrite"))


def test_power_cuts_of_the_control_planes_machine_lose_nothing_acknowledged_and_run_nothing_twice(
    tmp_path: Path, made: Template, keep: bool
) -> None:
    machine, tokens = control_machine(tmp_path, made.image)
    cut, began = CutMachine(machine, "stoker-control", made), time.monotonic()
    proof = tmp_path / "proof"
    command = f"echo $STOKER_JOB_ID $STOKER_ATTEMPT >>{proof}; sleep 0.5; exit 7"
    with machine, agents(tmp_path, machine, tokens.agent_file):
        work = Work(f"http://127.0.0.1:{machine.port_of(HTTP)}", tokens.admin, command)
        through_cuts(cut, work)
        tell("the control plane's machine", reckon(work, ran_here(proof.read_text()), cut), began, keep=keep)
        assert all(len(job.attempts) == 1 for job in work.told.values()), "a control plane's absence cost an attempt"


def test_power_cuts_of_a_nodes_machine_lose_no_job_run_no_attempt_twice_and_keep_every_end(
    tmp_path: Path, made: Template, keep: bool
) -> None:
    with ControlProcess(tmp_path / "control") as control:
        machine, user = node_machine(tmp_path, control)
        cut, began = CutMachine(machine, "stoker-agent", made), time.monotonic()
        command = "echo $STOKER_JOB_ID $STOKER_ATTEMPT >>/srv/proof && sync /srv/proof || exit 9; sleep 0.5; exit 7"
        work = Work(control.url, user, command)
        with machine:
            through_cuts(cut, work)
            tell("a node's machine", reckon(work, ran_here(machine.do("cat /srv/proof")), cut), began, keep=keep)
        for job in work.told.values():
            assert {each.outcome for each in job.attempts[:-1]} <= {"node_failed"}, job
        if CUTS >= MANY:
            assert any(len(job.attempts) > 1 for job in work.told.values()), "no cut met a job that ran"
