"""`stoker login` keeps a server, a token and whom to trust; later commands need nothing else."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner, Result

from stoker.adapters.entropy import SystemEntropy
from stoker.brain.domain.access import Role
from stoker.cli.main import root
from stoker.wire.rest.token import NewTokenBody
from stoker.wire.token import fresh_token, with_fingerprint
from tests.certificates import Site
from tests.real.serving import Served, free_port, serving
from tests.real.tls_served import TlsServed
from tests.real.tokens import token_in

TOKEN: Final = fresh_token(SystemEntropy())
ADA: Final = {"principal": "user:ada", "role": "user", "tenant": "vision", "user": "ada", "token": "abcdefgh"}


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the person's file will be."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("STOKER_TOKEN", "STOKER_SERVER", "STOKER_CONTEXT", "STOKER_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "stoker" / "config.yaml"


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    folder = tmp_path_factory.mktemp("control")
    with serving(folder, free_port()) as served:
        yield served, folder


@pytest.fixture(scope="module")
def site() -> Site:
    return Site()


@pytest.fixture
def server(site: Site) -> Iterator[TlsServed]:
    with TlsServed(site.server("127.0.0.1", "localhost")) as served:
        served.body = json.dumps(ADA).encode()
        yield served


def run(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(root, list(words), env=environ)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_after_a_login_a_command_needs_neither_server_nor_token(control: tuple[Served, Path], config: Path) -> None:
    served, folder = control
    token = token_in(folder, NewTokenBody(role=Role.USER, tenant="default", user="ada"))
    done = run("login", served.url, "--token", token)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"logged in to {served.url} as user:ada (role user, tenant default, account ada)\n"
    assert (mode(config), mode(config.parent)) == (0o600, 0o700)
    assert run("list").exit_code == 0
    assert json.loads(run("login", served.url, "--token", token, "--json").stdout)["principal"] == "user:ada"


def test_a_token_that_is_refused_is_not_kept(control: tuple[Served, Path], config: Path) -> None:
    served, _ = control
    done = run("login", served.url, "--token", TOKEN)
    assert (done.exit_code, "the token is not known here" in done.stderr) == (4, True)
    assert not config.exists()


def test_the_authority_that_the_token_names_is_trusted_from_then_on(
    server: TlsServed, site: Site, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("login", f"https://{server.label}", "--token", with_fingerprint(TOKEN, site.fingerprint))
    assert (done.exit_code, done.stdout.split(" as ")[1]) == (0, "user:ada (role user, tenant vision, account ada)\n")
    kept = config.with_name("ca.pem")
    assert kept.read_bytes() == site.root
    assert f"ca: {kept}\n" in config.read_text()
    with TlsServed(Site("another").server("127.0.0.1")) as liar:
        config.write_text(config.read_text().replace(server.label, liar.label))
        done = run("list")
        assert (done.exit_code, str(kept) in done.stderr, liar.asked) == (4, True, [])


def test_a_file_of_certificates_is_copied(server: TlsServed, site: Site, config: Path, tmp_path: Path) -> None:
    (tmp_path / "site.pem").write_bytes(site.root)
    url = f"https://{server.label}"
    assert "isn't signed by" in run("login", url, "--token", TOKEN).stderr
    assert run("login", url, "--token", TOKEN, "--ca", str(tmp_path / "site.pem")).exit_code == 0
    (tmp_path / "site.pem").unlink()
    before = len(server.asked)
    run("list")
    assert server.asked[before:][0][1] == f"Bearer {TOKEN}"


def test_other_keys_of_the_file_stay_and_an_open_one_is_closed(control: tuple[Served, Path], config: Path) -> None:
    served, _ = control
    config.parent.mkdir(parents=True)
    config.write_text(f"server: http://elsewhere:1\ntoken: {TOKEN}\ninsecure: true\n")
    config.chmod(0o644)
    assert run("login", served.url, "--token", served.token).exit_code == 0
    assert "insecure: true\n" in config.read_text()
    assert (TOKEN in config.read_text(), mode(config)) == (False, 0o600)


def test_a_token_comes_from_a_file_the_environment_or_a_prompt_too(
    control: tuple[Served, Path], config: Path, tmp_path: Path
) -> None:
    served, _ = control
    file = tmp_path / "token"
    file.write_text(served.token)
    file.chmod(0o600)
    assert run("login", served.url, "--token-file", str(file)).exit_code == 0
    done = run("login", served.url, STOKER_TOKEN=served.token)
    assert (done.exit_code, "STOKER_TOKEN is set" in done.stderr) == (0, True)
    done = run("login", served.url)
    assert (done.exit_code, "give --token" in done.stderr) == (2, True)


def test_after_a_logout_nothing_of_it_is_left(server: TlsServed, site: Site, config: Path) -> None:
    run("login", f"https://{server.label}", "--token", with_fingerprint(TOKEN, site.fingerprint))
    done = run("logout")
    assert (done.exit_code, "logged out" in done.stdout) == (0, True)
    assert (config.read_text(), config.with_name("ca.pem").exists()) == ("", False)
    config.unlink()
    done = run("logout")
    assert (done.exit_code, "nothing was kept" in done.stdout) == (0, True)


def test_a_login_is_kept_in_the_context_that_is_chosen_and_says_how_its_cluster_is(
    control: tuple[Served, Path], config: Path
) -> None:
    served, _ = control
    done = run("login", served.url, "--token", served.token, "--context", "paris")
    assert (done.exit_code, done.stdout.startswith(f"context paris: logged in to {served.url} as ")) == (0, True)
    assert "`stoker context use paris` makes it the present one" in done.stderr
    assert not config.exists(), "the context `default` is as it was"
    assert mode(config.parent / "contexts" / "paris.yaml") == 0o600
    assert run("context", "use", "paris").exit_code == 0
    assert run("list").exit_code == 0
    assert run("login", served.url, "--token", served.token).stderr == "", "it is the present one"
    assert not config.exists()
    run("context", "add", "away", "http://127.0.0.1:1")
    run("context", "add", "stranger", served.url, "--token", TOKEN)
    rows = {each["name"]: each for each in json.loads(run("context", "list", "--status", "--json").stdout)}
    assert (rows["paris"]["cluster"]["total_nodes"], rows["paris"]["unanswered"]) == (0, "")
    assert "[no_server]" in rows["away"]["unanswered"]
    assert "[token_unknown]" in rows["stranger"]["unanswered"]
    assert run("logout").exit_code == 0
    assert served.url in (config.parent / "contexts" / "paris.yaml").read_text()
    assert run("list").exit_code == 4
