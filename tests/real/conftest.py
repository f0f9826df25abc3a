"""A small cluster for tests of the command line, one for each module that asks for it; and nothing that a test started
and then failed to end goes on."""

import gc
import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stoker.wire.client import Client
from tests.real.forks import Fork, forker_pid
from tests.real.say import Say
from tests.real.up_process import UpProcess, until
from tests.real.virtual_machine import Template, template

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """A Chromium for the tests of one file."""
    from tests.real.pages import chromium  # few files need it

    with chromium() as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """A test that fails between the start of a program and its end leaves it running: its machine would be busy,
    and its folder would fill, for as long as the suite runs and beyond."""
    before = children()
    try:
        return (yield)
    except BaseException:
        left = children() - before
        for child in sorted(left):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        _wait_for(left)
        raise


def _wait_for(pids: set[int]) -> None:
    """A process that nobody waited for, and a pipe that nobody closed, warn when they are collected: that would fail
    whichever test runs by then."""
    for each in gc.get_objects():
        if issubclass(type(each), subprocess.Popen | Fork) and each.pid in pids:
            each.wait(timeout=10)
            for pipe in (each.stdin, each.stdout, each.stderr) if isinstance(each, subprocess.Popen) else ():
                with suppress(BrokenPipeError):  # what was written last has no reader any more
                    if pipe is not None:
                        pipe.close()


def children() -> set[int]:
    """The processes that this one has started or had forked; not the one that forks, which others go on with."""
    forker = forker_pid()
    return children_of(os.getpid()) - {forker} | (children_of(forker) if forker else set())


def children_of(pid: int) -> set[int]:
    """Also those that another of its threads has started."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found |= set(map(int, path.read_text().split()))
    return found


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """Two nodes of two GPUs."""
    with UpProcess(
        tmp_path_factory.mktemp("up"), "--nodes", "2", "--gpus-per-node", "2", "--stop-grace", "1"
    ) as cluster:
        with Client(cluster.url) as client:
            until(lambda: client.status().online_nodes == 2, what="two nodes")
        yield cluster


@pytest.fixture
def say(up: UpProcess) -> Say:
    return Say(up.url)


@pytest.fixture(scope="session")
def made() -> Template:
    """A machine that has booted, to start others from."""
    return template()
