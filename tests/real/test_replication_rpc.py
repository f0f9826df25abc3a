"""Control planes that follow each other by gRPC on a socket, with real logs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from grpc import aio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.sqlite.event_log import SqliteLog
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover.inputs import CaughtUp, ControlRole, FellBehind, PeerState
from stoker.brain.failover.timing import FAST
from stoker.control.control_ports import ControlPorts
from stoker.control.settings import GrpcSettings
from stoker.live.failover.follower import Follower
from stoker.live.failover.links import FORMAT, Following, Offer, PeerDown, PeerRefused, Records, Welcome
from stoker.live.failover.replication import Replication
from stoker.live.rpc.replication import SECRET_KEY, GrpcPeerLink, ReplicationService
from stoker.live.rpc.server import RpcServer
from stoker.ports import ReceivedBackup, Stored
from stoker.wire.gen import replication_pb2 as pb
from stoker.wire.gen.replication_pb2_grpc import ReplicationServiceStub
from tests.live.failover.pair import CLUSTER, A, B, FakeBackups, records
from tests.real.rpc_stage import code_of, rpc_stage
from tests.rig.sim_ports import Notes, SimClock

SECRET = "s3cret-of-the-pair"
PATIENCE_S = 10.0


@dataclass
class Peer:
    """An active control plane on a socket."""

    port: int
    replication: Replication
    log: SqliteLog
    secret: str = SECRET
    heard: list[PeerState] = field(default_factory=list)
    backups: FakeBackups = field(default_factory=lambda: FakeBackups(b"a backup"))
    end: int = 0
    in_sync: list[Member] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def link(self, secret: str = SECRET, *, within_s: float = 2.0) -> GrpcPeerLink:
        return GrpcPeerLink(self.address, lambda: secret, within_s=within_s)

    async def write(self, count: int) -> None:
        batch = records(self.end + 1, self.end + count)
        self.replication.ship(Epoch(1), Position(self.end), batch)
        await self.log.append(Epoch(1), Position(self.end), batch)
        self.end += count
        await self.replication.wait_for(Position(self.end))


def control_ports() -> ControlPorts:
    return ControlPorts(clock=SystemClock(), entropy=SystemEntropy(), telemetry=Notes(SimClock(), "peer"))


@asynccontextmanager
async def active(folder: Path, *, lead: bool = True) -> AsyncIterator[Peer]:
    log = SqliteLog(folder / "a")
    await log.open()
    replication = Replication(log, control_ports(), timing=FAST, sync=True, holds=lambda: True)
    peer = Peer(0, replication, log)
    said = PeerState(member=A, role=ControlRole.ACTIVE, epoch=Epoch(1), position=Position(0))

    def pinged(by: PeerState) -> PeerState:
        peer.heard.append(by)
        return said

    door = ReplicationService(secret=lambda: peer.secret, pinged=pinged, accept=replication.accept)
    running = None

    def in_sync(told: CaughtUp | FellBehind) -> None:
        if isinstance(told, CaughtUp):
            peer.in_sync.append(told.member)
            replication.in_sync_changed((A, *peer.in_sync))

    replication.tell = in_sync
    if lead:
        replication.lead(A, Epoch(1), Position(0), peer.backups, cluster_id=lambda: CLUSTER)
        running = asyncio.create_task(replication.run())
    async with AsyncExitStack() as open_now:
        stage = await open_now.enter_async_context(rpc_stage(folder / "control"))
        # A second listener of the same control plane: this one knows peers.
        settings = GrpcSettings(host="127.0.0.1", port=0)
        peer.port = await open_now.enter_async_context(RpcServer(settings, stage.control, door))
        yield peer
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    await log.close()


class Standby:
    """A follower with a real log."""

    def __init__(self, folder: Path) -> None:
        self.log = SqliteLog(folder)
        self.replayed: list[Stored] = []
        self.pieces: list[bytes] = []
        self.follower = Follower(self.log, self.replay, control_ports(), B, receive=self.receive)

    def replay(self, rows: Sequence[Stored]) -> None:
        self.replayed += rows

    async def receive(self, pieces: AsyncIterator[bytes]) -> ReceivedBackup:
        self.pieces += [piece async for piece in pieces]
        raise PeerDown("enough was seen")

    async def follow(self, link: GrpcPeerLink) -> None:
        await self.follower.follow(link, lambda said: None, cluster_id=CLUSTER if self.replayed else "")


def offer(position: int = 0, **changed: object) -> Offer:
    proper = {"member": B, "cluster_id": CLUSTER, "position": position, "ends": ((1, position),) if position else ()}
    return Offer(**{**proper, **changed})  # type: ignore[arg-type]  # by field


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)


async def test_a_follower_has_what_was_written_before_and_what_is_written_now(tmp_path: Path) -> None:
    async with active(tmp_path) as peer:
        await peer.write(2_500)
        standby = Standby(tmp_path / "b")
        await standby.log.open()
        following = asyncio.create_task(standby.follow(peer.link()))
        await until(lambda: peer.in_sync == [B])
        for _ in range(20):
            await peer.write(3)
            assert standby.follower.position == peer.end or len(standby.replayed) <= peer.end
        await until(lambda: len(standby.replayed) == peer.end)
        assert [row.record for row in standby.replayed] == records(1, peer.end)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert await standby.log.ends() == [(1, peer.end)]
        await standby.log.close()


async def test_an_acknowledgement_means_that_the_followers_disk_has_it(tmp_path: Path) -> None:
    async with active(tmp_path) as peer:
        standby = Standby(tmp_path / "b")
        await standby.log.open()
        following = asyncio.create_task(standby.follow(peer.link()))
        await until(lambda: peer.in_sync == [B])
        for _ in range(10):
            await peer.write(2)
            assert await standby.log.ends() == [(1, peer.end)]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await standby.log.close()


async def test_large_records_come_one_to_a_message(tmp_path: Path) -> None:
    async with active(tmp_path) as peer:
        large = [bytes([at]) * (3 << 20) for at in range(8)] + [b"x" * (48 << 20)]
        peer.replication.ship(Epoch(1), Position(0), large)
        await peer.log.append(Epoch(1), Position(0), large)
        async with peer.link().follow(offer(cluster_id="")) as following:
            frames = following.frames()
            assert isinstance(await anext(frames), Welcome)
            for record in large:
                frame = await anext(frames)
                assert isinstance(frame, Records)
                assert list(frame.records) == [record]


async def test_a_backup_comes_in_pieces(tmp_path: Path) -> None:
    async with active(tmp_path) as peer:
        standby = Standby(tmp_path / "b")
        await standby.log.open()
        standby.follower._needs_backup = True
        with pytest.raises(PeerDown, match="enough"):
            await standby.follow(peer.link())
        assert standby.pieces == [b"a backup"]
        await standby.log.close()


async def test_a_follower_that_does_not_read_makes_nobody_wait(tmp_path: Path) -> None:
    """K4: what it doesn't read is bounded by gRPC's window, and the active's memory doesn't grow with it."""
    async with active(tmp_path) as peer, peer.link().follow(offer(cluster_id="")) as following:
        frames = following.frames()
        assert isinstance(await anext(frames), Welcome)
        batch = [b"x" * 10_000] * 100
        for at in range(0, 4_000, 100):
            peer.replication.ship(Epoch(1), Position(at), batch)
            await peer.log.append(Epoch(1), Position(at), batch)
        assert peer.replication.ring.begin > 2_000
        seen = 0
        while seen < 4_000:
            frame = await anext(frames)
            assert isinstance(frame, Records)
            assert frame.position == seen
            seen += len(frame.records)


async def test_peers_tell_each_other_how_they_are(tmp_path: Path) -> None:
    async with active(tmp_path) as peer:
        me = PeerState(member=B, role=ControlRole.STANDBY, epoch=Epoch(1), position=Position(7))
        link = peer.link()
        answer = await link.ping(me)
        assert (answer.member, answer.role) == (A, ControlRole.ACTIVE)
        assert peer.heard == [me]
        await link.close()


@pytest.mark.parametrize(
    ("me", "what"), [(A, "this control plane itself"), (Member("a", "another-folder"), "called a as well")]
)
async def test_who_has_our_own_name_is_no_peer_and_it_is_said(tmp_path: Path, me: Member, what: str) -> None:
    async with active(tmp_path) as peer:
        link = peer.link()
        with pytest.raises(PeerRefused, match=f"{what}; let failover.peers name the others"):
            await link.ping(PeerState(member=me, role=ControlRole.STANDBY, epoch=Epoch(1), position=Position(7)))
        await link.close()


@pytest.mark.parametrize("shown", [(), ("wrong",), (SECRET[:-1],), (SECRET + "x",), (SECRET, SECRET), ("",)])
@pytest.mark.parametrize("method", ["Ping", "Follow"])
async def test_without_the_secret_nobody_is_heard_or_told_anything(
    tmp_path: Path, shown: tuple[str, ...], method: str
) -> None:
    async with active(tmp_path) as peer, aio.insecure_channel(peer.address) as channel:
        stub = ReplicationServiceStub(channel)
        metadata = aio.Metadata(*((SECRET_KEY, text) for text in shown))

        async def ask() -> None:
            if method == "Ping":
                await stub.Ping(pb.PeerState(), metadata=metadata, timeout=PATIENCE_S)
            else:
                await stub.Follow(metadata=metadata, timeout=PATIENCE_S).read()

        with pytest.raises(aio.AioRpcError) as fault:
            await ask()
        assert fault.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert code_of(fault.value) == "peer_secret_wrong"
        assert "failover.marker" in str(fault.value.details())
        assert peer.heard == []


async def test_while_our_own_secret_is_not_known_nobody_is_let_in(tmp_path: Path) -> None:
    async with active(tmp_path) as peer:
        peer.secret = ""
        me = PeerState(member=B, role=ControlRole.STANDBY, epoch=Epoch(1), position=Position(7))
        with pytest.raises(PeerRefused, match="can't be read"):
            await peer.link().ping(me)
        with pytest.raises(PeerRefused, match="can't be read"):
            await peer.link(secret="").ping(me)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param(offer(3, cluster_id="another"), "another", id="another cluster"),
        pytest.param(offer(3, format=FORMAT - 1), "bring the standby to this version first", id="an older format"),
        pytest.param(offer(3, member=Member("a", "x")), "give each its own `failover.name`", id="the same name"),
    ],
)
async def test_who_cannot_follow_is_told_why_and_what_to_do(tmp_path: Path, asked: Offer, words: str) -> None:
    async with active(tmp_path) as peer:
        with pytest.raises(PeerRefused, match=words):
            async with peer.link().follow(asked) as following:
                await anext(following.frames())


async def test_a_standby_feeds_nobody(tmp_path: Path) -> None:
    async with active(tmp_path, lead=False) as peer:
        with pytest.raises(PeerRefused, match="it isn't active"):
            async with peer.link().follow(offer()) as following:
                await anext(following.frames())


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(pb.FollowerMessage(), id="nothing"),
        pytest.param(pb.FollowerMessage(have=pb.Confirmation(position=3)), id="a confirmation first"),
        pytest.param(pb.FollowerMessage(offer=pb.FollowOffer(position=-3)), id="nonsense"),
        pytest.param(None, id="the end"),
    ],
)
async def test_a_message_that_cannot_be_understood_ends_its_stream_only(
    tmp_path: Path, message: pb.FollowerMessage | None
) -> None:
    async with active(tmp_path) as peer, aio.insecure_channel(peer.address) as channel:
        call = ReplicationServiceStub(channel).Follow(metadata=aio.Metadata((SECRET_KEY, SECRET)), timeout=PATIENCE_S)
        if message is not None:
            await call.write(message)
        await call.done_writing()
        with pytest.raises(aio.AioRpcError) as fault:
            await call.read()
        assert code_of(fault.value) == "malformed_message"
        async with peer.link().follow(offer(cluster_id="")) as following:
            assert isinstance(await anext(following.frames()), Welcome)


async def test_who_confirms_what_was_never_sent_is_refused(tmp_path: Path) -> None:
    async with active(tmp_path) as peer, peer.link().follow(offer(cluster_id="")) as following:
        await following.confirm(Position(99))
        with pytest.raises(PeerRefused, match="was sent records up to 0"):
            await _to_the_end(following)


async def test_nobody_there_and_a_server_that_says_nothing_are_down_within_their_time(tmp_path: Path) -> None:
    me = PeerState(member=B, role=ControlRole.STANDBY, epoch=Epoch(1), position=Position(7))
    with pytest.raises(PeerDown):
        await GrpcPeerLink("127.0.0.1:1", lambda: SECRET, within_s=0.5).ping(me)

    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        link = GrpcPeerLink(f"127.0.0.1:{port}", lambda: SECRET, within_s=0.3)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(PeerDown):
                await link.ping(me)
            await link.close()
            await closed.wait()


async def test_a_control_plane_without_peers_is_told_as_such(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path) as stage:
        me = PeerState(member=B, role=ControlRole.STANDBY, epoch=Epoch(1), position=Position(7))
        with pytest.raises(PeerRefused, match=r"failover\.enabled"):
            await GrpcPeerLink(f"127.0.0.1:{stage.port}", lambda: SECRET, within_s=2.0).ping(me)


async def test_reflection_shows_the_service_where_it_is(tmp_path: Path) -> None:
    async with active(tmp_path) as peer, aio.insecure_channel(peer.address) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        names = [service.name for service in answer.list_services_response.service]
        assert "stoker.v1.ReplicationService" in names
        call.cancel()


async def test_a_stream_that_the_active_ends_says_why(tmp_path: Path) -> None:
    async with active(tmp_path) as peer, peer.link().follow(offer(cluster_id="")) as following:
        await anext(following.frames())
        peer.replication.stop("it has stepped down")
        with pytest.raises(PeerRefused, match="it has stepped down"):
            await _to_the_end(following)


async def _to_the_end(following: Following) -> None:
    async for _ in following.frames():
        pass
