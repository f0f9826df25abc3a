"""What becomes of the secret of two real control planes while they run."""

import urllib.request
from pathlib import Path

import pytest

from tests.real.pair_process import Pair, until

pytestmark = pytest.mark.timeout(120)


def test_a_secret_that_others_may_read_is_told_by_both_and_one_that_is_removed_is_put_back(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        pair.start()
        file = pair.marker / "secret"
        text = file.read_text()

        def told() -> list[str]:
            return [half.standing().get("secret", "no answer") for half in pair.halves]

        file.chmod(0o644)
        until(lambda: all("others may read it (mode 0644)" in each for each in told()), pair.story)
        asked = urllib.request.Request(f"{pair.active.url}/metrics", headers={"authorization": f"Bearer {pair.token}"})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            assert b"stoker_peer_secret_ok 0.0" in answer.read()
        file.chmod(0o600)
        until(lambda: told() == ["", ""], pair.story)
        pair.standby.kill()
        file.unlink()
        until(file.exists, pair.story)
        pair.other(pair.active).start()
        pair.until_whole()
        assert (file.read_text(), told()) == (text, ["", ""])
        assert "it was put back" in pair.active.output()
