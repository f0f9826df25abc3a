"""Two control planes on one PostgreSQL that were given one name by mistake."""

from pathlib import Path

import pytest

from tests.real.pair_process import Pair, until
from tests.real.postgres import programs, server

pytestmark = pytest.mark.timeout(120)

WORDS = "another control plane has the name a too: give each its own failover.name"


def test_the_standby_of_two_with_one_name_says_so_and_leads_only_once_the_other_one_is_gone(tmp_path: Path) -> None:
    if programs() is None:
        pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql)")
    with server() as database, Pair(tmp_path / "pair", store=database.database("stoker")) as pair:
        pair.b.name = "a"
        pair.start()
        active, standby = pair.active, pair.standby
        until(lambda: standby.standing().get("why") == WORDS, pair.story)
        until(lambda: "name_taken" in standby.output(), pair.story)
        assert standby.output().count("name_taken") == 1
        assert "name_taken" not in active.output()
        status, refusal = standby.ask("POST", "/api/v1/control/promote")
        assert (status, refusal["code"], WORDS in refusal["message"]) == (409, "promotion_refused", True)
        active.kill()
        pair.until_active(standby)
