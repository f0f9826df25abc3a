"""The doctor, and `stoker control status`, of two real control planes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.real.forks import ran_text
from tests.real.pair_process import Pair

pytestmark = pytest.mark.timeout(120)


def stoker(pair: Pair, *words: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, **pair.environ}
    return ran_text([sys.executable, "-m", "stoker", *words], env=environ)


def of_pair(pair: Pair) -> list[dict[str, Any]]:
    found = json.loads(stoker(pair, "doctor", "-o", "json").stdout)["findings"]
    return [each for each in found if each["check"] == "pair"]


def test_a_pair_is_looked_at_as_a_whole_and_a_half_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        pair.start()
        active, standby = pair.active, pair.standby
        (fine,) = of_pair(pair)
        assert fine["level"] == "ok", fine
        assert fine["what"].startswith(f"{active.name} ({active.url}) is active")
        shown = json.loads(stoker(pair, "control", "status", "-o", "json").stdout)
        assert [(each["server"], each["name"]) for each in shown] == [(half.url, half.name) for half in pair.halves]
        standby.kill()
        told = of_pair(pair)
        assert (told[0]["level"], standby.url in told[0]["what"]) == ("error", True), told
        standby.write({**pair.settings_of(standby), "policy": {"retries_max": 7}, "quota": {"online_percent": 0.5}})
        standby.start()
        pair.until_whole()
        (differ,) = (each for each in of_pair(pair) if each["level"] == "warning")
        assert "policy.retries_max is 7 here and 100 in force" in differ["what"]
        assert "quota is 50 % online, 50 % batch here and 70 % online, 30 % batch in" in differ["what"]
