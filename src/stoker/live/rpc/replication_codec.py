"""Codec between the messages of control planes and protobuf.

It stands here and not in `wire`, for only control planes speak so, and the nouns are theirs (`live.failover.links`).

Rules: R1  what was encoded decodes to the same value
       R2  decoding never yields half a value: a field that is missing or makes no sense raises Malformed
       R3  a kind of message that a newer neighbour invented decodes to None, and the reader skips it
"""

from typing import Final, assert_never

from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import Member
from stoker.brain.failover.inputs import ControlRole, PeerState
from stoker.live.failover.links import BackupPiece, Frame, Offer, Records, Welcome
from stoker.ports import EPOCHS_MAX
from stoker.wire.agent_codec import Malformed
from stoker.wire.gen import replication_pb2 as pb

TEXT_MAX: Final = 256
"""Of a name or an id."""


def encode_state(said: PeerState) -> pb.PeerState:
    return pb.PeerState(
        member=_encode_member(said.member), role=said.role.value, epoch=said.epoch, position=said.position
    )


def decode_state(wire: pb.PeerState) -> PeerState:
    return PeerState(
        member=_decode_member(wire.member),
        role=_role(wire.role),
        epoch=_epoch(wire.epoch),
        position=_position(wire.position),
    )


def encode_offer(offer: Offer) -> pb.FollowerMessage:
    wire = pb.FollowOffer(
        member=_encode_member(offer.member),
        cluster_id=offer.cluster_id,
        position=offer.position,
        ends=[pb.EpochEnd(epoch=epoch, position=position) for epoch, position in offer.ends],
        anew=offer.wants_backup,
        format=offer.format,
    )
    return pb.FollowerMessage(offer=wire)


def decode_offer(message: pb.FollowerMessage) -> Offer:
    if message.WhichOneof("message") != "offer":
        raise Malformed("a follower must begin with an offer")
    wire = message.offer
    if len(wire.ends) > EPOCHS_MAX:
        raise Malformed(f"an offer names {len(wire.ends)} epochs, and {EPOCHS_MAX} are allowed")
    return Offer(
        member=_decode_member(wire.member),
        cluster_id=_text("cluster_id", wire.cluster_id),
        position=_position(wire.position),
        ends=tuple((_epoch(end.epoch), _position(end.position)) for end in wire.ends),
        wants_backup=wire.anew,
        format=wire.format,
    )


def encode_confirmation(position: Position) -> pb.FollowerMessage:
    return pb.FollowerMessage(have=pb.Confirmation(position=position))


def decode_confirmation(message: pb.FollowerMessage) -> Position | None:
    """Return the position that a follower confirms; None = the message is of a newer kind (R3). Raises: Malformed."""
    kind = message.WhichOneof("message")
    if kind == "offer":
        raise Malformed("a second offer on one stream")
    return _position(message.have.position) if kind == "have" else None


def encode_frame(frame: Frame) -> pb.LeaderMessage:
    match frame:
        case Welcome():
            welcome = pb.Welcome(
                leader=_encode_member(frame.leader),
                epoch=frame.epoch,
                position=frame.position,
                anew=frame.backup_follows,
            )
            return pb.LeaderMessage(welcome=welcome)
        case BackupPiece():
            return pb.LeaderMessage(piece=pb.BackupPiece(data=frame.data))
        case Records():
            records = pb.Records(
                leader=frame.leader_epoch,
                epoch=frame.epoch,
                position=frame.position,
                records=frame.records,
                acknowledged=frame.acknowledged,
            )
            return pb.LeaderMessage(records=records)
        case _:
            assert_never(frame)


def decode_frame(message: pb.LeaderMessage) -> Frame | None:
    """Return the frame of a message of the active; None = it is of a newer kind (R3). Raises: Malformed."""
    match message.WhichOneof("message"):
        case "welcome":
            wire = message.welcome
            return Welcome(
                leader=_decode_member(wire.leader),
                epoch=_epoch(wire.epoch),
                position=_position(wire.position),
                backup_follows=wire.anew,
            )
        case "piece":
            return BackupPiece(message.piece.data)
        case "records":
            return _decode_records(message.records)
        case _:
            return None


def _decode_records(wire: pb.Records) -> Records:
    if wire.epoch > wire.leader:
        raise Malformed(f"records of epoch {wire.epoch} from who leads under epoch {wire.leader}")
    return Records(
        leader_epoch=_epoch(wire.leader),
        epoch=_epoch(wire.epoch),
        position=_position(wire.position),
        records=tuple(wire.records),
        acknowledged=_position(wire.acknowledged),
    )


def _encode_member(member: Member) -> pb.Member:
    return pb.Member(name=member.name, uid=member.uid)


def _decode_member(wire: pb.Member) -> Member:
    name, uid = _text("member.name", wire.name), _text("member.uid", wire.uid)
    if not name or not uid:
        raise Malformed("a control plane without a name or without the id of its data folder")
    return Member(name, uid)


def _text(field: str, text: str) -> str:
    if len(text) > TEXT_MAX:
        raise Malformed(f"`{field}` has {len(text)} characters, and {TEXT_MAX} are allowed")
    return text


def _role(word: str) -> ControlRole:
    try:
        return ControlRole(word)
    except ValueError:
        raise Malformed(f"no control plane has the role {word[:TEXT_MAX]!r}") from None


def _epoch(number: int) -> Epoch:
    if number < 0:
        raise Malformed(f"no epoch has the number {number}")
    return Epoch(number)


def _position(number: int) -> Position:
    if number < 0:
        raise Malformed(f"no record stands at {number}")
    return Position(number)
