"""Cancel means gone: whole process trees, in each way that this machine offers to follow them.

Concerns faults.md family 3 and row 93.
"""

import asyncio
import os
import shlex
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stoker.agent.ports import RunnerGone, TaskEnding
from stoker.agent.runner.journal import Journal
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import CommandLine, EndCause
from tests.contracts.runner import LONG_S, Listener, agent_on, key
from tests.real.runner_node import TREE_MODES, RealNode, is_alive, node_in, wait_until

DETACHED = "setsid sh -c 'echo $$ > grandchild; exec sleep 300' > /dev/null 2>&1 < /dev/null & "
"""A grandchild in a session of its own, with no descriptor of the job's."""
DAEMON = "python3 -c 'import os\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n{}' ; "
"""A daemon as daemon(7) makes one: it forks twice and its parents are gone at once."""
WRITE_PID = 'open("grandchild", "w").write(f"{os.getpid()}\\n")'
SCRUBBED = DAEMON.format(f'{WRITE_PID}; os.closerange(0, 9); os.execve("/bin/sleep", ["sleep", "300"], {{}})')
WAIT = "\nwhile True: time.sleep(0.05)"
"""Of a Python program that hears signals: one that comes right before a sleep, it hears only when that is over."""
STUBBORN = DAEMON.format(
    f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WRITE_PID}; time.sleep(300)"
)


@pytest.fixture(params=TREE_MODES)
async def node(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path, tree=request.param) as node:
        yield node


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    async with agent_on(node) as agent:
        yield agent


@pytest.mark.parametrize("child", [DETACHED, SCRUBBED, STUBBORN], ids=["detached", "scrubbed", "stubborn"])
async def test_a_detached_grandchild_is_gone_before_the_end_is_reported(
    node: RealNode, agent: Listener, child: str
) -> None:
    await agent.runner.start(node.shell(key(1), f"{child} while [ ! -s grandchild ]; do sleep 0.01; done; exit 4"))
    await agent.hear(TaskEnding)
    end = await agent.end(key(1))
    assert not is_alive(node.pid_in("grandchild"))
    assert (end.cause, end.exit_code) == (EndCause.EXITED, 4), "what it left behind doesn't change how it ended"


@pytest.mark.parametrize("child", [DETACHED, SCRUBBED, STUBBORN], ids=["detached", "scrubbed", "stubborn"])
async def test_a_cancel_reaches_children_that_called_setsid(node: RealNode, agent: Listener, child: str) -> None:
    await agent.runner.start(node.shell(key(1), f"{child} sleep 300"))
    grandchild = node.pid_in("grandchild")
    await agent.runner.stop(key(1), 200)
    assert (await agent.end(key(1))).cause is EndCause.STOPPED
    assert not is_alive(grandchild)
    assert not node.lives(key(1))


@pytest.mark.parametrize("child", [DETACHED, STUBBORN], ids=["detached", "stubborn"])
async def test_when_runner_and_guard_are_killed_the_next_runner_sweeps_children_that_called_setsid(
    node: RealNode, child: str
) -> None:
    async with agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), f"{child} sleep 300"))
        await agent.runner.start(node.shell(key(2), "sleep 300"))
        await agent.running(key(2))
        grandchild = node.pid_in("grandchild")
        node.kill_runner_and_guard()
        await agent.hear(RunnerGone)
        assert is_alive(grandchild), "nothing but the next runner ends it"
    async with agent_on(node) as agent:
        for task in (key(1), key(2)):
            assert (await agent.known_end(task)).cause is EndCause.RUNNER_LOST
            assert not node.lives(task)
        assert not is_alive(grandchild)


async def test_a_sweep_ends_no_process_of_anybody_else(node: RealNode) -> None:
    """The bystander has the pid that the record names, another birth, and another task's mark."""
    bystander = os.spawnve(
        os.P_NOWAIT, "/bin/sleep", ["sleep", "300"], {"STOKER_TASK_MARK": "1.1.0.of-another-cluster"}
    )
    try:
        async with agent_on(node) as agent:
            await agent.runner.start(node.shell(key(1), "sleep 300"))
            running = await agent.running(key(1))
            node.kill_runner_and_guard()
            await agent.hear(RunnerGone)
        wait_until(lambda: not is_alive(running.pid), "the leader is gone")
        _name_in_the_journal(node, running.pid, bystander)
        async with agent_on(node) as agent:
            assert (await agent.known_end(key(1))).cause is EndCause.RUNNER_LOST
        assert is_alive(bystander)
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)


def _name_in_the_journal(node: RealNode, old: int, new: int) -> None:
    """As if the pid had been given to somebody else while no runner lived."""
    journal = Journal(str(node.folder / "agent" / "journal"))
    journal.load()
    (record,) = journal.open.values()
    assert record["pid"] == old
    record["pid"] = new
    journal.rewrite()


async def test_the_terminate_signal_reaches_a_program_wrapped_by_a_shell(node: RealNode, agent: Listener) -> None:
    """Fault 93: the checkpoint that a program writes on SIGTERM must not be lost because bash started it."""
    program = (
        "import os, signal, sys, time; "
        "signal.signal(signal.SIGTERM, lambda *a: (os.write(1, b'saved\\n'), sys.exit(0))); "
        f"print('ready', flush=True){WAIT}"
    )
    await agent.runner.start(node.shell(key(1), f'bash -c "python3 -u -c \\"{program}\\"; true"'))
    await agent.running(key(1))
    await _output_has(agent, b"ready")
    await agent.runner.stop(key(1), 10_000)
    await agent.end(key(1))
    assert b"saved" in (await agent.runner.read_log(key(1), 0, 1000)).data


async def test_a_signal_reaches_every_process_of_the_tree(node: RealNode, agent: Listener) -> None:
    """Also one that called setsid: what trains is rarely the process that was started."""
    note = (
        "import os, signal, time; signal.signal(signal.SIGUSR1, lambda *_: open(f'{os.getpid()}.noted', 'w').close())"
    )
    program = f'python3 -c "{note}; print(os.getpid(), flush=True); time.sleep(300); time.sleep(300)"'
    await agent.runner.start(node.shell(key(1), f"setsid {program} & {program} & {program}; wait"))
    await agent.running(key(1))
    wait_until(lambda: len(_words(node)) == 3, "all three are ready")
    await agent.runner.signal(key(1), signal.SIGUSR1)
    wait_until(
        lambda: all((node.folder / f"{pid.decode()}.noted").exists() for pid in _words(node)), "all three noted it"
    )
    assert node.lives(key(1))


@pytest.mark.parametrize("as_argv", [False, True], ids=["a line", "a script"])
async def test_a_shell_does_not_die_of_a_signal_that_only_its_program_knows(
    node: RealNode, agent: Listener, *, as_argv: bool
) -> None:
    """Else the checkpoint signal would end every job that was submitted as a shell line or script."""
    program = (
        "import os, signal, sys, time; "
        "signal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b'saved\\n'), sys.exit(7))); "
        f"print('ready', flush=True){WAIT}"
    )
    line = f"python3 -c {shlex.quote(program)}; echo its program exited with $?"
    command: CommandLine = ("bash", "-c", f"bash -c {shlex.quote(line)}; true") if as_argv else line
    await agent.runner.start(node.command(key(1), command, {}))
    await _output_has(agent, b"ready")
    await agent.runner.signal(key(1), signal.SIGUSR1)
    assert (await agent.end(key(1))).clean
    assert b"saved\nits program exited with 7\n" in (await agent.runner.read_log(key(1), 0, 1000)).data


async def test_a_shell_that_catches_a_signal_hears_it(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), "trap 'exit 9' USR2; echo ready; while :; do sleep 0.02; done"))
    await _output_has(agent, b"ready")
    await agent.runner.signal(key(1), signal.SIGUSR2)
    assert (await agent.end(key(1))).exit_code == 9


async def test_a_program_that_does_not_know_a_signal_dies_of_it(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), "echo ready; exec sleep 300"))
    await _output_has(agent, b"ready")
    wait_until(lambda: _program(node, key(1)) == "sleep", "the shell has become the program")
    await agent.runner.signal(key(1), signal.SIGUSR1)
    assert (await agent.end(key(1))).signal == signal.SIGUSR1


async def test_a_number_that_is_no_signal_harms_nobody(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), "sleep 0.3"))
    await agent.running(key(1))
    for number in (0, 65, 1 << 40):
        await agent.runner.signal(key(1), number)
    assert (await agent.end(key(1))).clean


async def test_a_task_that_was_suspended_still_ends_on_a_terminate_signal(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), "exec sleep 300"))
    os.kill((await agent.running(key(1))).pid, signal.SIGSTOP)
    began = time.monotonic()
    await agent.runner.stop(key(1), 10_000)
    assert (await agent.end(key(1))).signal == signal.SIGTERM
    assert time.monotonic() - began < 5


async def test_a_kill_by_somebody_else_is_told_as_it_was(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), "exec sleep 300"))
    os.kill((await agent.running(key(1))).pid, signal.SIGKILL)
    end = await agent.end(key(1))
    assert (end.cause, end.exit_code, end.signal) == (EndCause.EXITED, None, signal.SIGKILL)


async def test_a_fork_bomb_is_ended_whole(node: RealNode, agent: Listener) -> None:
    """Some forty processes, of which another is replaced every few milliseconds: no look at all of them is right."""
    going = node.folder / "going"
    line = f"trap '' TERM; f() {{ (sleep 0.1; f) & }}; for i in $(seq 40); do f; done; : > {going}; sleep 300"
    await agent.runner.start(node.shell(key(1), line))
    await agent.running(key(1))
    wait_until(going.exists, "the bomb is going")  # to count them while the machine is busy would find hardly any
    await agent.runner.stop(key(1), 100)
    await agent.end(key(1))
    assert not node.lives(key(1))


async def test_a_shorter_grace_wins_over_a_longer_one(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.task(key(1), lasts_s=LONG_S, stubborn=True))
    await agent.begun(node, key(1))
    began = time.monotonic()
    await agent.runner.stop(key(1), 60_000)
    await agent.runner.stop(key(1), 100)
    await agent.end(key(1))
    assert time.monotonic() - began < 10


async def test_a_child_of_one_task_outlives_the_end_of_another(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1), f"{DETACHED} sleep 300"))
    grandchild = node.pid_in("grandchild")
    await agent.runner.start(node.shell(key(2), "true"))
    await agent.end(key(2))
    await agent.runner.start(node.shell(key(3), "sleep 300"))
    await agent.running(key(3))
    await agent.runner.stop(key(3), 1000)
    await agent.end(key(3))
    assert is_alive(grandchild)


async def test_a_task_in_whose_pipe_a_child_still_writes_keeps_its_last_output(node: RealNode, agent: Listener) -> None:
    """`> >(tee log)`: the writer lives a moment longer than the leader."""
    await agent.runner.start(node.shell(key(1), "(sleep 0.1; echo last words) & exit 0"))
    await agent.end(key(1))
    assert (await agent.runner.read_log(key(1), 0, 100)).data == b"last words\n"


async def test_cgroups_that_a_job_made_inside_its_own_go_with_it(node: RealNode, agent: Listener) -> None:
    if node.options["tree"] == "scan":
        pytest.skip("there is no cgroup to nest in")
    await agent.runner.start(node.shell(key(1), "sleep 300"))
    await agent.running(key(1))
    (folder,) = node.cgroup_folders()
    inner = Path(folder) / "inner"
    (inner / "most").mkdir(parents=True)
    for pid in node.living(key(1)):
        (inner / "most" / "cgroup.procs").write_text(str(pid))
    await agent.runner.stop(key(1), 100)
    await agent.end(key(1))
    assert not node.lives(key(1))
    assert node.cgroup_folders() == []


def _words(node: RealNode) -> list[bytes]:
    return (node.folder / "agent" / "output" / "1.1.0.out").read_bytes().split()


def _program(node: RealNode, task: TaskKey) -> str:
    return next((Path(f"/proc/{pid}/comm").read_text().strip() for pid in node.living(task)), "")


async def _output_has(agent: Listener, wanted: bytes) -> None:
    async with asyncio.timeout(20):
        while wanted not in (await agent.runner.read_log(key(1), 0, 1000)).data:
            await asyncio.sleep(0.01)
