"""`stoker up`: a cluster in one command that starts clearly, keeps what it should, and leaves nothing."""

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from stoker.wire.client import Client, JobBody
from tests.real.control_process import ControlProcess, free_port
from tests.real.forks import SRC, started
from tests.real.up_process import UpProcess, environment, left_behind, run, stoker, until

pytestmark = pytest.mark.timeout(180)

STUBBORN = (
    "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; echo child; sleep 600' & echo parent; sleep 600; sleep 600"
)
"""A job whose tree ignores polite requests, with a child in a session of its own."""


def nodes_up(client: Client, count: int) -> None:
    until(lambda: client.status().online_nodes == count, what=f"{count} nodes")


def submit_and_see(client: Client, line: str, words: str) -> str:
    """The id of a job that has written `words`."""
    job = client.submit(JobBody(command=line))
    until(lambda: client.job(job.id).state.value == "running", what="it to run")
    until(lambda: words in client.logs(job.id).data.decode(), what=f"{words!r} in its output")
    return job.id


def test_it_says_what_is_where_and_simulates_two_nodes_of_four_gpus(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--nodes", "2") as up, Client(up.url) as client:
        assert client.status().online_nodes == 2, "it says that it is up once its nodes are"
        assert up.url in up.said
        assert "simulated" in up.said
        assert "run as " in up.said
        assert "stoker submit" in up.said
        gpus = client.gpus()
        assert (gpus.total, {gpu.model for gpu in gpus.gpus}) == (8, {"NVIDIA H100 80GB HBM3"})
        assert all(gpu.simulated for gpu in gpus.gpus)
        assert {(node.cpus, node.memory_mb) for node in client.nodes()} == {(16, 131_072)}


def test_the_first_command_it_suggests_works_as_printed(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--nodes", "1") as up, Client(up.url) as client:
        nodes_up(client, 1)
        line = next(line for line in up.said.splitlines() if "stoker submit" in line).partition("stoker ")[2]
        shell = f"{' '.join(stoker())} {line}"
        done = subprocess.run(
            ["sh", "-c", shell], env=environment(tmp_path), capture_output=True, text=True, check=True, timeout=60
        )
        job = client.wait(done.stdout.strip())
        assert client.logs(job.id).data.startswith(b"I see GPU-")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_jobs_included(tmp_path: Path, number: int) -> None:
    with UpProcess(tmp_path, "--nodes", "2", "--stop-grace", "1") as up, Client(up.url) as client:
        nodes_up(client, 2)
        submit_and_see(client, STUBBORN, "child")
        assert len(left_behind(tmp_path)) >= 6
        assert up.stop(number) == 0
    assert left_behind(tmp_path) == []
    assert not list(tmp_path.glob("stoker-up-*")), "the temporary folder is removed"


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--nodes", "1", "--stop-grace", "60") as up, Client(up.url) as client:
        nodes_up(client, 1)
        submit_and_see(client, STUBBORN, "child")
        up.process.send_signal(signal.SIGINT)
        until(lambda: "kills them at once" in up.said, what="the first to be heard")
        up.process.send_signal(signal.SIGINT)
        up.process.wait(10)
    assert left_behind(tmp_path) == []


def test_killing_it_leaves_nothing_either(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--nodes", "1", "--stop-grace", "1") as up, Client(up.url) as client:
        nodes_up(client, 1)
        submit_and_see(client, STUBBORN, "child")
        up.process.kill()
        up.process.wait()
        until(lambda: not left_behind(tmp_path), what="agents, runners and jobs to end")


def test_a_data_folder_keeps_the_queue_over_restarts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with UpProcess(tmp_path, "--nodes", "1", "--gpus-per-node", "1", data_dir=data) as up, Client(up.url) as client:
        nodes_up(client, 1)
        done = client.submit(JobBody(name="done", command="exit 3")).id
        until(lambda: client.job(done).exit_code == 3, what="its end")
        running = client.submit(JobBody(name="runs", gpu_count=1, command="echo attempt $STOKER_ATTEMPT; sleep 600")).id
        until(lambda: client.job(running).state.value == "running", what="it to run")
        waiting = client.submit(JobBody(name="waits", gpu_count=1, command=["true"])).id
        cluster_id = client.status().cluster_id
    assert left_behind(tmp_path) == []
    with UpProcess(tmp_path, "--nodes", "1", "--gpus-per-node", "1", data_dir=data) as up, Client(up.url) as client:
        assert client.status().cluster_id == cluster_id
        assert client.job(done).exit_code == 3
        assert client.job(waiting).state.value == "pending"
        until(lambda: len(client.job(running).attempts) == 2, what="its second attempt")
        until(lambda: client.job(running).state.value == "running", what="it to run again")
        until(lambda: client.logs(running).data == b"attempt 2\n", what="its second attempt to write")
        client.cancel(running)
        until(lambda: client.job(waiting).state.value == "succeeded", what="the one that waited")


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port"])
def test_a_port_in_use_is_one_clear_error_that_names_port_and_flag(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        flags = {"--http-port": str(other), "--grpc-port": str(other), flag: str(port)}
        done = run(tmp_path, "up", "--nodes", "1", *(word for pair in flags.items() for word in pair))
    assert done.returncode == 1
    assert f"port {port} " in done.stderr
    assert flag in done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert done.stdout == ""
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::"])
def test_an_address_that_others_can_reach_is_refused(tmp_path: Path, host: str) -> None:
    done = run(tmp_path, "up", "--host", host)
    assert done.returncode == 2
    assert "loopback" in done.stderr


def test_a_data_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path, "up", "--data-dir", str(tmp_path / "file" / "data"))
    assert done.returncode == 1
    assert "--data-dir" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_folder_that_another_one_uses_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with UpProcess(tmp_path, "--nodes", "1", data_dir=data) as up, Client(up.url) as client:
        nodes_up(client, 1)
        done = run(tmp_path, "up", "--data-dir", str(data), "--http-port", "1025", "--grpc-port", "1026")
        assert done.returncode == 1
        assert "[data_dir_held]" in done.stderr
        assert client.status().online_nodes == 1


def test_the_data_folder_of_a_control_plane_is_refused_running_or_stopped(tmp_path: Path) -> None:
    """It would have made a second cluster inside the first one's folder, with an empty queue."""
    data = tmp_path / "data"
    words = ("up", "--data-dir", str(data), "--http-port", "1025", "--grpc-port", "1026")
    with ControlProcess(data):
        done = run(tmp_path, *words)
        assert (done.returncode, "[data_dir_held]" in done.stderr, "--data-dir" in done.stderr) == (1, True, True)
    done = run(tmp_path, *words)
    assert (done.returncode, "[data_dir_unusable]" in done.stderr) == (1, True)
    assert not (data / "control").exists()


def test_an_agent_that_dies_ends_the_cluster_and_is_named(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--nodes", "2", "--stop-grace", "1") as up, Client(up.url) as client:
        nodes_up(client, 2)
        agents = [line for line in left_behind(tmp_path) if line.endswith("/node-2/agent.log")]
        os.kill(int(agents[0].split()[0]), signal.SIGKILL)
        assert up.process.wait(40) == 1
        assert "the agent of node-2 ended" in up.said
    assert left_behind(tmp_path) == []


def test_gpus_that_nvidia_smi_finds_are_used_as_one_node(tmp_path: Path) -> None:
    fake = Path(__file__).resolve().parents[2] / "examples" / "local" / "fake-nvidia-smi"
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").symlink_to(fake)
    path = os.pathsep.join((str(tools), os.environ["PATH"]))
    before = os.environ["PATH"]
    os.environ["PATH"] = path
    try:
        with UpProcess(tmp_path) as up, Client(up.url) as client:
            nodes_up(client, 1)
            assert "4 x Tesla V100-SXM2-32GB" in up.said
            assert [gpu.simulated for gpu in client.gpus().gpus] == [False] * 4
    finally:
        os.environ["PATH"] = before


def test_a_node_that_does_not_join_is_named_while_it_is_waited_for(tmp_path: Path) -> None:
    """Its agent begins when there is a file."""
    late, go = tmp_path / "late", tmp_path / "go"
    late.mkdir()
    waits = f"while 'agent' in sys.orig_argv and not os.path.exists({str(go)!r}): time.sleep(0.05)"
    (late / "sitecustomize.py").write_text(f"import os, sys, time\n{waits}\n")
    said = tmp_path / "said"
    ports = ("--http-port", str(free_port()), "--grpc-port", str(free_port()))
    with said.open("wb") as words:
        env = environment(tmp_path, PYTHONPATH=f"{late}:{SRC}")
        up = started(stoker("up", "--nodes", "1", "--stop-grace", "0", *ports), out=words, env=env, new_session=True)
    try:
        until(lambda: "waiting for node-1 to join" in said.read_text(), 60, "it to say whom it waits for")
        assert "Ctrl-C ends it." not in said.read_text()
        go.touch()
        until(lambda: "Ctrl-C ends it." in said.read_text(), 60, "the node to join")
    finally:
        go.touch()
        up.terminate()
        up.wait(60)
    assert left_behind(tmp_path) == []
