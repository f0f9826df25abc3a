"""An engine that can't be reached is told apart from one that refuses."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.adapters.container_engine import DockerEngine, is_installed
from stoker.brain.domain.container import EngineFault

pytestmark = pytest.mark.skipif(not is_installed(), reason="NOT PROVED HERE: aiodocker isn't installed")


async def test_an_engine_that_nobody_listens_for_has_answered_nothing(tmp_path: Path) -> None:
    engine = DockerEngine(str(tmp_path / "docker.sock"))
    for asked in (engine.info, lambda: engine.image("busybox")):
        with pytest.raises(EngineFault) as caught:
            await asked()
        assert caught.value.status == 0
    await engine.close()


async def test_an_engine_whose_socket_has_vanished_does_not_answer_by_an_older_connection(tmp_path: Path) -> None:
    """A job's container is made by another process, which finds no socket then."""
    path = tmp_path / "docker.sock"
    answering: list[asyncio.Task[None]] = []
    server = await asyncio.start_unix_server(
        lambda reader, writer: answering.append(asyncio.ensure_future(_answer(reader, writer))), path
    )
    engine = DockerEngine(str(path))
    assert (await engine.info()).version == "20.10"
    path.unlink()
    with pytest.raises(EngineFault, match=r"No such file"):
        await engine.info()
    await engine.close()
    await asyncio.gather(*answering)
    server.close()
    await server.wait_closed()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError):
        while await reader.readuntil(b"\r\n\r\n"):
            body = b'{"ServerVersion": "20.10", "ApiVersion": "1.41"}'
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
            writer.write(head + body)
    writer.close()
    await writer.wait_closed()
