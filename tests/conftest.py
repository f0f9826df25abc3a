"""What holds for every test: chance from a fixed seed in CI, no deadline but pytest-timeout's, nothing left behind, and
the same signals, umask, locale and terminal, whoever starts them."""

import codecs
import gc
import locale
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from hypothesis import HealthCheck, settings

settings.register_profile("here", deadline=None, max_examples=20)
settings.register_profile(
    "ci",
    settings.get_profile("here"),
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# On a developer's machine chance may find something new; a build must say the same thing twice.
settings.load_profile("ci" if os.environ.get("CI") else "here")
settings.register_profile("thorough", max_examples=200)  # of `make test-heavy`, in other respects as the one loaded


TERMINAL = frozenset({"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TERM"})
LOCALE = frozenset({"LANGUAGE", "PYTHONUTF8", "PYTHONCOERCECLOCALE", "PYTHONIOENCODING"})


@pytest.hookimpl(trylast=True)  # pytest's own output goes by what the caller has
def pytest_configure(config: pytest.Config) -> None:
    """A script ignores SIGINT for what it starts in the background, and its umask and locale are its own: programs that
    tests start inherit nothing of that."""
    if (
        codecs.lookup(locale.getpreferredencoding(do_setlocale=False)).name != "utf-8"
    ):  # fixed at Python's start, so it starts anew
        config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"})
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python itself ignores those
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # as good as ignored here, and the default in what is started
    os.umask(0o022)
    for name in [*os.environ]:
        if name.startswith("LC_") or name in TERMINAL | LOCALE:
            del os.environ[name]
    os.environ |= {"LANG": "C.UTF-8", "TERM": "xterm"}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end: to look for garbage in it is a third of the time that this
    takes, and would be part of every later look."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Rewrite the assertions of changed test files, on all cores, before workers start: each of them imports every
    file, and would rewrite it for itself. Pytest doesn't promise what this takes; without it all only takes longer."""
    if sys.dont_write_bytecode or not hasattr(rewrite, "_rewrite_test"):
        return
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    pids, cores = list[int](), len(os.sched_getaffinity(0))
    for core in range(cores):
        pids.append(os.fork())
        if not pids[-1]:
            try:
                for file in files[core::cores]:
                    _rewritten(file, config)
            finally:
                os._exit(0)
    for pid in pids:
        os.waitpid(pid, 0)


def _rewritten(file: Path, config: pytest.Config) -> None:
    kept = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(file, kept) is None and rewrite.try_makedirs(kept.parent):
        source, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, kept)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write what the engine answers into tests/scenarios/*.txt, for review, instead of comparing",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Whatever lies under tests/real is marked so, and `-m "not real"` leaves it out. Among heavy tests each worker
    begins with one of those that may take longest, so that in the end not all wait for one of them."""
    for item in items:
        if "tests/real/" in item.path.as_posix():
            item.add_marker(pytest.mark.real)
    yield
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1 and any(item.get_closest_marker("heavy") for item in items):
        longest_first = sorted(items, key=lambda item: -_seconds_allowed(item))
        # One after the other, of as many each as xdist gives to a worker: the first of them get fewer.
        items[:] = [item for worker in reversed(range(workers)) for item in longest_first[worker::workers]]


def _seconds_allowed(item: pytest.Item) -> float:
    """To a heavy test; 0 = it isn't heavy, or has no limit of its own."""
    limit = item.get_closest_marker("timeout") if item.get_closest_marker("heavy") else None
    return float(limit.args[0]) if limit and limit.args else 0.0


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
