"""The same seed gives the same history in every process, whatever order its sets and dictionaries hash in.

A control plane whose decisions hung on that order couldn't be replayed, and a failing seed couldn't be reproduced.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SIMULATE = """
from tests.rig.run import simulate

print(simulate(0))
print(simulate(1_001, forgetting=True))
"""


def _histories(hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", _SIMULATE], env=env, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "a run leaves nothing pending"
    return done.stdout


@pytest.mark.timeout(250)
def test_two_hash_seeds_give_the_same_histories() -> None:
    assert _histories("1") == _histories("31337") != ""
