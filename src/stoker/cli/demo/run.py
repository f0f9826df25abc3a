"""Course of the demo: cluster, jobs, report, and the machine as it was.

It starts `stoker up` with simulated GPUs on free ports and from then on is a client like any other: what it shows and
checks comes from the API alone, or from the machine's own process table.

Rules: D1  whatever happens, the cluster it started is gone when it returns, jobs included
       D2  every wait has a bound, and going past it is a failure with a name
"""

import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.lifecycle import FINAL, JobState
from stoker.cli.clock import mono_s, now_ms, sleep_blocking
from stoker.cli.demo.jobs import (
    GANG,
    GPUS_PER_NODE,
    HOTFIX,
    MISTAKE,
    NODES,
    SWEEP,
    TOO_LONG,
    Evidence,
    checks,
    first_wave,
    second_wave,
)
from stoker.cli.demo.screen import Screen, open_screen, print_report, write_picture
from stoker.cli.display.formatting import instant_ms
from stoker.cli.display.timeline import gpu_timeline
from stoker.wire.client import Client, JobBody, LogQuery
from stoker.wire.rest.job import JobView, WhyView

START_S: Final = 30.0
STORY_S: Final = 60.0
STOP_S: Final = 20.0
POLL_S: Final = 0.1
MISTAKE_MS: Final = 1_200
_LIVE: Final = frozenset({JobState.RUNNING, *FINAL})

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
    picture = write_picture(out, evidence.timeline)
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
    up.terminate()
    try:
        up.wait(STOP_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        up.terminate()
        try:
            up.wait(STOP_S)
        except subprocess.TimeoutExpired:
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

    def evidence(self, why: WhyView | None) -> Evidence:
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
