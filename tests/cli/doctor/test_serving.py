"""What the doctor makes of the answers of a control plane."""

from collections.abc import Iterable

import pytest

from stoker import __version__
from stoker.brain.domain.errors import StokerError, refuse
from stoker.cli.doctor import serving
from stoker.cli.doctor.examination import of_server
from stoker.cli.doctor.finding import CheckResult, Level, named
from stoker.cli.doctor.serving import JobRow, Meters, NodeRow, ReasonRow, Server
from stoker.wire.client.http_message import Reply

NOON_MS = 1_796_040_000_000
NOON = "Mon, 30 Nov 2026 12:00:00 GMT"


def levels(said: Iterable[CheckResult]) -> list[Level]:
    return [each.level for each in said]


def skew(shift_ms: int) -> list[Level]:
    return levels(serving.server_clock(Reply(200, {"date": NOON}, b""), NOON_MS + shift_ms))


def test_clocks_that_differ_by_more_than_a_header_can_hide_are_doubtful() -> None:
    assert skew(0) == skew(4_900) == skew(-4_900) == [Level.OK]
    assert skew(7_000) == skew(-3_600_000) == [Level.WARNING]
    (said,) = serving.server_clock(Reply(200, {"date": NOON}, b""), NOON_MS - 30_000)
    assert "30 s ahead of" in said.what


def test_a_log_that_is_ahead_of_its_clock_is_doubtful() -> None:
    for ahead_ms, level in ((0, Level.OK), (4_000, Level.OK), (3_600_000, Level.WARNING)):
        reply = Reply(200, {"date": NOON}, b'{"clock_ahead_ms":%d}' % ahead_ms)
        assert levels(serving.server_clock(reply, NOON_MS))[-1] is level


def test_an_answer_without_a_date_is_no_fault() -> None:
    assert levels(serving.server_clock(Reply(200, {}, b""), NOON_MS)) == [Level.OK]


def test_nodes_that_cannot_be_heard_are_named_and_all_of_them_is_an_error() -> None:
    ready, silent = NodeRow(name="a", state="ready"), NodeRow(name="b", state="unreachable")
    told = list(serving.nodes([ready, silent]))
    assert levels(told) == [Level.OK, Level.WARNING]
    assert "b can't be heard" in told[1].what
    stopped = NodeRow(name="b", state="unreachable", fault="its runner is stopped")
    assert "its runner is stopped" in list(serving.nodes([ready, stopped]))[1].what
    assert levels(serving.nodes([silent])) == [Level.OK, Level.ERROR]
    assert levels(serving.nodes([NodeRow(name="c", state="forgotten")])) == [Level.WARNING]
    assert levels(serving.nodes([NodeRow(name="c", state="draining")])) == [Level.OK, Level.WARNING]
    assert levels(serving.nodes([ready, NodeRow(name="c", state="paused")])) == [Level.OK, Level.WARNING]


def test_a_node_that_its_own_prolog_has_drained_is_named_with_its_words_and_one_that_a_person_drains_is_not() -> None:
    ready, mended = NodeRow(name="a", state="ready"), NodeRow(name="b", state="drained", drain="fans")
    words = "prolog of job 7 exited 3: no scratch disk"
    unfit = NodeRow(name="c", state="draining", drain=words, drained_by="node:c")
    told = list(serving.nodes([ready, mended, unfit]))
    assert levels(told) == [Level.OK, Level.WARNING]
    assert words in told[1].what


def test_a_node_that_can_neither_start_nor_end_jobs_is_named_with_its_fault() -> None:
    told = list(serving.nodes([NodeRow(name="a", state="ready"), NodeRow(name="b", state="faulty", fault="disk full")]))
    assert levels(told) == [Level.OK, Level.WARNING]
    assert told[1].what == "b can neither start nor end jobs: disk full"
    (_, told_limits) = serving.nodes([NodeRow(name="c", state="ready", limits="offers 8 of 64 CPUs")])
    assert (told_limits.level, told_limits.what) == (Level.WARNING, "c offers 8 of 64 CPUs")
    assert "LimitNOFILE" in told_limits.fix
    alone = "takes jobs of root alone, since no cgroup can be made"
    (_, told_alone) = serving.nodes([NodeRow(name="c", state="ready", limits=alone)])
    assert "cgroup" in told_alone.fix
    assert "LimitNOFILE" not in told_alone.fix


def test_a_node_that_cannot_read_its_gpus_is_named_with_the_words_of_its_driver() -> None:
    told = list(serving.nodes([NodeRow(name="a", state="ready", gpu_fault="nvidia-smi: exit 18")]))
    assert levels(told) == [Level.OK, Level.WARNING]
    assert told[1].what == "GPUs of a get no jobs: nvidia-smi: exit 18"


def test_agents_of_another_version_are_named_but_not_those_that_are_gone() -> None:
    rows = [
        NodeRow(name="a", state="ready", version="2"),
        NodeRow(name="b", state="ready", version="1"),
        NodeRow(name="c", state="forgotten", version="0"),
    ]
    (said,) = serving.agents(rows, "2")
    assert said.what == "agents of another version than 2: b (1)"
    assert levels(serving.agents(rows[:1], "2")) == [Level.OK]


def test_a_loopback_address_among_several_real_nodes_is_doubtful() -> None:
    here, there = NodeRow(name="a", address="127.0.0.1"), NodeRow(name="b", address="10.0.0.2")
    (said,) = serving.addresses([here, there])
    assert (said.level, said.what.startswith("a joined with")) == (Level.WARNING, True)
    for rows in ([here], [there], [NodeRow(name=n, address="127.0.0.1", simulated=True) for n in "ab"]):
        assert levels(serving.addresses(rows)) == [Level.OK]


def test_jobs_that_nothing_here_could_run_are_named_with_what_would_help() -> None:
    rows = [JobRow(id=str(n), reason=ReasonRow("no_fitting_node")) for n in range(7)]
    rows += [JobRow(id="8", reason=ReasonRow("insufficient_gpus")), JobRow(id="9")]
    (said,) = serving.queue(rows)
    assert said.what == "7 waiting jobs that nothing here could run (no_fitting_node): 0, 1, 2, 3, 4 and 2 more"
    assert "stoker why 0" in said.fix
    assert levels(serving.queue(rows[7:])) == [Level.OK]


def commit_meters(slow: int) -> Meters:
    lines = (f'stoker_commit_seconds_bucket{{le="{le}"}} {count}' for le, count in (("0.1", 100 - slow), ("+Inf", 100)))
    return Meters("\n".join(lines))


def test_slow_commits_are_doubtful() -> None:
    assert levels(serving.commits(commit_meters(slow=1))) == [Level.OK]
    assert levels(serving.commits(commit_meters(slow=5))) == [Level.WARNING]
    assert levels(serving.commits(Meters(""))) == [Level.OK]


def test_an_old_snapshot_and_one_that_failed_are_doubtful() -> None:
    assert levels(serving.snapshot(Meters("stoker_snapshot_age_seconds 20"))) == [Level.OK]
    assert levels(serving.snapshot(Meters("stoker_snapshot_age_seconds 2000"))) == [Level.WARNING]
    both = Meters("stoker_snapshot_age_seconds 20\nstoker_snapshot_faults_total 2")
    assert levels(serving.snapshot(both)) == [Level.WARNING, Level.OK]
    assert levels(serving.snapshot(Meters(""))) == [Level.OK]


def test_an_audit_trail_that_cannot_be_sent_on_or_has_lost_rows_is_doubtful() -> None:
    assert levels(serving.audit(Meters("stoker_audit_ship_ok 1"))) == [Level.OK]
    assert levels(serving.audit(Meters(""))) == [Level.OK]
    for meters in ("stoker_audit_ship_ok 0", "stoker_audit_ship_ok 1\nstoker_audit_rows_unshipped_total 7"):
        (said,) = serving.audit(Meters(meters))
        assert said.level is Level.WARNING
        assert "audit.ship_to" in said.what


def test_a_history_that_cannot_be_written_is_doubtful() -> None:
    assert levels(serving.history(Meters("stoker_history_ok 1"))) == [Level.OK]
    assert levels(serving.history(Meters(""))) == [Level.OK]
    (said,) = serving.history(Meters("stoker_history_ok 0\nstoker_history_waiting 7"))
    assert (said.level, "7 notes wait" in said.what) == (Level.WARNING, True)


def test_a_ledger_that_drifts_and_a_pass_that_breaks_are_errors() -> None:
    assert levels(serving.ledger(Meters("stoker_ledger_drift 0"))) == [Level.OK]
    both = Meters("stoker_ledger_drift 1\nstoker_pass_faults_total 3")
    assert levels(serving.ledger(both)) == [Level.ERROR, Level.ERROR]


def test_the_servers_disk_is_judged_as_ours_is() -> None:
    def level(free: int) -> Level:
        (said,) = serving.server_disk(Meters(f"stoker_data_dir_free_bytes {free}"))
        return said.level

    assert [level(free) for free in (1 << 20, 1 << 29, 1 << 40)] == [Level.ERROR, Level.WARNING, Level.OK]


def test_a_control_plane_that_wants_a_token_is_told_so_once_and_not_by_every_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = refuse("token_missing", "no token was sent", "set STOKER_TOKEN")

    def get(path: str) -> Reply:
        if path == "/health":
            return Reply(200, {}, b'{"version": "%s"}' % __version__.encode())
        if path == "/ready":
            return Reply(200, {}, b"{}")
        raise StokerError(refusal)

    server = Server("http://127.0.0.1:1")
    monkeypatch.setattr(server, "get", get)
    found = list(of_server(lambda check: named(check.name, check.look()), server))
    assert [(each.check, each.what, each.fix) for each in found if each.level is Level.ERROR] == [
        ("token", "no token was sent", "set STOKER_TOKEN")
    ]
    assert [each.check for each in found] == ["server", "ready", "server_clock", "token"]


@pytest.mark.parametrize(("servers", "told"), [("http://a", "behind:"), ("http://a,http://b", "no active")])
def test_a_standby_that_answers_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch, servers: str, told: str) -> None:
    health = b'{"version":"%b","cluster_id":"c","epoch":7}' % __version__.encode()
    headers = {"stoker-role": "standby", "stoker-lag-ms": "900"}
    monkeypatch.setattr(Server, "get", lambda server, path: Reply(200, headers, health))
    said = list(serving.answers(Server(servers)))
    assert levels(said) == [Level.OK, Level.WARNING]
    assert "answered by a standby, 0.9 s behind" in said[1].what
    assert told in said[1].what
    assert "--server A,B" in said[1].fix
