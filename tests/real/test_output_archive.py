"""What a job wrote is read from the archive when its node is gone, also what ended before there was one."""

from pathlib import Path

import pytest

from stoker.wire.rest.log import LogQuery
from tests.real.agent_process import AgentProcess, submit, until, until_state
from tests.real.control_process import ControlProcess

pytestmark = pytest.mark.timeout(120)


def test_output_outlives_its_node(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    control = ControlProcess(tmp_path / "control")
    with control, AgentProcess(tmp_path / "node", control):
        before = submit(control, "echo before", gpu_count=0)
        until_state(control, before, "succeeded")
        control.terminate()
        control.archive_dir = str(archive)
        control.start()
        lines = "seq 200000; kill -9 $$"
        after = submit(control, lines, gpu_count=0)
        until_state(control, after, "failed")
        until(
            lambda: {path.name for path in archive.glob("*/0/*")} == {f"{before}.1.0", f"{after}.1.0"}, "both are kept"
        )
    with control, control.client() as client:
        assert b"".join(part.data for part in client.follow_logs(before)) == b"before\n"
        text = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
        assert b"".join(part.data for part in client.follow_logs(after)) == text
        assert b"".join(part.data for part in client.follow_logs(after, LogQuery(offset=-7))) == b"200000\n"
