"""Each fault that users of other schedulers reported, and each defect of the systems Stoker replaces, has its test.

`faults.txt` beside this file is the list. A row that names a test which is no longer there fails here, so a test can't
be dropped without anybody noticing what it stood for.
"""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
ROWS = [
    line
    for line in (TESTS / "docs" / "faults.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
FAMILIES = {
    "leaked allocations": (1, 2, 3, 4, 5, 7, 8, 10, 11, 13),
    "pending for ever": (14, 15, 16, 17, 19, 20, 21, 22, 24),
    "cancel that doesn't stop": (25, 26, 27, 28, 30, 31, 32),
    "restarts and short cuts": (34, 35, 37, 38, 39, 40, 41, 42, 43, 45, 46),
    "identity of devices": (47, 48, 50, 51, 52, 54, 55, 56, 57, 59),
    "sick devices": (60, 61, 62, 63, 64, 65, 66, 68, 69, 70, 72),
    "gangs": (73, 74, 75, 76, 77, 78, 79),
    "preemption": (81, 82, 83, 85, 86, 87, 89, 90, 91, 92, 93, 95, 96),
    "starvation": (97, 98, 99, 101, 102),
    "double allocation": (103, 104, 106, 107),
    "misreported ends": (108, 110, 111, 112),
    "lost output": (114, 115, 117),
    "dependencies": (132, 133, 134, 135),
    "trouble with the store": (124, 125, 128, 129, 130),
    "arrays": (137, 138, 139, 141),
    "rendezvous ports": (147, 148),
    "foreign memory": (150, 151, 153),
    "black holes": (154, 155),
    "idle holders, lists, topology, text and serving": (
        *(157, 158, 159, 161, 162, 163, 164, 165, 167, 169, 170, 171, 172),
    ),
}


def named(row: str) -> str:
    return row.rsplit(": ", 1)[1]


def exists(test: str) -> bool:
    """Is there such a test in that file, in a contract suite that it inherits, or such a part of a scenario?"""
    path, _, name = test.partition("::")
    if path.startswith("scenarios/"):
        text = (TESTS / path).read_text(encoding="utf-8")
        return len(re.findall(rf"^{re.escape(name)}: ", text, re.MULTILINE)) == 1
    texts = [(TESTS / path).read_text(encoding="utf-8"), *(p.read_text(encoding="utf-8") for p in contracts(path))]
    return any(re.search(rf"def {re.escape(name)}\(", text) for text in texts)


def contracts(path: str) -> list[Path]:
    inherits = "contract" in path or "from tests.contracts" in (TESTS / path).read_text(encoding="utf-8")
    return sorted((TESTS / "contracts").glob("*.py")) if inherits else []


def test_every_test_that_a_fault_names_is_there() -> None:
    missing = [row for row in ROWS if ": later: " not in row and not exists(named(row))]
    assert not missing


def test_every_fault_of_the_families_that_concern_jobs_agents_and_gpus_has_a_row() -> None:
    listed = {int(row.split()[0]) for row in ROWS if row[0].isdigit()}
    assert {number for family in FAMILIES.values() for number in family} <= listed


def test_what_is_left_for_later_says_which_capability_it_waits_for() -> None:
    waits = {row.rsplit(": ", 1)[1] for row in ROWS if ": later: " in row}
    assert waits <= {"services", "slurm", "suspend", "kubernetes", "topology", "idle jobs", "containers of a job's own"}
