"""Course of the demo: cluster, jobs with the results that are expected of them, report, and the machine as it was.

Each job shows one promise of Stoker.

It starts `stoker up` with simulated GPUs on free ports and from then on is a client like any other: what it shows and
checks comes from the API alone, or from the machine's own process table.

Rules: D1  whatever happens, the cluster it started is gone when it returns, jobs included
       D2  every wait has a bound, and going past it is a failure with a name
"""

import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.lifecycle import FINAL, JobState, Outcome
from stoker.cli.clock import mono_s, now_ms, sleep_blocking
from stoker.cli.demo.screen import Screen, open_screen, print_report, write_picture
from stoker.cli.display.formatting import instant_ms
from stoker.cli.display.timeline import Timeline, gpu_timeline
from stoker.wire.client import Client, JobBody, LogQuery
from stoker.wire.rest.job import JobView
from stoker.wire.rest.why import WhyView

NODES: Final = 2
GPUS_PER_NODE: Final = 4
RANK_PROGRAM: Final = Path(__file__).with_name("rank.py")
GANG: Final = "gang"
MISTAKE: Final = "mistake"
TOO_LONG: Final = "too-long"
HOTFIX: Final = "hotfix"
SWEEP: Final = "night-sweep"
START_S: Final = 30.0
STORY_S: Final = 60.0
STOP_S: Final = 20.0
POLL_S: Final = 0.1
MISTAKE_MS: Final = 1_200
_LIVE: Final = frozenset({JobState.RUNNING, *FINAL})
_job: Final = partial(JobBody, time_limit="1m", gpu_count=1)

Found = TypeVar("Found")


def run_demo(out: Path) -> int:
    """Run it all; 0 when every check held. Raises: StokerError when it can't be run."""
    _make_folder(out)
    # Whoever sends SIGTERM wants the same as with Ctrl-C: everything ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    temporary = tempfile.TemporaryDirectory(prefix="stoker-demo-", ignore_cleanup_errors=True)
    with temporary as folder, open_screen() as screen, _cluster(Path(folder)) as client:
        story = Story(client, screen)
        evidence = story.evidence(story.tell())
        jobs = story.jobs()
        screen.note("ending the cluster")
    found = list(checks({job.name: job for job in jobs}, evidence))
    title = f"Stoker demo: {NODES} nodes of {GPUS_PER_NODE} simulated GPUs"
    picture = write_picture(out, evidence.timeline, title)
    print_report(jobs, evidence, found, picture)
    return 0 if all(held for held, _ in found) else 1


def _make_folder(out: Path) -> None:
    """Before half a minute is spent on a picture that can't be kept."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".stoker-demo").touch()
        (out / ".stoker-demo").unlink()
    except OSError as fault:
        hint = "name a folder with --out that this account may write to"
        raise StokerError(refuse("data_dir_unusable", f"can't write to {out}: {fault.strerror}", hint)) from fault


@contextmanager
def _cluster(folder: Path) -> Iterator[Client]:
    """A cluster of our own, in a process below this one (D1)."""
    http_port, grpc_port = _free_ports()
    command = (
        *(sys.executable, "-m", "stoker", "up", "--ends-with-parent", "--stop-grace", "2", "--node-prefix", "demo"),
        *("--nodes", str(NODES), "--gpus-per-node", str(GPUS_PER_NODE), "--data-dir", str(folder)),
        *("--http-port", str(http_port), "--grpc-port", str(grpc_port)),
    )
    log = folder / "up.log"
    with log.open("wb") as words:
        up = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, start_new_session=True)
    try:
        with Client(f"http://127.0.0.1:{http_port}") as client:
            _until(lambda: _all_nodes(client, up, log), START_S, "the cluster to start")
            yield client
    finally:
        _end(up)


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return one.getsockname()[1], two.getsockname()[1]


def _all_nodes(client: Client, up: "subprocess.Popen[bytes]", log: Path) -> bool | None:
    if up.poll() is not None:
        words = log.read_text(errors="replace").strip()
        message = f"the demo's cluster ended with status {up.returncode}: {words}"
        raise StokerError(refuse("part_died", message, "try `stoker up`, which shows more"))
    with suppress(StokerError):  # it doesn't answer yet
        return client.status().online_nodes == NODES or None
    return None


def _end(up: "subprocess.Popen[bytes]") -> None:
    """The first signal ends it in good order, a second one, or one more Ctrl-C, without grace."""
    for _ in range(2):
        up.terminate()
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            up.wait(STOP_S)
            return
    up.kill()
    up.wait()


def _until(look: Callable[[], Found | None], patience_s: float, what: str) -> Found:
    """The first answer that isn't None (D2)."""
    give_up_s = mono_s() + patience_s
    while (found := look()) is None:
        if mono_s() > give_up_s:
            message = f"waited {patience_s:.0f} s in vain for {what}"
            raise StokerError(refuse("demo_stuck", message, "the machine may be busy: try again"))
        sleep_blocking(POLL_S)
    return found


class Story:
    """The sequence of submits, cancels and checks in the demo."""

    def __init__(self, client: Client, screen: Screen) -> None:
        self._client = client
        self._screen = screen
        self._ids: dict[str, str] = {}
        self._pids: dict[str, int] = {}

    def tell(self) -> WhyView | None:
        """Submit, wait, cancel, overtake. What is answered is why the gang waited."""
        self._screen.note(f"{NODES} nodes of {GPUS_PER_NODE} simulated GPUs are up")
        self._submit(first_wave())
        why = self._until(self._reason_to_wait, "the gang to be told why it waits")
        self._screen.note(f"why {self._ids[GANG]}? {why.message}")
        for name in (MISTAKE, TOO_LONG):
            self._pids[name] = self._until(partial(self._pid, name), f"{name} to run")
        self._until(self._mistake_shows, f"{MISTAKE} to run a while")
        self._client.cancel(self._ids[MISTAKE])
        self._screen.note(f"cancel {self._ids[MISTAKE]} {MISTAKE}: its process is {self._pids[MISTAKE]}")
        self._until(lambda: self._job(GANG).state in _LIVE or None, "the gang to run")
        self._submit(second_wave())
        self._screen.note(f"{HOTFIX} is urgent and came after {SWEEP}")
        self._until(lambda: all(job.state in FINAL for job in self.jobs()) or None, "every job to end")
        return why

    def jobs(self) -> list[JobView]:
        """Every job of ours, oldest first."""
        return sorted(self._client.each_job(), key=lambda job: int(job.id))

    def evidence(self, why: WhyView | None) -> "Evidence":
        gpus = self._until(self._all_free, "every GPU to be free")
        logs = [self._log(GANG, rank) for rank in range(NODES)]
        return Evidence(
            why=why,
            gang_logs=logs,
            pids=self._pids,
            living=frozenset(pid for pid in self._pids.values() if Path(f"/proc/{pid}").exists()),
            free_gpus=gpus,
            timeline=gpu_timeline(self._client.gpus(), self.jobs(), now_ms()),
        )

    def _until(self, look: Callable[[], Found | None], what: str) -> Found:
        def look_and_show() -> Found | None:
            self._screen.show(self.jobs(), self._client.gpus())
            return look()

        return _until(look_and_show, STORY_S, what)

    def _submit(self, bodies: Sequence[JobBody]) -> None:
        for job in self._client.submit_many(bodies):
            self._ids[job.name] = job.id

    def _job(self, name: str) -> JobView:
        return self._client.job(self._ids[name])

    def _reason_to_wait(self) -> WhyView | None:
        why = self._client.why(self._ids[GANG])
        return why if why.code is not None and why.code.value != "awaiting_pass" else None

    def _pid(self, name: str) -> int | None:
        """Its first line is its process id, once it has written it."""
        words = self._log(name, 0).split("\n")
        return int(words[0]) if len(words) > 1 else None

    def _mistake_shows(self) -> bool | None:
        """Long enough to be seen in the picture."""
        started = self._job(MISTAKE).started_at
        return (started is not None and now_ms() - instant_ms(started) >= MISTAKE_MS) or None

    def _log(self, name: str, rank: int) -> str:
        try:
            return self._client.logs(self._ids[name], LogQuery(rank=rank)).data.decode(errors="replace")
        except StokerError:  # it hasn't started
            return ""

    def _all_free(self) -> int | None:
        idle = self._client.gpus().idle
        return idle if idle == NODES * GPUS_PER_NODE else None


# --- jobs and what is expected of them --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The end that a job of the demo must come to."""

    state: JobState = JobState.SUCCEEDED
    exit_code: int | None = 0
    outcomes: tuple[Outcome, ...] = (Outcome.SUCCEEDED,)


def first_wave() -> tuple[JobBody, ...]:
    """Seven GPUs' worth of jobs, then a gang that needs all eight and must wait."""
    rank = shlex.join((sys.executable, "-S", "-E", str(RANK_PROGRAM), str(GPUS_PER_NODE)))
    return (
        _job(name="train-small", command="echo one GPU: $CUDA_VISIBLE_DEVICES; sleep 2.5"),
        _job(name="train-pair", command="echo two GPUs: $CUDA_VISIBLE_DEVICES; sleep 3", gpu_count=2),
        _job(name="breaks", command="sleep 1; echo no such file: data.bin >&2; exit 3"),
        _job(name="flaky", command="sleep 0.7; [ $STOKER_ATTEMPT -ge 2 ]", retries=2),
        _job(name=TOO_LONG, command="echo $$; exec sleep 600", time_limit="2s"),
        _job(name=MISTAKE, command="echo $$; exec sleep 600"),
        _job(name=GANG, command=f"{rank} && sleep 2", gpu_count=GPUS_PER_NODE, tasks=NODES),
    )


def second_wave() -> tuple[JobBody, ...]:
    """Submitted while the gang holds every GPU: the urgent one comes later and must go first."""
    return (
        _job(name=SWEEP, command="sleep 1.2", gpu_count=3, tasks=2, priority="low"),
        _job(name="evaluate", command="sleep 1.5"),
        _job(name=HOTFIX, command="sleep 1.2", gpu_count=2, tasks=2, priority="urgent"),
    )


EXPECTED: Final[Mapping[str, Expected]] = {
    **{body.name or "": Expected() for body in (*first_wave(), *second_wave())},
    "breaks": Expected(state=JobState.FAILED, exit_code=3, outcomes=(Outcome.FAILED,)),
    "flaky": Expected(outcomes=(Outcome.FAILED, Outcome.SUCCEEDED)),
    TOO_LONG: Expected(state=JobState.TIMEOUT, exit_code=None, outcomes=(Outcome.TIMEOUT,)),
    MISTAKE: Expected(state=JobState.CANCELLED, exit_code=None, outcomes=(Outcome.CANCELLED,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Observations of the demo besides the jobs themselves."""

    why: WhyView | None  # of the gang while it waited
    gang_logs: Sequence[str]  # by rank
    pids: Mapping[str, int]  # of the jobs that had to be ended, by name
    living: frozenset[int]  # of these, those still alive at the end
    free_gpus: int
    timeline: Timeline


DemoCheck = tuple[bool, str]
"""Whether it held, and what was checked."""


def checks(jobs: Mapping[str, JobView], seen: Evidence) -> Iterator[DemoCheck]:
    """Every promise, held against what the API answered and what the machine shows."""
    for name, expected in EXPECTED.items():
        yield _ended_as_expected(name, jobs.get(name), expected)
    yield _ranks_met(jobs.get(GANG), seen.gang_logs)
    why = seen.why
    waited = why is not None and why.code is not None and why.code.value == "insufficient_gpus"
    yield waited, "the gang waited for GPUs, and `why` said so"
    yield _went_first(jobs.get(HOTFIX), jobs.get(SWEEP)), "the urgent job overtook the low one that came before it"
    gone = len(seen.pids) == 2 and not seen.living
    yield gone, "the processes of the cancelled job and of the one out of time are gone"
    yield not overlaps(seen.timeline), "no GPU was held by two jobs at once"
    total = NODES * GPUS_PER_NODE
    yield seen.free_gpus == total, f"all {total} GPUs are free again"


def _ended_as_expected(name: str, job: JobView | None, expected: Expected) -> DemoCheck:
    tries = f" after {len(expected.outcomes)} attempts" if len(expected.outcomes) > 1 else ""
    code = f" with exit code {expected.exit_code}" if expected.exit_code else ""
    says = f"{name} ended {expected.state.value}{code}{tries}"
    if job is None:
        return False, f"{says}; it was never seen"
    outcomes = tuple(attempt.outcome for attempt in job.attempts)
    code_fits = expected.exit_code is None or job.exit_code == expected.exit_code
    if job.state is expected.state and code_fits and outcomes == expected.outcomes:
        return True, says
    tried = ", ".join(outcome.value if outcome else "live" for outcome in outcomes)
    return False, f"{says}; it is {job.state.value} with exit code {job.exit_code} and attempts [{tried}]"


def _ranks_met(job: JobView | None, logs: Sequence[str]) -> DemoCheck:
    last = job.attempts[-1] if job is not None and job.attempts else None
    nodes = len({task.node for task in last.tasks}) if last else 0
    met = len(logs) == NODES and all(f"rank {rank} of {NODES}" in log and "met" in log for rank, log in enumerate(logs))
    where = f" at {last.master_addr}:{last.master_port}" if last else ""
    return met and nodes == NODES, f"the gang's ranks ran on {nodes} nodes and met over TCP{where}"


def _went_first(first: JobView | None, second: JobView | None) -> bool:
    if first is None or second is None or not first.started_at or not second.started_at:
        return False
    came_later = instant_ms(first.submitted_at) >= instant_ms(second.submitted_at)
    return came_later and instant_ms(first.started_at) <= instant_ms(second.started_at)


def overlaps(timeline: Timeline) -> bool:
    """Whether any GPU is held twice at once."""
    busy_until: dict[str, int] = {}
    for span in timeline.spans:  # in order of their beginning
        if span.start_ms < busy_until.get(span.gpu, span.start_ms):
            return True
        busy_until[span.gpu] = span.end_ms
    return False
