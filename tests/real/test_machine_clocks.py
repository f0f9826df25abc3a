"""Machines that sleep, that their hypervisor pauses, or that start with a wall clock which is an hour off: what
`docs/explanation/clocks.md` promises.

To sleep is the kernel's own suspend to memory (ACPI S3), which qemu ends after ten minutes. Qemu's `stop` and `cont`
are a pause: no clock of the guest counts it, and its wall clock is set right afterwards as a time service would.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from stoker.brain.domain.access import Role
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.policy import LEASE_KILL_MS
from stoker.wire.client import Client, JobBody
from stoker.wire.rest.job import JobView
from stoker.wire.rest.token import NewTokenBody
from tests.real.agent_process import AgentProcess
from tests.real.control_process import ControlProcess
from tests.real.failing_over import FINAL
from tests.real.say import Say
from tests.real.stoker_machine import (
    HTTP,
    PATIENCE_S,
    agents,
    control_machine,
    if_many,
    node_machine,
    start,
    until,
    wanted,
)
from tests.real.tokens import Tokens
from tests.real.virtual_machine import Machine, Template

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(5_400), wanted]

AWAY_S: Final = 600.0
HOUR_S: Final = 3_600.0
LIMIT_S: Final = 90
LATER_S: Final = 60.0
"""What a limit may last longer while the log waits for its clock."""
RIGHT_S: Final = 10.0
"""A clock that is so near is right: that of a machine's board has whole seconds, and one without KVM beside other tests
goes wrong by some. What is looked for here are minutes and hours."""
FOLLOWED_S: Final = 60.0
"""A new wall clock is followed in 2 s; a machine without KVM beside other tests takes far longer to answer."""
JOINED_S: Final = 150.0
"""Agents look for a control plane that was away for long every half minute, and that may take one try more."""


def iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")


def board_clock(off_s: float) -> tuple[str, str]:
    """Words of qemu for a machine that boots with a clock which is so far off."""
    return "-rtc", datetime.fromtimestamp(time.time() + off_s, UTC).strftime("base=%Y-%m-%dT%H:%M:%S")


def seconds(text: str | None) -> float:
    """Since 1970, of a time in an answer."""
    assert text is not None
    return datetime.fromisoformat(text).timestamp()


def log_off_s(client: Client) -> float:
    """How far the time of the control plane's log is from the wall clock here, as well as its answers tell."""
    asked_s = time.time()
    at_s = seconds(client.submit(JobBody(command="true", hold=True)).submitted_at)
    return max(asked_s - at_s, at_s - time.time(), 0.0)


def until_right(client: Client, within_s: float = FOLLOWED_S) -> None:
    until(lambda: log_off_s(client) < RIGHT_S, lambda: f"{log_off_s(client)} s off", within_s)


def until_in(client: Client, job_id: str, *states: str) -> JobView:
    until(lambda: client.job(job_id).state in states, lambda: f"{client.job(job_id)}")
    return client.job(job_id)


class Limited(NamedTuple):
    """A job that would run for ever but for its time limit, and the file in which it says that it runs."""

    id: str
    proof: Path

    def lived_s(self) -> float:
        first, *_, last = self.proof.read_text().split()
        return float(last) - float(first)


class Served:
    """A control plane in a machine, its agents outside, and two jobs: one ends by its limit, one when it may."""

    def __init__(self, folder: Path, machine: Machine, tokens: Tokens) -> None:
        self.machine, self.folder = machine, folder
        self.url = f"http://127.0.0.1:{machine.port_of(HTTP)}"
        self.client = Client(self.url, token=tokens.admin, patience_s=PATIENCE_S)
        self.doctor: Callable[[], str] = lambda: Say(self.url, tokens.admin)("doctor").output

    def begin(self) -> None:
        proof = self.folder / "limited"
        command = f"while date +%s.%N >>{proof}; do sleep 0.2; done"
        self.limited = Limited(self._submit(command, f"{LIMIT_S}s"), proof)
        self.free = self._submit(f"until [ -e {self.folder}/free ]; do sleep 0.2; done; exit 7", "5m")
        for each in (self.limited.id, self.free):
            until_in(self.client, each, "running")

    def _submit(self, command: str, limit: str) -> str:
        return self.client.submit(JobBody(command=command, time_limit=limit)).id

    def due(self, at_s: float) -> Callable[[], float]:
        """A job that begins then. What is returned waits for its end, and tells when it began by the clock here."""
        proof = self.folder / f"due-{at_s}"
        job = self.client.submit(JobBody(command=f"date +%s.%N >{proof}", begin=iso(at_s))).id
        assert self.client.why(job).code == "begin_time"

        def began_s() -> float:
            assert until_in(self.client, job, *FINAL).state == "succeeded"
            return float(proof.read_text())

        return began_s

    def reckon(self, away_s: float = 0.0) -> None:
        """Both jobs have had the time that is theirs."""
        (self.folder / "free").touch()
        job = until_in(self.client, self.free, *FINAL)
        assert (job.state, job.exit_code) == ("failed", 7), job
        assert until_in(self.client, self.limited.id, *FINAL).state == "timeout"
        lived_s = self.limited.lived_s() - away_s
        assert LIMIT_S - RIGHT_S < lived_s < LIMIT_S + LATER_S + FOLLOWED_S, lived_s

    def until_clocks_agree(self) -> None:
        """A clock without KVM goes wrong by seconds within minutes, so what a time service does is done each time."""

        def agree() -> bool:
            self.machine.set_clock()
            return "the control plane's clock and this machine's agree" in self.doctor()

        until(agree, self.doctor)

    def logged(self, event: str) -> list[dict[str, object]]:
        lines = self.machine.do("journalctl -u stoker-control --no-pager -o cat", timeout_s=120).splitlines()
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        return [row for row in rows if row["event"] == event]


@contextmanager
def served(folder: Path, made: Template, *words: str) -> Iterator[Served]:
    """`words`: of qemu, for a machine that really boots."""
    machine, tokens = control_machine(folder, made.image)
    with machine, agents(folder, machine, tokens.agent_file):
        if words:
            machine.boot(made, *words)
        else:
            machine.revive(made)
        start(machine, "stoker-control")
        stage = Served(folder, machine, tokens)
        try:
            yield stage
        finally:
            stage.client.close()


def boot_minus_awake_s(machine: Machine) -> float:
    """For how long it slept since it booted."""
    asked = "import time; print(time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic())"
    return float(machine.do(f"python3 -IS -c '{asked}'"))


def wall_off_s(machine: Machine) -> float:
    return float(machine.do("date +%s.%N")) - time.time()


def away(machine: Machine, how: str, meanwhile: Callable[[], object] = lambda: None) -> float:
    """For ten minutes. Returns for how many seconds it surely was.

    One that slept reads its board's clock when it wakes, so that its time is as right as it was before. Without KVM
    that is some seconds off, which the time service of a real machine takes away.
    """
    off_s = wall_off_s(machine)
    if how == "sleeps":
        machine.suspend()
    else:
        machine.pause()
    began_s = time.monotonic()
    meanwhile()
    time.sleep(max(0.0, began_s + AWAY_S - time.monotonic()))
    gone_s = time.monotonic() - began_s
    if how == "sleeps":
        machine.wake()
        assert boot_minus_awake_s(machine) > AWAY_S - RIGHT_S
        assert abs(wall_off_s(machine) - off_s) < RIGHT_S
        machine.set_clock()
    else:
        machine.go_on()
        assert boot_minus_awake_s(machine) < 1
        assert wall_off_s(machine) < RIGHT_S - AWAY_S
    return gone_s


@pytest.mark.parametrize("how", [pytest.param("sleeps", marks=if_many), "is paused"])
def test_a_control_planes_machine_that_was_away_for_ten_minutes_ends_no_job_early_and_its_time_is_right_again(
    how: str, tmp_path: Path, made: Template
) -> None:
    with served(tmp_path, made) as stage:
        client = stage.client
        stage.begin()
        token = client.create_token(NewTokenBody(role=Role.VIEWER, expires=f"{AWAY_S / 2:.0f}s")).token
        meanwhile, later_s = stage.due(time.time() + AWAY_S / 2), time.time() + AWAY_S + 120
        later = stage.due(later_s)
        gone_s = away(stage.machine, how)
        if how == "is paused":
            until(lambda: "s behind this machine's" in stage.doctor(), stage.doctor)
            stage.machine.set_clock()
        right_s = time.time()
        # The board of one that slept tells whole seconds, and by what it is ahead the log is made up for at half speed.
        until_right(client, FOLLOWED_S if how == "is paused" else LATER_S)
        with Client(stage.url, token=token) as expired, pytest.raises(StokerError) as refused:
            expired.status()
        assert refused.value.refusal.code == "token_unknown"
        assert right_s - FOLLOWED_S < meanwhile() < right_s + JOINED_S
        stage.until_clocks_agree()
        assert -RIGHT_S < later() - later_s < FOLLOWED_S
        stage.reckon(gone_s)
        steps_s = [float(str(row["by_ms"])) / 1_000 for row in stage.logged("clock_moved")]
        assert max(steps_s, default=0.0) > AWAY_S - 10, "time limits count neither sleep nor pause"


@pytest.mark.parametrize("off_s", [-HOUR_S, pytest.param(HOUR_S, marks=if_many)])
def test_a_control_plane_that_started_with_a_clock_an_hour_off_follows_it_when_it_is_set_right(
    off_s: float, tmp_path: Path, made: Template
) -> None:
    with served(tmp_path, made, *board_clock(off_s)) as stage:
        assert abs(wall_off_s(stage.machine) - off_s) < 60
        stage.begin()
        way = "ahead of" if off_s > 0 else "behind"
        until(lambda: f"s {way} this machine's" in stage.doctor(), stage.doctor)
        due_s = time.time() + 45
        due = stage.due(due_s) if off_s < 0 else None
        stage.machine.set_clock()
        if due is not None:
            until_right(stage.client)
            assert -RIGHT_S < due() - due_s < FOLLOWED_S
        else:
            until(lambda: "ahead of its clock; it was set back" in stage.doctor(), stage.doctor)
            began_s, ahead_ms = time.monotonic(), stage.client.health().clock_ahead_ms
            until(lambda: time.monotonic() > began_s + 40, str)
            lost_s = (ahead_ms - stage.client.health().clock_ahead_ms) / 1_000
            assert 0.2 < lost_s / (time.monotonic() - began_s) < 0.8, "the log goes at half speed until then"
        stage.until_clocks_agree()
        stage.reckon()
        steps_s = [float(str(row["by_ms"])) / 1_000 for row in stage.logged("clock_moved")]
        # Its log was begun at the right time: an hour behind it had to wait, and follows; an hour ahead it waits now.
        assert off_s > 0 or max(steps_s) > 1.0, steps_s


def grows(machine: Machine) -> bool:
    """Whether the job that writes there still runs."""
    said = machine.do("wc -l </srv/proof; sleep 3; wc -l </srv/proof").split()
    return said[0] != said[1]


@pytest.mark.parametrize("how", ["sleeps", pytest.param("is paused", marks=if_many)])
def test_a_nodes_machine_that_was_away_for_ten_minutes_goes_on_with_what_waited_for_it_and_ends_what_did_not(
    how: str, tmp_path: Path, made: Template
) -> None:
    """A control plane that is awake counts that time: a lease and a time limit end in it.

    A machine that is paused can't know: it goes on with what started elsewhere until it is told, for no longer than
    the lease (docs/adr/0020-attempt-leases.md).
    """
    with ControlProcess(tmp_path / "control") as control, control.client(patience_s=60) as client:
        machine, _ = node_machine(tmp_path, control)
        with machine:
            machine.revive(made)
            start(machine, "stoker-agent")
            writes = (
                "[ $STOKER_ATTEMPT = 1 ] || exit 7; while cut -d. -f1 /proc/uptime >>/srv/proof; do sleep 0.5; done"
            )
            moved = client.submit(JobBody(command=writes, lost_after="1m")).id
            waits = "until [ -e /srv/free ]; do sleep 0.5; done; exit 7"
            kept = client.submit(JobBody(command=waits, lost_after="never")).id
            limited = client.submit(JobBody(command="sleep 10000", lost_after="never", time_limit="3m")).id
            for each in (moved, kept, limited):
                until_in(client, each, "running")
            asleep_at_s = float(machine.do("cut -d. -f1 /proc/uptime"))

            def elsewhere() -> None:
                with AgentProcess(tmp_path / "n2", control, name="n2"):
                    job = until_in(client, moved, *FINAL)
                assert (job.state, job.exit_code) == ("failed", 7), job
                assert [(each.outcome, each.tasks[0].node) for each in job.attempts] == [
                    ("lost", "n1"),
                    ("failed", "n2"),
                ]

            away(machine, how, elsewhere)
            until(lambda: not grows(machine), lambda: machine.do("tail -n 5 /srv/proof"))
            slept_s = AWAY_S if how == "sleeps" else 0.0
            last_s = float(machine.do("tail -n 1 /srv/proof")) - asleep_at_s - slept_s
            assert last_s < (LEASE_KILL_MS / 1_000 if how == "sleeps" else 60) + FOLLOWED_S
            assert until_in(client, limited, *FINAL).state == "timeout"
            machine.do("touch /srv/free")
            job = until_in(client, kept, *FINAL)
            assert (job.state, job.exit_code, len(job.attempts)) == ("failed", 7, 1), job
            assert "lease_broken" not in control.output() or how == "is paused"


def test_a_node_whose_clock_is_an_hour_off_runs_jobs_by_the_control_planes_time(tmp_path: Path, made: Template) -> None:
    with ControlProcess(tmp_path / "control") as control, control.client(patience_s=60) as client:
        machine, _ = node_machine(tmp_path, control)
        with machine:
            machine.boot(made, *board_clock(-HOUR_S))
            assert abs(wall_off_s(machine) + HOUR_S) < 60
            start(machine, "stoker-agent")
            writes = "while cut -d' ' -f1 /proc/uptime >>/srv/proof; do sleep 0.2; done"
            limited = client.submit(JobBody(command=writes, time_limit=f"{LIMIT_S}s")).id
            until_in(client, limited, "running")
            for clock in ("as it booted", "an hour ahead"):
                asked_s = time.time()
                job = until_in(client, client.submit(JobBody(command="sleep 2; exit 7")).id, *FINAL)
                assert (job.state, job.exit_code) == ("failed", 7), (clock, job)
                assert asked_s - 1 < seconds(job.started_at) < seconds(job.ended_at) < time.time() + 1, (clock, job)
                machine.do(f"date -s @{time.time() + HOUR_S:.0f}")
            assert until_in(client, limited, *FINAL).state == "timeout"
            first, *_, last = map(float, machine.do("cat /srv/proof").split())
            assert LIMIT_S - RIGHT_S < last - first < LIMIT_S + LATER_S + FOLLOWED_S
            told = machine.sh("stoker doctor -c /etc/stoker/agent.yaml", timeout_s=300).output
            assert "nothing keeps the clock right" in told, told
