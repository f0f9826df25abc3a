"""A pair of control planes whose peers and nodes prove themselves by certificates of one authority."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from stoker.agent.identity import IdentityFile
from stoker.brain.domain.access import Role
from stoker.cli.wiring.token_store import FolderTokens
from stoker.wire.gen import replication_pb2
from stoker.wire.gen.replication_pb2_grpc import ReplicationServiceStub
from stoker.wire.rest.submit import JobBody
from stoker.wire.rest.token import NewTokenBody
from tests.certificates import authority_in
from tests.real.agent_process import AgentProcess
from tests.real.pair_process import Pair, until
from tests.real.rpc_stage import node_port

ETH_P_ALL = 3


@contextmanager
def overheard(ports: set[int]) -> Iterator[list[bytes]]:
    """All that passes over the loopback from or to these TCP ports meanwhile. Only root may listen."""
    heard: list[bytes] = []
    over = threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL)) as ear:
        ear.bind(("lo", 0))
        ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 25)
        ear.settimeout(0.2)

        def listen() -> None:
            while not over.is_set():
                try:
                    packet = ear.recv(1 << 17)
                except TimeoutError:
                    continue
                at = (packet[0] & 15) * 4
                if packet[9] == socket.IPPROTO_TCP and ports & {
                    int.from_bytes(packet[at : at + 2]),
                    int.from_bytes(packet[at + 2 : at + 4]),
                }:
                    heard.append(packet[at:])

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield heard
        finally:
            over.set()
            thread.join()


def join(pair: Pair, agent: AgentProcess, nodes: str) -> str:
    """Let the agent's node join; return the token that it showed."""
    token = FolderTokens(pair.active.folder).create_token(NewTokenBody(role=Role.JOIN, nodes=nodes)).token
    agent.know([half.address for half in pair.halves], join_token=token)
    return token


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may listen to what passes over the loopback")
def test_peers_and_nodes_speak_tls_alone_and_a_take_over_finds_every_node_again(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.extra = {"tls": {"mode": "auto"}}
    ports = {half.grpc_port for half in pair.halves}
    with pair, overheard(ports) as heard:
        pair.start()
        secret = (pair.marker / "secret").read_text().strip()
        authority = authority_in(pair.marker / "ca")
        agent = AgentProcess(tmp_path / "n-1", name="n-1")
        token = join(pair, agent, "n-*")
        ports |= {node_port(half.address, authority.roots) for half in pair.halves}
        pair.agents.append(agent.start())
        with pair.client() as client:
            body = JobBody(command="echo VISIBLE; sleep 3", gpu_count=1, env={"WORD": "UNSEEN-IN-CLEAR"})
            job = client.submit(body)
            until(lambda: client.job(job.id).state.value == "running", pair.story)
            first = pair.active
            first.kill()
            pair.until_active(pair.other(first))
            until(lambda: client.job(job.id).state.value == "succeeded", pair.story)
            first.start()
            pair.until_whole()
    said = b"".join(heard)
    assert len(said) > 10_000, "something was heard"
    for word in (secret, token.partition(".")[0], "UNSEEN-IN-CLEAR", "VISIBLE", "stoker_"):
        assert word.encode() not in said, f"{word[:12]}... passed in clear"


def test_a_pair_whose_authority_was_lost_says_so_and_makes_no_other_until_it_is_told_to(tmp_path: Path) -> None:
    pair = Pair(tmp_path, tls=True)
    half, authority = pair.a, pair.marker / "ca"
    with pair:
        half.write(pair.settings_of(half))
        half.start()
        until(lambda: half.answers, half.output)
        half.terminate()
        shutil.rmtree(authority)
        half.start()
        until(lambda: not half.lives, half.output)
        assert "its folder isn't there, and this control plane has served by it" in half.output()
        assert not authority.exists()
        authority.mkdir()
        half.start()
        until(lambda: half.answers, half.output)


class Asked(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """A server of everything, which notes what it is asked and answers nothing."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def service(self, asked: grpc.HandlerCallDetails) -> None:
        self.methods.append(asked.method)


@pytest.mark.parametrize("proves", [False, True])
def test_who_listens_in_the_place_of_a_peer_is_asked_only_after_he_has_proved_himself(
    proves: bool, tmp_path: Path
) -> None:
    pair = Pair(tmp_path / "pair")
    pair.extra = {"tls": {"mode": "auto"}}
    alone, asked = pair.a, Asked()
    authority = authority_in(pair.marker / "ca")
    shown = authority if proves else authority_in(tmp_path / "another")
    key, chain, *_ = shown.server("b", ["127.0.0.1", "localhost"])
    server = grpc.server(ThreadPoolExecutor(2), handlers=[asked])
    server.add_secure_port(f"127.0.0.1:{pair.b.grpc_port}", grpc.ssl_server_credentials([(key, chain)]))
    server.start()
    with pair:
        alone.write(pair.settings_of(alone))
        alone.start()
        until(lambda: asked.methods or "handshake failed" in alone.output(), alone.output)
        assert bool(asked.methods) is proves, asked.methods
    server.stop(None)


def test_a_node_is_no_peer_and_a_stranger_neither(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.extra = {"tls": {"mode": "auto"}}
    with pair:
        pair.start()
        authority = authority_in(pair.marker / "ca")
        secret = (pair.marker / "secret").read_text().strip()
        agent = AgentProcess(tmp_path / "n-1", name="n-1")
        join(pair, agent, "n-1")
        kept = IdentityFile(agent.data_dir).read()
        assert kept is not None
        shown = grpc.ssl_channel_credentials(authority.roots, kept.key.encode(), kept.certificates.chain.encode())
        port = node_port(pair.active.address, authority.roots)
        with grpc.secure_channel(f"127.0.0.1:{port}", shown) as channel, pytest.raises(grpc.RpcError) as fault:
            ReplicationServiceStub(channel).Ping(
                replication_pb2.PeerState(), timeout=10, metadata=(("stoker-peer-secret", secret),)
            )
        assert fault.value.code() is grpc.StatusCode.PERMISSION_DENIED, "not even with the secret"
        assert "no control plane's" in (fault.value.details() or "")
