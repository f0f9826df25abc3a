"""The Runner contract on real processes, followed in each way that this machine offers."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contracts.runner import RunnerContract
from tests.real.runner_node import TREE_MODES, RealNode, node_in


class TestRealRunner(RunnerContract):
    @pytest.fixture(params=TREE_MODES)
    async def node(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RealNode]:
        async with node_in(tmp_path, tree=request.param) as node:
            yield node
