"""A control plane whose REST interface speaks TLS: what it makes is all that a person's command line needs."""

import asyncio
import http.client
import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from stoker.brain.domain.access import Role
from stoker.cli.main import root
from stoker.wire.client import AsyncClient, Client, JobBody
from stoker.wire.rest.token import NewTokenBody
from stoker.wire.token import fingerprint_in, without_fingerprint
from tests.certificates import authority_in
from tests.real.asking import said
from tests.real.pair_process import Pair
from tests.real.serving import Served, free_port, serving
from tests.real.tokens import token_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("control")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder, free_port(), secure=True) as made:
        yield made


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("STOKER_TOKEN", "STOKER_SERVER", "STOKER_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "stoker" / "config.yaml"


def run(*words: str) -> str:
    done = CliRunner().invoke(root, list(words))
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_one_line_with_a_token_makes_a_command_line_trust_it(served: Served, folder: Path, config: Path) -> None:
    with Client(served.url, token=served.token) as client:
        token = client.create_token(NewTokenBody(role=Role.USER, tenant="default", user="ada")).token
    assert fingerprint_in(token) == authority_in(folder / "ca").fingerprint
    assert "logged in to" in run("login", served.url, "--token", token)
    job = run("submit", "--", "true").strip()
    assert json.loads(run("status", job, "--json"))["user"] == "ada"
    assert config.with_name("ca.pem").read_bytes() == authority_in(folder / "ca").roots


def test_tokens_made_by_whichever_way_name_the_authority(served: Served, folder: Path, tmp_path: Path) -> None:
    fingerprint = authority_in(folder / "ca").fingerprint
    assert fingerprint_in(served.token) == fingerprint, "over the socket"
    made = Client(served.url, token=served.token)
    with made as client:
        assert fingerprint_in(client.create_token(NewTokenBody(role=Role.VIEWER)).token) == fingerprint
    stopped = tmp_path / "stopped"
    assert fingerprint_in(token_in(stopped, NewTokenBody(role=Role.ADMIN))) == "", "it has no authority yet"
    shutil.copytree(folder / "ca", stopped / "ca")
    assert fingerprint_in(token_in(stopped, NewTokenBody(role=Role.ADMIN))) == fingerprint


async def test_the_asyncio_client_needs_no_more(served: Served) -> None:
    async with AsyncClient(served.url, token=served.token) as client:
        jobs = await asyncio.gather(*(client.submit(JobBody(command="true")) for _ in range(20)))
        assert len({job.id for job in jobs}) == 20
        assert (await client.whoami()).role == "admin"


def test_other_programs_use_the_certificates_of_the_authority(served: Served, folder: Path) -> None:
    context = ssl.create_default_context(cafile=str(folder / "ca" / "ca.crt"))
    line = http.client.HTTPSConnection(served.url.partition("://")[2], context=context, timeout=10)
    for token in (served.token, without_fingerprint(served.token)):
        line.request("GET", "/api/v1/whoami", headers={"authorization": f"Bearer {token}"})
        answer = line.getresponse()
        assert (answer.status, json.loads(answer.read())["role"]) == (200, "admin")
    line.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="NOT PROVED HERE: no curl")
def test_curl_is_served_as_the_page_says(served: Served, folder: Path) -> None:
    words = ["curl", "-sS", "--cacert", str(folder / "ca" / "ca.crt"), "-H", f"Authorization: Bearer {served.token}"]
    done = subprocess.run([*words, f"{served.url}/api/v1/whoami"], capture_output=True, timeout=30, check=True)
    assert json.loads(done.stdout)["role"] == "admin"


def test_plain_http_is_told_to_write_https(served: Served) -> None:
    with Client(served.url.replace("https", "http"), token=served.token) as client:
        refusal = said(client.jobs)
        assert (refusal.code, "https://" in refusal.hint) == ("tls_wanted", True)


def test_a_rotated_authority_is_served_at_once_and_who_knows_the_old_one_or_the_new_one_is_served_on(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "control"
    folder.mkdir()
    with serving(folder, free_port(), secure=True) as served, Client(served.url, token=served.token) as old:
        old.jobs()
        connection = old._transport._connection
        authority_in(folder / "ca").rotate()
        new = authority_in(folder / "ca").fingerprint
        give_up_s = time.monotonic() + 60
        while fingerprint_in(old.create_token(NewTokenBody(role=Role.ADMIN)).token) != new:
            assert time.monotonic() < give_up_s, "it isn't noticed"
            time.sleep(0.1)
        assert old._transport._connection is connection, "connections that are open go on"
        token = old.create_token(NewTokenBody(role=Role.ADMIN)).token
        for known in (served.token, token):
            with Client(served.url, token=known) as client:
                assert client.whoami().role == "admin"


def test_both_of_a_pair_are_trusted_by_one_fingerprint_also_after_a_take_over(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "pair")
    pair.extra = {"tls": {"mode": "on"}}
    for half in pair.halves:
        half.authority = pair.marker / "ca" / "ca.crt"
    with pair.start():
        assert len(fingerprint_in(pair.token)) == 43
        with pair.client() as client:
            job = client.submit(JobBody(command="true"))
            active = pair.active
            active.kill()
            pair.until_active(pair.other(active))
            assert client.job(job.id).uid == job.uid
            assert client.submit(JobBody(command="true")).id != job.id
