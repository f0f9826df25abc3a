"""What holds for every test: chance from a fixed seed in CI, no deadline but pytest-timeout's, nothing left behind."""

import os
import threading
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("here", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
# On a developer's machine chance may find something new; a build must say the same thing twice.
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the engine answers into tests/scenarios/*.txt, for review, instead of comparing",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever lies under tests/real is marked so, and `-m "not real"` leaves it out."""
    for item in items:
        if "tests/real/" in item.path.as_posix():
            item.add_marker(pytest.mark.real)


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    """A leaked thread would make the next test's failure a riddle."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and not _is_shared(thread)]
    for thread in left:
        thread.join(timeout=5)
    assert not [thread.name for thread in left if thread.is_alive()], f"threads left running: {left}"


def _is_shared(thread: threading.Thread) -> bool:
    """Threads of libraries that live as long as the process: grpc's poller, and asyncio's default executor."""
    return thread.daemon or thread.name.startswith(("asyncio_", "grpc"))
