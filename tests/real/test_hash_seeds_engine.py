"""The same view gives the same plan in every process and Python, whatever order its sets and dictionaries hash in.

A set of node names that is iterated, or a `max` with equal keys over one, gives another plan in another process; two
control planes replaying one log would then disagree.

Other versions of Python are those that are found as `python3.12` and the like and have msgspec, or that OTHER_PYTHONS
names, separated by colons:

    OTHER_PYTHONS=/tmp/venv3.12/bin/python python -m pytest tests/real/test_hash_seeds_engine.py
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

VERSIONS: Final = ("3.11", "3.12", "3.13")
_ROOT = Path(__file__).parents[2]
_DECIDE = """
import hashlib, random
import msgspec
from stoker.brain.domain.where import ANYWHERE, make_where
from tests.builders import A100, H100, V100, cluster, job, node
from tests.scenarios.loader import FOLDER, answered

told = [answered(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.txt"))]
dice = random.Random(7)
things = [node(f"n{i}", models=[dice.choice((A100, V100, H100)) for _ in range(dice.randrange(9))],
               cpus=dice.randrange(33), reachable=i % 7 != 0, labels={"zone": "abc"[i % 3], f"k{i % 5}": ""},
               taints=["t:NoSchedule"] * (i % 11 == 0)) for i in range(60)]
wheres = [ANYWHERE, ANYWHERE, make_where("zone in (a,b),!k3"), make_where("k1", ["n1", "n31"], ["t"])]
things += [job(i, gpus=dice.randrange(6), tasks=dice.choice((1, 1, 2, 5)), cpus=dice.randrange(1, 9),
               model=dice.choice(("", "", "V100", "A100")), priority=dice.choice((100, 500)),
               where=dice.choice(wheres), tasks_per_node=dice.choice((0, 0, 2)), waited_h=dice.randrange(30),
               array=dice.choice(("", "", "", "0-7%2", "1,5-9"))) for i in range(10, 3_010, 10)]
here = cluster(*things)
for _ in range(3):
    plan = here.plan(budget=20)
    reasons = [(shape, reason) for shape, reason in plan.reasons.items()]
    told.append(msgspec.json.encode([plan.actions, reasons, plan.more]).decode())
    here = here.after(plan)
print(len(told), hashlib.blake2b("".join(told).encode()).hexdigest())
"""


def _digest(hash_seed: str, python: str = sys.executable) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
    done = subprocess.run(
        [python, "-c", _DECIDE], env=env, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _other_pythons() -> Sequence[str]:
    """Interpreters of other versions than this one that can run the engine, one for each version."""
    named = os.environ.get("OTHER_PYTHONS", "").split(os.pathsep)
    known = {sys.version_info[:2]: ""}
    for python in filter(None, (*named, *(shutil.which(f"python{version}") for version in VERSIONS))):
        asked = [python, "-c", "import msgspec, sys; print(*sys.version_info[:2])"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
        if said.returncode == 0:
            major, minor = map(int, said.stdout.split())
            known.setdefault((major, minor), python)
    return [python for python in known.values() if python]


def test_two_hash_seeds_give_the_same_plans() -> None:
    assert _digest("1") == _digest("2") == _digest("31337") != ""


@pytest.mark.heavy
def test_other_versions_of_python_give_the_same_plans() -> None:
    others = _other_pythons()
    if not others:
        pytest.skip("no other version of Python here has msgspec: name one in OTHER_PYTHONS")
    assert {python: _digest("1", python) for python in others} == dict.fromkeys(others, _digest("2"))
