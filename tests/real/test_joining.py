"""Nodes that join a cluster by TLS: who they are, who the control plane is, and what a stranger gets of either."""

import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import grpc
import pytest

from stoker.brain.domain.access import Role
from stoker.wire.gen import agent_pb2 as pb
from stoker.wire.gen import agent_pb2_grpc, job_pb2, job_pb2_grpc
from stoker.wire.rest.token import NewTokenBody
from tests.certificates import authority_in
from tests.real.agent_process import AgentProcess, submit, until, until_state
from tests.real.control_process import ControlProcess, TlsControlProcess
from tests.real.rpc_stage import node_port
from tests.real.tokens import token_in


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlProcess]:
    with TlsControlProcess(tmp_path_factory.mktemp("tls") / "control") as process:
        yield process


class ShortLived(Protocol):
    def __call__(self, agent: AgentProcess, for_s: float, *, due: bool) -> None: ...


def join_token(control: ControlProcess, nodes: str, **more: str) -> str:
    return token_in(control.folder, NewTokenBody(role=Role.JOIN, nodes=nodes, **more))


def joined(agent: AgentProcess, control: ControlProcess, token: str) -> tuple[int, str]:
    return agent.join(f"127.0.0.1:{control.grpc_port}", token)


def test_a_node_joins_by_one_line_and_runs_jobs(control: ControlProcess, tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, control, name="one-line")
    status, said = joined(agent, control, join_token(control, "one-*"))
    assert status == 0, said
    assert "node one-line has joined cluster" in said
    assert f"start its agent: stoker agent -c {agent.settings}" in said
    kept = agent.data_dir / "identity.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    with agent:
        until_state(control, submit(control, "true"), "succeeded")


def test_a_node_that_has_not_joined_does_not_start_and_says_how(control: ControlProcess, tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, control, name="stranger").start()
    assert agent.wait() == 1
    assert "node stranger hasn't joined its cluster" in agent.output()
    assert "stoker agent join HOST:9090 --token T" in agent.output()


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("other name", "this token doesn't join node n: it is for other"),
        ("expired", "the token is not known here"),
        ("admin", "a node joins with a token of role join, and this one has the role admin"),
        ("unknown", "the token is not known here"),
        ("without", "the token doesn't say by which authority the cluster proves itself"),
        ("another cluster", "doesn't show the authority that the token names"),
    ],
)
def test_a_token_that_is_not_good_for_the_node_is_refused_and_nothing_is_kept(
    control: ControlProcess, tmp_path: Path, token: str, why: str
) -> None:
    agent = AgentProcess(tmp_path, control, name="n")
    mark = authority_in(control.folder / "ca").fingerprint
    another = authority_in(tmp_path / "another").fingerprint
    good = join_token(control, "n").partition(".")[0]
    text = {
        "other name": lambda: join_token(control, "other"),
        "expired": lambda: join_token(control, "n", expires="1s"),
        "admin": lambda: f"{control.tokens.admin.partition('.')[0]}.{mark}",
        "unknown": lambda: f"stoker_aaaaaaaa_{'x' * 43}.{mark}",
        "without": lambda: good,
        "another cluster": lambda: f"{good}.{another}",
    }[token]()
    if token == "expired":
        time.sleep(1.1)
    status, said = joined(agent, control, text)
    assert status != 0
    assert why in said
    assert text.partition(".")[0] not in said
    assert "token_file" not in said, "a join has none"
    assert not (agent.data_dir / "identity.json").exists()


def test_a_stolen_join_token_does_not_take_a_node_over_that_has_joined(control: ControlProcess, tmp_path: Path) -> None:
    stolen = join_token(control, "mine")
    agent = AgentProcess(tmp_path / "mine", control, name="mine")
    assert joined(agent, control, stolen)[0] == 0
    thief = AgentProcess(tmp_path / "thief", control, name="mine")
    status, said = joined(thief, control, stolen)
    assert status != 0
    assert "node mine has joined with another key since this token was made" in said
    assert "stoker node reset mine" in said
    with agent:
        until(lambda: _state(control, "mine") == "ready", "the node is served")


def test_a_machine_that_was_set_up_anew_joins_with_a_new_token_and_the_old_key_is_out_at_once(
    control: ControlProcess, tmp_path: Path
) -> None:
    old = AgentProcess(tmp_path / "old", control, name="anew")
    assert joined(old, control, join_token(control, "anew"))[0] == 0
    with old:
        until(lambda: _state(control, "anew") == "ready", "the node is served")
        new = AgentProcess(tmp_path / "new", control, name="anew")
        assert joined(new, control, join_token(control, "anew"))[0] == 0
        until(
            lambda: (
                "is the key of node anew" in old.output()
                or "node_key_unknown" in old.output()
                or "isn't known here" in old.output()
            ),
            "the old key is refused",
        )
    assert "node_key_replaced" in control.output()


def test_a_revoked_node_is_out_within_a_second_and_its_jobs_run_on(control: ControlProcess, tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, control, name="revoked")
    assert joined(agent, control, join_token(control, "revoked"))[0] == 0
    with agent:
        until(lambda: _state(control, "revoked") == "ready", "the node is served")
        with control.client() as client:
            client.label("revoked", {"only": "here"}, [])
            key = next(each for each in client.tokens().tokens if each.node == "revoked" and each.role == "agent")
        job = submit(control, "sleep 60", gpu_count=1, where="only=here")
        until_state(control, job, "running")
        began = time.monotonic()
        with control.client() as client:
            client.revoke_token(key.id)
        until(lambda: "isn't known here" in agent.output(), "the agent is told")
        assert time.monotonic() - began < 5, "a second, on a machine that does nothing else"
        assert control.ask("GET", f"/api/v1/jobs/{job}")[1]["state"] == "running"
        control.ask("DELETE", f"/api/v1/jobs/{job}")


def test_a_node_gets_no_instruction_under_the_name_of_another(control: ControlProcess, tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, control, name="honest")
    assert joined(agent, control, join_token(control, "honest"))[0] == 0
    with _channel_of(agent, control) as channel:
        stub = agent_pb2_grpc.SchedulerServiceStub(channel)
        with pytest.raises(grpc.RpcError) as fault:
            stub.RegisterAgent(
                pb.RegisterRequest(node="victim", boot_id="b", agent_uid="u", account="root"), timeout=10
            )
    assert fault.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "this certificate is that of node:honest" in fault.value.details()


def test_without_a_certificate_nobody_reaches_the_service_of_agents(control: ControlProcess) -> None:
    roots = grpc.ssl_channel_credentials(authority_in(control.folder / "ca").roots)
    with grpc.secure_channel(f"127.0.0.1:{control.grpc_port}", roots) as public:
        register = agent_pb2_grpc.SchedulerServiceStub(public).RegisterAgent
        token = (("authorization", f"Bearer {control.tokens.agent_file.read_text().strip()}"),)
        with pytest.raises(grpc.RpcError) as fault:
            register(pb.RegisterRequest(node="x"), timeout=10, metadata=token)
        assert fault.value.code() is grpc.StatusCode.UNIMPLEMENTED
    port = node_port(f"127.0.0.1:{control.grpc_port}", authority_in(control.folder / "ca").roots)
    with grpc.secure_channel(f"127.0.0.1:{port}", roots) as bare, pytest.raises(grpc.RpcError) as fault:
        agent_pb2_grpc.SchedulerServiceStub(bare).RegisterAgent(pb.RegisterRequest(node="x"), timeout=5)
    assert fault.value.code() is grpc.StatusCode.UNAVAILABLE


def test_strangers_who_hang_up_in_the_middle_of_a_handshake_end_nothing(control: ControlProcess) -> None:
    roots = authority_in(control.folder / "ca").roots
    ports = control.grpc_port, node_port(f"127.0.0.1:{control.grpc_port}", roots)
    for _ in range(3):
        strangers = [socket.create_connection(("127.0.0.1", ports[number % 2]), 10) for number in range(300)]
        time.sleep(0.5)  # their handshakes have begun
        for stranger in strangers:
            stranger.close()
    time.sleep(0.5)
    test_people_ask_by_grpc_with_a_token_over_tls(control)


def test_people_ask_by_grpc_with_a_token_over_tls(control: ControlProcess) -> None:
    roots = grpc.ssl_channel_credentials(authority_in(control.folder / "ca").roots)
    with grpc.secure_channel(f"127.0.0.1:{control.grpc_port}", roots) as channel:
        listed = job_pb2_grpc.JobServiceStub(channel).List(
            job_pb2.ListRequest(), timeout=10, metadata=(("authorization", control.headers["authorization"]),)
        )
    assert listed is not None


def test_who_listens_in_the_place_of_a_control_plane_gets_no_token_and_gives_no_order(
    control: ControlProcess, tmp_path: Path
) -> None:
    """A job waits until the control plane restarts, and takes its port."""
    agent = AgentProcess(tmp_path, control, name="faithful")
    assert joined(agent, control, join_token(control, "faithful"))[0] == 0
    squatter = authority_in(tmp_path / "squatter")
    key, chain, *_ = squatter.server("a", ["127.0.0.1", "localhost"])
    (tmp_path / "key").write_bytes(key)
    (tmp_path / "chain").write_bytes(chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "chain", tmp_path / "key")
    context.set_alpn_protocols(["h2"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        port = listener.getsockname()[1]
        lines = [line for line in agent.settings.read_text().splitlines() if not line.startswith("control:")]
        agent.write(*lines, f"control: {{addresses: ['127.0.0.1:{port}']}}")
        with agent:
            heard = b""
            plain, _ = listener.accept()
            try:
                with context.wrap_socket(plain, server_side=True) as talked:
                    talked.settimeout(5)
                    heard = talked.recv(65_536)
            except (ssl.SSLError, OSError):
                pass
            until(lambda: "nothing was told it" in agent.output(), "the agent says why")
    assert b"authorization" not in heard
    assert b"stoker_" not in heard


def test_a_join_shows_its_token_to_nobody_who_listens_in_the_place_of_a_control_plane(
    control: ControlProcess, tmp_path: Path
) -> None:
    agent = AgentProcess(tmp_path, control, name="n")
    token = join_token(control, "n")
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        words = [sys.executable, "-m", "stoker", "agent", "join", f"127.0.0.1:{listener.getsockname()[1]}"]
        process = subprocess.Popen(
            [*words, "--token", token, "-c", str(agent.settings)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        plain, _ = listener.accept()
        with plain:
            plain.settimeout(5)
            heard.append(plain.recv(65_536))
            plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        said = process.communicate(timeout=30)[0].decode()
    assert process.returncode != 0
    assert "must speak TLS there" in said
    assert token.encode()[:24] not in b"".join(heard)


def test_after_a_rotation_of_the_authority_nodes_stay_and_new_ones_join(
    control: ControlProcess, tmp_path: Path
) -> None:
    agent = AgentProcess(tmp_path / "before", control, name="before")
    old_token = join_token(control, "after")
    assert joined(agent, control, join_token(control, "before"))[0] == 0
    with agent:
        until(lambda: _state(control, "before") == "ready", "the node is served")
        authority_in(control.folder / "ca").rotate()
        until(lambda: "certificate_renewed" in control.output(), "the control plane has another certificate")
        agent.kill()
        agent.start()  # it dials anew, and knows the old root alone
        until(lambda: agent.output().count("agent_started") == 2, "it has started again")
        until(lambda: agent.output().count("registered") >= 2, "it is let in")
        after = AgentProcess(tmp_path / "after", control, name="after")
        assert joined(after, control, old_token)[0] == 0, "a token from before names the old root"


@pytest.fixture
def short_lived(control: ControlProcess, monkeypatch: pytest.MonkeyPatch) -> ShortLived:
    """Gives a node that has joined a certificate which expires after so many seconds, as if it had had it for long."""

    def give(agent: AgentProcess, for_s: float, *, due: bool) -> None:
        monkeypatch.setattr("stoker.adapters.authority.LEAF_DAYS", for_s / 86_400)
        path = agent.data_dir / "identity.json"
        kept = json.loads(path.read_text())
        made = authority_in(control.folder / "ca").sign(kept["request"].encode(), f"node:{kept['node']}")
        kept["certificates"] |= {"chain": made.chain.decode(), "ends_at": made.ends_at}
        kept["certificates"]["renew_at"] = 0 if due else made.ends_at + 3_600_000
        path.write_text(json.dumps(kept))

    return give


def test_a_certificate_that_expires_in_the_middle_of_a_stream_ends_it_and_its_jobs_run_on(
    control: ControlProcess, tmp_path: Path, short_lived: ShortLived
) -> None:
    agent = AgentProcess(tmp_path, control, name="expired")
    assert joined(agent, control, join_token(control, "expired"))[0] == 0
    short_lived(agent, 20, due=False)
    with agent:
        until(lambda: _state(control, "expired") == "ready", "the node is served")
        with control.client() as client:
            client.label("expired", {"expired": "here"}, [])
        job = submit(control, "sleep 60", where="expired=here")
        until_state(control, job, "running")
        told = "certificate of node expired has expired"  # unless the stream broke just then, and it wasn't let in
        until(lambda: told in agent.output() or _state(control, "expired") == "unreachable", "its stream ends", 60)
        until(lambda: _state(control, "expired") == "unreachable", "it isn't let in again", 60)
        agent.kill()
        assert joined(agent, control, join_token(control, "expired"))[0] == 0, "the way back"
        agent.start()
        until(lambda: _state(control, "expired") == "ready", "it is served again")
        found = control.ask("GET", f"/api/v1/jobs/{job}")[1]
        assert (found["state"], len(found["attempts"])) == ("running", 1)
        control.ask("DELETE", f"/api/v1/jobs/{job}")


def test_a_certificate_that_is_due_is_replaced_and_its_node_is_served_on_when_the_old_one_expires(
    control: ControlProcess, tmp_path: Path, short_lived: ShortLived
) -> None:
    """With a new stream, where its first one was opened with the old certificate."""
    agent = AgentProcess(tmp_path, control, name="renewed")
    assert joined(agent, control, join_token(control, "renewed"))[0] == 0
    short_lived(agent, 8, due=True)
    before = json.loads((agent.data_dir / "identity.json").read_text())["certificates"]
    with agent:
        until(lambda: "certificate_renewed" in agent.output(), "another was asked for")
        after = json.loads((agent.data_dir / "identity.json").read_text())["certificates"]
        assert after["ends_at"] > before["ends_at"] + 80 * 86_400_000
        until(lambda: time.time() > before["ends_at"] / 1_000 + 2, "the old one has expired")
        until(lambda: _state(control, "renewed") == "ready", "the node is served")
        assert "join again: `stoker" not in agent.output()


def _state(control: ControlProcess, node: str) -> str:
    status, answer = control.ask("GET", f"/api/v1/nodes/{node}")
    return str(answer["state"]) if status == 200 else ""


def _channel_of(agent: AgentProcess, control: ControlProcess) -> grpc.Channel:
    """A channel that shows the certificate of this agent's node."""
    kept = json.loads((agent.data_dir / "identity.json").read_text())
    roots = kept["certificates"]["roots"].encode()
    port = node_port(f"127.0.0.1:{control.grpc_port}", roots)
    shown = grpc.ssl_channel_credentials(roots, kept["key"].encode(), kept["certificates"]["chain"].encode())
    return grpc.secure_channel(f"127.0.0.1:{port}", shown)
