"""A small cluster for tests of the command line: one for each module that asks for it."""

from collections.abc import Iterator

import pytest

from stoker.wire.client import Client
from tests.real.say import Say
from tests.real.up_process import UpProcess, until


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
