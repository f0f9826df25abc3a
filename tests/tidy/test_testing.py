"""Rules 38 and 43: tests are sentences, and none waits for real time."""

import pytest

from tests.tidy.caught import caught
from tools.tidy_rules import testing

HERE = "tests/control/test_loop.py"


@pytest.mark.parametrize("text", ["def test_loop(): ...", "class TestLoop:\n    async def test_it_works(self): ..."])
def test_a_name_that_states_no_rule_is_caught(text: str) -> None:
    faults = caught(testing.test_names_are_sentences, HERE, text.replace("test_it_works", "test_works"))
    assert len(faults) == 1


def test_a_name_that_states_a_rule_passes() -> None:
    text = "def test_equal_priority_is_never_evicted(): ...\ndef test_data(): ..."
    assert caught(testing.test_names_are_sentences, HERE, text.splitlines()[0]) == []
    assert caught(testing.test_names_are_sentences, "tests/builders.py", text) == []


@pytest.mark.parametrize("text", ["import time\ntime.sleep(1)", "import asyncio\nasyncio.sleep(0.1)"])
def test_a_test_that_sleeps_is_caught(text: str) -> None:
    assert len(caught(testing.tests_never_sleep, HERE, text)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tests/real/test_demo.py", "import time\ntime.sleep(0.05)"),
        ("tests/rig/test_faults.py", "import asyncio\nasyncio.sleep(3600)"),
        (HERE, "from tests.rig.virtual_loop import run_virtual\nimport asyncio\nasyncio.sleep(3600)"),
        (HERE, "import asyncio\nasyncio.sleep(0)"),
        (HERE, "clock.sleep(5)"),
    ],
)
def test_virtual_time_giving_way_and_real_processes_pass(path: str, text: str) -> None:
    assert caught(testing.tests_never_sleep, path, text) == []


def test_even_on_virtual_time_nobody_blocks_the_loop() -> None:
    assert len(caught(testing.tests_never_sleep, "tests/rig/test_faults.py", "import time\ntime.sleep(1)")) == 1
