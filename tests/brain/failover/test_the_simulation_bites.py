"""A rule of the machine broken on purpose is noticed: each mutant of the real code is caught by a few seeds.

The name of a mutant says what is broken; beside it stands the promise of `sim_world.Oracle` that notices.
"""

import dataclasses
from collections.abc import Callable
from typing import Final

import pytest
from msgspec.structs import replace

from stoker.brain.domain.ids import Epoch
from stoker.brain.domain.lease_record import Member
from stoker.brain.domain.units import Mono
from stoker.brain.failover import machine as machine_file
from stoker.brain.failover import takeover_eligibility as obstacle_file
from stoker.brain.failover.effects import InSyncChanged
from stoker.brain.failover.inputs import ControlRole, Input, LeaseRecordFailed, LeaseRecordRead, LeaseRecordWritten
from stoker.brain.failover.lease_record_client import NEVER, LeaseRecordClient
from stoker.brain.failover.machine import GivingBack, Machine, Phase
from stoker.brain.failover.membership import InSync
from stoker.brain.failover.timing import DEFAULT
from tests.brain.failover.sim_cluster import Setting
from tests.brain.failover.sim_run import simulate

SEEDS_MAX: Final = 400
ALL: Final = Setting(seed=0)
LAPSES: Final = Setting(
    seed=0, faults=6, kinds=("maroon", "pause"), hop_max=0.01, timing=replace(DEFAULT, look_s=0.1, silence_s=0.0)
)
"""The marker alone decides, everybody is quick to see it, and leases are used to their end."""
DRIFT: Final = dataclasses.replace(LAPSES, timing=replace(LAPSES.timing, drift=0.2))
Patch = pytest.MonkeyPatch


def it_takes_over_without_waiting_for_the_lease_to_end(patch: Patch) -> None:
    patch.setattr(LeaseRecordClient, "lease_expired", property(lambda client: client.fresh))


def it_waits_for_the_lease_but_not_for_the_drift_of_clocks(patch: Patch) -> None:
    patch.setattr(
        LeaseRecordClient,
        "lease_expired",
        property(lambda client: client.asked_at >= client.first_seen_at + client._timing.lease_s),
    )


def it_counts_a_lease_from_the_answer(patch: Patch) -> None:
    real = LeaseRecordClient.was_put

    def was_put(client: LeaseRecordClient, told: LeaseRecordWritten, now: Mono) -> bool | None:
        client.put_at = now
        return real(client, told, now)

    patch.setattr(LeaseRecordClient, "was_put", was_put)


def it_counts_a_lease_from_when_it_learnt_of_it(patch: Patch) -> None:
    real = LeaseRecordClient.seen

    def seen(client: LeaseRecordClient, told: LeaseRecordRead, now: Mono) -> bool | None:
        outcome = real(client, told, now)
        if outcome is not None:
            client.put_at = now
        return outcome

    patch.setattr(LeaseRecordClient, "seen", seen)


def it_steps_down_late(patch: Patch) -> None:
    real = Machine._won

    def won(machine: Machine, now: Mono) -> None:
        machine.client.put_at = Mono(machine.client.put_at + 0.5)
        real(machine, now)

    patch.setattr(Machine, "_won", won)


def a_lost_write_counts_as_won(patch: Patch) -> None:
    real = LeaseRecordClient.was_put
    patch.setattr(LeaseRecordClient, "was_put", lambda client, told, now: real(client, replace(told, won=True), now))


def a_write_of_unknown_outcome_counts_as_won(patch: Patch) -> None:
    real = Machine._hear

    def hear(machine: Machine, told: Input, now: Mono) -> None:
        put = machine.client.put
        if isinstance(told, LeaseRecordFailed) and put is not None:
            told = LeaseRecordWritten(record=put, won=True)
        real(machine, told, now)

    patch.setattr(Machine, "_hear", hear)


def it_leads_without_its_log_having_promised(patch: Patch) -> None:
    real = Machine._promise

    def promise(machine: Machine, by: int, *, forced: bool) -> None:
        real(machine, by, forced=forced)
        machine._phase = Phase.CLAIMING

    patch.setattr(Machine, "_promise", promise)


def it_leads_under_the_epoch_of_the_one_before(patch: Patch) -> None:
    real = obstacle_file.newest_epoch
    patch.setattr(machine_file, "newest_epoch", lambda marker, log: Epoch(max(0, real(marker, log) - 1)))


def who_is_not_in_the_set_takes_over(patch: Patch) -> None:
    real = obstacle_file.takeover_blocker

    def obstacle(*told: object) -> str:
        said = real(*told)  # type: ignore[arg-type]  # what it was given
        return "" if said == "not in the in-sync set" else said

    patch.setattr(machine_file, "takeover_blocker", obstacle)


def whoever_takes_over_leaves_the_set_as_it_was(patch: Patch) -> None:
    real = Machine._write

    def write(machine: Machine, holder: Member | None, in_sync: tuple[Member, ...], now: Mono) -> None:
        before = machine._before
        if machine._phase is Phase.CLAIMING and before is not None:
            in_sync = tuple(sorted({*before.in_sync, machine.me}))
        real(machine, holder, in_sync, now)

    patch.setattr(Machine, "_write", write)


def acknowledgements_go_on_before_the_marker_leaves_a_member_out(patch: Patch) -> None:
    patch.setattr(InSync, "waits_for", lambda in_sync, put: in_sync.wanted)


def a_member_that_may_be_in_the_marker_already_is_not_waited_for(patch: Patch) -> None:
    patch.setattr(InSync, "waits_for", lambda in_sync, put: tuple(sorted({*in_sync._named, *in_sync.wanted})))


def a_member_is_put_into_the_marker_before_anybody_waits_for_it(patch: Patch) -> None:
    real = Machine._caught_up

    def caught_up(machine: Machine, member: Member) -> None:
        real(machine, member)
        machine._effects.append(InSyncChanged(machine._in_sync._named))

    patch.setattr(Machine, "_caught_up", caught_up)


def it_acts_on_while_it_gives_the_lease_back(patch: Patch) -> None:
    patch.setattr(
        Machine, "holds", lambda machine, now: machine.role is ControlRole.ACTIVE and now < machine.lease_until
    )


def it_gives_the_lease_back_to_whoever_once_followed(patch: Patch) -> None:
    real = Machine._give_back

    def leave(machine: Machine, code: str, why: str, to: tuple[Member, ...]) -> None:
        real(machine, code, why, to)
        before = machine._before.in_sync if machine._before else ()
        machine._giving_back = GivingBack(code, why, tuple(sorted({*to, *before})))

    patch.setattr(Machine, "_give_back", leave)


def a_promise_that_came_to_nothing_is_kept(patch: Patch) -> None:
    """Then it refuses what the active sends, for ever."""
    real = Machine._follow

    def follow(machine: Machine) -> None:
        if machine._promised == 0:
            real(machine)

    patch.setattr(Machine, "_follow", follow)


def a_write_that_failed_is_never_asked_about(patch: Patch) -> None:
    patch.setattr(LeaseRecordClient, "resolve_due", property(lambda client: NEVER))


MUTANTS: Final = (
    (it_takes_over_without_waiting_for_the_lease_to_end, "P1 ", ALL),
    (it_waits_for_the_lease_but_not_for_the_drift_of_clocks, "P1 ", DRIFT),
    (it_counts_a_lease_from_the_answer, "P1 ", LAPSES),
    (it_counts_a_lease_from_when_it_learnt_of_it, "P1 ", LAPSES),
    (it_steps_down_late, "P1 ", LAPSES),
    (it_acts_on_while_it_gives_the_lease_back, "P1 ", ALL),
    (a_lost_write_counts_as_won, "P[124] ", ALL),
    (a_write_of_unknown_outcome_counts_as_won, "P[124] ", ALL),
    (it_leads_under_the_epoch_of_the_one_before, "P2 ", ALL),
    (it_leads_without_its_log_having_promised, "P3 ", ALL),
    (who_is_not_in_the_set_takes_over, "P4 ", ALL),
    (whoever_takes_over_leaves_the_set_as_it_was, "P4 ", ALL),
    (acknowledgements_go_on_before_the_marker_leaves_a_member_out, "P4 ", ALL),
    (a_member_that_may_be_in_the_marker_already_is_not_waited_for, "P4 ", ALL),
    (a_member_is_put_into_the_marker_before_anybody_waits_for_it, "P4 ", ALL),
    (it_gives_the_lease_back_to_whoever_once_followed, "P4 ", ALL),
    (a_promise_that_came_to_nothing_is_kept, "P7 ", ALL),
    (a_write_that_failed_is_never_asked_about, "P7 ", ALL),
)


@pytest.mark.parametrize(
    ("mutant", "promise", "setting"), MUTANTS, ids=[mutant.__name__ for mutant, _promise, _setting in MUTANTS]
)
def test_it_is_noticed_when(
    mutant: Callable[[Patch], None], promise: str, setting: Setting, monkeypatch: Patch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError, match=f"^{promise}"):
        _simulate_all(setting)


def _simulate_all(setting: Setting) -> None:
    for seed in range(SEEDS_MAX):
        simulate(dataclasses.replace(setting, seed=seed))
