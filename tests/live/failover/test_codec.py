"""How what passes between control planes looks in protobuf: rules R1 to R3 of `live.rpc.replication_codec`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover.inputs import ControlRole, PeerState
from stoker.live.failover.links import BackupPiece, Frame, Offer, Records, Welcome
from stoker.live.rpc import replication_codec as codec
from stoker.ports import EPOCHS_MAX
from stoker.wire.agent_codec import Malformed
from stoker.wire.gen import replication_pb2 as pb

numbers = st.integers(0, 2**62)
epochs, positions = numbers.map(Epoch), numbers.map(Position)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
members = st.builds(Member, name=words, uid=words)
said = st.builds(PeerState, member=members, role=st.sampled_from(ControlRole), epoch=epochs, position=positions)
offers = st.builds(
    Offer,
    member=members,
    cluster_id=words | st.just(""),
    position=positions,
    ends=st.lists(st.tuples(epochs, positions), max_size=4).map(tuple),
    wants_backup=st.booleans(),
    format=st.integers(0, 1_000),
)
rows = st.builds(
    lambda pair, position, records, acknowledged: Records(
        leader_epoch=max(pair), epoch=min(pair), position=position, records=records, acknowledged=acknowledged
    ),
    st.tuples(epochs, epochs),
    positions,
    st.lists(st.binary(max_size=50), max_size=5).map(tuple),
    positions,
)
frames = (
    rows
    | st.builds(BackupPiece, st.binary(max_size=50))
    | st.builds(Welcome, leader=members, epoch=epochs, position=positions, backup_follows=st.booleans())
)
MEMBER = pb.Member(name="b", uid="u")


@given(said)
def test_a_state_comes_back_as_it_was(what: PeerState) -> None:
    assert codec.decode_state(pb.PeerState.FromString(codec.encode_state(what).SerializeToString())) == what


@given(offers)
def test_an_offer_comes_back_as_it_was(offer: Offer) -> None:
    wire = codec.encode_offer(offer).SerializeToString()
    assert codec.decode_offer(pb.FollowerMessage.FromString(wire)) == offer


@given(frames)
def test_a_frame_comes_back_as_it_was(frame: Frame) -> None:
    wire = codec.encode_frame(frame).SerializeToString()
    assert codec.decode_frame(pb.LeaderMessage.FromString(wire)) == frame


@given(positions)
def test_a_confirmation_comes_back_as_it_was(position: Position) -> None:
    assert codec.decode_confirmation(codec.encode_confirmation(position)) == position


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(pb.PeerState(role="active"), id="nobody"),
        pytest.param(pb.PeerState(member=pb.Member(name="b"), role="active"), id="no data folder"),
        pytest.param(pb.PeerState(member=pb.Member(name="b" * 300, uid="u"), role="active"), id="a long name"),
        pytest.param(pb.PeerState(member=MEMBER, role="king"), id="another role"),
        pytest.param(pb.PeerState(member=MEMBER, role="active", epoch=-1), id="an epoch below zero"),
        pytest.param(pb.PeerState(member=MEMBER, role="active", position=-1), id="a position below zero"),
    ],
)
def test_a_state_that_makes_no_sense_is_refused(wire: pb.PeerState) -> None:
    with pytest.raises(Malformed):
        codec.decode_state(wire)


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(pb.FollowerMessage(), id="nothing"),
        pytest.param(pb.FollowerMessage(have=pb.Confirmation(position=1)), id="a confirmation first"),
        pytest.param(pb.FollowerMessage(offer=pb.FollowOffer()), id="an offer of nobody"),
        pytest.param(
            pb.FollowerMessage(offer=pb.FollowOffer(member=MEMBER, ends=[pb.EpochEnd(epoch=-1)])), id="a bad epoch"
        ),
        pytest.param(
            pb.FollowerMessage(offer=pb.FollowOffer(member=MEMBER, ends=[pb.EpochEnd()] * (EPOCHS_MAX + 1))),
            id="too many epochs",
        ),
        pytest.param(pb.FollowerMessage(offer=pb.FollowOffer(member=MEMBER, position=-1)), id="before the first"),
    ],
)
def test_an_offer_that_makes_no_sense_is_refused(wire: pb.FollowerMessage) -> None:
    with pytest.raises(Malformed):
        codec.decode_offer(wire)


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(pb.LeaderMessage(welcome=pb.Welcome(epoch=1)), id="a welcome of nobody"),
        pytest.param(pb.LeaderMessage(records=pb.Records(leader=1, epoch=2)), id="records of a later epoch"),
        pytest.param(pb.LeaderMessage(records=pb.Records(position=-1)), id="before the first"),
        pytest.param(pb.LeaderMessage(records=pb.Records(acknowledged=-1)), id="acknowledged before the first"),
    ],
)
def test_a_frame_that_makes_no_sense_is_refused(wire: pb.LeaderMessage) -> None:
    with pytest.raises(Malformed):
        codec.decode_frame(wire)


def test_a_second_offer_is_refused() -> None:
    with pytest.raises(Malformed):
        codec.decode_confirmation(pb.FollowerMessage(offer=pb.FollowOffer(member=MEMBER)))


def test_kinds_of_messages_that_a_newer_neighbour_invented_are_skipped() -> None:
    assert codec.decode_frame(pb.LeaderMessage()) is None
    assert codec.decode_confirmation(pb.FollowerMessage()) is None
