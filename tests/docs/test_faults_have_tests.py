"""Each fault that users of other schedulers reported, and each defect of the systems Stoker replaces, has its test.

`faults.txt` beside this file is the list. A row whose test is not in its file, or is not run, fails here: none can be
dropped without anybody noticing what it stood for.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

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


def fault_of(test: str) -> str:
    """Why there is no such test that runs in that file itself, or no such part of a scenario; empty = there is."""
    path, _, name = test.partition("::")
    if not (TESTS / path).is_file():
        return "there is no such file"
    text = (TESTS / path).read_text(encoding="utf-8")
    if path.startswith("scenarios/"):
        return (
            "" if len(re.findall(rf"^{re.escape(name)}: ", text, re.MULTILINE)) == 1 else "no part begins so, or two do"
        )
    alone, methods = found_in(text)
    if path.startswith("contracts/"):
        # A rule that is a function stands in a list of its contract besides.
        listed = name in alone and len(re.findall(rf"\b{re.escape(name)}\b", text)) > 1
        if not (listed or (name in methods and name.startswith("test_"))):
            return "that contract has no such rule"
        return "" if Path(path).stem in kept_contracts() else "no test keeps that contract"
    is_run = Path(path).name.startswith("test_") and name.startswith("test_")
    return "" if is_run and name in {*alone, *methods} else "that file has no such test"


def found_in(text: str) -> tuple[set[str], set[str]]:
    """The functions of a module, and the methods of its classes."""
    body = ast.parse(text).body
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    return functions(body), {name for each in classes for name in functions(each.body)}


def functions(body: list[ast.stmt]) -> set[str]:
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@cache
def kept_contracts() -> set[str]:
    """Contracts that tests import, by themselves or by way of other contracts."""
    kept: set[str] = set()
    ahead = sorted(TESTS.glob("*/test_*.py"))
    while ahead:
        text = ahead.pop().read_text(encoding="utf-8")
        named = {*re.findall(r"from tests\.contracts\.(\w+) import", text)}
        named |= {*re.findall(r"from tests\.contracts import (\w+)", text)}
        ahead += [TESTS / "contracts" / f"{name}.py" for name in sorted(named - kept)]
        kept |= named
    return kept


def test_every_test_that_a_fault_names_is_there() -> None:
    found = {row: fault_of(named(row)) for row in ROWS if ": later: " not in row}
    assert not {row: fault for row, fault in found.items() if fault}


@pytest.mark.parametrize(
    "test",
    [
        "real/test_client_contract.py::the_servers_refusal_arrives_whole",  # which its contract holds
        "adapters/test_log_sqlite.py::test_twenty_appenders_of_one_log_never_see_it_locked",
        "contracts/event_log.py::test_nothing",
        "real/agent_process.py::until",
        "real/test_gone.py::test_gone",
        "docs/test_faults_have_tests.py::fault_of",
        "scenarios/faults_gangs.txt::Fault 1",
    ],
)
def test_a_row_that_names_a_test_elsewhere_or_none_is_found(test: str) -> None:
    assert fault_of(test)


def test_every_fault_of_the_families_that_concern_jobs_agents_and_gpus_has_a_row() -> None:
    listed = {int(row.split()[0]) for row in ROWS if row[0].isdigit()}
    assert {number for family in FAMILIES.values() for number in family} <= listed


def test_what_is_left_for_later_says_which_capability_it_waits_for() -> None:
    waits = {row.rsplit(": ", 1)[1] for row in ROWS if ": later: " in row}
    assert waits <= {"services", "slurm", "suspend", "kubernetes", "topology", "idle jobs", "containers of a job's own"}
