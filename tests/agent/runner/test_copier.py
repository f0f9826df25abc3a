"""What a copier of output takes at the end (F4 of `runner/output/copier.py`)."""

import os
import socket
from pathlib import Path

from stoker.agent.runner.output import copier
from stoker.agent.runner.output.spool import Spool
from stoker.agent.runner.process.cgroup import TaskCgroup
from stoker.agent.runner.task import RunnerTask


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


def test_of_a_task_that_never_had_a_process_no_output_is_missing(tmp_path: Path) -> None:
    """A node that refuses a start tells all who look at it why: that has no place for a file that the job named."""
    task = RunnerTask("1.1.0", "1.1.0.aa", [], TaskCgroup([]))
    task.cause, task.error = "never_started", "this node can't start it: no process"
    line, other = socket.socketpair()
    with other, line:
        task.copier = copier.Copier([copier.Target("output", "/far/out", fresh=False)], [], copier.Pipes(), line)
        task.copier.pipes.close()
        task.spool = Spool(str(tmp_path / "spool"), 100, 100)
        assert task.end_fields(0)["error"] == task.error
        task.tree.pid = 7  # of one that had
        assert "output is missing in /far/out" in task.end_fields(0)["error"]
