"""Of which daemon a file is, and which settings hold."""

from pathlib import Path

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.cli.doctor.effective import judged, kind_of, one_line, read, rows
from stoker.cli.doctor.finding import Level
from stoker.live.settings.control import ControlSettings, StoreSettings


def file(folder: Path, text: str, name: str = "stoker.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_e1_a_file_is_of_the_daemon_that_knows_more_of_its_keys(tmp_path: Path) -> None:
    assert kind_of(file(tmp_path, "data_dir: x\nhttp: {}\n"), None) == "control"
    assert kind_of(file(tmp_path, "data_dir: x\nnode: {}\nhttp: {}\ngpu: {}\n"), None) == "agent"
    assert kind_of(file(tmp_path, "quota: {}\n"), None) == "control"


def test_e1_a_tie_is_settled_by_the_name_or_by_who_asks(tmp_path: Path) -> None:
    assert kind_of(file(tmp_path, "data_dir: x\n", "agent.yaml"), None) == "agent"
    assert kind_of(file(tmp_path, "data_dir: x\n", "control.yaml"), None) == "control"
    assert kind_of(file(tmp_path, "data_dir: x\n"), "agent") == "agent"
    assert kind_of(None, None) == "control"
    with pytest.raises(StokerError) as fault:
        kind_of(file(tmp_path, "data_dir: x\n"), None)
    assert fault.value.refusal.code == "which_daemon"
    assert "--kind" in fault.value.refusal.hint


def test_a_file_that_cannot_be_read_is_a_fault_of_its_own_and_no_question_about_daemons(tmp_path: Path) -> None:
    for path in (tmp_path / "nope.yaml", tmp_path, file(tmp_path, "{a: [")):
        seen = read(kind_of(path, None), path, {}, {})
        assert seen.value is None
        assert str(path) in seen.faults[0]
    assert kind_of(tmp_path / "agent.yaml", None) == "agent"


def test_every_value_is_told_with_where_it_came_from(tmp_path: Path) -> None:
    path = file(tmp_path, "data_dir: /d\nhttp:\n  port: 1\n")
    seen = read("control", path, {"STOKER__LOOP__PERIOD_S": "2"}, {"policy.aging_max": "7"})
    assert seen.value is not None
    told = {row.key: (row.value, row.origin) for row in rows(seen.value, seen.origin)}
    assert told["data_dir"] == ("/d", f"{path}:1")
    assert told["http.port"] == (1, f"{path}:3")
    assert told["loop.period_s"] == (2.0, "STOKER__LOOP__PERIOD_S")
    assert told["policy.aging_max"] == (7, "flag policy.aging_max")
    assert told["policy.aging_per_hour"] == (20, "default")


def test_every_fault_of_a_file_is_a_finding_of_its_own(tmp_path: Path) -> None:
    path = file(tmp_path, "http: {port: x}\nlop: {}\n")
    told = list(judged(read("control", path, {}, {}), path))
    assert [said.level for said in told] == [Level.ERROR, Level.ERROR]
    assert all(str(path) in said.what for said in told)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://anna:hunter2@db:5432/stoker", "postgresql://anna:***@db:5432/stoker"),
        ("postgresql://anna:hunter/2@db/stoker", "postgresql://anna:***@db/stoker"),
        ("postgresql://anna:hunter?2@db/stoker", "postgresql://anna:***@db/stoker"),
        ("postgresql://anna:hunter@2@db/stoker", "postgresql://anna:***@db/stoker"),
        ("postgresql://anna@db/s?password=hunter2&port=1", "postgresql://anna@db/s?password=***&port=1"),
        ("postgresql://anna@db/s?port=1&Password=hunter 2", "postgresql://anna@db/s?port=1&Password=***"),
        ("postgresql://anna@db/s?sslpassword=hunter2", "postgresql://anna@db/s?sslpassword=***"),
        ("postgresql://anna@db/s?p%61ssword=hunter2", "postgresql://anna@db/s?p%61ssword=***"),
        ("postgresql://anna@a:1,b:2/s?passfile=/p&port=1", "postgresql://anna@a:1,b:2/s?passfile=/p&port=1"),
        ("postgresql:///s?host=/run/postgresql", "postgresql:///s?host=/run/postgresql"),
    ],
)
def test_e2_a_password_inside_an_address_is_never_shown(url: str, shown: str) -> None:
    settings = ControlSettings(store=StoreSettings(url=url))
    origin = dict.fromkeys((row for row in keys()), "default")
    (row,) = (row for row in rows(settings, origin) if row.key == "store.url")
    assert row.value == shown


def test_e2_nor_is_one_of_an_address_that_is_written_in_another_way(tmp_path: Path) -> None:
    """libpq knows `key=value` pairs too."""
    told = list(judged(read("control", None, {}, {"store.url": "password=hunter2 host=db"}), None))
    assert [said.level for said in told] == [Level.ERROR]
    assert "hunter2" not in told[0].what


def keys() -> list[str]:
    return list(read("control", None, {}, {}).origin)


def test_values_are_written_as_in_the_file() -> None:
    shown = [one_line(value) for value in (True, "", ["a", "b"], {"a": "b"}, 5, 2.5, "x")]
    assert shown == ["true", '""', "[a, b]", "{a: b}", "5", "2.5", "x"]
