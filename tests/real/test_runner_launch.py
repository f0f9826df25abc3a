"""How a job's process begins: command, folder, environment, descriptors; and how a failure to begin is told."""

import asyncio
import errno
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from stoker.agent.runner.process.kernel import bounds_projects
from stoker.agent.runner.process.launch import port_conflict
from stoker.brain.domain.job import CommandLine, EndCause, TaskEnd
from tests.contracts.runner import Listener, agent_on, key
from tests.real.runner_node import RealNode, node_in


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[RealNode]:
    async with node_in(tmp_path) as node:
        yield node


@pytest.fixture
async def agent(node: RealNode) -> AsyncIterator[Listener]:
    async with agent_on(node) as agent:
        yield agent


async def ran(node: RealNode, agent: Listener, command: CommandLine, **start: object) -> tuple[TaskEnd, bytes]:
    """Run it to its end: how it ended, and its output."""
    await agent.runner.start(node.command(key(1), command, {}, **start))
    end = await agent.end(key(1))
    return end, (await agent.runner.read_log(key(1), 0, 1 << 20)).data


@pytest.mark.parametrize("code", [0, 1, 42, 255])
async def test_the_exit_code_is_exact(node: RealNode, agent: Listener, code: int) -> None:
    end, _ = await ran(node, agent, f"exit {code}")
    assert (end.cause, end.exit_code, end.signal) == (EndCause.EXITED, code, 0)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGTERM])
async def test_the_signal_is_exact(node: RealNode, agent: Listener, number: int) -> None:
    end, _ = await ran(node, agent, f"ulimit -c 0; kill -{number} $$")
    assert (end.cause, end.exit_code, end.signal) == (EndCause.EXITED, None, number)


async def test_a_text_is_a_shell_line(node: RealNode, agent: Listener) -> None:
    end, output = await ran(node, agent, "true && echo $((1 + 1)) | tr 2 z && (exit 3)")
    assert (output, end.exit_code) == (b"z\n", 3)


async def test_a_list_is_an_argv_and_is_never_split_again(node: RealNode, agent: Listener) -> None:
    words = ("printf", "[%s]", "a b", "", "$HOME && rm", "new\nline", "'quo\"te", "\u00e4\U0001f600", "*")
    _, output = await ran(node, agent, words)
    assert output == "".join(f"[{word}]" for word in words[2:]).encode()


async def test_a_program_is_looked_up_in_the_path_of_the_job(node: RealNode, agent: Listener) -> None:
    folder = node.folder / "bin"
    folder.mkdir()
    (folder / "mine").write_text("#!/bin/sh\necho mine\n")
    (folder / "mine").chmod(0o755)
    await agent.runner.start(node.command(key(1), ("mine",), {"PATH": f"/nowhere:{folder}"}))
    await agent.end(key(1))
    assert (await agent.runner.read_log(key(1), 0, 100)).data == b"mine\n"


async def test_a_job_sees_only_the_environment_it_was_given_its_mark_and_where_a_notice_would_be(
    node: RealNode, agent: Listener
) -> None:
    _, output = await ran(node, agent, ("env",))
    names = {line.split(b"=")[0] for line in output.splitlines()}
    assert names == {b"PATH", b"TEST_MARK", b"STOKER_TASK_MARK", b"STOKER_PREEMPT_FILE"}


async def test_a_job_reads_nothing_leads_its_session_and_holds_three_descriptors(
    node: RealNode, agent: Listener
) -> None:
    line = "cat; ls /proc/self/fd | wc -l; ps -o sid= -p $$ | tr -d ' '; echo $$"
    _, output = await ran(node, agent, line)
    descriptors, session, pid = output.split()
    assert int(descriptors) == 4, "its own three, and the one that ls reads the folder with"
    assert session == pid


async def test_signals_and_limits_are_as_a_login_shell_has_them(node: RealNode, agent: Listener) -> None:
    """The runner's own ignored signals and raised limits must not leak into jobs."""
    _, output = await ran(node, agent, "cat /proc/self/status; ulimit -Sn")
    *status, limit = output.decode().splitlines()
    fields = dict(line.split(":\t") for line in status if line[:6] in ("SigPnd", "SigBlk", "SigIgn", "SigCgt"))
    # 32 and 33 are the C library's own, which nobody can send or set.
    assert {int(mask, 16) & ~(0b11 << 31) for mask in fields.values()} == {0}
    assert int(limit) == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


async def test_a_runner_whose_limits_were_lowered_while_it_ran_charges_no_job_for_it(
    node: RealNode, agent: Listener
) -> None:
    """Who has the right to raise limits again starts the job; nobody takes what failed before it for its own end."""
    resource.prlimit(node.runner_pid, resource.RLIMIT_NOFILE, (64, 64))
    end, output = await ran(node, agent, "echo ran")
    if end.cause is EndCause.EXITED:
        assert (end.exit_code, output) == (0, b"ran\n")
    else:
        assert (end.cause, end.error[:20]) == (EndCause.NEVER_STARTED, "this node can't give")


async def test_an_empty_workdir_is_a_folder_of_the_attempts_own(node: RealNode, agent: Listener) -> None:
    _, output = await ran(node, agent, "pwd; touch kept", workdir="")
    folder = Path(output.decode().strip())
    assert folder.is_relative_to(node.folder / "agent")
    assert (folder / "kept").exists()


async def test_folders_of_tasks_may_be_on_another_disk_than_what_the_runner_keeps(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch" / "node-1"
    async with node_in(tmp_path, work_dir=str(scratch)) as node, agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "pwd; echo x > left", workdir=""))
        assert (await agent.end(key(1))).clean
        assert (await agent.runner.read_log(key(1), 0, 1000)).data.decode().strip() == str(scratch / "work" / "1.1")
        assert (scratch / "work" / "1.1" / "left").read_text() == "x\n"
        assert not (tmp_path / "agent" / "work").exists()


@pytest.fixture
def bounded_disk(tmp_path: Path) -> Iterator[Path]:
    """One that keeps project quotas."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    made = ("mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota", str(image))
    mounted = ("mount", "-o", "loop,prjquota", str(image), str(disk))
    for words in (made, mounted):
        if os.geteuid() or not shutil.which(words[0]) or subprocess.run(words, capture_output=True).returncode:
            pytest.skip("NOT PROVED HERE: no file system with project quotas can be mounted")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_what_the_folders_of_a_job_may_hold_is_bounded_where_the_disk_keeps_project_quotas(
    tmp_path: Path, bounded_disk: Path
) -> None:
    options = {"work_dir": str(bounded_disk / "node-1"), "folder_bytes_max": 1 << 20}
    async with node_in(tmp_path, **options) as node, agent_on(node) as agent:
        assert bounds_projects(str(bounded_disk))
        task = node.shell(
            key(1), 'head -c 9000000 /dev/zero > "$STOKER_CHECKPOINT_DIR/much" || head -c 9 /dev/zero > x'
        )
        folder = str(bounded_disk / "checkpoints" / "1")
        await agent.runner.start(
            msgspec.structs.replace(task, folder=folder, env={**task.env, "STOKER_CHECKPOINT_DIR": folder})
        )
        await agent.end(key(1))
        assert "Disk quota exceeded" in (await agent.runner.read_log(key(1), 0, 10_000)).data.decode()
        assert os.stat(f"{folder}/much").st_size <= 1 << 20
        await agent.runner.start(node.shell(key(2), "head -c 500000 /dev/zero > much", workdir=""))
        assert (await agent.end(key(2))).clean, "another job has a bound of its own"


async def test_where_no_bound_can_be_kept_a_job_runs_without_one(tmp_path: Path) -> None:
    async with node_in(tmp_path, folder_bytes_max=1 << 20) as node, agent_on(node) as agent:
        await agent.runner.start(node.shell(key(1), "head -c 2000000 /dev/zero > much", workdir=""))
        assert (await agent.end(key(1))).clean


async def test_a_folder_for_checkpoints_is_there_before_the_program_runs(node: RealNode, agent: Listener) -> None:
    for job in (1, 2):  # the second finds it
        task = node.shell(key(job), "test -d storage/of/job && echo there")
        await agent.runner.start(msgspec.structs.replace(task, folder=str(node.folder / "storage" / "of" / "job")))
        assert (await agent.end(key(job))).clean
    assert stat.S_IMODE((node.folder / "storage" / "of" / "job").stat().st_mode) == 0o700, "it is nobody else's"


async def test_a_folder_for_checkpoints_that_cannot_be_made_is_a_clear_failure_to_start(
    node: RealNode, agent: Listener
) -> None:
    (node.folder / "file").touch()
    task = node.shell(key(1), "touch it_ran")
    await agent.runner.start(msgspec.structs.replace(task, folder=str(node.folder / "file" / "7")))
    end = await agent.end(key(1))
    assert end.cause is EndCause.START_FAILED
    assert end.error == f"no folder for checkpoints, {node.folder / 'file' / '7'}: Not a directory (ENOTDIR)"
    assert not (node.folder / "it_ran").exists()


async def test_a_folder_for_checkpoints_of_another_account_is_given_to_no_job(node: RealNode, agent: Listener) -> None:
    """Also where all jobs run as the agent's account."""
    folder = node.folder / "1.9f3ac01b77de"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("NOT PROVED HERE: only root can give a folder away")
    os.chown(folder, 4_321, -1)
    task = node.shell(key(1), "touch it_ran")
    await agent.runner.start(msgspec.structs.replace(task, folder=str(folder)))
    end = await agent.end(key(1))
    assert end.cause is EndCause.START_FAILED
    assert f"{folder}, isn't a folder of uid 0, which the job has here" in end.error
    assert not (node.folder / "it_ran").exists()


async def test_a_folder_that_the_job_left_empty_goes_with_it(node: RealNode, agent: Listener) -> None:
    _, output = await ran(node, agent, "pwd", workdir="")
    assert not Path(output.decode().strip()).exists()


@pytest.mark.parametrize(
    ("command", "start", "words"),
    [
        (("no-such-program", "x"), {}, ["no-such-program", "No such file", "PATH"]),
        (("/no/such/program",), {}, ["/no/such/program", "No such file"]),
        (("true",), {"workdir": "/no/such/folder"}, ["working directory", "/no/such/folder", "ENOENT"]),
        (("true",), {"workdir": "relative/folder"}, ["working directory", "relative/folder", "absolute"]),
        (("true",), {"workdir": "/etc/hostname"}, ["/etc/hostname", "ENOTDIR"]),
        (("/proc/version",), {}, ["/proc/version", "Permission denied"]),
        (("/etc",), {}, ["/etc", "Permission denied"]),
        (("echo", "a\0b"), {}, ["NUL"]),
        (("",), {}, ["empty"]),
        (("echo", "x" * 200_000), {}, ["echo", "Argument list too long"]),
    ],
)
async def test_what_cannot_start_says_why_and_never_falls_back(
    node: RealNode, agent: Listener, command: CommandLine, start: dict[str, object], words: list[str]
) -> None:
    end, output = await ran(node, agent, command, **start)
    assert (end.cause, end.exit_code, end.signal) == (EndCause.START_FAILED, None, 0)
    assert all(word in end.error for word in words), end.error
    assert output == b""
    assert (await agent.runner.read_log(key(1), 0, 1)).ended


async def test_a_script_without_its_first_line_is_refused_not_guessed(node: RealNode, agent: Listener) -> None:
    script = node.folder / "script"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    end, _ = await ran(node, agent, (str(script),))
    assert end.cause is EndCause.START_FAILED
    assert "Exec format error" in end.error


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('echo "$0" "$@" \'$x\'\n', ["train.sh a b", "$x"]),
        ('#!/bin/bash\necho "$BASH_VERSION" "$@"\n', [".", "a b"]),
        ("#! /usr/bin/env  python3 \nimport sys; print(*sys.argv)\n", ["train.sh a b"]),
        ("#!/usr/bin/env -S python3 -E\nimport sys; print(*sys.argv, sys.flags.ignore_environment)\n", ["a b 1"]),
        ("# \udcff\necho $0 | tail -c 9\n", ["train.sh"]),
    ],
)
async def test_a_script_is_kept_for_the_task_run_by_what_its_first_line_names_and_removed(
    node: RealNode, agent: Listener, script: str, said: list[str]
) -> None:
    end, output = await ran(node, agent, ("train.sh", "a b"), script=script)
    assert (end.cause, end.exit_code) == (EndCause.EXITED, 0), end.error or output
    assert all(word in output.decode() for word in said), output
    async with asyncio.timeout(30):
        while list((node.folder / "agent").rglob("*train.sh*")):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("#!/no/such/python\n", "cannot run '/no/such/python', which the first line of the job's script names"),
        ("#!/bin/bash\r\necho\r\n", "the line ends as on Windows"),
        ("#!\n", "names no program"),
        ("#!/tmp\n", "cannot run /tmp"),
    ],
)
async def test_a_script_that_can_not_be_run_says_why(node: RealNode, agent: Listener, script: str, words: str) -> None:
    end, output = await ran(node, agent, ("train.sh",), script=script)
    assert (end.cause, output) == (EndCause.START_FAILED, b"")
    assert words in end.error


async def test_a_start_that_failed_is_an_end_like_any_other(node: RealNode) -> None:
    """Kept, offered again, and never tried a second time."""
    async with agent_on(node) as agent:
        await ran(node, agent, ("no-such-program",))
    async with agent_on(node) as agent:
        (over,) = (await agent.inventory()).ends
        assert over.end.cause is EndCause.START_FAILED
        await agent.runner.start(node.shell(key(1), "echo started >> again"))
        assert await agent.end(key(1)) == over.end
        assert not (node.folder / "again").exists()


async def test_a_repeated_start_is_answered_by_what_the_record_knows(node: RealNode, agent: Listener) -> None:
    """R1: an agent whose memory is gone learns how things stand by asking again."""
    task = node.shell(key(1), "exec sleep 300")
    await agent.runner.start(task)
    running = await agent.running(key(1))
    agent.heard.clear()
    await agent.runner.start(task)
    assert await agent.running(key(1)) == running
    await agent.runner.stop(key(1), 1000)
    end = await agent.end(key(1))
    await agent.runner.settle(key(1))
    agent.heard.clear()
    await agent.runner.start(task)
    assert await agent.end(key(1)) == end


async def test_a_stop_that_overtakes_its_start_leaves_no_process(node: RealNode, agent: Listener) -> None:
    for job in range(1, 41):
        await agent.runner.start(node.task(key(job), lasts_s=300))
        await agent.runner.stop(key(job), 0)
    for job in range(1, 41):
        assert (await agent.end(key(job))).cause is EndCause.STOPPED
        assert not node.lives(key(job))


async def test_ranks_on_one_node_share_the_attempts_folder(node: RealNode, agent: Listener) -> None:
    await agent.runner.start(node.shell(key(1, 0), "while [ ! -e met ]; do sleep 0.01; done; rm met", workdir=""))
    await agent.runner.start(node.shell(key(1, 1), "touch met", workdir=""))
    assert (await agent.end(key(1, 0))).exit_code == 0
    assert (await agent.end(key(1, 1))).exit_code == 0


async def test_a_name_with_a_long_path_reaches_its_runner(tmp_path: Path) -> None:
    """A UNIX socket's address holds 107 bytes."""
    folder = tmp_path / ("long" * 30) / ("longer" * 30)
    folder.mkdir(parents=True)
    async with node_in(folder) as node, agent_on(node) as agent:
        assert len(os.fspath(folder)) > 300
        await agent.runner.start(node.shell(key(1), "true"))
        assert (await agent.end(key(1))).clean


def test_a_rendezvous_port_that_somebody_holds_in_either_family_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.create_server((host, 0), family=family) as listener:
            port = listener.getsockname()[1]
            assert port_conflict(port) == f"TCP port {port} can't be bound: Address already in use (EADDRINUSE)"
        assert port_conflict(port) == "", "it is free again"
    real = socket.socket

    def without_ipv6(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, kind)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    assert port_conflict(port) == "", "a machine without IPv6 has nobody on it there"
