"""Two control planes of one cluster, as processes of their own started by their command line, over folders that outlive
them; and the agents that know both.

Tokens are made over the active's own socket once it is active.
"""

import http.client
import json
import os
import signal
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from stoker.brain.domain.access import Role
from stoker.cli.wiring.token_store import FolderTokens
from stoker.wire.client import Client
from stoker.wire.rest.token import NewTokenBody
from tests.real.agent_process import AgentProcess
from tests.real.control_process import ask_on, free_port, pause
from tests.real.forks import Started, started

START_S_MAX: Final = 90.0
TAKE_OVER_S_MAX: Final = 90.0


def until(true: Callable[[], object], what: Callable[[], str], within_s: float = TAKE_OVER_S_MAX) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() < began + within_s, f"not within {within_s} s: {what()}"
        pause(began)


class Half:
    """One control plane of a pair. `start` may be called again after it ended."""

    def __init__(self, folder: Path, name: str, *, host: str = "127.0.0.1") -> None:
        self.name, self.host = name, host
        self.folder = folder / name
        self.http_port, self.grpc_port = free_port(), free_port()
        self.settings = folder / f"{name}.yaml"
        self.token = ""
        self.authority: Path | None = None
        """Certificates of the authority where REST speaks TLS, once it was made. None = it doesn't."""
        self.prefix: Sequence[str] = ()
        """Words before the command: `ip netns exec NAME`."""
        self.environ: Mapping[str, str] = {}
        self._out = folder / f"{name}.out"
        self._process: Started | None = None

    @property
    def url(self) -> str:
        return f"http{'s' if self.authority else ''}://{self.host}:{self.http_port}"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.grpc_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def write(self, settings: Mapping[str, object]) -> None:
        self.settings.write_text(json.dumps(settings))  # JSON is YAML

    def start(self) -> Self:
        words = [*self.prefix, sys.executable, "-m", "stoker", "control", "-c", str(self.settings)]
        if self.host != "127.0.0.1":
            words.append("--insecure")
        with self._out.open("ab") as out:
            self._process = started(words, out=out, env={**os.environ, **self.environ})
        return self

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None, f"{self.name} was not started"
        self._process.kill()
        self._process.wait(START_S_MAX)

    def stop(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        self._process.terminate()
        return self._process.wait(START_S_MAX)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                self.go_on()
            self.kill()

    def output(self) -> str:
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Not made yet. Raises: OSError when it speaks TLS and has no authority yet."""
        if self.authority is None:
            return http.client.HTTPConnection(self.host, self.http_port, timeout=timeout_s)
        context = ssl.create_default_context(cafile=str(self.authority))
        return http.client.HTTPSConnection(self.host, self.http_port, timeout=timeout_s, context=context)

    def ask(
        self, method: str, path: str, body: object = None, *, timeout_s: float = 10.0, **headers: str
    ) -> tuple[int, Any]:
        """One request on a connection of its own. Raises: OSError, http.client.HTTPException."""
        client = self.connection(timeout_s)
        try:
            return ask_on(client, method, path, body, {"authorization": f"Bearer {self.token}", **headers})
        finally:
            client.close()

    def standing(self) -> dict[str, Any]:
        """What it says of itself; empty = it doesn't answer."""
        try:
            status, answer = self.ask("GET", "/api/v1/control", timeout_s=2.0)
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        return dict(answer) if status == 200 else {}

    @property
    def is_active(self) -> bool:
        """Asked where no token is needed: a standby isn't ready."""
        try:
            return self.ask("GET", "/ready", timeout_s=2.0)[0] == 200
        except (OSError, http.client.HTTPException, ValueError):
            return False

    @property
    def answers(self) -> bool:
        try:
            return self.ask("GET", "/health", timeout_s=2.0)[0] == 200
        except (OSError, http.client.HTTPException, ValueError):
            return False


class Pair:
    """Both halves, their marker, and who asks them."""

    def __init__(
        self, folder: Path, *, profile: str = "fast", mode: str = "sync", store: str = "", tls: bool = False
    ) -> None:
        """`store`: URL of a database that both use; empty = a log for each. `tls`: nothing is said in plain text."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.marker = folder / "marker"
        self.marker.mkdir(exist_ok=True)
        self.halves = (Half(folder, "a"), Half(folder, "b"))
        self.profile, self.mode, self.store = profile, mode, store
        self.agent_token = folder / "agent-token"
        self.tls = tls
        if tls:
            for half in self.halves:
                half.authority = self.marker / "ca" / "ca.crt"
        self.extra: dict[str, object] = {}
        """More settings of both."""
        self.agents: list[AgentProcess] = []

    @property
    def a(self) -> Half:
        return self.halves[0]

    @property
    def b(self) -> Half:
        return self.halves[1]

    @property
    def token(self) -> str:
        return self.a.token

    @property
    def servers(self) -> str:
        return ",".join(half.url for half in self.halves)

    @property
    def environ(self) -> dict[str, str]:
        return {"STOKER_SERVER": self.servers, "STOKER_TOKEN": self.token}

    def client(self, **settings: float) -> Client:
        ca_file = str(self.a.authority or "")
        return Client(self.servers, token=self.token, ca_file=ca_file, **settings)

    def settings_of(self, half: Half) -> dict[str, object]:
        other = self.other(half)
        failover: dict[str, object] = {"enabled": True, "name": half.name, "profile": self.profile, "mode": self.mode}
        if self.store:
            store: dict[str, object] = {"store": {"url": self.store}}
        else:
            failover |= {"peers": [other.address], "marker": str(self.marker)}
            store = {}
        return {
            "data_dir": str(half.folder),
            "http": {
                "host": half.host,
                "port": half.http_port,
                "rate_per_principal": 0,
            },  # some tests ask without pause
            "grpc": {"host": half.host, "port": half.grpc_port, "node_port": 0},
            "tls": {"mode": "on" if self.tls else "off"},
            "failover": failover,
            **store,
            **self.extra,
        }

    def start(self) -> Self:
        """Both, until one is active and the other in sync, and tokens are there."""
        for half in self.halves:
            half.write(self.settings_of(half))
            half.start()
        self.until_active()
        self._make_tokens()
        self.until_whole()
        return self

    def _make_tokens(self) -> None:
        tokens = FolderTokens(self.active.folder)
        token = tokens.create_token(NewTokenBody(role=Role.ADMIN, user="root")).token
        agent = tokens.create_token(NewTokenBody(role=Role.AGENT)).token
        for half in self.halves:
            half.token = token
        self.agent_token.touch(0o600)
        self.agent_token.write_text(agent)

    def other(self, half: Half) -> Half:
        return self.b if half is self.a else self.a

    @property
    def active(self) -> Half:
        found = [half for half in self.halves if half.lives and half.is_active]
        assert found, f"nobody is active: {self.story()}"
        return found[0]

    @property
    def standby(self) -> Half:
        return self.other(self.active)

    def until_active(self, half: Half | None = None, within_s: float = TAKE_OVER_S_MAX) -> Half:
        """Which one is; or that one is."""
        wanted = self.halves if half is None else (half,)
        found: list[Half] = []

        def look() -> bool:
            found[:] = [each for each in wanted if each.lives and each.is_active]
            return bool(found)

        until(look, self.story, within_s)
        return found[0]

    def until_whole(self, within_s: float = TAKE_OVER_S_MAX) -> None:
        """Until both are in sync; with one log for both, until the standby reads it."""
        in_sync = [] if self.store else ["a", "b"]

        def whole() -> bool:
            standings = [half.standing() for half in self.halves]
            return all(each.get("in_sync") == in_sync and each["lag_ms"] < 1_000 for each in standings) and {
                "active",
                "standby",
            } == {each["role"] for each in standings}

        until(whole, self.story, within_s)

    def agent(self, name: str, *, gpus: int = 4) -> AgentProcess:
        """On a node that knows both. Not started yet; ended with the pair."""
        made = AgentProcess(self.folder / name, name=name, gpus=gpus)
        addresses = [half.address for half in self.halves]
        if self.tls:
            body = NewTokenBody(role=Role.JOIN, nodes=name)
            made.know(addresses, join_token=FolderTokens(self.active.folder).create_token(body).token)
        else:
            made.know(addresses, token_file=self.agent_token)
        self.agents.append(made)
        return made

    def story(self) -> str:
        """For a test that fails: how both see it, and what they said last."""
        return "\n".join(f"{half.name}: {half.standing()}\n{half.output()[-3_000:]}" for half in self.halves)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self.agents:
            agent.__exit__(None, None, None)
        for half in self.halves:
            half.close()
