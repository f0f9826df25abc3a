"""A node whose disk is full, or whose runner is stopped: it says so, gets no new work, and loses nothing."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.real.agent_process import AgentProcess, alive, job, submit, until, until_state
from tests.real.control_process import ControlProcess

MOUNTS = os.geteuid() == 0 and shutil.which("mount") is not None
FILL = 'dd if=/dev/zero of="$STOKER_CHECKPOINT_DIR/much" bs=4k 2>/dev/null; '
WAIT = "while [ ! -e {file} ]; do sleep 0.05; done; "


@contextmanager
def small_disk(folder: Path, mib: int, files: int = 0) -> Iterator[None]:
    """`files`: at most so many. 0 = any number."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,nr_inodes={files}", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    """To the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    with ControlProcess(tmp_path / "control") as control:
        yield control


def node_state(control: ControlProcess) -> tuple[str, str]:
    """State and fault of the only node."""
    (node,) = control.ask("GET", "/api/v1/nodes")[1]["nodes"] or [{"state": "", "fault": ""}]
    return node["state"], node["fault"]


def reason(control: ControlProcess, job_id: str) -> str:
    said = job(control, job_id)["reason"]
    return said["message"] if said else ""


@pytest.mark.skipif(not MOUNTS, reason="only root may mount a small disk")
def test_a_node_whose_disk_a_job_has_filled_says_so_gets_no_new_work_and_loses_no_end(
    control: ControlProcess, tmp_path: Path
) -> None:
    go, leave = tmp_path / "go", tmp_path / "leave"
    with small_disk(tmp_path / "node-1" / "data", 24), AgentProcess(tmp_path / "node-1", control) as agent:
        other = submit(control, WAIT.format(file=leave) + "exit 3")
        until_state(control, other, "running")
        filler = submit(control, FILL + WAIT.format(file=go) + 'rm "$STOKER_CHECKPOINT_DIR/much"')
        until(lambda: node_state(control)[0] == "faulty", "the full disk is seen")
        assert "is full" in node_state(control)[1] or "No space left on device" in node_state(control)[1]
        assert reason(control, filler).startswith("its node node-1 can neither start nor end tasks: the ")
        leave.touch()
        ended = until_state(control, other, "failed")  # though the disk is full
        assert (ended["exit_code"], len(ended["attempts"])) == (3, 1)
        later = submit(control, "true")
        until(lambda: "available: 1 faulty" in reason(control, later), "it waits for a node that works")
        assert b'stoker_agent_count{status="faulty"} 1' in control.metrics()
        go.touch()
        until_state(control, filler, "succeeded")
        until(lambda: node_state(control) == ("ready", ""), "it works again")
        assert len(until_state(control, later, "succeeded")["attempts"]) == 1
        assert (agent.output().count("node_faulty"), agent.output().count("node_works_again")) == (1, 1)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Of bytes and of files: on this file system a folder takes no bytes."""
    much = folder / "much"
    much.mkdir()
    try:
        with suppress(OSError):
            for number in range(100_000):
                (much / str(number)).touch()
        fill(much / "0")
        yield
    finally:
        shutil.rmtree(much)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    for _ in range(100):  # while somebody still has a file open there to write to it, none is made so
        if subprocess.run(["mount", "-o", "remount,ro", str(folder)], capture_output=True).returncode == 0:
            break
        time.sleep(0.1)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


@contextmanager
def read_only_above(folder: Path) -> Iterator[None]:
    """To all who open something now, though not to those who have it open: a disk with writers is not made so."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(not MOUNTS, reason="only root may mount a small disk")
def test_whichever_disk_of_a_node_is_full_or_read_only_a_start_is_not_charged_and_what_runs_keeps_its_end(
    control: ControlProcess, tmp_path: Path
) -> None:
    """Each kind of file that a node writes for a task: checkpoint folder, working folder, the runner's and agent's."""
    places = {name: tmp_path / name for name in ("checkpoints", "work", "data")}
    with ExitStack() as disks:
        for folder in places.values():
            disks.enter_context(small_disk(folder, 24, files=400))
        agent = AgentProcess(tmp_path / "node-1", control)
        agent.data_dir = places["data"]
        known = agent.settings.read_text().splitlines()
        agent.write(
            f"data_dir: {places['data']}",
            f"executor: {{checkpoint_dir: {places['checkpoints']}, work_dir: {places['work']}}}",
            *(line for line in known if not line.startswith("data_dir")),
        )
        disks.enter_context(agent)
        for index, (folder, unusable, words) in enumerate(
            (
                (places["checkpoints"], full, "No space left on device"),
                (places["checkpoints"], read_only, "Read-only file system"),
                (places["work"], full, "No space left on device"),
                (places["work"], read_only, "Read-only file system"),
                (places["data"], read_only_above, "Read-only file system"),
                (places["data"], full, "No space left on device"),
            )
        ):
            go = tmp_path / f"go-{index}"
            runs = submit(control, f"{WAIT.format(file=go)} exit 3")
            until_state(control, runs, "running")
            with unusable(folder):
                refused = submit(control, "true")
                until(partial(is_not_taken, control, refused), "its start is refused, not tried, or needs no room")
                task = first_task(control, refused)
                assert task or folder == places["data"]  # of which the node sees it by itself, and takes no more work
                if task and task["cause"] != "never_started":  # it got the working folder that an earlier task left
                    assert (folder, task["cause"]) == (places["work"], "exited"), task
                elif task:
                    assert words in task["error"], task
                    assert folder == places["data"] or f"{folder}" in task["error"], task
                assert job(control, refused)["requeues_used"] == 0
                go.touch()
                ended = until_state(control, runs, "failed", "node_failed")
                assert (ended["exit_code"], len(ended["attempts"]), ended["requeues_used"]) == (3, 1, 0), words
            done = until_state(control, refused, "succeeded", "failed", "node_failed")
            assert (done["state"], done["requeues_used"]) == ("succeeded", 0), words
        until(lambda: node_state(control) == ("ready", ""), "it works again")
        lost = submit(control, "sleep 300")
        until_state(control, lost, "running")
        agent.kill()
        os.kill(agent.runner_pid, signal.SIGKILL)
        until(lambda: not alive(agent.runner_pid), "nobody writes to it")
        with read_only(places["data"]):
            assert agent.start().wait() != 0
            assert "Read-only file system [data_dir_unusable]" in agent.output()
        agent.start()
        until(lambda: len(job(control, lost)["attempts"]) == 2, "it is started again")
        assert first_task(control, lost)["cause"] == "runner_lost"


def first_task(control: ControlProcess, job_id: str) -> dict[str, Any]:
    """Of its first attempt, once that is over."""
    attempts = job(control, job_id)["attempts"]
    return dict(attempts[0]["tasks"][0]) if attempts and attempts[0]["tasks"][0]["cause"] else {}


def is_not_taken(control: ControlProcess, job_id: str) -> bool:
    return bool(first_task(control, job_id)) or "1 faulty" in reason(control, job_id)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_node_whose_runner_is_stopped_says_so_gives_starts_back_and_goes_on_with_its_runner(
    control: ControlProcess, tmp_path: Path
) -> None:
    with AgentProcess(tmp_path / "node-1", control) as agent:
        running = submit(control, "sleep 300")
        until_state(control, running, "running")
        begun = tmp_path / "begun"
        with stopped(agent.runner_pid):
            started = submit(control, f"echo x >> {begun}")
            until(lambda: node_state(control)[0] == "faulty", "the runner's silence is seen")
            assert node_state(control)[1].startswith("the runner hasn't answered for 10 s")
            control.ask("DELETE", f"/api/v1/jobs/{running}")
            until_state(control, running, "stopping")
            assert "the runner hasn't answered" in reason(control, running)
            until_state(control, started, "pending")
            given_back = job(control, started)
            assert (given_back["attempts"][0]["tasks"][0]["cause"], given_back["requeues_used"]) == ("never_started", 0)
        until_state(control, running, "cancelled")
        assert len(until_state(control, started, "succeeded")["attempts"]) == 2
        assert begun.read_text() == "x\n", "it was started once"
        until(lambda: node_state(control) == ("ready", ""), "it works again")


@pytest.mark.skipif(not MOUNTS, reason="only root may mount a small disk")
def test_a_runner_that_is_killed_while_the_disk_is_full_is_followed_by_one_that_finds_its_tasks_or_says_why_not(
    control: ControlProcess, tmp_path: Path
) -> None:
    go, data = tmp_path / "go", tmp_path / "node-1" / "data"
    with small_disk(data, 24), AgentProcess(tmp_path / "node-1", control) as agent:
        lost = submit(control, WAIT.format(file=go))
        until_state(control, lost, "running")
        fill(data / "much")
        os.kill(agent.runner_pid, signal.SIGKILL)
        until_state(control, lost, "pending")
        assert job(control, lost)["attempts"][0]["tasks"][0]["cause"] == "runner_lost"
        until(lambda: "is full" in node_state(control)[1], "the full disk is seen")
        assert node_state(control)[0] == "faulty"
        (data / "much").unlink()
        until_state(control, lost, "running")
        (data / "journal").rename(data / "aside")  # not there, and no space for another
        fill(data / "much")
        os.kill(agent.runner_pid, signal.SIGKILL)
        until(lambda: "it has no runner that works" in node_state(control)[1], "it is said")
        assert "No space left on device" in node_state(control)[1]
        assert "can neither start nor end tasks: it has no runner that works" in reason(control, lost)
        (data / "aside").rename(data / "journal")
        (data / "much").unlink()
        go.touch()
        done = until_state(control, lost, "succeeded")
        assert [task["cause"] for attempt in done["attempts"] for task in attempt["tasks"]] == [
            "runner_lost",
            "runner_lost",
            "exited",
        ]
        assert node_state(control) == ("ready", "")


@pytest.mark.heavy
def test_an_agent_that_begins_over_a_stopped_runner_says_so_and_goes_on_with_it(
    control: ControlProcess, tmp_path: Path
) -> None:
    with AgentProcess(tmp_path / "node-1", control) as agent:
        running = submit(control, "sleep 300")
        until_state(control, running, "running")
        with stopped(agent.runner_pid):
            agent.kill()
            agent.start()
            words = "it has no runner that works: it hasn't answered for 15 s"
            until(lambda: node_state(control)[1].startswith(words), "it is said", within_s=60)
            until(lambda: node_state(control)[0] == "faulty", "it isn't taken for one that is silent")
            assert words in reason(control, running)
        until(lambda: node_state(control) == ("ready", ""), "it works again", within_s=60)
        assert job(control, running)["state"] == "running"


@contextmanager
def failing_disk(image: Path, folder: Path) -> Iterator[Callable[[], object]]:
    """A disk that the kernel makes read-only, as it does after a fault, once that is called."""
    folder.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(64 << 20)
    for words in (("mkfs.ext4", "-q", str(image)), ("mount", "-o", "loop,errors=remount-ro", str(image), str(folder))):
        if not MOUNTS or not shutil.which(words[0]) or subprocess.run(words, capture_output=True).returncode:
            pytest.skip("NOT PROVED HERE: no file system can be mounted from a file")
    device = subprocess.run(("findmnt", "-no", "SOURCE", str(folder)), capture_output=True, text=True).stdout.strip()
    trigger = Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error")
    try:
        yield lambda: trigger.write_text("a test") if trigger.exists() else pytest.skip("NOT PROVED HERE: no trigger")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.heavy
def test_a_node_whose_disk_the_kernel_has_made_read_only_says_so_starts_nothing_and_loses_no_end(
    control: ControlProcess, tmp_path: Path
) -> None:
    go, data = tmp_path / "go", tmp_path / "node-1" / "data"
    with failing_disk(tmp_path / "image", data) as fail, AgentProcess(tmp_path / "node-1", control) as agent:
        ends = submit(control, WAIT.format(file=go) + "exit 3")
        until_state(control, ends, "running")
        fail()
        later = submit(control, "true")
        until(lambda: node_state(control)[0] == "faulty", "the first write tells")
        assert "Read-only file system" in node_state(control)[1]
        until(lambda: "1 faulty" in reason(control, later), "it waits for a node that works")
        told = job(control, later)
        assert {task["cause"] for attempt in told["attempts"] for task in attempt["tasks"]} <= {"never_started"}
        assert told["requeues_used"] == 0
        go.touch()
        control.kill()
        control.start()  # a new epoch, which the agent can't keep
        until(lambda: "epoch_not_kept" in agent.output(), "it says why it doesn't obey")
        os.kill(agent.runner_pid, signal.SIGKILL)
        until(lambda: "it has no runner that works" in node_state(control)[1], "it is said")
        assert job(control, ends)["state"] == "running", "nobody has proved its end"
