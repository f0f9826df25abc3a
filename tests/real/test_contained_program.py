"""A program in a container, by the process that can be seen from outside."""

import signal
import subprocess

from stoker.agent.runner.container.contained_program import ContainedProgram
from tests.real.runner_node import wait_until

BECOMES = "read go; OF_THE_PROGRAM=this exec sleep 600"
WITHIN_S = 30.0


def test_a_process_that_becomes_the_program_later_is_found_then_and_never_taken_for_it_before() -> None:
    """An engine may tell its number while it is still a helper of the engine's own."""
    with subprocess.Popen(["sh", "-c", BECOMES], stdin=subprocess.PIPE, start_new_session=True) as process:
        try:
            program = ContainedProgram(process.pid, "this", "OF_THE_PROGRAM")
            another = ContainedProgram(process.pid, "that", "OF_THE_PROGRAM")
            assert (program.is_seen, program.may_be_seen) == (False, True)
            program.signal(signal.SIGKILL)
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
            wait_until(lambda: program.is_seen, "it is found")
            another.signal(signal.SIGKILL)
            program.signal(signal.SIGINT)
            assert process.wait(WITHIN_S) == -signal.SIGINT
            assert not program.is_seen
            assert not program.may_be_seen
        finally:
            process.kill()
