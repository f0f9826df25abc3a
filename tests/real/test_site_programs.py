"""Prolog and epilog of a site: what runs around each task of a node, and what follows when it fails or hangs."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stoker.agent.ports import SiteProgramEnded
from stoker.agent.runner.site_program import OUTPUT_BYTES_MAX, program_fault
from stoker.brain.domain.job import EndCause
from tests.contracts.runner import agent_on, key
from tests.real.agent_process import AgentProcess, submit, until, until_state
from tests.real.control_process import ControlProcess
from tests.real.runner_node import RealNode, is_alive, node_in, wait_until
from tests.real.say import Say


class Site:
    """Programs of one node, which write into `notes`."""

    def __init__(self, node: RealNode) -> None:
        self._node = node
        self._notes = node.folder / "notes"

    def has(self, which: str, script: str) -> Path:
        """From the next agent on, this shell script is the prolog or the epilog."""
        program = self._node.folder / which
        program.write_text(f"#!/bin/sh\nnotes={self._notes}\n{script}\n")
        program.chmod(0o755)
        self._node.every_start |= {which: str(program), "site_timeout_s": 60}
        return program

    @property
    def notes(self) -> list[str]:
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    def note(self, words: str) -> str:
        """A shell line that writes them down."""
        return f"echo {words} >> {self._notes}"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path) as node:
        yield node


@pytest.fixture
def site(node: RealNode) -> Site:
    return Site(node)


async def test_the_prolog_runs_before_a_task_and_the_epilog_after_the_last_of_its_processes(
    node: RealNode, site: Site
) -> None:
    site.has("prolog", "sleep 0.1; echo prolog >> $notes")
    site.has("epilog", "echo epilog >> $notes")
    async with agent_on(node) as agent:
        late = f"(trap '' TERM; sleep 0.5; {site.note('late')}) &"
        await agent.runner.start(node.shell(key(1), f"{site.note('task')}; {late} exit 4"))
        end = await agent.end(key(1))
    assert (end.cause, end.exit_code, end.node_fault) == (EndCause.EXITED, 4, "")
    assert site.notes == ["prolog", "task", "late", "epilog"]


async def test_they_know_the_task_and_nothing_that_its_job_chose(node: RealNode, site: Site) -> None:
    site.has("prolog", "env >> $notes; pwd >> $notes")
    theirs = {"PATH": "/evil", "LD_PRELOAD": "/evil.so", "STOKER_TENANT": "evil", "IFS": "evil", "MASTER_PORT": "1"}
    async with agent_on(node) as agent:
        job = node.command(key(1), "true", theirs, gpus=("GPU-a", "GPU-b"), tenant="vision", workdir=str(node.folder))
        await agent.runner.start(job)
        await agent.end(key(1))
    said = dict(line.partition("=")[::2] for line in site.notes)
    assert {
        "STOKER_JOB_ID": "1",
        "STOKER_TENANT": "vision",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
    }.items() <= said.items()
    assert not [line for line in site.notes if "evil" in line]
    names = {"STOKER_ATTEMPT", "STOKER_RANK", "STOKER_USER", "STOKER_NODE", "STOKER_TASK_MARK"}
    shells = {"PWD", "SHLVL", "_", "OLDPWD"}
    assert said.keys() - shells - {"/"} == names | {"STOKER_JOB_ID", "STOKER_TENANT", "CUDA_VISIBLE_DEVICES", "PATH"}
    assert site.notes[-1] == "/"


async def test_a_prolog_that_fails_starts_nothing_and_says_what_is_wrong_with_the_node(
    node: RealNode, site: Site
) -> None:
    site.has("prolog", "echo looking; echo 'no scratch disk' >&2; exit 3")
    site.has("epilog", "echo epilog >> $notes")
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), site.note("task")))
        end = await agent.end(key(1))
        told = await agent.hear(SiteProgramEnded)
    assert end.cause is EndCause.NEVER_STARTED
    assert end.node_fault == end.error == told.fault == "prolog of job 1 exited 3: no scratch disk"
    assert (told.program, told.output) == ("prolog", "looking\nno scratch disk\n")
    assert site.notes == [], "nothing has to be undone"


async def test_a_prolog_that_hangs_is_killed_with_all_it_began_and_has_failed(node: RealNode, site: Site) -> None:
    site.has(
        "prolog", "trap '' TERM; setsid sh -c 'echo $$ >> $0; sleep 600' $notes & sleep 0.3; echo waiting; sleep 600"
    )
    node.every_start["site_timeout_s"] = 1
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "true"))
        end = await agent.end(key(1))
    assert end.node_fault == "prolog of job 1 took more than 1 s and was killed: waiting"
    assert end.cause is EndCause.NEVER_STARTED
    assert not is_alive(int(site.notes[0]))


async def test_an_epilog_that_fails_leaves_the_job_its_end_and_blames_the_node(node: RealNode, site: Site) -> None:
    site.has("epilog", "kill -9 $$")
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "exit 7"))
        end = await agent.end(key(1))
    assert (end.cause, end.exit_code, end.node_fault) == (EndCause.EXITED, 7, "epilog of job 1 was killed by signal 9")


async def test_what_a_prolog_leaves_behind_is_ended_before_the_task_begins(node: RealNode, site: Site) -> None:
    site.has("prolog", "setsid sleep 600 & echo $! >> $notes")
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), f"ls /proc/$(head -1 {node.folder}/notes)/exe; exit 0"))
        await agent.end(key(1))
        said = (await agent.runner.read_log(key(1), 0, 1_000)).data
    assert b"No such file" in said


async def test_a_task_that_is_stopped_during_its_prolog_never_starts_and_is_undone(node: RealNode, site: Site) -> None:
    site.has("prolog", "echo prolog >> $notes; sleep 0.5; echo done >> $notes")
    site.has("epilog", "echo epilog >> $notes")
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), site.note("task")))
        wait_until(lambda: bool(site.notes), "the prolog runs")
        await agent.runner.stop(key(1), 0)
        end = await agent.end(key(1))
    assert end.cause is EndCause.STOPPED
    assert site.notes == ["prolog", "done", "epilog"]


async def test_a_stop_during_the_epilog_changes_nothing(node: RealNode, site: Site) -> None:
    site.has("epilog", "echo epilog >> $notes; sleep 0.5; echo done >> $notes")
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "exit 5"))
        wait_until(lambda: bool(site.notes), "the epilog runs")
        await agent.runner.stop(key(1), 0)
        end = await agent.end(key(1))
    assert (end.cause, end.exit_code, site.notes) == (EndCause.EXITED, 5, ["epilog", "done"])


async def test_what_a_killed_runner_leaves_of_a_prolog_is_ended_and_its_task_never_started(
    node: RealNode, site: Site
) -> None:
    site.has("prolog", "echo $$ >> $notes; exec sleep 600")
    async with agent_on(node) as first:
        await first.runner.start(node.shell(key(1), "true"))
        wait_until(lambda: bool(site.notes), "the prolog runs")
        node.kill_runner_and_guard()
    async with agent_on(node) as second:
        end = await second.known_end(key(1))
    assert (end.cause, end.node_fault) == (EndCause.NEVER_STARTED, "")
    assert not is_alive(int(site.notes[0]))


async def test_an_epilog_that_was_cut_short_by_a_kill_of_the_runner_runs_again(node: RealNode, site: Site) -> None:
    site.has("epilog", "echo epilog >> $notes; [ $(wc -l < $notes) -gt 1 ] || exec sleep 600")
    async with agent_on(node) as first:
        await first.runner.start(node.shell(key(1), "true"))
        wait_until(lambda: bool(site.notes), "the epilog runs")
        node.kill_runner()
    async with agent_on(node) as second:
        end = await second.known_end(key(1))
    assert (end.cause, site.notes) == (EndCause.RUNNER_LOST, ["epilog", "epilog"])


async def test_the_end_of_what_a_program_writes_is_told_however_much_that_is(node: RealNode, site: Site) -> None:
    site.has("epilog", "head -c 3000000 /dev/zero | tr '\\0' x; echo; printf 'bell\\a\\n'")
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "true"))
        told = await agent.hear(SiteProgramEnded)
        end = await agent.end(key(1))
    assert len(told.output) == OUTPUT_BYTES_MAX
    assert told.output.endswith("x\nbell \n"), "what no terminal should get is left out"
    assert end.node_fault == ""


async def test_a_program_that_others_can_change_by_now_is_not_run(node: RealNode, site: Site) -> None:
    site.has("prolog", "true").chmod(0o777)
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "true"))
        end = await agent.end(key(1))
    assert "may be changed by others" in end.node_fault


def test_a_program_of_the_site_is_a_file_that_only_root_or_the_agent_may_change(tmp_path: Path) -> None:
    program = tmp_path / "prolog"
    assert "isn't an absolute path" in program_fault("prolog")
    assert "No such file" in program_fault(str(program))
    program.write_text("#!/bin/sh\n")
    assert "isn't a program that can be run" in program_fault(str(program))
    for mode, words in ((0o755, ""), (0o775, "may be changed by others"), (0o757, "may be changed by others")):
        program.chmod(mode)
        assert (words in program_fault(str(program))) if words else program_fault(str(program)) == ""
    assert "isn't a program that can be run" in program_fault(str(tmp_path))
    if os.geteuid() == 0:
        program.chmod(0o755)
        os.chown(program, 12_345, 0)
        assert "belongs to uid 12345" in program_fault(str(program))


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlProcess]:
    with ControlProcess(tmp_path / "control") as control:
        yield control


def program(folder: Path, name: str, script: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_node_whose_prolog_fails_is_drained_with_its_words_until_a_person_resumes_it(
    control: ControlProcess, tmp_path: Path
) -> None:
    """From the settings of the agent to what people see of the node."""
    mended = tmp_path / "mended"
    prolog = program(tmp_path, "prolog", f"[ -e {mended} ] || {{ echo no scratch disk >&2; exit 3; }}")
    say = Say(control.url, control.tokens.admin)
    agent = AgentProcess(tmp_path / "node-1", control)
    agent.environ["STOKER__EXECUTOR__PROLOG"] = prolog
    with agent:
        job_id = submit(control, "true")
        words = f"prolog of job {job_id} exited 3: no scratch disk"
        until(lambda: words in say("node", "list").stdout.replace("\n", " "), "the node is drained")
        assert words in say("node", "show", "node-1").stdout
        told = say("audit", "--json").stdout
        assert words in told
        assert '"node:node-1"' in told
        assert f"drained by its own program: {words}" in say("doctor").stdout.replace("\n", " ")
        until(lambda: "prolog_failed" in agent.output(), "the agent says it too")
        mended.touch()
        say("node", "resume", "node-1")
        assert until_state(control, job_id, "succeeded")["exit_code"] == 0


def test_an_agent_whose_prolog_others_could_change_does_not_start(control: ControlProcess, tmp_path: Path) -> None:
    prolog = program(tmp_path, "prolog", "true")
    os.chmod(prolog, 0o777)
    agent = AgentProcess(tmp_path / "node-1", control)
    agent.environ["STOKER__EXECUTOR__PROLOG"] = prolog
    agent.start()
    assert agent.wait() == 2
    assert f"executor.prolog: {prolog} may be changed by others (mode 777)" in agent.output()
