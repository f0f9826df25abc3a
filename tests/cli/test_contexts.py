"""Several clusters under names: rules of `contexts`, `context_views`, `server` and `wiring.contexts` of `cli`."""

import json
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from stoker.adapters.entropy import SystemEntropy
from stoker.brain.domain.errors import StokerError
from stoker.cli.contexts import context_names, present_context
from stoker.cli.main import root
from stoker.cli.wiring.contexts import add_context
from stoker.wire.token import fresh_token, id_of
from tests.cli.test_credentials import HOME, probe

TYPED, GIVEN, KEPT, OLD = (fresh_token(SystemEntropy()) for _ in range(4))
PARIS, UNREACHED = "http://paris-a:8080,http://paris-b:8080", "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the person's files would be."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("STOKER_TOKEN", "STOKER_SERVER", "STOKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "stoker"


@pytest.fixture
def paris(folder: Path) -> str:
    """A file as it was before there were contexts, and a context beside it."""
    folder.mkdir()
    (folder / "config.yaml").write_text(f"server: {HOME}\ntoken: {OLD}\n")
    (folder / "config.yaml").chmod(0o600)
    (folder.parent / "token").write_text(KEPT)
    (folder.parent / "token").chmod(0o600)
    assert run("add", "paris", PARIS, "--token-file", str(folder.parent / "token")).exit_code == 0
    return "paris"


def run(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(root, ["context", *words], env=environ)


def probed(*words: str, **environ: str) -> str:
    return CliRunner().invoke(probe, list(words), env=environ).output.strip()


def test_an_old_file_is_the_context_default_and_asked_until_another_one_is_chosen(paris: str) -> None:
    assert probed() == f"{HOME} {OLD}"
    assert run("use", paris).exit_code == 0
    assert probed() == f"{PARIS} {KEPT}"
    assert probed("--context", "default") == f"{HOME} {OLD}"
    assert run("use", "default").exit_code == 0
    assert probed() == f"{HOME} {OLD}"


def test_what_names_the_servers_the_nearest_first(paris: str) -> None:
    """V1, from the farthest to the nearest: each beats all before it."""
    assert probed() == f"{HOME} {OLD}"
    assert probed(STOKER_CONTEXT=paris) == f"{PARIS} {KEPT}"
    other = {"STOKER_SERVER": "http://third:1", "STOKER_CONTEXT": paris}
    assert probed(**other) == "http://third:1 -"
    assert probed("--context", "default", **other) == f"{HOME} {OLD}"
    assert probed("--server", "http://fourth:1", **other) == "http://fourth:1 -"
    assert probed("--server", "paris-b:8080", "--context", paris, **other) == f"paris-b:8080 {KEPT}"


def test_a_context_that_is_spoken_brings_its_own_token_and_the_environments_only_where_it_has_none(paris: str) -> None:
    assert probed("--context", paris, STOKER_TOKEN=GIVEN) == f"{PARIS} {KEPT}"
    assert probed(STOKER_CONTEXT=paris, STOKER_TOKEN=GIVEN) == f"{PARIS} {GIVEN}"
    assert probed("--context", paris, "--token", TYPED, STOKER_TOKEN=GIVEN) == f"{PARIS} {TYPED}"
    run("add", "rome", "http://rome:1")
    assert probed("--context", "rome", STOKER_TOKEN=GIVEN) == f"http://rome:1 {GIVEN}"


def test_a_server_of_another_cluster_beside_a_context_is_refused(paris: str) -> None:
    said = probed("--server", HOME, "--context", paris)
    assert f"name two clusters: context paris is {PARIS}" in said
    assert KEPT not in said


def test_a_context_is_named_before_the_command_as_well_as_after_it_and_once(paris: str) -> None:
    before = CliRunner().invoke(root, ["--context", "pariss", "list"])
    assert (before.exit_code, "is it paris?" in before.stderr) == (3, True)
    twice = CliRunner().invoke(root, ["--context", paris, "list", "--context", paris])
    assert (twice.exit_code, "--context is given twice" in twice.stderr) == (2, True)


def test_an_unknown_name_is_refused_with_the_nearest_ones_wherever_it_came_from(paris: str, folder: Path) -> None:
    for words in (("use", "pari"), ("remove", "pari"), ("show", "pari")):
        done = run(*words)
        assert (done.exit_code, "there is no context 'pari' [context_unknown]" in done.stderr) == (3, True), words
        assert "is it paris?" in done.stderr
    assert "there is no context 'x/../y'" in probed_of_list(STOKER_CONTEXT="x/../y")
    (folder / "context").write_text("gone\n")
    assert "there is no context 'gone'" in probed_of_list()
    assert probed("--context", paris) == f"{PARIS} {KEPT}", "the way out needs no present one"
    assert run("use", paris).exit_code == 0


def probed_of_list(**environ: str) -> str:
    return CliRunner().invoke(root, ["list"], env=environ).stderr


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "-x", "a b", "a" * 64, "naïve", "a\nb", "\x1b[31m"])
def test_what_can_not_be_a_name_is_refused_and_no_file_is_made(name: str, folder: Path) -> None:
    done = run("add", "--", name, HOME)
    assert done.exit_code == 2
    assert "\x1b" not in done.stderr
    assert not folder.exists()


def test_a_bad_address_is_refused_and_nothing_is_kept(folder: Path) -> None:
    for servers in ("ftp://x", "http://", "http://a:1,,", ",".join(f"h{n}:1" for n in range(9))):
        done = run("add", "paris", servers)
        assert (done.exit_code, "[bad_server]" in done.stderr) == (2, True), servers
    assert not (folder / "contexts").exists()


def test_files_of_contexts_are_their_owners_alone_and_a_token_is_printed_by_nothing(paris: str, folder: Path) -> None:
    kept = folder / "contexts" / "paris.yaml"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (kept, kept.parent)] == [0o600, 0o700]
    shown = [run(*words, "-o", form) for words in (("list",), ("show", paris)) for form in ("wide", "json", "yaml")]
    for done in shown:
        assert done.exit_code == 0
        assert KEPT not in done.output
        assert id_of(KEPT) in done.output, "an id is no secret, and `stoker token revoke` wants it"


def test_the_list_marks_the_present_one_and_one_broken_file_hides_no_other(paris: str, folder: Path) -> None:
    run("add", "broken", "http://broken:1", "--use")
    (folder / "contexts" / "broken.yaml").write_text("server: [half")
    run("add", "open", "http://open:1", "--token-file", str(folder.parent / "token"))
    (folder / "contexts" / "open.yaml").chmod(0o644)
    (folder / "contexts" / ".paris.yaml.tmp").write_text("server: half-wri")
    listed = {each["name"]: each for each in json.loads(run("list", "--json").stdout)}
    assert list(listed) == ["default", "broken", "open", "paris"]
    assert [name for name, each in listed.items() if each["present"]] == ["broken"]
    assert "broken.yaml" in listed["broken"]["fault"]
    assert "is open to others" in listed["open"]["fault"]
    assert "open to others" in CliRunner().invoke(root, ["--context", "open", "list"]).stderr
    assert probed("--context", paris) == f"{PARIS} {KEPT}"
    assert run("list").stdout.splitlines()[2].split() == ["*", "broken", *listed["broken"]["fault"].split(), "-"]


def test_a_name_is_added_once_and_the_present_one_that_is_removed_leaves_default(paris: str, folder: Path) -> None:
    for name in (paris, "default"):
        done = run("add", name, HOME)
        assert (done.exit_code, "[context_exists]" in done.stderr) == (4, True)
    run("use", paris)
    assert json.loads(run("remove", paris, "--json").stdout) == {"removed": "paris", "was_present": True}
    assert (present_context(), context_names()) == ("default", ["default"])
    assert list((folder / "contexts").iterdir()) == []
    assert run("remove", "default").exit_code == 2


def test_an_authority_is_copied_beside_its_context_and_goes_with_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "site.pem").write_text("a certificate\n")
    assert run("add", "paris", "https://paris", "--ca", str(tmp_path / "site.pem"), "--use").exit_code == 0
    (tmp_path / "site.pem").unlink()
    kept = folder / "contexts" / "paris.pem"
    assert (kept.read_text(), json.loads(run("show", "--json").stdout)["ca"]) == ("a certificate\n", str(kept))
    run("remove", "paris")
    assert not kept.exists()


def test_of_many_who_add_the_same_name_at_once_one_does_and_the_file_is_whole(folder: Path) -> None:
    """Each of the others is refused, and never is half a file read."""

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(add_quietly, range(16)))
    added = [each for each in said if each.startswith("http")]
    assert (len(added), said.count("context_exists")) == (1, 15)
    assert probed("--context", "shared") == f"{added[0]} -"


def add_quietly(number: int) -> str:
    server = f"http://h{number}:1"
    try:
        add_context("shared", server, "", b"", use=False)
    except StokerError as fault:
        return fault.refusal.code
    return server


def test_logging_out_of_a_context_keeps_its_servers_and_of_default_nothing(paris: str, folder: Path) -> None:
    def logged_out(*words: str) -> int:
        return CliRunner().invoke(root, ["logout", *words]).exit_code

    assert logged_out("--context", paris) == 0
    assert probed("--context", paris) == f"{PARIS} -"
    assert logged_out() == 0
    assert probed() == "http://127.0.0.1:8080 -"
    assert logged_out("--context", "none") == 3


def test_names_are_completed(paris: str) -> None:
    def offered(words: Sequence[str], begun: str) -> list[str]:
        made = ShellComplete(root, {}, "stoker", "_STOKER_COMPLETE")
        return [each.value for each in made.get_completions(list(words), begun)]

    assert offered(["context", "use"], "") == ["default", "paris"]
    assert offered(["list", "--context"], "p") == ["paris"]
    assert offered(["--context"], "d") == ["default"]


def test_clusters_that_do_not_answer_are_rows_like_the_others(folder: Path) -> None:
    run("add", "away", UNREACHED)
    rows = {each["name"]: each for each in json.loads(run("list", "--status", "--json").stdout)}
    assert (rows["away"]["cluster"], "Connection refused" in rows["away"]["unanswered"]) == (None, True)
    table = run("list", "--status").stdout
    assert "no control plane answers" in table
