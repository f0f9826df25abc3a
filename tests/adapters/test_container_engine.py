"""An engine that can't be reached is told apart from one that refuses."""

from pathlib import Path

import pytest

from stoker.adapters.container_engine import DockerEngine, is_installed
from stoker.brain.domain.container import EngineFault

pytestmark = pytest.mark.skipif(not is_installed(), reason="NOT PROVED HERE: aiodocker isn't installed")


async def test_an_engine_that_nobody_listens_for_has_answered_nothing(tmp_path: Path) -> None:
    engine = DockerEngine(str(tmp_path / "docker.sock"))
    for asked in (engine.info, lambda: engine.image("busybox")):
        with pytest.raises(EngineFault) as caught:
            await asked()
        assert caught.value.status == 0
    await engine.close()
