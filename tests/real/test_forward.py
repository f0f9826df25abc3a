"""Ports of jobs, reached through a real control plane and agent by the command line and by the client."""

import asyncio
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.wire.client import AsyncClient, Client, ForwardQuery, JobBody
from stoker.wire.client.clients import connect_to_port
from tests.real.forks import started
from tests.real.serving import free_port
from tests.real.up_process import UpProcess, environment, run, stoker, until

ECHO = """
import asyncio, sys
async def talk(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"over")
    writer.close()
async def main():
    async with await asyncio.start_server(talk, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path, "--nodes", "1") as started_up:
        yield started_up


def serving(up: UpProcess, *command: str) -> str:
    """The id of a job that serves, which runs."""
    with Client(up.url) as client:
        job = client.submit(JobBody(command=[sys.executable, *command], workdir=str(up.folder)))
        until(lambda: client.job(job.id).state == "running", what="the job")
    return job.id


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def forwarding(up: UpProcess, job: str, ports: str, err: Path) -> Iterator[None]:
    with err.open("wb") as words:
        command = started(
            stoker("forward", "--server", up.url, job, ports), out=words, env=environment(up.folder), new_session=True
        )
    try:
        until(lambda: b"Ctrl-C ends it" in err.read_bytes(), what=f"forward: {err.read_text()}")
        yield
    finally:
        command.kill()
        command.wait()


def test_a_notebook_in_a_job_is_reached_on_this_machine(up: UpProcess, tmp_path: Path) -> None:
    port, local = free_port(), free_port()
    (tmp_path / "page").write_bytes(b"notebook" * 200_000)
    job = serving(up, "-m", "http.server", str(port), "--bind", "127.0.0.1")
    until(lambda: listens(port), what="the server")
    with forwarding(up, job, f"{local}:{port}", tmp_path / "forward.log"):
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{local}/page", timeout=30) as answer:
                assert answer.read() == b"notebook" * 200_000
        done = run(up.folder, "--server", up.url, "forward", job, f"{local}:{port}")
        assert (done.returncode, "nothing can listen on" in done.stderr) == (1, True)
        assert "hint: " in done.stderr
        with Client(up.url) as client:
            actions = [row.action for row in client.audit().rows]
        assert actions.count("forward") == 1


def test_bytes_go_both_ways_at_once_and_each_way_ends_by_itself(up: UpProcess) -> None:
    port = free_port()
    job = serving(up, "-c", ECHO, str(port))
    until(lambda: listens(port), what="the server")

    async def talk() -> bytes:
        async with AsyncClient(up.url) as client:
            connection = await connect_to_port(client, job, ForwardQuery(port=port))
            got = b""
            for number in range(50):
                await connection.write(b"%d" % number * 10_000)
                got += await connection.read()
            await connection.end()
            while data := await connection.read():
                got += data
            await connection.close()
            return got

    assert asyncio.run(talk()) == b"".join(b"%d" % number * 10_000 for number in range(50)) + b"over"


def refused(up: UpProcess, job: str, port: int) -> str:
    async def ask() -> str:
        async with AsyncClient(up.url) as client:
            with pytest.raises(StokerError) as caught:
                await connect_to_port(client, job, ForwardQuery(port=port))
            return caught.value.refusal.code

    return asyncio.run(ask())


def test_nobody_reaches_what_another_serves_on_that_node_through_a_job_of_his_own(up: UpProcess) -> None:
    port, others = free_port(), free_port()
    mine = serving(up, "-m", "http.server", str(port), "--bind", "127.0.0.1")
    theirs = serving(up, "-m", "http.server", str(others))
    until(lambda: listens(port) and listens(others), what="the servers")
    assert refused(up, mine, others) == "port_not_listening"
    assert refused(up, mine, up.grpc_port) == "port_not_listening"
    assert refused(up, theirs, port) == "port_not_listening"
    assert refused(up, mine, free_port()) == "port_not_listening"


def test_a_job_that_has_ended_is_reached_no_more(up: UpProcess) -> None:
    port = free_port()
    job = serving(up, "-c", ECHO, str(port))
    until(lambda: listens(port), what="the server")

    async def broken_off() -> None:
        async with AsyncClient(up.url) as client:
            connection = await connect_to_port(client, job, ForwardQuery(port=port))
            await client.cancel(job)
            with suppress(ConnectionError):  # broken off, unless its process closed it first
                while await connection.read():
                    pass
            await connection.close()

    asyncio.run(broken_off())
    with Client(up.url) as client:
        until(lambda: client.job(job).state == "cancelled", what="the end")
    assert refused(up, job, port) == "not_running"


def test_ports_that_are_none_are_refused_before_anything_listens(tmp_path: Path) -> None:
    for words in ("0", "x", "70000", "1:2:3", "80:0"):
        done: subprocess.CompletedProcess[str] = run(tmp_path, "forward", "7", words)
        assert (done.returncode, "is neither PORT nor LOCAL:PORT" in done.stderr) == (2, True)


def test_a_forward_that_would_be_refused_is_refused_before_it_listens(up: UpProcess) -> None:
    job = serving(up, "-c", "import time; time.sleep(60)")
    with Client(up.url) as client:
        held = client.submit(JobBody(command=["true"], hold=True)).id
        for asked, code in ((held, "not_running"), (f"{job}.1", "attempt_unknown"), ("999", "job_unknown")):
            done = run(up.folder, "--server", up.url, "forward", asked, str(free_port()))
            assert (f"[{code}]" in done.stderr, done.stdout) == (True, ""), done.stderr
        assert [row for row in client.audit().rows if (row.action, row.outcome) == ("forward", "ok")] == []


def test_a_forward_ends_with_its_job_though_nobody_connects(up: UpProcess, tmp_path: Path) -> None:
    job = serving(up, "-c", "import time; time.sleep(60)")
    err = tmp_path / "forward.log"
    with err.open("wb") as words:
        words_typed = stoker("forward", "--server", up.url, job, str(free_port()))
        command = started(words_typed, out=words, env=environment(up.folder), new_session=True)
    until(lambda: b"Ctrl-C ends it" in err.read_bytes(), what=f"forward: {err.read_text()}")
    with Client(up.url) as client:
        client.cancel(job)
    assert command.wait(timeout=60) == 0
    assert f"job {job} runs no more: it is cancelled" in err.read_text()
