"""Programs inside running jobs, and jobs with a terminal, through a real control plane and agent."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.wire.client import AsyncClient, Client, JobBody
from stoker.wire.client.clients import connect_to_session
from stoker.wire.client.exec_session import SessionBroken, SessionConnection
from stoker.wire.exec_session import CONTROL, STDERR, STDIN, STDOUT, SessionMessage, control
from stoker.wire.rest.exec_session import AttachQuery, ExecQuery
from tests.real.forks import Started, started
from tests.real.screen import Terminal
from tests.real.serving import free_port
from tests.real.up_process import UpProcess, environment, run, stoker, until

SHELL = {"PS1": "ready$ ", "TERM": "xterm"}
BASH = ("bash", "--norc", "--noprofile", "-i")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("inside"), "--nodes", "1") as started_up:
        yield started_up


@pytest.fixture(scope="module")
def job(up: UpProcess) -> str:
    """The id of a job that runs for as long as these tests do."""
    return running(up, "sh", "-c", "echo $$ > leader; exec sleep 600", env={"MARK": "mine", **SHELL}, gpu_count=2)


def running(up: UpProcess, *command: str, **more: object) -> str:
    with Client(up.url) as client:
        body = JobBody(command=list(command), workdir=str(up.folder), **more)  # type: ignore[arg-type]  # of these tests
        found = client.submit(body).id
        until(lambda: client.job(found).state == "running", what="the job")
    return found


def executed(
    up: UpProcess, job: str, *command: str, flags: tuple[str, ...] = (), stdin: str = ""
) -> tuple[int, str, str]:
    words = stoker("exec", "--server", up.url, *flags, job, "--", *command)
    done = subprocess.run(
        words, input=stdin, capture_output=True, text=True, timeout=60, env=environment(up.folder), check=False
    )
    return done.returncode, done.stdout, done.stderr


def terminal(up: UpProcess, *words: str) -> Terminal:
    return Terminal(stoker(words[0], "--server", up.url, *words[1:]), environment(up.folder, **SHELL))


# --- a program beside what runs -----------------------------------------------------------------------------------


def test_a_program_has_the_jobs_environment_folder_gpus_and_cgroup_and_its_own_exit_status(
    up: UpProcess, job: str
) -> None:
    line = (
        "echo $MARK; pwd; echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | wc -l; cat /proc/self/cgroup; echo bad >&2; exit 7"
    )
    status, out, err = executed(up, job, "sh", "-c", line)
    mark, folder, gpus, *cgroup = out.splitlines()
    assert (status, mark, folder, gpus, err) == (7, "mine", str(up.folder), "2", "bad\n")
    leader = (up.folder / "leader").read_text().strip()
    assert cgroup == Path(f"/proc/{leader}/cgroup").read_text().splitlines()


def test_a_program_that_there_is_not_or_that_a_signal_ends_says_so_as_a_shell_would(up: UpProcess, job: str) -> None:
    status, _, err = executed(up, job, "no-such-program")
    assert (status, "no-such-program: No such file or directory" in err) == (127, True)
    assert executed(up, job, str(up.folder))[0] == 126
    status, _, err = executed(up, job, "sh", "-c", "kill -KILL $$")
    assert (status, err) == (137, "")


def test_input_of_many_windows_arrives_whole_and_its_end_is_told(up: UpProcess, job: str) -> None:
    text = "".join(f"{number}\n" for number in range(60_000))
    status, out, _ = executed(up, job, "sh", "-c", "tac; echo over", flags=("-i",), stdin=text)
    assert (status, out) == (0, "".join(f"{number}\n" for number in reversed(range(60_000))) + "over\n")
    assert executed(up, job, "cat", stdin=text)[1] == ""


def test_what_can_never_be_entered_is_refused_with_what_to_do(up: UpProcess, job: str) -> None:
    with Client(up.url) as client:
        held = client.submit(JobBody(command=["true"], hold=True)).id
        array = client.submit(JobBody(command=["true"], hold=True, array="3-5")).id
    assert f"`{array}_3`" in executed(up, array, "true")[2]
    for asked, code in ((held, "not_running"), (f"{job}.1", "attempt_unknown"), ("999", "job_unknown")):
        status, _, err = executed(up, asked, "true")
        assert (status in (3, 4), f"[{code}]" in err, "hint: " in err) == (True, True, True), err
    for words in (("exec", "-it", job, "--", "bash"), ("attach", job)):
        done = run(up.folder, "--server", up.url, *words)
        assert (done.returncode, "it needs a terminal here" in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_who_came_in_and_what_was_executed_is_in_the_audit_trail(up: UpProcess, job: str) -> None:
    executed(up, job, "echo", "audited")
    with Client(up.url) as client:
        rows = [row for row in client.audit().rows if row.action == "exec" and row.job == job]
    assert any("echo audited in rank 0" in row.details for row in rows), rows


# --- a terminal beside what runs ------------------------------------------------------------------------------------


def test_keys_job_control_and_resizes_reach_a_shell_beside_the_job(up: UpProcess, job: str) -> None:
    with terminal(up, "exec", "-it", job, "--", *BASH) as seen:
        seen.until("ready$")
        seen.type("stty size\r")
        seen.until("24 80")
        seen.resize(100, 30)
        until(lambda: size_says(seen, "30 100"), what="the new size")
        seen.type("cat; echo was stopped\r")
        seen.until("cat; echo")
        seen.type("typed\r")
        seen.until("typed\ntyped")
        seen.type("\x1a")
        seen.until("Stopped")
        seen.type("fg\r")
        seen.until("\ncat")
        seen.type("more\r")
        seen.until("more\nmore")
        seen.type("\x03")
        until(lambda: "^C" in seen.text and seen.text.rstrip().endswith("ready$"), what="the prompt")
        seen.type("echo still $((40+2))\r")
        seen.until("still 42")
        seen.type("exit 9\r")
        assert seen.end() == 9
        assert seen.line_settings == seen.settings_before


def size_says(seen: Terminal, words: str) -> bool:
    seen.type("stty size\r")
    seen.still(0.2)
    return words in seen.text


def test_after_enter_a_tilde_and_a_dot_hang_the_shell_up(up: UpProcess, job: str) -> None:
    with terminal(up, "exec", "-it", job, "--", "sh", "-c", "echo $$ > hung; exec sleep 500") as seen:
        pid = int(until(lambda: (up.folder / "hung").read_text() if (up.folder / "hung").exists() else None, what="it"))
        seen.type("\r~.")
        assert seen.end() == 129
    until(lambda: not alive(pid), what="the end of what was hung up")


def alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


RELAY = """
import asyncio, sys
async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
async def carry(reader, writer):
    there = await asyncio.open_connection("127.0.0.1", int(sys.argv[2]))
    await asyncio.gather(copy(reader, there[1]), copy(there[0], writer), return_exceptions=True)
async def main():
    async with await asyncio.start_server(carry, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""


def relaying(up: UpProcess, port: int) -> Started:
    words = [sys.executable, "-c", RELAY, str(port), str(up.http_port)]
    with (up.folder / "relay.log").open("ab") as log:
        relay = started(words, out=log, env=environment(up.folder))
    until(lambda: answers(port), what="the relay")
    return relay


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_connection_that_is_cut_is_made_again_and_the_shell_is_where_it_was(up: UpProcess, job: str) -> None:
    port = free_port()
    relay = relaying(up, port)
    words = stoker("exec", "--server", f"http://127.0.0.1:{port}", "-it", job, "--", *BASH)
    try:
        with Terminal(words, environment(up.folder, **SHELL)) as seen:
            seen.until("ready$")
            seen.type("x=before; echo $x\r")
            seen.until("\nbefore")
            relay.kill()
            relay.wait()
            seen.until("the connection broke")
            seen.type("echo $x and after\r")
            relay = relaying(up, port)
            seen.until("\nbefore and after")
            seen.type("exit 6\r")
            assert seen.end() == 6
    finally:
        relay.kill()
        relay.wait()


# --- by the protocol itself -----------------------------------------------------------------------------------------


async def until_exit(connection: SessionConnection) -> tuple[bytes, dict[str, object]]:
    """All output from here on, and how the program ended."""
    out = b""
    while True:
        message = await connection.read()
        if message.channel in (STDOUT, STDERR):
            out += message.content
            await connection.write(control("got", bytes=len(out)))
        elif message.channel == CONTROL and message.control()["type"] in ("exit", "refused"):
            await connection.close()
            return out, message.control()


def test_who_comes_back_gets_what_follows_and_nothing_twice(up: UpProcess, job: str) -> None:
    async def talk() -> None:
        async with AsyncClient(up.url) as client:
            line = "for i in 1 2 3 4 5 6 7 8 9; do head -c 60000 /dev/zero | tr '\\0' $i; done; read x; echo got $x"
            query = ExecQuery(command=f'["sh", "-c", "{line.replace(chr(92), chr(92) * 2)}"]', session="again")
            first = await connect_to_session(client, job, query)
            got = b""
            while len(got) < 100_000:
                message = await first.read()
                got += message.content if message.channel == STDOUT else b""
            first.abort()
            back = await connect_to_session(client, job, AtQuery(query, len(got)))
            attached = (await back.read()).control()
            assert (attached["type"], attached["at"], attached["taken"]) == ("attached", len(got), 0)
            await back.write(SessionMessage(STDIN, b"ja\n"))
            await back.write(control("got", bytes=len(got)))
            while True:
                message = await back.read()
                if message.channel == CONTROL and message.control()["type"] == "exit":
                    break
                got += message.content if message.channel == STDOUT else b""
                await back.write(control("got", bytes=len(got)))
            assert got == b"".join(b"%d" % digit * 60_000 for digit in range(1, 10)) + b"got ja\n"
            await back.write(control("done"))
            await back.close()
            with pytest.raises(StokerError) as refused:
                await connect_to_session(client, job, AtQuery(query, len(got)))
            assert refused.value.refusal.code == "session_over"

    asyncio.run(talk())


def AtQuery(query: ExecQuery, at: int) -> ExecQuery:
    from msgspec.structs import replace

    return replace(query, at=at)


def test_a_client_that_never_reads_holds_up_its_own_program_alone(up: UpProcess, job: str) -> None:
    async def talk() -> None:
        async with AsyncClient(up.url) as client:
            idle = await connect_to_session(client, job, ExecQuery(command='["sh", "-c", "yes > /dev/stdout"]'))
            try:
                other = await connect_to_session(client, job, ExecQuery(command='["echo", "here"]'))
                out, ended = await until_exit(other)
                assert (out, ended["code"]) == (b"here\n", 0)
            finally:
                idle.abort()

    asyncio.run(talk())


NO_MESSAGES = {
    "a channel of programs": SessionMessage(STDOUT, b"mine"),
    "no JSON": SessionMessage(CONTROL, b"{"),
    "no channel": SessionMessage(9, b"x"),
    "more than the window": SessionMessage(STDIN, b"x" * 100_000),
}


async def until_refused(connection: SessionConnection) -> None:
    """Raises SessionBroken once the connection is broken off, or the runner has said what it can't take."""
    while True:
        told = await connection.read()
        if told.channel == CONTROL and told.control()["type"] == "refused":
            raise SessionBroken(str(told.control()["code"]))


@pytest.mark.parametrize("message", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_what_is_no_message_of_a_session_ends_the_connection_and_nothing_else(
    up: UpProcess, job: str, message: SessionMessage
) -> None:
    async def talk() -> None:
        async with AsyncClient(up.url) as client:
            connection = await connect_to_session(client, job, ExecQuery(command='["sleep", "5"]'))
            await connection.read()
            await connection.write(message)
            with pytest.raises(SessionBroken, match=r"bad_frame|channel|JSON"):
                await until_refused(connection)
            connection.abort()

    asyncio.run(talk())


def test_a_size_that_no_terminal_has_is_refused_and_none_means_the_usual(up: UpProcess, job: str) -> None:
    async def talk() -> None:
        async with AsyncClient(up.url) as client:
            command = '["stty", "size"]'
            with pytest.raises(StokerError) as refused:
                await connect_to_session(
                    client, job, ExecQuery(command=command, tty=True, columns=100_000, rows=100_000)
                )
            assert refused.value.refusal.code == "bad_parameter"
            out, _ = await until_exit(await connect_to_session(client, job, ExecQuery(command=command, tty=True)))
            assert out.strip() == b"24 80"

    asyncio.run(talk())


def test_more_sessions_than_a_task_may_have_are_refused(up: UpProcess, job: str) -> None:
    async def talk() -> str:
        open_ones: list[SessionConnection] = []
        async with AsyncClient(up.url) as client:
            try:
                while len(open_ones) < 20:
                    each = await connect_to_session(client, job, ExecQuery(command='["sleep", "100"]'))
                    open_ones.append(each)
            except StokerError as fault:
                return fault.refusal.code
            finally:
                for each in open_ones:
                    await each.write(control("hangup"))
                    await each.write(control("done"))
                    await each.close()
        return ""

    assert asyncio.run(talk()) == "too_many_sessions"


def test_what_runs_beside_a_job_ends_with_it_and_is_never_its_own_end(up: UpProcess) -> None:
    beside = running(up, "sleep", "600")

    async def talk() -> dict[str, object]:
        async with AsyncClient(up.url) as client:
            assert (await until_exit(await connect_to_session(client, beside, ExecQuery(command='["true"]'))))[1][
                "code"
            ] == 0
            connection = await connect_to_session(
                client, beside, ExecQuery(command='["sh", "-c", "trap : TERM HUP; sleep 300; sleep 300"]')
            )
            await connection.read()
            assert (await client.job(beside)).state == "running"
            await client.cancel(beside)
            return (await until_exit(connection))[1]

    ended = asyncio.run(talk())
    assert ended["type"] == "exit"
    with Client(up.url) as client:
        until(lambda: client.job(beside).state == "cancelled", what="the end of the job")


# --- a job with a terminal ------------------------------------------------------------------------------------------


def submitted(up: UpProcess, *words: str) -> Terminal:
    return terminal(up, "submit", "-it", "--workdir", str(up.folder), "--env", "PS1=ready$ ", *words)


def test_an_interactive_job_is_entered_as_it_runs_and_exits_as_its_shell(up: UpProcess) -> None:
    with submitted(up, "--gpus", "1", "--", *BASH) as seen:
        seen.until("ready$")
        seen.type("echo $CUDA_VISIBLE_DEVICES | wc -w; tty | grep -c pts; stty size\r")
        seen.until("1\n1\n24 80")
        seen.type("sleep 300\r")
        time.sleep(0.2)
        seen.type("\x03")
        seen.type("echo not gone\r")
        seen.until("\nnot gone")
        seen.type("exit 5\r")
        assert seen.end() == 5
        assert "failed after" in seen.text
    with Client(up.url) as client:
        last = client.jobs().jobs[0]
        assert (last.state, last.exit_code) == ("failed", 5)
        assert b"not gone" in client.logs(last.id).data


def test_while_an_interactive_job_waits_it_says_why_and_a_ctrl_c_cancels_it(up: UpProcess) -> None:
    with submitted(up, "--hold", "--", *BASH) as seen:
        seen.until("waits:", "holds it")
        seen.type("\x03")
        assert seen.end() == 130
        seen.until("is cancelled")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_terminal_that_is_closed_while_its_job_waits_cancels_the_job(up: UpProcess, number: int) -> None:
    with submitted(up, "--hold", "--", *BASH) as seen:
        seen.until("waits:", "holds it")
        os.kill(seen.pid, number)
        assert seen.end() == 128 + number
        job_id = seen.text.partition("job ")[2].split()[0]
    with Client(up.url) as client:
        assert client.job(job_id).state == "cancelled"


def test_an_interactive_job_that_is_queued_anew_is_entered_again(up: UpProcess) -> None:
    with submitted(up, "--", "sh", "-i") as seen:
        seen.until("ready$")
        job_id = seen.text.partition("job ")[2].split()[0]
        with Client(up.url) as client:
            client.requeue(job_id)
        seen.until("attempt 1 of job", "begins again")
        seen.type("echo attempt $STOKER_ATTEMPT\r")
        seen.until("\nattempt 2")
        seen.type("exit 4\r")
        assert seen.end() == 4


def test_a_detached_job_goes_on_and_whoever_attaches_sees_its_last_screen(up: UpProcess) -> None:
    with submitted(up, "--", *BASH) as seen:
        seen.until("ready$")
        seen.type("echo before $((1+1))\r")
        seen.until("before 2")
        seen.type("\r~d")
        assert seen.end() == 0
        number = seen.until("goes on").partition("stoker attach ")[2].split("`")[0]
    with terminal(up, "attach", number) as again:
        again.until("before 2", "ready$")
        again.type("exit 3\r")
        assert again.end() == 3
    with Client(up.url) as client:
        until(lambda: client.job(number).state == "failed", what="the end")
        assert client.job(number).exit_code == 3


def test_a_terminal_that_is_closed_ends_its_job(up: UpProcess) -> None:
    with submitted(up, "--", *BASH) as seen:
        seen.until("ready$")
        number = seen.until("is submitted").partition("job ")[2].split()[0]
        os.kill(seen.pid, 1)
        assert seen.end() == 129
    with Client(up.url) as client:
        until(lambda: client.job(number).state == "failed", what="the end")
    assert "its terminal was closed" in run(up.folder, "--server", up.url, "why", number).stdout


def test_a_script_that_attaches_is_told_what_to_do_instead(up: UpProcess, job: str) -> None:
    words = stoker("attach", "--server", up.url, job)
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(up.folder), check=False
    )
    assert done.returncode == 2
    assert f"`stoker logs {job}`" in done.stderr
    assert "-t" not in done.stderr


def test_a_job_without_a_terminal_has_none_to_attach_to(up: UpProcess, job: str) -> None:
    async def talk() -> str:
        async with AsyncClient(up.url) as client:
            with pytest.raises(StokerError) as refused:
                await connect_to_session(client, job, AttachQuery())
            return refused.value.refusal.code

    assert asyncio.run(talk()) == "no_terminal"
