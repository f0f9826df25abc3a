"""Targets of the audit trail as they are: files that rotate and fill up, and syslog over each kind of socket."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.adapters import audit_sink
from stoker.adapters.audit_sink import TargetSink, sink_at
from stoker.brain.domain.audit import AuditRow
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Position, Principal
from stoker.brain.domain.units import Instant
from stoker.control.settings import AuditSettings
from stoker.live.main import run_control
from stoker.live.settings.control import ControlSettings


def rows(*outcomes: str) -> list[tuple[AuditRow, bytes]]:
    at, ada = Instant(1_700_000_000_123), Principal("user:ada")
    made = [
        AuditRow(position=Position(number), at=at, by=ada, action="cancel", outcome=each)
        for number, each in enumerate(outcomes, 1)
    ]
    return [(row, json.dumps({"id": row.position, "outcome": row.outcome}).encode()) for row in made]


def sink(url: str) -> TargetSink:
    made = sink_at(url)
    assert made is not None
    assert AuditSettings(ship_to=url).faults() == []
    return made


def ids(path: Path) -> list[int]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


async def test_t2_a_file_is_private_is_appended_to_and_is_opened_anew_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    target = sink(f"file://{path}")
    assert await target.send(rows("ok", "ok")) == ""
    assert path.stat().st_mode & 0o777 == 0o600
    path.rename(tmp_path / "audit.log.1")
    assert await target.send(rows("ok")) == ""
    path.unlink()
    path.touch(mode=0o640)  # as `create` of logrotate does
    assert await target.send(rows("ok", "not_allowed", "ok")) == ""
    assert (ids(tmp_path / "audit.log.1"), ids(path)) == ([1, 2], [1, 2, 3])
    await target.close()
    again = sink(f"file://{path}")
    assert await again.send(rows("ok")) == ""
    assert ids(path) == [1, 2, 3, 1]
    await again.close()


async def test_t4_no_row_acts_on_the_terminal_of_who_reads_it(tmp_path: Path) -> None:
    path, evil = tmp_path / "audit.log", "\x9b31m\x85\u202e\x7f"
    target = sink(f"file://{path}")
    assert await target.send([(rows("ok")[0][0], json.dumps({"target": evil}, ensure_ascii=False).encode())]) == ""
    await target.close()
    assert path.read_bytes().isascii()
    assert "\x7f" not in path.read_text()
    assert json.loads(path.read_text()) == {"target": evil}


async def test_t3_after_a_full_disk_no_line_is_torn_but_the_one_that_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    target, real = sink(f"file://{path}"), os.write

    def full(fd: int, data: memoryview) -> int:
        if len(data) <= 10:
            raise OSError(28, "No space left on device")
        return real(fd, data[:10])

    monkeypatch.setattr(audit_sink.os, "write", full)
    assert "No space left on device" in await target.send(rows("ok"))
    monkeypatch.undo()
    assert await target.send(rows("ok", "ok")) == ""
    torn, *whole = path.read_text().splitlines()
    assert [json.loads(line)["id"] for line in whole] == [1, 2]
    assert torn == rows("ok")[0][1][: len(torn)].decode() != rows("ok")[0][1].decode()
    await target.close()


async def test_t1_a_target_that_takes_nothing_is_given_up_in_time_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_sink, "SEND_S_MAX", 0.3)
    place = str(tmp_path / "syslog")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as server:
        server.bind(place)  # and reads nothing
        target, began, said = sink(f"syslog://{place}"), time.monotonic(), ""
        while not said and time.monotonic() - began < 20:
            said = await target.send(rows(*["ok"] * 100))
        assert "it hasn't come back within 0.3 s" in said
        assert "still hangs" in await target.send(rows("ok"))
    await target.close()


@pytest.fixture(params=["unix", "udp"])
def datagrams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    family = socket.AF_UNIX if request.param == "unix" else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as server:
        server.settimeout(10)
        if request.param == "unix":
            server.bind(str(tmp_path / "log"))
            yield server, f"syslog://{tmp_path / 'log'}"
        else:
            server.bind(("127.0.0.1", 0))
            yield server, f"syslog+udp://127.0.0.1:{server.getsockname()[1]}"


async def test_each_row_is_one_message_of_rfc_5424(datagrams: tuple[socket.socket, str]) -> None:
    server, url = datagrams
    target = sink(url)
    assert await target.send(rows("ok", "not_allowed")) == ""
    first, second = (server.recv(65_536).decode() for _ in range(2))
    head = f"1 2023-11-14T22:13:20.123+00:00 {socket.gethostname()} stoker {os.getpid()} cancel - "
    assert first == f'<85>{head}{{"id": 1, "outcome": "ok"}}'
    assert second == f'<84>{head}{{"id": 2, "outcome": "not_allowed"}}'
    await target.close()


async def test_over_tcp_messages_are_counted_and_a_server_that_comes_back_is_found_again() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(10)
        port = server.getsockname()[1]
        target = sink(f"syslog+tcp://127.0.0.1:{port}")
        for _ in range(2):
            assert await target.send(rows("ok")) == ""
            with closing(server.accept()[0]) as accepted:
                accepted.settimeout(10)
                size, _, message = accepted.recv(65_536).partition(b" ")
                assert int(size) == len(message)
                assert message.startswith(b"<85>1 ")
    await asyncio.sleep(0.1)
    assert "refused" in await target.send(rows("ok"))
    await target.close()


@pytest.mark.parametrize(
    "bad",
    [
        "audit.log",
        "/var/log/audit.log",
        "file:relative",
        "file://host/x",
        "syslog+tcp://",
        "udp://h:1",
        "syslog+udp://h:x",
    ],
)
def test_a_target_that_is_none_is_refused_with_those_there_are(bad: str) -> None:
    (fault,) = AuditSettings(ship_to=bad).faults()
    assert "`file:///PATH`" in fault


async def test_the_audit_trail_leaves_the_machine_in_plain_text_only_where_that_is_spelled_out(tmp_path: Path) -> None:
    settings = ControlSettings(data_dir=tmp_path, audit=AuditSettings(ship_to="syslog+udp://192.0.2.7:514"))
    with pytest.raises(StokerError, match="could read the audit trail"):
        await run_control(settings, stop=asyncio.Event(), on_ready=lambda: None)
    assert AuditSettings(ship_to="syslog+tcp://127.0.0.1:601").host == ""
