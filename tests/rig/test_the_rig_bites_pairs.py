"""Would the rig notice if two control planes broke a promise? Bugs of `pair_mutants` are put in, and seeds replayed.

`python -m tests.rig.soak --mutant NAME --kind pair` looks for seeds that show one.
"""

import pytest

from tests.rig.pair_mutants import FOUND, Found
from tests.rig.pair_run import simulate_pair

SEEDS: dict[str, int] = {
    "answers_do_not_wait_for_the_disk": 0,
    "answers_do_not_wait_for_the_others": 0,
    "a_late_standby_is_left_behind_before_the_marker_says_so": 2,
    "a_standby_confirms_before_its_disk_has_it": 0,
    "the_lease_is_not_looked_at_before_it_speaks": 0,
    "logs_are_compared_by_their_length_and_not_by_epochs": 9,
    "whoever_is_outside_the_set_takes_over_too": 7,
    "a_lease_is_taken_that_may_still_hold": 41,
    "an_epoch_is_led_twice": 0,
    "what_follows_behind_another_log_is_kept": 0,
    "attempts_are_settled_before_their_lease_is_over": 6,
    "gpus_are_free_once_the_leader_has_exited": 0,
}
"""The seed that caught each. Those of the rest aren't known yet."""
KNOWN = [found for found in FOUND if found.mutant.__name__ in SEEDS]


@pytest.mark.parametrize("found", KNOWN, ids=lambda found: found.mutant.__name__)
def test_it_is_noticed_when(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    found.mutant(monkeypatch)
    first = SEEDS[found.mutant.__name__]
    with pytest.raises(AssertionError, match=found.promise):
        simulate_pair(first, shared=found.shared)


def test_there_are_enough_of_them() -> None:
    assert len(KNOWN) >= 10
