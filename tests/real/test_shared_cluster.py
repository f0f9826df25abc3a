"""A cluster that strangers share, set up by what the documents say, and all that passes over the loopback meanwhile.

Two tenants with an account each, two control planes, three nodes, TLS everywhere.
"""

import json
import time
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from stoker.cli.main import root
from tests.certificates import authority_in
from tests.real.agent_process import AgentProcess
from tests.real.pair_process import Pair, until
from tests.real.rpc_stage import node_port
from tests.real.test_pair_tls import overheard
from tests.real.unix_users import Users, made_users, needs_root

pytestmark = needs_root

NODES: Final = ("gpu-1", "gpu-2", "gpu-3")


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    with made_users() as made:
        yield made


class Person:
    """Somebody with a home of their own, who types commands."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.environ = {"XDG_CONFIG_HOME": str(home), "STOKER_TOKEN": None, "STOKER_SERVER": None}

    def __call__(self, *words: str, status: int = 0, typed: str | None = None) -> str:
        done = CliRunner().invoke(root, words, env=self.environ, input=typed, prog_name="stoker")
        assert done.exit_code == status, (words, done.output)
        return done.output

    def submit(self, *words: str) -> str:
        return self("submit", *words).strip()

    def job(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", job, "--json"))
        return found

    def until(self, job: str, *states: str) -> dict[str, Any]:
        until(lambda: self.job(job)["state"] in states, lambda: self("why", job))
        return self.job(job)


def file_of(path: Path, token: str) -> str:
    path.touch(0o600)
    path.write_text(token)
    return str(path)


class SharedCluster:
    """What docs/howto/run-as-daemons.md, set-up-a-pair.md and tokens-and-users.md set up."""

    def __init__(self, users: Users, folder: Path, pair: Pair, ports: set[int]) -> None:
        """`ports`: gets those that pair and nodes speak through."""
        self.pair, self._users, self.shown = pair, users, list[str]()
        self.operator = operator = Person(folder / "operator")
        token = operator("token", "create", "--role", "admin", "--data-dir", str(pair.active.folder)).strip()
        operator("login", pair.servers, "--token-file", file_of(folder / "admin.token", token))
        join = operator("token", "create", "--role", "join", "--nodes", "gpu-*").strip()
        self.shown += [token, join]
        self.ann, self.bob = (
            self._person(folder / tenant, tenant, account)
            for tenant, account in (("vision", users.ann), ("speech", users.bob))
        )
        ports |= {node_port(half.address, authority_in(pair.marker / "ca").roots) for half in pair.halves}
        for name in NODES:
            self._node(users.folder / name, join)
        until(lambda: operator("node", "list").count("ready") == len(NODES), pair.story)

    def _person(self, home: Path, tenant: str, account: str) -> Person:
        self.operator("tenant", "create", tenant)
        words = ("--role", "user", "--tenant", tenant, "--user", account)
        token = self.operator("token", "create", *words).strip()
        self.shown.append(token)
        person = Person(home)
        person("login", self.pair.servers, "--token", token)
        return person

    def _node(self, folder: Path, token: str) -> None:
        agent = AgentProcess(folder, name=folder.name)
        agent.environ.clear()
        agent.take_jobs_of(self._users.ann, self._users.bob)
        agent.data_dir.mkdir(mode=0o711)
        folder.chmod(0o711)
        agent.know([half.address for half in self.pair.halves], join_token=token)
        self.pair.agents.append(agent.start())

    def holds_jobs(self, node: str) -> bool:
        return bool(json.loads(self.operator("node", "show", node, "--json"))["jobs"])


def test_a_cluster_that_strangers_share_is_set_up_by_the_documents_and_nothing_of_it_passes_in_clear(
    users: Users, tmp_path: Path
) -> None:
    pair = Pair(tmp_path / "pair", tls=True)
    ports = {port for half in pair.halves for port in (half.http_port, half.grpc_port)}
    with pair, overheard(ports) as heard:
        for half in pair.halves:
            half.write(pair.settings_of(half))
            half.start()
        pair.until_active()
        cluster = SharedCluster(users, tmp_path, pair, ports)
        ann, bob, operator = cluster.ann, cluster.bob, cluster.operator

        until(lambda: any("secret_key_received" in half.output() for half in pair.halves), pair.story)
        ann("secret", "set", "hub", typed="UNSEEN-SECRET\n")
        go_on = users.folder / "go-on"
        waits = f"id -un; until [ -e {go_on} ]; do sleep 0.2; done"
        long = ann.submit(
            "--gpus", "1", "--secret", "hub", "--env", "WORD=UNSEEN-ENV", "--", f"echo VISIBLE-OUTPUT; {waits}"
        )
        theirs = bob.submit("--gpus", "1", "--", waits)
        for person, account, job in ((ann, users.ann, long), (bob, users.bob, theirs)):
            person.until(job, "running")
            until(partial(says, person, job, account), partial(person, "logs", job))
        for words in (("logs", long), ("cancel", long), ("events", long)):
            assert "UNSEEN" not in bob(*words, status=4)
        assert "UNSEEN" not in bob("status", long, "--json") + bob("list", "--json")

        # certificates are rotated under that load, a node whose key was revoked is out, and a control plane dies
        operator("ca", "rotate", "-c", str(pair.active.settings))
        until(lambda: all("certificate_renewed" in half.output() for half in pair.halves), pair.story)
        idle = next(agent for agent in pair.agents if not cluster.holds_jobs(agent.name))
        began = time.monotonic()
        operator("node", "reset", idle.name)
        until(lambda: "isn't known here" in idle.output(), idle.output)
        assert time.monotonic() - began < 60, "a second, on a machine that does nothing else"
        first = pair.active
        first.kill()
        pair.until_active(pair.other(first))
        later = ann.submit("--secret", "hub=WORD", "--", "printf %s $WORD | sha256sum")
        ann.until(later, "succeeded")
        until(
            partial(says, ann, later, sha256(b"UNSEEN-SECRET").hexdigest()), "the other control plane has the key too"
        )
        bob("submit", "--secret", "hub", "--", "true", status=4)
        go_on.touch()
        assert [len(person.until(job, "succeeded")["attempts"]) for person, job in ((ann, long), (bob, theirs))] == [
            1,
            1,
        ]
    said = b"".join(heard)
    assert len(said) > 100_000, "something was heard"
    words = [(pair.marker / "secret").read_text().strip(), *(each.partition(".")[0] for each in cluster.shown)]
    for word in (*words, "UNSEEN-ENV", "UNSEEN-SECRET", "VISIBLE-OUTPUT", "stoker_", "certificate_renewed"):
        assert word.encode() not in said, f"{word[:12]}... passed in clear"


def says(person: Person, job: str, word: str) -> bool:
    """Whether its output has the word; not while its node can't be asked, as on a busy machine."""
    done = CliRunner().invoke(root, ("logs", job), env=person.environ, prog_name="stoker")
    return done.exit_code == 0 and word in done.output
