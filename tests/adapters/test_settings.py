"""The settings loader, on a settings type of its own."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.adapters.settings.loader import examine, load
from stoker.brain.domain.errors import Refusal, StokerError
from stoker.brain.domain.units import Range


class Http(msgspec.Struct, frozen=True):
    host: str = "127.0.0.1"
    port: Annotated[int, Range(0, 65_535)] = 8080


class Agents(msgspec.Struct, frozen=True):
    heartbeat_s: Annotated[float, Range(0.1, unit=" seconds")] = 5.0
    unreachable_after_s: float = 15.0
    attempt_lease_s: Literal["auto"] | int = "auto"


class Settings(msgspec.Struct, frozen=True):
    data_dir: str
    http: Http = Http()
    agents: Agents = Agents()
    level: Literal["info", "debug"] = "info"
    colour: Literal["red", "blue"] = "red"
    strict: bool = False
    note: str | None = None
    folder: Path = Path("x")
    kinds: tuple[str, ...] = ("process",)
    ports: list[int] = []
    codes: tuple[Annotated[int, Range(1)], ...] = ()
    labels: dict[str, str] = {}

    def faults(self) -> list[str]:
        if self.agents.unreachable_after_s < 2 * self.agents.heartbeat_s:
            return ["agents.unreachable_after_s must be at least twice agents.heartbeat_s"]
        return []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


def read(file: Path, text: str, environ: dict[str, str] | None = None, **flags: object) -> Settings:
    file.write_text(text)
    return load(Settings, file, environ or {}, {key.replace("__", "."): value for key, value in flags.items()}).value


def refused(file: Path, text: str | bytes, environ: dict[str, str] | None = None, **flags: object) -> Refusal:
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(StokerError) as caught:
        load(Settings, file, environ or {}, {key.replace("__", "."): value for key, value in flags.items()})
    refusal = caught.value.refusal
    assert refusal.code == "bad_settings"
    assert refusal.hint
    return Refusal(
        code=refusal.code,
        message=refusal.message.replace(f"{file.parent}/", ""),
        hint=refusal.hint,
        facts=refusal.facts,
    )


def test_s1_flag_over_environment_over_file_over_default_and_each_value_knows_its_origin(file: Path) -> None:
    file.write_text("data_dir: /f\nhttp:\n  host: f\n  port: 1\nlevel: debug\n")
    environ = {"STOKER__HTTP__PORT": "2", "STOKER__LEVEL": "info", "PATH": "/bin", "STOKER_TOKEN": "x"}
    loaded = load(Settings, file, environ, {"level": "debug", "strict": None})
    assert loaded.value == Settings(data_dir="/f", http=Http("f", 2), level="debug")
    assert loaded.origin["data_dir"] == f"{file}:1"
    assert loaded.origin["http.host"] == f"{file}:3"
    assert loaded.origin["http.port"] == "STOKER__HTTP__PORT"
    assert loaded.origin["level"] == "flag level"
    assert loaded.origin["strict"] == "default"


def test_every_kind_of_value_is_read_from_a_file(file: Path) -> None:
    text = """\
data_dir: /d
agents: {heartbeat_s: 2.5, attempt_lease_s: 600}
colour: blue
strict: yes
note: ~
folder: /some/where
kinds: [process, container]
ports: [1, 2]
labels:
  zone: a
  number: 7
  norway: no
"""
    value = read(file, text)
    assert value.agents == Agents(2.5, 15.0, 600)
    assert (value.colour, value.strict, value.note, value.folder) == ("blue", True, None, Path("/some/where"))
    assert (value.kinds, value.ports) == (("process", "container"), [1, 2])
    assert value.labels == {"zone": "a", "number": "7", "norway": "no"}


def test_every_kind_of_value_is_read_from_the_environment() -> None:
    environ = {
        "STOKER__DATA_DIR": "/e",
        "STOKER__AGENTS__ATTEMPT_LEASE_S": "auto",
        "STOKER__AGENTS__HEARTBEAT_S": "1e0",
        "STOKER__STRICT": "1",
        "STOKER__NOTE": "",
        "STOKER__KINDS": "a, b",
        "STOKER__PORTS": "",
        "STOKER__LABELS": "zone=a,rack=r=1",
    }
    value = load(Settings, None, environ, {}).value
    assert value.agents == Agents(1.0, 15.0, "auto")
    assert (value.strict, value.note, value.kinds, value.ports) == (True, None, ("a", "b"), [])
    assert value.labels == {"zone": "a", "rack": "r=1"}


def test_flags_may_be_text_or_values() -> None:
    flags = {"data_dir": "/x", "kinds": ["a", "b"], "labels": {"k": "v"}, "http.port": 9, "colour": "blue"}
    value = load(Settings, None, {}, {**flags, "strict": True, "folder": Path("/p"), "ports": (1, 2)}).value
    assert (value.kinds, value.labels, value.http.port, value.colour) == (("a", "b"), {"k": "v"}, 9, "blue")
    assert (value.strict, value.folder, value.ports) == (True, Path("/p"), [1, 2])


def test_a_section_left_empty_keeps_its_defaults(file: Path) -> None:
    assert read(file, "data_dir: x\nhttp:\n").http == Http()


def test_an_empty_file_is_only_defaults(file: Path) -> None:
    for text in ("", "# nothing\n", "---\n"):
        assert read(file, text, data_dir="/x") == Settings(data_dir="/x")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("http: {port: eighty}", "c.yaml:2: http.port: 'eighty' isn't a whole number"),
        ("http: {port: 8080.5}", "c.yaml:2: http.port: '8080.5' isn't a whole number"),
        ("http: {port: 010}", "c.yaml:2: http.port: '010' isn't a whole number"),
        ("http: {port: 1:30}", "c.yaml:2: http.port: '1:30' isn't a whole number"),
        (
            "http: {port: 99999999999999999999999}",
            "c.yaml:2: http.port: '99999999999999999999999' isn't a whole number",
        ),
        ("http: {port: }", "c.yaml:2: http.port: there is no value; wanted is a whole number"),
        ("http: {port: [1]}", "c.yaml:2: http.port: a list isn't a whole number"),
        ("http: 8080", "c.yaml:2: http is a section of keys, not a value"),
        ("http: [a]", "c.yaml:2: http is a section of keys, not a list"),
        ("http: {port: 70000}", "http: port: 70000 isn't between 0 and 65535 [http.port: c.yaml:2]"),
        (
            "agents: {heartbeat_s: 0.05}",
            "agents: heartbeat_s: 0.05 is below 0.1 seconds [agents.heartbeat_s: c.yaml:2]",
        ),
        ("level: loud", "c.yaml:2: level: 'loud' isn't info or debug"),
        ("colour: green", "c.yaml:2: colour: 'green' isn't red or blue"),
        ("strict: maybe", "c.yaml:2: strict: 'maybe' isn't true or false"),
        ("agents: {heartbeat_s: .nan}", "c.yaml:2: agents.heartbeat_s: '.nan' isn't a number"),
        ("agents: {heartbeat_s: inf}", "c.yaml:2: agents.heartbeat_s: 'inf' isn't a number"),
        ("agents: {attempt_lease_s: soon}", "agents.attempt_lease_s: 'soon' isn't auto or a whole number"),
        ("kinds: process", "c.yaml:2: kinds: 'process' isn't a list"),
        ("codes: [a]", "c.yaml:2: codes: 'a' isn't a whole number"),
        ("kinds: [[a]]", "c.yaml:2: kinds: line 2 holds a list, not a value"),
        ("labels: [a]", "c.yaml:2: labels: a list isn't a group of keys"),
        ("labels: {a: 1, a: 2}", "c.yaml:2: labels: 'a' is given twice"),
        ("strict: {a: b}", "c.yaml:2: strict: a group of keys isn't true or false"),
        ("htp: {port: 1}", "c.yaml:2: htp isn't a setting (nearest: http)"),
        ("http: {prot: 1}", "c.yaml:2: http.prot isn't a setting (nearest: http.port)"),
        ("port: 1", "c.yaml:2: port isn't a setting (nearest: "),
        ("zzz: 1", "c.yaml:2: zzz isn't a setting"),
        ("data_dir: again", "c.yaml:2: data_dir was already given on line 1"),
        ("? [a]\n: b", "c.yaml:2: a key must be one word"),
        ("note: !env HOME", "c.yaml:2: tags and merge keys aren't read here (!env)"),
        ("http: &a {port: 1}\nagents: *a", "c.yaml:3: aliases (*name) aren't read here"),
        ("http: {port: 1", "c.yaml:3: "),
        ("http:\n\tport: 1", "c.yaml:3: "),
        ("note: \x07", "c.yaml:2: the character '\\x07' isn't allowed in YAML"),
        ("---\na: b", "c.yaml:2: "),
    ],
)
def test_s2_a_fault_is_told_with_its_line_its_value_and_what_was_wanted(file: Path, line: str, said: str) -> None:
    refusal = refused(file, f"data_dir: /x\n{line}\n")
    assert said in refusal.message
    assert refusal.facts["faults"] == 1


def test_s2_all_faults_of_all_sources_are_told_at_once(file: Path) -> None:
    refusal = refused(
        file,
        "http: {port: x}\nagents: {heartbeat_s: 100}\nlevle: info\n",
        {"STOKER__STRICT": "perhaps", "STOKER__AGENTS__HEARBEAT_S": "1"},
        colour="green",
        no__such="x",
    )
    assert refusal.facts["faults"] == 7
    for said in ("c.yaml:1: http.port", "c.yaml:3: levle", "STOKER__STRICT: strict", "flag colour: colour"):
        assert said in refusal.message
    assert (
        "STOKER__AGENTS__HEARBEAT_S: agents.hearbeat_s isn't a setting (nearest: agents.heartbeat_s)" in refusal.message
    )
    assert "data_dir has no default: set it in the file or as STOKER__DATA_DIR" in refusal.message
    assert "level instead of levle" in refusal.hint


def test_s4_a_relation_names_both_settings_and_where_they_were_set(file: Path) -> None:
    refusal = refused(file, "data_dir: /x\nagents:\n  heartbeat_s: 9\n", {"STOKER__AGENTS__UNREACHABLE_AFTER_S": "10"})
    assert refusal.message == (
        "agents.unreachable_after_s must be at least twice agents.heartbeat_s "
        "[agents.heartbeat_s: c.yaml:3, agents.unreachable_after_s: STOKER__AGENTS__UNREACHABLE_AFTER_S]"
    )


def test_a_file_that_cannot_be_read_is_the_only_fault_told(file: Path) -> None:
    assert "c.yaml:1: not UTF-8 text (byte 0xff)" in refused(file, b"note: \xff\n").message
    assert "larger than" in refused(file, "#" * 300_000).message
    assert "nested too deep" in refused(file, "[" * 1_200).message
    assert "settings are `key: value` lines, not a single list" in refused(file, "- a\n").message
    assert refused(file, "just words\n").facts["faults"] == 1
    file.unlink()
    with pytest.raises(StokerError, match=r"c\.yaml: no such file or directory"):
        load(Settings, file, {}, {})
    file.mkdir()
    with pytest.raises(StokerError, match=r"c\.yaml: is a directory"):
        load(Settings, file, {}, {})


def test_hundreds_of_faults_are_bounded(file: Path) -> None:
    refusal = refused(file, "data_dir: /x\n" + "".join(f"unknown{n}: 1\n" for n in range(300)))
    assert refusal.facts["faults"] == 300
    assert refusal.message.count("\n") == 51
    assert "and 250 more" in refusal.message


def test_a_variable_that_holds_a_list_as_yaml_has_it_is_refused_with_its_form_here(file: Path) -> None:
    refusal = refused(file, "data_dir: /x\n", {"STOKER__KINDS": '["a", "b"]'})
    assert """'["a", "b"]' is a list as YAML has it; in a variable or a flag it is a,b""" in refusal.message


def test_variables_of_programs_that_share_the_environment_are_passed_over() -> None:
    class Other(msgspec.Struct, frozen=True):
        script: str = ""

    environ = {"STOKER__SCRIPT": "x", "STOKER__DATA_DIR": "/x"}
    assert load(Settings, None, environ, {}, others=(Other,)).value.data_dir == "/x"
    with pytest.raises(StokerError, match="STOKER__SCRIPT: script isn't a setting"):
        load(Settings, None, environ, {})


class Grown(msgspec.Struct, frozen=True):
    """A settings type that has plans."""

    program: ClassVar[str] = "grown"
    later: ClassVar[dict[str, str]] = {"quota": "quotas come later", "http.tls": "use a tunnel until then"}
    data_dir: str = ""
    http: Http = Http()


def test_s3_a_key_that_is_not_there_yet_is_refused_with_what_to_know_about_it(file: Path) -> None:
    file.write_text("quota: {online: 0.7}\nhttp:\n  tls: yes\n")
    seen = examine(Grown, file, {"STOKER__QUOTA__ONLINE": "1"}, {"http.tls.file": "x"})
    assert [fault.replace(f"{file.parent}/", "") for fault in seen.faults] == [
        "c.yaml:1: quota can't be set: quotas come later",
        "c.yaml:3: http.tls can't be set: use a tunnel until then",
        "STOKER__QUOTA__ONLINE: quota can't be set: quotas come later",
        "flag http.tls.file: http.tls can't be set: use a tunnel until then",
    ]
    assert seen.value is None


def test_s3_a_key_of_another_program_names_that_program(file: Path) -> None:
    file.write_text("labels: {a: b}\ndata_dir: /x\nhttp: {port: 1}\nquota: {}\n")
    seen = examine(Settings, file, {"STOKER__QUOTA__X": "1"}, {}, others=(Grown,))
    assert [fault.replace(f"{file.parent}/", "") for fault in seen.faults] == [
        "c.yaml:4: quota is a setting of `grown`, not of this program"
    ]


def test_a_key_with_dots_is_told_how_it_is_written(file: Path) -> None:
    fault = refused(file, "data_dir: /x\nhttp.port: 1\n")
    assert fault.message == "c.yaml:2: write http.port as two lines, `http:` and indented below it `port:`"


def test_one_key_by_two_variables_is_refused_naming_both() -> None:
    seen = examine(Settings, None, {"STOKER__DATA_DIR": "/a", "STOKER__data_dir": "/b"}, {})
    assert seen.faults == ("STOKER__data_dir: data_dir was already given as STOKER__DATA_DIR",)


@given(st.binary(max_size=200))
def test_no_file_content_ends_in_anything_but_settings_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.mktemp("any") / "c.yaml"
    file.write_bytes(content)
    with suppress(StokerError):
        assert load(Settings, file, {}, {"data_dir": "/x"}).value.data_dir == "/x"


def test_a_section_that_is_given_a_value_names_a_key_of_it(file: Path) -> None:
    """A file says so as well; the nearest known key would be the section itself."""
    file.write_text("data_dir: /d\n")
    faults = examine(Settings, file, {"STOKER__HTTP": "5"}, {"agents": "5"}).faults
    assert faults == (
        "STOKER__HTTP: http is a section of keys, not a value; http.host is one of them",
        "flag agents: agents is a section of keys, not a value; agents.heartbeat_s is one of them",
    )


class Neighbour(msgspec.Struct, frozen=True):
    servers: tuple[str, ...]
    page: str = ""


class Web(msgspec.Struct, frozen=True):
    clusters: dict[str, Neighbour] = {}

    def faults(self) -> list[str]:
        return [f"clusters: {name}.page isn't one" for name, each in self.clusters.items() if each.page == "odd"]


class Shown(msgspec.Struct, frozen=True):
    web: Web = Web()


def shown(file: Path, text: str, environ: dict[str, str] | None = None) -> Web | str:
    file.write_text(text)
    loaded = examine(Shown, file, environ or {}, {})
    return loaded.value.web if loaded.value else "; ".join(loaded.faults).replace(f"{file.parent}/", "")


def test_groups_of_keys_by_names_of_their_own_are_read_from_a_file(file: Path) -> None:
    text = "web:\n  clusters:\n    rome: {servers: [https://r], page: 1}\n    paris:\n      servers: [https://a, https://b]\n"
    rome, paris = Neighbour(("https://r",), "1"), Neighbour(("https://a", "https://b"))
    assert shown(file, text) == Web({"rome": rome, "paris": paris})
    assert shown(file, "web: {clusters: {}}") == Web()


@pytest.mark.parametrize(
    ("clusters", "said"),
    [
        ("{rome: {servers: [a], pages: x}}", "c.yaml:1: web.clusters: rome.pages isn't a setting; nearest: page"),
        ("{rome: {servers: [a], xyz: x}}", "rome.xyz isn't a setting; there are servers, page"),
        ("{rome: {page: x}}", "web.clusters: rome.servers has no default: set it"),
        ("{rome: {servers: https://a}}", "web.clusters: rome.servers: 'https://a' isn't a list"),
        ("{rome: {servers: [a], servers: [b]}}", "'servers' is given twice, again on line 1"),
        ("{rome: {servers: [a]}, rome: {servers: [b]}}", "'rome' is given twice, again on line 1"),
        ("{rome: here}", "'rome' on line 1 is a group of keys, not a value or a list"),
        ("{rome: [a]}", "'rome' on line 1 is a group of keys, not a value or a list"),
        ("[a]", "a list isn't a group of keys"),
        ("{rome: {servers: [a], page: odd}}", "web: clusters: rome.page isn't one"),
    ],
)
def test_a_fault_in_such_a_group_names_it_and_its_key(file: Path, clusters: str, said: str) -> None:
    assert said in str(shown(file, f"web: {{clusters: {clusters}}}"))


def test_such_groups_are_given_in_a_file_alone(file: Path) -> None:
    assert "STOKER__WEB__CLUSTERS: web.clusters: groups of keys are given in a file" in str(
        shown(file, "", {"STOKER__WEB__CLUSTERS": "rome=https://r"})
    )
