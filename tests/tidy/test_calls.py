"""Rules 16 and 17: one clock, one pair of dice, no threads, and each ban names its replacement."""

import pytest

from tests.tidy.caught import caught
from tools.tidy_rules.calls import banned_names_stay_at_home, no_shell_in_subprocesses


@pytest.mark.parametrize(
    ("text", "named", "instead"),
    [
        ("import time\ntime.monotonic()", "time.monotonic", "clock.mono()"),
        ("import time as t\nt.sleep(1)", "time.sleep", "clock.sleep(s)"),
        ("from time import time\nx = time", "time.time", "clock.now()"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now", "clock.now()"),
        ("import asyncio\nasyncio.sleep(1)", "asyncio.sleep", "clock.sleep(s)"),
        ("import random\nrandom.random()", "random.random", "entropy.jitter(a, b)"),
        ("from uuid import uuid4\nuuid4()", "uuid.uuid4", "entropy.uid()"),
        ("import os\nos.urandom(8)", "os.urandom", "entropy.seed()"),
        ("import threading\nthreading.Lock()", "threading.Lock", "asyncio task"),
        ("from concurrent.futures import Future\nFuture()", "concurrent.futures.Future", "asyncio task"),
        ("print('hello')", "print", "telemetry.event"),
        ("from importlib import import_module\nimport_module('stoker.live.outbox')", "import_module", "port"),
        ("__import__('stoker.live.outbox')", "__import__", "port"),
        ("import pickle\npickle.loads(b'')", "pickle.loads", "msgspec"),
        ("eval('1')", "eval", "argv list"),
        ("import os\nos.system('ls')", "os.system", "argv list"),
    ],
)
def test_a_banned_name_is_caught_with_its_replacement(text: str, named: str, instead: str) -> None:
    (fault,) = caught(banned_names_stay_at_home, "src/stoker/control/loop.py", text)
    assert named in fault
    assert instead in fault


def test_a_clock_handed_on_as_a_default_is_caught_too() -> None:
    text = "import time\nx = dict(default_factory=time.time)"
    assert len(caught(banned_names_stay_at_home, "src/stoker/brain/domain/job.py", text)) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/stoker/adapters/clock.py", "import time\ntime.monotonic()"),
        ("src/stoker/agent/runner/clock.py", "import time\ntime.clock_gettime(7)"),
        ("src/stoker/adapters/entropy.py", "import uuid_utils\nuuid_utils.uuid7()"),
        ("src/stoker/adapters/sqlite/event_log.py", "import threading\nthreading.Thread()"),
        ("src/stoker/cli/main.py", "print('hello')"),
        ("benchmarks/submit.py", "import time\ntime.perf_counter()"),
    ],
)
def test_each_ban_has_a_home(path: str, text: str) -> None:
    assert caught(banned_names_stay_at_home, path, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "import asyncio\nasyncio.sleep(0)",
        "def f(clock): clock.time.sleep(1)",
        "job.time = 3",
        "def f(time): return time.hours",
        "self.random.draw()",
    ],
)
def test_what_only_looks_like_a_banned_name_passes(text: str) -> None:
    assert caught(banned_names_stay_at_home, "src/stoker/control/loop.py", text) == []


def test_pickle_has_no_home_at_all() -> None:
    text = "import pickle\npickle.dumps(1)"
    assert len(caught(banned_names_stay_at_home, "src/stoker/adapters/clock.py", text)) == 1
    assert len(caught(banned_names_stay_at_home, "tests/control/test_loop.py", text)) == 1


def test_a_shell_under_a_subprocess_is_caught() -> None:
    text = "import subprocess\nsubprocess.run('ls', shell=True)"
    assert len(caught(no_shell_in_subprocesses, "src/stoker/agent/machine.py", text)) == 1


def test_an_argv_list_and_a_field_called_shell_pass() -> None:
    text = "import subprocess\nsubprocess.run(['ls'], shell=False)\nCommand(shell='a && b')"
    assert caught(no_shell_in_subprocesses, "src/stoker/agent/machine.py", text) == []
