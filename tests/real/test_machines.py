"""Machines whose power is cut in the middle of steady submissions, starts and ends, and which go on from the same disk.

`STOKER_POWER_CUTS=20 make test-heavy ARGS="-k power -rP"` does twenty of each, and prints what it counted. Without that
variable they are left out: an image of the machine and its first boot take minutes.
"""

import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from stoker.brain.domain.access import Role
from stoker.wire.client import Client, JobBody
from stoker.wire.rest.job import JobListQuery, JobView
from stoker.wire.rest.token import NewTokenBody
from tests.real.agent_process import AgentProcess
from tests.real.control_process import ControlProcess
from tests.real.failing_over import FINAL
from tests.real.machine_image import data_disk, uid_of
from tests.real.tokens import token_in, tokens_of, written
from tests.real.virtual_machine import HOST, Machine, Template, template

CUTS: Final = int(os.environ.get("STOKER_POWER_CUTS", "0"))
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(not CUTS, reason="NOT PROVED HERE: STOKER_POWER_CUTS says how often the power is cut"),
]

BOOTED_EACH: Final = 7
"""Of so many cuts one is followed by a boot of kernel and systemd, the others go on from the template's memory."""
PATIENCE_S: Final = 900.0
PAUSE_S: Final = 0.05
OPEN_MAX: Final = 8
"""Jobs that run or wait to: the next one is submitted when fewer do."""
HTTP, GRPC = 8080, 9090
CONTROL: Final = (
    f"data_dir: /var/lib/stoker\nhttp: {{host: 0.0.0.0, port: {HTTP}}}\ngrpc: {{host: 0.0.0.0, port: {GRPC}}}\n"
)


def until(holds: Callable[[], object], what: Callable[[], str], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def made() -> Template:
    return template()


class CutMachine:
    """A machine and its disk, with files on it that tell whether a cut loses what nobody synced, and only that."""

    def __init__(self, folder: Path, name: str, made: Template, stage: Path, *ports: int) -> None:
        self.machine = Machine(folder, name, *ports, disk=data_disk(folder / f"{name}.img", stage))
        self.made = made
        self.cuts = self.booted = self.unsynced_lost = 0

    def up(self, unit: str) -> None:
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
        self.machine.do(f"systemctl start {unit}", timeout_s=300)

    def cut(self) -> None:
        self.machine.do("cd /srv; echo kept >synced; sync synced; echo lost >unsynced", timeout_s=120)
        time.sleep(random.uniform(0, 0.3))  # anywhere in what it does
        self.machine.cut()
        self.cuts += 1

    def journal(self, unit: str) -> str:
        return self.machine.sh(f"journalctl -u {unit} --no-pager -o cat | tail -n 30").output


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
                for _ in range(2):
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


def reckon(work: Work, ran: Counter[tuple[str, int]], cut: CutMachine, whose: str) -> None:
    """Nothing acknowledged is lost, nothing ran twice, each end that was told is as it was.

    `ran`: how often each attempt began, once all has ended.
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
        assert attempts[-1] == len(job.attempts), (attempts, job)
    assert {found[each].state for each in work.waiting} == {"pending"}
    assert len({found[each].uid for each in found}) == len(found)
    print(
        f"| {whose} | {cut.cuts} | {cut.booted} | {work.counts[0]} | {len(lost)} | {len(work.told)} | {len(changed)} | "
        f"{len(ran)} | {len(twice)} | {cut.unsynced_lost} of {cut.cuts} |"
    )
    assert cut.unsynced_lost, "nothing that was not synced was ever lost: this test could not fail"


@contextmanager
def agents(folder: Path, port: int, token_file: Path) -> Iterator[list[AgentProcess]]:
    """Two, outside."""
    started = []
    try:
        for name in ("n1", "n2"):
            agent = AgentProcess(folder / name, name=name)
            agent.environ["STOKER__CONTROL__TOKEN_FILE"] = str(token_file)
            agent.write(agent.settings.read_text().replace("127.0.0.1:1", f"127.0.0.1:{port}"))
            started.append(agent.start())
        yield started
    finally:
        for agent in started:
            agent.__exit__(None, None, None)


def ran_here(path: Path) -> Counter[tuple[str, int]]:
    """(job, attempt) -> how often it wrote that it began."""
    rows = (line.split() for line in path.read_text().splitlines())
    return Counter((job, int(attempt)) for job, attempt in rows)


def control_machine(folder: Path, made: Template) -> tuple[CutMachine, str]:
    """A machine for a control plane, and the admin's token; that of its agents is in `folder / "tokens/agent"`."""
    stage = folder / "stage"
    data = stage / "var/lib/stoker"
    token = tokens_of(data).admin
    shutil.move(data.with_name("stoker.tokens"), folder / "tokens")
    (stage / "etc/stoker").mkdir(parents=True)
    (stage / "etc/stoker/control.yaml").write_text(CONTROL)
    for path in (data, *data.iterdir()):
        os.chown(path, uid_of("stoker", made.image), -1)
    return CutMachine(folder, "control", made, stage, HTTP, GRPC), token


def test_power_cuts_of_the_control_planes_machine_lose_nothing_acknowledged_and_run_nothing_twice(
    tmp_path: Path, made: Template
) -> None:
    cut, token = control_machine(tmp_path, made)
    proof = tmp_path / "proof"
    command = f"echo $STOKER_JOB_ID $STOKER_ATTEMPT >>{proof}; sleep 0.5; exit 7"
    with cut.machine, agents(tmp_path, cut.machine.port_of(GRPC), tmp_path / "tokens/agent"):
        work = Work(f"http://127.0.0.1:{cut.machine.port_of(HTTP)}", token, command)
        cut.up("stoker-control")
        work.start()
        for _ in range(CUTS):
            work.progress(acknowledged=12, ended=4)
            cut.cut()
            cut.up("stoker-control")
        work.finish()
        reckon(work, ran_here(proof), cut, "the control plane's machine")
        assert all(len(job.attempts) == 1 for job in work.told.values()), "a control plane's absence cost an attempt"


NODE: Final = """data_dir: /var/lib/stoker-agent
node: {{name: n1, cpus: 16}}
control: {{addresses: ["{host}:{port}"], token_file: /etc/stoker/agent.token}}
gpu: {{script: /etc/stoker/gpus.yaml}}
"""


def node_machine(folder: Path, made: Template, control: ControlProcess) -> tuple[CutMachine, str]:
    """A machine for an agent of a control plane outside, and the token of a person whose account it has."""
    stage = folder / "stage"
    user = token_in(control.folder, NewTokenBody(role=Role.USER, tenant="default", user="ada"))
    (stage / "etc/stoker").mkdir(parents=True)
    (stage / "var/lib/stoker-agent").mkdir(parents=True, mode=0o711)
    (stage / "etc/stoker/agent.yaml").write_text(NODE.format(host=HOST, port=control.grpc_port))
    (stage / "etc/stoker/gpus.yaml").write_text("gpus: [{count: 4, model: Tesla V100, memory_mb: 16384}]\n")
    written(stage / "etc/stoker/agent.token", control.tokens.agent_file.read_text())
    proof = stage / "proof"
    proof.touch()
    proof.chmod(0o666)
    return CutMachine(folder, "node", made, stage), user


def test_power_cuts_of_a_nodes_machine_lose_no_job_run_no_attempt_twice_and_keep_every_end(
    tmp_path: Path, made: Template
) -> None:
    with ControlProcess(tmp_path / "control") as control:
        cut, user = node_machine(tmp_path, made, control)
        command = "echo $STOKER_JOB_ID $STOKER_ATTEMPT >>/srv/proof; sync /srv/proof; sleep 0.5; exit 7"
        work = Work(control.url, user, command)
        with cut.machine:
            cut.up("stoker-agent")
            work.start()
            for _ in range(CUTS):
                work.progress(acknowledged=12, ended=4)
                cut.cut()
                cut.up("stoker-agent")
            work.finish()
            (tmp_path / "proof").write_text(cut.machine.do("cat /srv/proof"))
            reckon(work, ran_here(tmp_path / "proof"), cut, "a node's machine")
        for job in work.told.values():
            assert {each.outcome for each in job.attempts[:-1]} <= {"node_failed"}, job
        assert any(len(job.attempts) > 1 for job in work.told.values()), "no cut met a job that ran"
