"""Rules 9, 18 and 22: a pure brain, no order taken from a set, no case forgotten, and a runner that stands alone."""

import pytest

from tests.tidy.caught import caught
from tools.tidy_rules.purity import (
    every_closed_match_ends_in_assert_never,
    no_decision_hangs_on_the_order_of_a_set,
    the_brain_imports_msgspec_only,
    the_runner_stands_alone,
)

BRAIN = "src/stoker/brain/engine/queue_order.py"


def test_a_third_party_import_in_the_brain_is_caught() -> None:
    assert len(caught(the_brain_imports_msgspec_only, BRAIN, "def f():\n    import numpy as np")) == 1


def test_numpy_has_one_file_in_the_brain() -> None:
    assert caught(the_brain_imports_msgspec_only, "src/stoker/brain/engine/fragmentation.py", "import numpy") == []
    assert len(caught(the_brain_imports_msgspec_only, "src/stoker/brain/engine/fragmentation.py", "import scipy")) == 1


def test_msgspec_and_the_standard_library_pass_in_the_brain() -> None:
    text = "import heapq\nimport msgspec\nfrom stoker.brain.domain import job\nfrom .fit import Search"
    assert caught(the_brain_imports_msgspec_only, BRAIN, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio",
        "def f():\n    from asyncio import run",
        "from threading import Thread",
        "import multiprocessing.pool",
        "import msgspec",
        "importlib.import_module('msgspec')",
        "from stoker.agent import ports",
        "from stoker.agent.runner_socket import RunnerSocket",
        "from ..queue import Queue",
    ],
)
def test_the_runner_may_not_lean_on_anything(text: str) -> None:
    assert len(caught(the_runner_stands_alone, "src/stoker/agent/runner/main.py", text)) == 1


def test_the_runner_may_use_the_standard_library_and_itself() -> None:
    text = "import os, selectors\nfrom stoker.agent.runner.protocol import Start\nfrom . import protocol"
    assert caught(the_runner_stands_alone, "src/stoker/agent/runner/main.py", text) == []


@pytest.mark.parametrize(
    "text",
    [
        "for x in {1, 2}: f(x)",
        "for x in set(names): f(x)",
        "y = [x for x in frozenset(names)]",
        "y = {x: 1 for x in {1, 2}}",
        "y = list({1, 2})",
        "y = (*{1, 2},)",
        "y = ', '.join(set(names))",
        "y = max({1, 2}, key=f)",
        "for x in a.keys() | b.keys(): f(x)",
        "def g(names: set[str]):\n    for x in names: f(x)",
        "def g():\n    names = set()\n    return [x for x in names]",
        "def g():\n    names: frozenset[str] = h()\n    return tuple(names)",
    ],
)
def test_an_order_taken_from_a_set_is_caught(text: str) -> None:
    assert len(caught(no_decision_hangs_on_the_order_of_a_set, BRAIN, text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "for x in sorted({2, 1}): f(x)",
        "y = sum(x for x in {1, 2})",
        "y = any(x for x in set(names))",
        "y = max({1, 2})",
        "y = len(set(names))",
        "y = {x for x in set(names)}",
        "y = 3 in {1, 2}",
        "for x in table.keys(): f(x)",
        "for x in dict.fromkeys(names): f(x)",
        "def g(names: list[str]):\n    for x in names: f(x)",
    ],
)
def test_a_set_that_no_order_is_taken_from_passes(text: str) -> None:
    assert caught(no_decision_hangs_on_the_order_of_a_set, BRAIN, text) == []


def test_sets_outside_the_brain_are_nobodys_business() -> None:
    assert caught(no_decision_hangs_on_the_order_of_a_set, "src/stoker/control/loop.py", "for x in {1, 2}: f(x)") == []


def test_a_match_over_types_that_ends_without_assert_never_is_caught() -> None:
    text = """
    def f(event):
        match event:
            case JobStarted(): start()
            case Kind.A | Kind.B: stop()
    """
    assert len(caught(every_closed_match_ends_in_assert_never, BRAIN, text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def f(e):\n    match e:\n        case A(): g()\n        case never: assert_never(never)",
        "def f(e):\n    match e:\n        case A(): g()\n    assert_never(e)",
        "def f(e) -> int:\n    match e:\n        case A(): return 1\n        case B(): return 2",
        "def f(word):\n    match word:\n        case 'a': g()\n        case 'b': h()",
    ],
)
def test_a_match_that_a_new_case_would_break_passes(text: str) -> None:
    assert caught(every_closed_match_ends_in_assert_never, BRAIN, text) == []
