"""The output that a session keeps, and what may be read of its program."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.runner.session.client import SessionClient
from stoker.agent.runner.session.exec_session import RING_BYTES, ExecSession, OutputRing

pieces = st.lists(
    st.tuples(st.sampled_from([1, 2]), st.one_of(st.binary(min_size=1, max_size=50), st.just(bytes(RING_BYTES // 3)))),
    min_size=1,
    max_size=20,
)


@given(pieces)
def test_the_newest_output_is_kept_in_its_order_with_its_streams(written: list[tuple[int, bytes]]) -> None:
    ring = OutputRing()
    for channel, data in written:
        ring.append(channel, data)
    everything = [(channel, byte) for channel, data in written for byte in data]
    assert ring.end == len(everything)
    assert ring.begin == max(0, len(everything) - RING_BYTES)
    at, read = ring.begin, list[tuple[int, int]]()
    while at < ring.end:
        channel, piece = ring.piece(at)
        assert piece, "there is always something to send before the end"
        read += [(channel, byte) for byte in piece]
        at += len(piece)
    assert read == everything[ring.begin :]


def held(name: str, *, written: int = 0) -> ExecSession:
    session = ExecSession(name, "1.1.0", tty=False, now_s=0.0)
    if written:
        session.ring.append(1, bytes(written))
    return session


def client() -> "SessionClient":
    return object()  # type: ignore[return-value]  # nothing is asked of it here


def test_x1_x2_a_program_waits_once_a_window_is_under_way_whether_or_not_a_client_is_there() -> None:
    session = held("x1", written=RING_BYTES)
    assert session.room == 0
    session.attach(client(), -1)
    assert session.room == 0
    session.sent = session.ring.end
    session.acknowledge(1_000, 5.0)
    assert (session.room, session.acked) == (1_000, 1_000)
    session.acknowledge(1 << 40, 5.0)
    assert session.acked == session.ring.end, "no more is acknowledged than was sent"
    session.detach(6.0)
    assert session.gone_s == 6.0


def test_x3_a_tasks_own_terminal_is_read_on_while_nobody_is_there() -> None:
    session = held("main", written=RING_BYTES)
    assert session.room == RING_BYTES
    session.ring.append(1, b"more")
    session.attach(client(), -1)
    assert (session.sent, session.room) == (4, 0)


def test_x2_who_comes_back_gets_what_follows_what_it_has_had_as_far_as_it_is_kept() -> None:
    session = held("x1", written=500)
    for at, begins in ((-1, 0), (0, 0), (200, 200), (500, 500), (9_999, 500)):
        session.attach(client(), at)
        assert (session.sent, session.acked) == (begins, begins)
