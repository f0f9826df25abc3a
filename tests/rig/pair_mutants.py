"""Promises broken on purpose: each of these is real code made wrong, and `tests.rig` must notice.

`FOUND` says which promise notices. What only a rare order of things shows has the faults beside it that bring it about:
a search through histories of these alone finds it soon, however much the histories of all kinds have changed.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from stoker.agent.daemon import Daemon
from stoker.agent.ports import LinkSession
from stoker.brain.domain.ids import Epoch, Position
from stoker.brain.domain.lease_record import LeaseRecord
from stoker.brain.domain.units import Mono
from stoker.brain.failover import machine, takeover_eligibility
from stoker.brain.failover.inputs import ControlRole, LeaseRecordWritten, LogState
from stoker.brain.failover.lease_record_client import LeaseRecordClient
from stoker.brain.failover.machine import Machine
from stoker.brain.failover.membership import Membership, Peers
from stoker.brain.failover.timing import Timing
from stoker.brain.state import leases
from stoker.control.committer import Committer
from stoker.live.failover import sender
from stoker.live.failover.backend import SharedBackend
from stoker.live.failover.follower import Follower
from stoker.live.failover.replication import Replication, Stage, Standby
from stoker.live.liveness import Liveness
from stoker.ports import ReplicaLog, Stored
from tests.rig import pair_faults
from tests.rig.pair_faults import Fault
from tests.rig.planted import Bugs
from tests.rig.sim_log import SimLog
from tests.rig.test_the_rig_bites import (
    an_end_is_sent_once_and_then_forgotten,
    gpus_are_free_once_the_leader_has_exited,
)

Patch = Bugs


# --- acknowledgements ---------------------------------------------------------------------------------------------


def answers_do_not_wait_for_the_disk(patch: Patch) -> None:
    async def settled(committer: Committer) -> None:
        committer._work.set()

    patch.setattr(Committer, "settled", settled)


def answers_do_not_wait_for_the_others(patch: Patch) -> None:
    async def wait_for(replication: Replication, position: Position) -> None:
        replication.acknowledged = max(replication.acknowledged, position)

    patch.setattr(Replication, "wait_for", wait_for)


def a_late_standby_is_left_behind_before_the_marker_says_so(patch: Patch) -> None:
    """Acknowledging alone without leaving the in-sync set."""
    real = Replication._ask

    def ask(replication: Replication, standby: Standby) -> None:
        real(replication, standby)
        if standby.stage is Stage.LEAVING:
            standby.stage = Stage.OUT

    patch.setattr(Replication, "_ask", ask)


def a_standby_confirms_before_its_disk_has_it(patch: Patch) -> None:
    real = Follower._take

    async def take(follower: Follower, rows: Sequence[Stored]) -> None:
        if not isinstance(follower._log, _Hasty):
            follower._log = _Hasty(follower._log)  # type: ignore[assignment]  # a stand-in
        await real(follower, rows)

    patch.setattr(Follower, "_take", take)


class _Hasty:
    """A log that says that it has what it has only begun to write."""

    def __init__(self, log: ReplicaLog) -> None:
        self._log = log
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    async def append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        task = asyncio.get_running_loop().create_task(self._append(epoch, position, records))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _append(self, epoch: Epoch, position: Position, records: Sequence[bytes]) -> None:
        async with self._turn:
            await self._log.append(epoch, position, records)


def the_lease_is_not_looked_at_before_it_speaks(patch: Patch) -> None:
    patch.setattr(Replication, "check_lease", lambda replication: None)
    patch.setattr(SharedBackend, "check_lease", lambda leased: None)


# --- who is active ------------------------------------------------------------------------------------------------


def logs_are_compared_by_their_length_and_not_by_epochs(patch: Patch) -> None:
    def alike(mine: Sequence[tuple[Epoch, Position]], theirs: Sequence[tuple[Epoch, Position]]) -> Position:
        return min(mine[0][1], theirs[0][1])

    patch.setattr(sender, "common_log_end", alike)
    patch.setattr(SimLog, "floor", property(lambda log: Epoch(0)))


def whoever_is_outside_the_set_takes_over_too(patch: Patch) -> None:
    real = takeover_eligibility.takeover_blocker

    def lenient(us: Membership, client: LeaseRecordClient, log: LogState | None, peers: Peers, now: Mono) -> str:
        found = real(us, client, log, peers, now)
        return "" if found.startswith(("not in the", "its log ends")) else found

    patch.setattr(machine, "takeover_blocker", lenient)


def a_lost_put_is_taken_for_won(patch: Patch) -> None:
    real = LeaseRecordClient.was_put

    def was_put(told_to: LeaseRecordClient, told: LeaseRecordWritten, now: Mono) -> bool | None:
        return real(told_to, LeaseRecordWritten(record=told.record, won=True), now)

    patch.setattr(LeaseRecordClient, "was_put", was_put)


def a_lease_is_taken_that_may_still_hold(patch: Patch) -> None:
    patch.setattr(Timing, "expiry_s", property(lambda timing: timing.lease_s / 2))


def a_lease_counts_from_the_answer(patch: Patch) -> None:
    real = LeaseRecordClient._learn

    def learn(told: LeaseRecordClient, marker: LeaseRecord | None, now: Mono) -> None:
        real(told, marker, now)
        told.put_at = now

    patch.setattr(LeaseRecordClient, "_learn", learn)


def an_epoch_is_led_twice(patch: Patch) -> None:
    real = takeover_eligibility.newest_epoch

    def newest(marker: LeaseRecord | None, log: LogState) -> Epoch:
        return Epoch(max(0, real(marker, log) - 1))

    patch.setattr(machine, "newest_epoch", newest)


def what_follows_behind_another_log_is_kept(patch: Patch) -> None:
    """A returning active goes on with its own tail."""

    async def cut(follower: Follower, position: Position, address: str) -> None:
        follower.position = position

    patch.setattr(Follower, "_cut", cut)


def an_active_goes_on_when_its_lease_is_over(patch: Patch) -> None:
    """Every line of defence of control planes at once: its own timer, what it checks, and its replicas."""
    the_lease_is_not_looked_at_before_it_speaks(patch)
    real = Replication.wait_for

    async def wait_for(replication: Replication, position: Position) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await real(replication, position)

    def go_on(one: Machine) -> None:
        one.lease_until = Mono(one.lease_until + 1)

    patch.setattr(Replication, "wait_for", wait_for)
    patch.setattr(Machine, "_lease_ended", go_on)
    patch.setattr(Machine, "holds", lambda one, now: one.role is ControlRole.ACTIVE)


def agents_obey_whoever_lets_them_in(patch: Patch) -> None:
    """Shows only where control planes are broken too (`test_the_rig_bites_pairs`)."""

    async def may_obey(daemon: Daemon, session: LinkSession) -> bool:
        return True

    patch.setattr(Daemon, "_may_obey", may_obey)


# --- attempts -----------------------------------------------------------------------------------------------------


def attempts_are_settled_before_their_lease_is_over(patch: Patch) -> None:
    patch.setattr(leases, "surely_over_ms", lambda lease_ms: lease_ms // 2)


def what_clocks_drift_and_kills_take_is_forgotten(patch: Patch) -> None:
    patch.setattr(leases, "surely_over_ms", lambda lease_ms: lease_ms)


def silence_before_a_take_over_counts(patch: Patch) -> None:
    """As if a standby had listened for ever, and heard nobody."""
    real = Liveness.begin

    def begin(liveness: Liveness) -> None:
        real(liveness)
        liveness._awake_s = 1_000.0
        liveness._heard_s = dict.fromkeys(liveness._committer.state.nodes, 0.0)
        liveness._greeted = dict.fromkeys(liveness._committer.state.nodes)

    patch.setattr(Liveness, "begin", begin)


def a_lease_of_an_attempt_counts_from_the_answer(patch: Patch) -> None:
    async def tell(daemon: Daemon, at: Mono | None) -> None:
        if at is not None:
            await daemon._ports.runner.answered(daemon._ports.clock.mono())

    patch.setattr(Daemon, "_tell_answered", tell)


class Found(NamedTuple):
    mutant: Callable[[Patch], None]
    promise: str
    """What the oracle says then."""
    seed: int = 0
    """To begin with: it noticed when this was written."""
    shared: bool = False
    faults: tuple[Fault, ...] = ()
    """Empty = of all kinds."""


_CUTS: Final = (pair_faults.node_cut,)
FOUND: Final = (
    Found(answers_do_not_wait_for_the_disk, "O1 |O18 |P5 "),
    Found(answers_do_not_wait_for_the_others, "P4 |P3 "),
    Found(a_late_standby_is_left_behind_before_the_marker_says_so, "P4 "),
    Found(a_standby_confirms_before_its_disk_has_it, "P4 "),
    Found(the_lease_is_not_looked_at_before_it_speaks, "P2 "),
    Found(logs_are_compared_by_their_length_and_not_by_epochs, "P[3468] ", 5),
    Found(whoever_is_outside_the_set_takes_over_too, "P3 ", 7),
    Found(a_lost_put_is_taken_for_won, "P1 |P2 ", 4, shared=True),
    Found(a_lease_is_taken_that_may_still_hold, "P1 |P2 ", 2, shared=True),
    Found(a_lease_counts_from_the_answer, "P1 |P2 ", shared=True, faults=(pair_faults.marker_fades_away,)),
    Found(an_epoch_is_led_twice, "P1 |nobody is active"),
    Found(
        what_follows_behind_another_log_is_kept,
        "sync|P6 ",
        faults=(pair_faults.active_stopped_until_it_is_replaced, pair_faults.control_isolated),
    ),
    Found(an_active_goes_on_when_its_lease_is_over, "P1 |P2 "),
    Found(attempts_are_settled_before_their_lease_is_over, "O5 |O4 ", 8, faults=_CUTS),
    Found(what_clocks_drift_and_kills_take_is_forgotten, "O5 |O4 ", 4, faults=_CUTS),
    Found(silence_before_a_take_over_counts, "O5 |O4 ", faults=(*_CUTS, pair_faults.active_killed)),
    Found(a_lease_of_an_attempt_counts_from_the_answer, "O5 |O4 ", 7, faults=(pair_faults.node_fades_away,)),
    Found(gpus_are_free_once_the_leader_has_exited, "O5 "),
    Found(an_end_is_sent_once_and_then_forgotten, "O19 |O8 |O9 ", 22),
)
