"""`nvidia-smi` breaks under a live agent in each way that one was seen to: `node list`, `why` and `doctor` say it."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.real.agent_process import job, submit, until, until_state
from tests.real.control_process import ControlProcess
from tests.real.forks import ran_text
from tests.real.test_agent_daemon import FOUR_GPUS, agent_with_driver

WHOLE = FOUR_GPUS.read_text()
HALF = WHOLE.replace('echo "$line"', '[ $gpu = 0 ] || { printf %.45s "$line"; exit 0; }; echo "$line"')
VERSIONS = "Failed to initialize NVML: Driver/library version mismatch"
EXIT_18 = f"#!/bin/sh\necho '{VERSIONS}'; exit 18\n"
ONE_LESS = WHOLE.replace("count=4", "count=3")
HANGS = "#!/bin/sh\nexec sleep 600\n"


def said(control: ControlProcess, *words: str) -> str:
    done = ran_text([sys.executable, "-m", "stoker", *words], env=control.environ)
    return done.stdout + done.stderr


def break_it(folder: Path, *ways: tuple[str, str, int]) -> None:
    """Each way is a program in the place of nvidia-smi, what is said of it, and the GPUs that are offered still."""
    with ControlProcess(folder / "control") as control:
        agent, driver = agent_with_driver(folder, control, "n1")
        put(driver, WHOLE)
        with agent:
            until(lambda: len(control.ask("GET", "/api/v1/gpus")[1]["gpus"]) == 4, "its GPUs are known")
            for program, words, offered in ways:
                put(driver, program)
                until(partial(tells, control, words, offered), "the fault is seen", 90)
                waits = submit(control, "true", gpu_count=4)
                until(partial(waits_for_gpus, control, waits), "it waits for that")
                nodes, why, doctor = said(control, "node", "list"), said(control, "why", waits), said(control, "doctor")
                assert f"{offered}/4 free" in nodes, nodes
                assert "GPUs get no work: " in nodes, nodes
                assert "warning  nodes           GPUs of n1 get no jobs: " in doctor, doctor
                assert "1 node that could run it can't read all of its GPUs, such as n1: " in why, why
                for heard in (nodes, why, doctor):
                    assert words in heard
                put(driver, WHOLE)
                done = until_state(control, waits, "succeeded", "failed", "node_failed")
                assert (done["state"], done["requeues_used"]) == ("succeeded", 0)
                until(lambda: not node(control)["gpu_fault"], "it is well again")


def node(control: ControlProcess) -> dict[str, Any]:
    return dict(control.ask("GET", "/api/v1/nodes/n1")[1])


def tells(control: ControlProcess, words: str, offered: int) -> bool:
    """The first look finds what is amiss; what is not listed is only taken for lost by the second."""
    return words in node(control)["gpu_fault"] and node(control)["free"]["gpus"] == offered


def waits_for_gpus(control: ControlProcess, job_id: str) -> bool:
    return "gpus_unread" in str(job(control, job_id)["reason"])


def put(driver: Path, program: str) -> None:
    """In one step: it may be asked at any time."""
    new = driver.with_name("new")
    new.write_text(program)
    new.chmod(0o755)
    new.rename(driver)


def test_a_table_that_ends_in_its_middle_is_said_everywhere_and_ends_by_itself(tmp_path: Path) -> None:
    break_it(tmp_path, (HALF, "GPU 1: can't read the line '1, GPU-", 1))


@pytest.mark.heavy
def test_a_driver_that_hangs_fails_or_lists_a_device_less_is_said_everywhere_and_ends_by_itself(tmp_path: Path) -> None:
    break_it(
        tmp_path,
        (HANGS, "didn't answer within 10 s", 0),
        (EXIT_18, f"exit 18): {VERSIONS}", 0),
        (ONE_LESS, "GPU-00000000-0000-4000-8000-000000000003 isn't listed any more", 3),
    )
