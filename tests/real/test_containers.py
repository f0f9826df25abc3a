"""Jobs in containers of a real dockerd: their ends, output, limits, mounts, and that none is left behind."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.real.agent_process import AgentProcess, alive, job, submit, until, until_state
from tests.real.control_process import ControlProcess
from tests.real.docker_daemon import IMAGE, Daemon, docker_engine, needs_docker
from tests.real.nvml_stub import NvmlStub
from tests.real.screen import Terminal
from tests.real.unix_users import Users, made_users
from tests.real.up_process import environment, stoker

pytestmark = needs_docker
FINAL = ("succeeded", "failed", "cancelled", "timeout", "out_of_memory", "node_failed")
SLEEPS = ["sleep", "600"]


class Stage:
    """One dockerd, one control plane and one agent for all tests of this module."""

    def __init__(self, folder: Path, docker: Daemon, control: ControlProcess, users: Users) -> None:
        self.folder = folder
        self.docker = docker
        self.control = control
        self.users = users
        self.data, self.readable = folder / "data", folder / "readable"
        for each in (self.data, self.readable):
            each.mkdir()
            each.chmod(0o777)
        (self.readable / "known").write_text("known\n")
        self.agent = AgentProcess(folder / "node-1", control)
        self.agent.from_scratch = True  # what it imports, and what not, is part of it
        allowed = f"['{self.data}', '{self.readable}:ro']"
        self.agent.add(
            f"executor: {{kinds: [process, container], "
            f"docker: {{socket: {docker.socket}, mounts_allowed: {allowed}, pull: never}}}}"
        )

    def submit(self, command: object, **fields: object) -> str:
        return submit(self.control, command, **{"image": IMAGE, "gpu_count": 0, **fields})

    def run(self, command: object, **fields: object) -> dict[str, Any]:
        """The job at its end."""
        return until_state(self.control, self.submit(command, **fields), *FINAL)

    def said(self, ended: dict[str, Any]) -> str:
        """What a job has written."""
        url = f"{self.control.url}/api/v1/jobs/{ended['id']}/logs"
        with urllib.request.urlopen(urllib.request.Request(url, headers=self.control.headers)) as answer:
            text: str = answer.read().decode()
        return text

    def containers_of(self, job_id: str) -> list[str]:
        return self.docker.run("ps", "-aq", "--filter", f"label=stoker.io/job={job_id}").split()

    def running(self, **fields: object) -> tuple[str, int]:
        """A job whose container runs, and the pid of its first process."""
        one = self.submit(SLEEPS, **fields)
        until_state(self.control, one, "running")
        (container,) = self.containers_of(one)
        return one, int(self.docker.run("inspect", "-f", "{{.State.Pid}}", container))

    def terminal(self, *words: str) -> Terminal:
        """A command of the admin's in a terminal of its own."""
        return Terminal(stoker(*words), self.environ)

    @property
    def environ(self) -> dict[str, str]:
        return environment(self.folder, **self.control.environ, PS1="ready$ ", TERM="xterm")

    def cancel(self, job_id: str) -> None:
        assert self.control.ask("DELETE", f"/api/v1/jobs/{job_id}")[0] == 200

    def free_gpus(self) -> int:
        nodes = self.control.ask("GET", "/api/v1/nodes")[1]["nodes"]
        return int(nodes[0]["free"]["gpus"])


def cgroups_of(agent: AgentProcess) -> list[str]:
    """Folders of our tasks that are there now, in every hierarchy."""
    folder = agent.data_dir.stat()
    ours = f"stoker-{folder.st_dev:x}-{folder.st_ino:x}-"
    walked = os.walk("/sys/fs/cgroup")
    return [f"{parent}/{name}" for parent, names, _ in walked for name in names if name.startswith(ours)]


@pytest.fixture(scope="module")
def docker() -> Iterator[Daemon]:
    with docker_engine() as daemon:
        yield daemon


@pytest.fixture(scope="module")
def stage(docker: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with made_users() as users:
        folder = users.folder / "containers"
        folder.mkdir(mode=0o755)
        with ControlProcess(tmp_path_factory.mktemp("containers") / "control") as control:
            made = Stage(folder, docker, control, users)
            with made.agent:
                until(lambda: control.ask("GET", "/api/v1/nodes")[1]["nodes"], "the node is there")
                yield made
                until(lambda: docker.containers() == [], "no container is left")
                until(lambda: cgroups_of(made.agent) == [], "no cgroup is left")


def test_a_container_runs_with_its_output_its_exit_code_and_its_labels_and_is_gone_with_its_job(stage: Stage) -> None:
    line = "echo out; echo err >&2; echo $STOKER_JOB_ID $GREETING; exit 7"
    ended = stage.run(line, env={"GREETING": "hello"})
    assert (ended["state"], ended["exit_code"], ended["image"]) == ("failed", 7, IMAGE)
    assert sorted(stage.said(ended).split("\n")) == sorted(["", "out", "err", f"{ended['id']} hello"])
    assert stage.containers_of(ended["id"]) == []
    assert stage.run(["true"])["state"] == "succeeded"


def test_an_image_alone_runs_its_own_command_as_in_the_mvps_curl(stage: Stage) -> None:
    body = (
        b'{"tenant_id":"default","name":"api-job","priority":500,"gpu_count":1,"gpu_memory_mb":16000,"cpu_cores":4,'
        b'"memory_mb":32000,"image":"%b"}'
    ) % IMAGE.encode()
    url, headers = f"{stage.control.url}/api/v1/jobs", {**stage.control.headers, "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        assert answer.status == 201
        one = json.load(answer)["job_id"]
    ended = until_state(stage.control, one, *FINAL)
    assert (ended["state"], stage.said(ended)) == ("succeeded", "its own command\n")


def test_an_entry_point_gets_the_command_as_its_arguments_and_an_empty_one_is_none(stage: Stage) -> None:
    assert stage.said(stage.run(["a", "b"], entrypoint="/bin/echo")) == "a b\n"
    assert stage.said(stage.run(["echo", "c"], entrypoint="")) == "c\n"


def test_a_script_that_comes_with_the_job_runs_in_the_container(stage: Stage) -> None:
    ended = stage.run(["count.sh", "3"], script="#!/bin/sh\nseq $1\n")
    assert (ended["state"], stage.said(ended)) == ("succeeded", "1\n2\n3\n")


def test_what_can_not_be_started_says_so_in_the_engines_words_and_leaves_nothing(stage: Stage) -> None:
    ended = stage.run(["nope"])
    assert (ended["state"], ended["exit_code"]) == ("failed", 127), "as with `docker run --init`"
    assert "nope" in stage.said(ended)
    missing = stage.run(["true"], image="stoker/none:1")
    assert "image stoker/none:1 isn't on this node, which pulls none" in missing["reason"]["message"]
    assert stage.docker.containers() == []


def test_a_container_runs_as_the_user_of_its_job_without_any_privilege(stage: Stage) -> None:
    line = "id -u; id -g; id -G; cat /proc/self/status"
    ended = stage.run(line, user=stage.users.ann)
    uid, gid, groups, *status = stage.said(ended).splitlines()
    whose = stage.folder.parent / "home" / stage.users.ann
    assert (int(uid), int(gid)) == (whose.stat().st_uid, whose.stat().st_gid)
    assert len(groups.split()) == 2, "also the group that she shares with others"
    fields = dict(row.split(":\t", 1) for row in status if ":\t" in row)
    assert {fields[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"


def test_mounts_are_those_that_the_node_allows_with_their_mode_and_the_working_directory_is_one(stage: Stage) -> None:
    mounts = [f"{stage.readable}:/in", f"{stage.data}:/out"]
    line = "cat /in/known; touch /in/x || echo read-only; touch /out/made; pwd; touch here"
    ended = stage.run(line, mounts=mounts, workdir=str(stage.data))
    assert "known" in stage.said(ended)
    assert "read-only" in stage.said(ended), "the node allows it for reading only"
    assert str(stage.data) in stage.said(ended)
    assert {each.name for each in stage.data.iterdir()} >= {"made", "here"}
    assert ended["mounts"] == mounts


@pytest.mark.parametrize("what", ["elsewhere", "link", "dots", "socket", "workdir", "missing"])
def test_a_path_that_the_node_does_not_allow_is_not_mounted_whatever_leads_there(stage: Stage, what: str) -> None:
    with suppress(FileExistsError):
        (stage.data / "link").symlink_to("/etc")
    mounts, word = {
        "elsewhere": (["/etc:/x"], "mounts_allowed"),
        "link": ([f"{stage.data}/link:/x"], "it is /etc"),
        "dots": ([f"{stage.data}/../../../etc:/x"], "can't be mounted"),
        "socket": ([f"{stage.docker.socket}:/x"], "neither a folder nor a file"),
        "workdir": ([], "is a folder of this node, and containers may not see it"),
        "missing": ([f"{stage.data}/nowhere:/x"], "No such file or directory"),
    }[what]
    ended = stage.run(["true"], mounts=mounts, **({"workdir": "/etc"} if what == "workdir" else {}))
    assert (ended["state"], ended["attempts"][-1]["outcome"]) == ("failed", "start_failed")
    assert word in ended["reason"]["message"], ended["reason"]["message"]


def test_a_checkpoint_folder_is_there_and_keeps_what_a_container_writes(stage: Stage) -> None:
    ended = stage.run('echo step > "$STOKER_CHECKPOINT_DIR/last"; echo $STOKER_CHECKPOINT_DIR', user=stage.users.ann)
    assert ended["state"] == "succeeded", ended["reason"]
    kept = Path(stage.said(ended).strip()) / "last"
    assert kept.read_text() == "step\n"
    assert kept.stat().st_uid == (stage.folder.parent / "home" / stage.users.ann).stat().st_uid


def test_ten_thousand_lines_before_a_kill_are_all_there(stage: Stage) -> None:
    one = stage.submit("seq 10000; exec sleep 600")
    until(lambda: "10000\n" in stage.said({"id": one}) if job(stage.control, one)["state"] == "running" else 0, "ten")
    two = stage.submit("seq 10000; kill -9 $$")
    ended = until_state(stage.control, two, *FINAL)
    assert stage.said(ended) == "".join(f"{number}\n" for number in range(1, 10_001))
    stage.cancel(one)
    until_state(stage.control, one, "cancelled")


def test_a_cancel_ends_the_container_and_only_then_is_the_job_over_and_its_gpu_free(stage: Stage) -> None:
    one, pid = stage.running(gpu_count=1)
    free = stage.free_gpus()
    stage.cancel(one)
    ended = until_state(stage.control, one, "cancelled")
    assert not alive(pid)
    assert stage.containers_of(one) == []
    assert stage.free_gpus() == free + 1
    assert ended["attempts"][-1]["tasks"][0]["signal"] == 0, "the init process hands on its program's end"


def test_a_limit_of_memory_ends_exactly_that_job_with_its_peak(stage: Stage) -> None:
    hungry = "x=a; while :; do x=$x$x; done"
    ended = stage.run(hungry, memory_mb=48)
    (task,) = ended["attempts"][-1]["tasks"]
    assert (ended["state"], task["oom"]) == ("out_of_memory", True), ended["reason"]
    assert 24 <= task["peak_memory_mb"] <= 48


def test_a_signal_of_a_person_reaches_the_program_in_the_container(stage: Stage) -> None:
    one = stage.submit("trap 'echo heard; exit 3' USR1; while :; do sleep 0.05; done")
    until_state(stage.control, one, "running")
    assert stage.control.ask("POST", f"/api/v1/jobs/{one}/signal", {"signal": "USR1"})[0] == 200
    ended = until_state(stage.control, one, *FINAL)
    assert (ended["exit_code"], stage.said(ended)) == (3, "heard\n")


def test_an_agent_that_is_killed_leaves_the_container_running_and_the_next_one_has_its_exit_code(stage: Stage) -> None:
    one = stage.submit(f"while ! test -e {stage.data}/go; do sleep 0.05; done; exit 5", mounts=[str(stage.data)])
    until_state(stage.control, one, "running")
    (before,) = stage.containers_of(one)
    stage.agent.kill()
    stage.agent.start()
    until(lambda: stage.agent.output().count("agent_registered") >= 2, "the next agent is there")
    assert stage.containers_of(one) == [before]
    (stage.data / "go").touch()
    ended = until_state(stage.control, one, *FINAL)
    (stage.data / "go").unlink()
    assert (ended["state"], ended["exit_code"], len(ended["attempts"])) == ("failed", 5, 1)


def test_a_runner_that_is_killed_takes_its_container_with_it_without_any_agent_and_the_job_starts_again(
    stage: Stage,
) -> None:
    one, pid = stage.running()
    stage.agent.kill()
    os.kill(stage.agent.runner_pid, signal.SIGKILL)
    until(lambda: not alive(pid), "its guard has ended the container")
    stage.agent.start()
    until(lambda: len(job(stage.control, one)["attempts"]) == 2, "it is tried again")
    until_state(stage.control, one, "running")
    assert len(stage.containers_of(one)) == 1
    stage.cancel(one)
    until_state(stage.control, one, "cancelled")


def test_a_container_that_outlives_its_client_is_found_and_removed_before_the_job_is_over(stage: Stage) -> None:
    one, pid = stage.running(requeue=False)
    leader = next(each for each in job_pids(stage.agent.runner_pid) if b"container.client" in cmdline(each))
    os.kill(leader, signal.SIGKILL)
    ended = until_state(stage.control, one, *FINAL)
    assert not alive(pid)
    assert stage.containers_of(one) == []
    assert ended["state"] == "node_failed", "nothing in a container can kill its client"
    assert "client of its container was killed by signal 9" in ended["reason"]["message"]


def test_people_execute_programs_in_a_container_as_its_user_with_their_streams_and_it_is_audited(stage: Stage) -> None:
    one, _ = stage.running(gpu_count=1, env={"GREETING": "hello"}, user=stage.users.ann)
    line = "id -u; echo $GREETING $CUDA_VISIBLE_DEVICES; cat; echo bad >&2; exit 7"
    words = stoker("exec", "-i", one, "--", "sh", "-c", line)
    done = subprocess.run(
        words, input="typed\n", capture_output=True, text=True, timeout=60, env=stage.environ, check=False
    )
    uid, greeting, typed = done.stdout.splitlines()
    assert (done.returncode, typed, done.stderr) == (7, "typed", "bad\n")
    assert int(uid) == (stage.folder.parent / "home" / stage.users.ann).stat().st_uid
    assert greeting.startswith("hello GPU-"), "its own GPU"
    with stage.terminal("exec", "-it", one, "--", "sh") as seen:
        seen.type("echo $((40+2)) pids; readlink /proc/self/fd/0\r")
        seen.until("42 pids", "/dev/pts/")
        seen.type("exit 3\r")
        assert seen.end() == 3
    with stage.control.client() as client:
        rows = [row.details for row in client.audit().rows if row.action == "exec" and row.job == one]
    assert any("sh -c" in row for row in rows), rows
    stage.cancel(one)
    until_state(stage.control, one, "cancelled")


def test_an_interactive_job_in_a_container_outlives_its_agent_and_is_attached_to_again(stage: Stage) -> None:
    words = ("submit", "-it", "--image", IMAGE, "--gpus", "1", "--env", "PS1=ready$ ", "--", "sh", "-i")
    with stage.terminal(*words) as seen:
        seen.until("ready$")
        one = seen.text.partition("job ")[2].split()[0]
        seen.type("echo $CUDA_VISIBLE_DEVICES | grep -c GPU; tty=$(readlink /proc/self/fd/0); echo at $tty\r")
        seen.until("\n1\nat /dev/pts/")
        stage.agent.kill()
        stage.agent.start()
        seen.type("echo still $((40+2))\r")
        seen.until("\nstill 42")
        seen.type("\r~d")
        assert seen.end() == 0
    with stage.terminal("attach", one) as again:
        again.until("still 42", "ready$")
        again.type("exit 5\r")
        assert again.end() == 5
    ended = until_state(stage.control, one, *FINAL)
    assert (ended["state"], ended["exit_code"]) == ("failed", 5)
    assert "still 42" in stage.said(ended)


def test_a_container_of_ours_without_a_task_is_removed_when_the_agent_looks(stage: Stage) -> None:
    owner = (stage.agent.data_dir / "agent.uid").read_text().strip()
    labels = ("--label", f"stoker.io/agent={owner}", "--label", "stoker.io/key=999.1.0")
    orphan = stage.docker.run("run", "-d", "--network", "none", *labels, IMAGE, *SLEEPS).strip()
    foreign = stage.docker.run("run", "-d", "--network", "none", IMAGE, *SLEEPS).strip()
    stage.agent.terminate()
    stage.agent.start()
    until(lambda: orphan[:12] not in stage.docker.containers(), "it is removed")
    assert foreign[:12] in stage.docker.containers(), "others' containers are left alone"
    stage.docker.run("rm", "-f", foreign)


def test_a_job_that_names_no_image_still_runs_as_a_process(stage: Stage) -> None:
    ended = stage.run("readlink /proc/self/ns/pid; test -e /etc/passwd", image=None)
    assert ended["state"] == "succeeded"
    assert stage.said(ended).strip() == os.readlink("/proc/self/ns/pid")


@pytest.mark.heavy  # it is missed after two looks; the same on virtual time is in tests/agent/test_containers.py
def test_an_engine_that_goes_away_is_a_reason_of_the_node_and_of_who_waits_until_it_is_back(stage: Stage) -> None:
    """Last in this file: the engine is stopped."""
    one, pid = stage.running(requeue=False)
    stage.docker.stop()
    bounced = stage.submit(["true"], requeue=False)
    until(lambda: not alive(pid), "without live restore it ends with its engine")
    until(lambda: "container" not in node(stage)["executors"], "the node says so", within_s=60)
    assert "doesn't answer" in node(stage)["containers_fault"]
    waits = stage.submit(["true"])
    until(lambda: job(stage.control, waits)["reason"]["code"] == "no_container_node", "it waits for the engine")
    assert "node node-1 would, but" in job(stage.control, waits)["reason"]["message"]
    stage.docker.start()
    until_state(stage.control, waits, "succeeded")
    ended = until_state(stage.control, one, *FINAL)
    assert ended["state"] == "node_failed", ended["reason"]
    assert "container engine" in ended["attempts"][-1]["tasks"][0]["error"]
    again = until_state(stage.control, bounced, *FINAL)
    tried = [attempt["outcome"] for attempt in again["attempts"]]
    assert (again["state"], tried[-1], len(tried) <= 3) == ("succeeded", "succeeded", True), tried
    until(lambda: "container" in node(stage)["executors"], "it is back", within_s=60)
    assert stage.run(["true"])["state"] == "succeeded"


def node(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = stage.control.ask("GET", "/api/v1/nodes/node-1")[1]
    return found


def job_pids(runner: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{runner}/task/{runner}/children").read_text().split()]


def cmdline(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.mark.heavy  # five seconds of them are those that a GPU has to come clean
def test_a_container_that_a_job_starts_by_itself_outlives_it_and_its_gpu_is_offered_to_nobody_until_it_is_gone(
    stage: Stage, tmp_path: Path
) -> None:
    """Nothing tells an engine for whom a client speaks: what can be promised is that nobody gets the GPU meanwhile."""
    stub = NvmlStub(tmp_path, count=1)
    agent = AgentProcess(tmp_path / "node-2", stage.control, name="node-2")
    script = f"script: {agent.folder / 'gpus.yaml'}"
    agent.write(agent.settings.read_text().replace(script, "detection: nvml, telemetry_s: 0.2"))
    agent.environ |= stub.environ
    agent.take_jobs_of("root")
    docker = f"docker --host unix://{stage.docker.socket}"

    def gpu() -> dict[str, Any]:
        return next(
            (each for each in stage.control.ask("GET", "/api/v1/gpus")[1]["gpus"] if each["node"] == "node-2"), {}
        )

    with agent:
        until(lambda: gpu().get("figures"), "its GPU is known")
        one = submit(stage.control, f"{docker} run -d {IMAGE} sleep 600; sleep 600", gpu_count=1, exclude=["node-1"])
        until(lambda: stage.docker.containers(), "the job has started a container")
        (container,) = stage.docker.containers()
        try:
            stub.tell(gpu_0_processes=f"{stage.docker.run('inspect', '-f', '{{.State.Pid}}', container).strip()}:300")
            stage.cancel(one)
            until_state(stage.control, one, "cancelled")
            assert (gpu()["status"], gpu()["health"]["kind"]) == ("offline", "process")
            assert f"(sleep) in container {container[:12]} with 300 MiB is on it" in gpu()["health"]["reason"]
        finally:
            stage.docker.run("rm", "-f", container)
        stub.tell("0.processes")
        until(lambda: gpu()["status"] == "idle", "it is offered once the container is gone")
