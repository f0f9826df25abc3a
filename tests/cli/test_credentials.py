"""With which token does a command ask? W1 to W5 of `cli.credentials`."""

from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner, Result

from stoker.adapters.entropy import SystemEntropy
from stoker.cli import credentials
from stoker.cli.main import root
from stoker.cli.server import credentials_of, server_option, servers_of
from stoker.wire.token import fresh_token, id_of

TYPED, GIVEN, KEPT = (fresh_token(SystemEntropy()) for _ in range(3))
HOME: Final = "http://head:8080"


@click.command()
@server_option
@click.pass_context
def probe(ctx: click.Context) -> None:
    click.echo(f"{servers_of(ctx)} {credentials_of(ctx).token or '-'}")


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the person's file would be."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("STOKER_TOKEN", "STOKER_SERVER", "STOKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "stoker" / "config.yaml"


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def run(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(probe, list(words), env=environ)


def refused(*words: str, **environ: str) -> str:
    """What a whole command says to a person."""
    done = CliRunner().invoke(root, ["list", *words], env=environ)
    assert done.exit_code == 4
    return done.stderr


def test_without_any_none_is_sent() -> None:
    assert run().stdout == "http://127.0.0.1:8080 -\n"


def test_the_command_line_is_nearer_than_the_environment_and_that_than_the_file(config: Path) -> None:
    write(config, f"token: {KEPT}\n")
    assert run().stdout.endswith(f" {KEPT}\n")
    assert run(STOKER_TOKEN=GIVEN).stdout.endswith(f" {GIVEN}\n")
    assert run("--token", TYPED, STOKER_TOKEN=GIVEN).stdout.endswith(f" {TYPED}\n")


def test_a_token_comes_from_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    assert run("--token-file", str(write(tmp_path / "t", f"{KEPT}\n"))).stdout.endswith(f" {KEPT}\n")


def test_the_persons_file_names_the_server_unless_somebody_does(config: Path) -> None:
    write(config, f"server: {HOME}\n")
    assert run().stdout == f"{HOME} -\n"
    assert run("--server", "http://other:1").stdout == "http://other:1 -\n"
    assert run(STOKER_SERVER="http://third:1").stdout == "http://third:1 -\n"


def test_the_files_token_goes_to_the_files_server_alone(config: Path) -> None:
    write(config, f"server: {HOME},http://standby:8080\ntoken: {KEPT}\n")
    assert run().stdout.endswith(f" {KEPT}\n")
    assert run("--server", "head:8080").stdout.endswith(f" {KEPT}\n")
    assert run("--server", "http://127.0.0.1:8080").stdout.endswith(" -\n")
    assert run("--server", f"{HOME},http://elsewhere:8080").stdout.endswith(" -\n")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o602])
def test_a_file_with_a_token_that_others_may_read_or_write_is_refused(config: Path, tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "t", KEPT, mode)
    said = refused("--token-file", str(path))
    assert f"hint: chmod 600 {path}" in said
    write(config, f"token: {KEPT}\n", mode)
    kept = refused()
    assert f"hint: chmod 600 {config}" in kept
    assert KEPT not in said + kept


def test_a_persons_file_without_a_token_may_be_read_by_all(config: Path) -> None:
    write(config, f"server: {HOME}\n", 0o644)
    assert run().stdout == f"{HOME} -\n"


@pytest.mark.parametrize(
    "text", ["", "hunter2", f"{KEPT}x", f"two\n{KEPT}", f"{KEPT}\n{KEPT}", "\x00" * 50], ids=str.__len__
)
def test_what_is_no_token_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    said = refused("--token-file", str(write(tmp_path / "t", text)))
    assert "stoker token create" in said
    assert "hunter2" not in said
    assert KEPT not in said


def test_a_mistyped_token_is_not_repeated_wherever_it_came_from(config: Path) -> None:
    write(config, "token: hunter2\n")
    for said in (refused(), refused("--token", "hunter2"), refused(STOKER_TOKEN="hunter2")):
        assert "hunter2" not in said
        assert "[bad_token]" in said


def test_a_token_file_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    assert "No such file" in refused("--token-file", str(tmp_path / "none"))


def test_both_ways_at_once_are_a_usage_error(tmp_path: Path) -> None:
    done = run("--token", TYPED, "--token-file", str(tmp_path / "t"))
    assert done.exit_code == 2
    assert TYPED not in done.output


def test_a_key_that_is_not_known_is_refused_without_its_value(config: Path) -> None:
    write(config, f"tokn: {KEPT}\n")
    done = CliRunner().invoke(root, ["list"])
    assert done.exit_code == 2
    assert "token" in done.stderr
    assert KEPT not in done.stderr


def test_a_token_is_not_sent_along_with_all_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.cli.commands.submit import _sent

    environ = {"STOKER_TOKEN": KEPT, "HOME": "/home/ada"}
    assert _sent(["ALL"], environ) == {"HOME": "/home/ada"}
    assert _sent(["STOKER_TOKEN"], environ) == {"STOKER_TOKEN": KEPT}, "unless somebody says so"


def test_hiding_a_token_of_which_the_command_line_has_none_changes_nothing() -> None:
    before = Path("/proc/self/cmdline").read_bytes()
    credentials.hide(fresh_token(SystemEntropy()))
    assert Path("/proc/self/cmdline").read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [
        ("token", "%s"),
        ("usage", "%s"),
        ("%s",),
        ("submit", "--gpus", "%s", "--", "true"),
        ("submit", "--env", "%s", "--", "true"),
        ("token", "create", "--role", "%s"),
        ("list", "--%s"),
    ],
    ids=" ".join,
)
def test_a_token_typed_in_the_place_of_something_else_is_named_by_its_id_alone(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(root, [word.replace("%s", TYPED) for word in words])
    assert done.exit_code == 2
    assert f"stoker_{id_of(TYPED)}_..." in done.output
    assert TYPED[-20:] not in done.output


def test_a_token_may_carry_a_fingerprint_wherever_it_stands(config: Path, tmp_path: Path) -> None:
    text = f"{KEPT}.{'f' * 43}"
    assert run("--token", text).stdout.endswith(f" {text}\n")
    assert run(STOKER_TOKEN=text).stdout.endswith(f" {text}\n")
    assert run("--token-file", str(write(tmp_path / "kept" / "one", text))).stdout.endswith(f" {text}\n")
    write(config, f"token: {text}\n")
    assert run().stdout.endswith(f" {text}\n")


def test_the_authority_of_the_file_is_for_the_servers_of_the_file(config: Path) -> None:
    write(config, f"server: {HOME}\ntoken: {KEPT}\nca: /pems/ca.pem\n")
    with click.Context(probe) as ctx:
        assert credentials.credentials_for(ctx, HOME).ca_file == "/pems/ca.pem"
        assert credentials.credentials_for(ctx, "https://elsewhere:8080").ca_file == ""


def test_a_join_takes_the_token_of_the_file_that_is_named_though_the_environment_has_one(tmp_path: Path) -> None:
    words = ["agent", "join", "127.0.0.1:1", "--token-file", str(tmp_path / "none.token")]
    done = CliRunner().invoke(root, words, env={"STOKER_TOKEN": GIVEN})
    assert "bad_token_file" in done.output, done.output
    done = CliRunner().invoke(root, [*words, "--token", TYPED], env={"STOKER_TOKEN": GIVEN})
    assert "by --token or by --token-file" in done.output
