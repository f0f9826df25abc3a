"""A pair of control planes whose peers and nodes prove themselves by certificates of one authority."""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from stoker.adapters.authority import Authority
from stoker.agent.identity import IdentityFile
from stoker.brain.domain.access import Role
from stoker.brain.domain.units import Instant
from stoker.cli.wiring.token_store import FolderTokens
from stoker.wire.gen import agent_pb2, agent_pb2_grpc, replication_pb2
from stoker.wire.gen.replication_pb2_grpc import ReplicationServiceStub
from stoker.wire.rest.submit import JobBody
from stoker.wire.rest.token import NewTokenBody
from tests.real.agent_process import AgentProcess
from tests.real.forks import started
from tests.real.pair_process import Pair, until

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


def join(pair: Pair, agent: AgentProcess, token: str) -> str:
    out = agent.folder / "join.out"
    addresses = ",".join(half.address for half in pair.halves)
    words = [sys.executable, "-m", "stoker", "agent", "join", addresses, "--token", token, "-c", str(agent.settings)]
    with out.open("wb") as output:
        status = started(words, out=output, env={**os.environ, **agent.environ}).wait(60)
    assert status == 0, out.read_text()
    return out.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may listen to what passes over the loopback")
def test_peers_and_nodes_speak_tls_alone_and_a_take_over_finds_every_node_again(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.extra = {"tls": {"mode": "auto"}}
    ports = {half.grpc_port for half in pair.halves}
    with pair, overheard(ports) as heard:
        pair.start()
        secret = (pair.marker / "secret").read_text().strip()
        authority = Authority(pair.marker / "ca", lambda: Instant(int(time.time() * 1_000)))
        text = FolderTokens(pair.active.folder).create_token(NewTokenBody(role=Role.JOIN, nodes="n-*")).token
        token = f"{text.partition('.')[0]}.{authority.fingerprint}"
        agent = AgentProcess(tmp_path / "n-1", name="n-1")
        lines = [line for line in agent.settings.read_text().splitlines() if not line.startswith("control:")]
        agent.write(*lines)
        join(pair, agent, token)
        ports |= node_ports(pair, authority)
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


def test_a_node_is_no_peer_and_a_stranger_neither(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.extra = {"tls": {"mode": "auto"}}
    with pair:
        pair.start()
        authority = Authority(pair.marker / "ca", lambda: Instant(int(time.time() * 1_000)))
        secret = (pair.marker / "secret").read_text().strip()
        text = FolderTokens(pair.active.folder).create_token(NewTokenBody(role=Role.JOIN, nodes="n-1")).token
        agent = AgentProcess(tmp_path / "n-1", name="n-1")
        join(pair, agent, f"{text.partition('.')[0]}.{authority.fingerprint}")
        kept = IdentityFile(agent.data_dir).read()
        assert kept is not None
        shown = grpc.ssl_channel_credentials(authority.roots, kept.key.encode(), kept.certificates.chain.encode())
        (port,) = node_ports(pair, authority, pair.active.address)
        with grpc.secure_channel(f"127.0.0.1:{port}", shown) as channel, pytest.raises(grpc.RpcError) as fault:
            ReplicationServiceStub(channel).Ping(
                replication_pb2.PeerState(), timeout=10, metadata=(("stoker-peer-secret", secret),)
            )
        assert fault.value.code() is grpc.StatusCode.PERMISSION_DENIED, "not even with the secret"
        assert "no control plane's" in (fault.value.details() or "")


def node_ports(pair: Pair, authority: Authority, *addresses: str) -> set[int]:
    found = set()
    for address in addresses or [half.address for half in pair.halves]:
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(authority.roots)) as channel:
            found.add(agent_pb2_grpc.JoinServiceStub(channel).Locate(agent_pb2.LocateRequest(), timeout=10).node_port)
    return found
