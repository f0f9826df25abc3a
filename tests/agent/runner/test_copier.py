"""What a copier of output takes at the end (F4 of `runner/output/copier.py`)."""

import os
from pathlib import Path

from stoker.agent.runner.output import copier


def test_f4_of_output_that_never_ends_a_copier_that_leaves_takes_a_bounded_rest(tmp_path: Path) -> None:
    """A process that has left the task's tree may go on writing, and must not hold up the task's end."""
    source, target = tmp_path / "endless", copier.Target("output", "/dev/null", fresh=False)
    source.touch()
    os.truncate(source, 2 * copier._DRAIN_BYTES_MAX)
    target.open()
    with source.open("rb", buffering=0) as file:
        copier._drain(file.fileno(), target, -1)
        assert file.tell() == copier._DRAIN_BYTES_MAX
    os.close(target._file)
