"""Sick nodes and GPUs by script, from the agent to what people are told; rows 31, 150 and 153 of the fault list."""

import os
from pathlib import Path
from typing import Any

from tests.real.agent_process import AgentProcess, job, submit, until, until_state
from tests.real.control_process import ControlProcess

GPUS = "gpus: [{count: 4, model: Tesla V100, memory_mb: 16384}]\n"
FAULTS = """\
faults:
  - {kind: hot, gpu: 0, temperature_c: 95}
  - {kind: process, gpu: 1, pid: 4000001, memory_mb: 300}
  - {kind: slow_kill, gpu: 2}
  - {kind: idle, gpu: 3}
  - {kind: clock, by_s: 60}
"""


def node(control: ControlProcess) -> dict[str, Any]:
    return dict(control.ask("GET", "/api/v1/nodes/n1")[1])


def ailing(control: ControlProcess) -> dict[int, str]:
    gpus = node(control).get("gpus", [])
    return {
        gpu["device_index"]: f"{gpu['health']['state']} {gpu['health']['kind']}"
        for gpu in gpus
        if gpu["health"]["state"] != "healthy"
    }


def sleeps() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit() and b"6543" in command_of(name)]


def command_of(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_what_ails_a_node_keeps_work_from_that_part_alone_is_told_everywhere_and_ends_by_itself(tmp_path: Path) -> None:
    said = tmp_path / "check.says"
    said.write_text("0\n")
    check = tmp_path / "check"
    hangs = "{ setsid sleep 6543 & sleep 600; }"
    check.write_text(f'#!/bin/sh\nread code words < {said}\necho "$words"\n[ $code = hang ] && {hangs}\nexit $code\n')
    check.chmod(0o755)
    with ControlProcess(tmp_path / "control") as control:
        agent = AgentProcess(tmp_path / "n1", control, name="n1")
        script = agent.folder / "gpus.yaml"
        script.write_text(GPUS + FAULTS)
        agent.write(agent.settings.read_text().replace(f"script: {script}", f"script: {script}, telemetry_s: 0.2"))
        agent.add(f"health: {{check: {check}, check_every_s: 1, check_timeout_s: 2}}")
        with agent:
            until(lambda: ailing(control) == {0: "drained hot", 1: "drained process"}, "two GPUs are out")
            assert "process 4000001 (not to be seen from here) with 300 MiB is on it" in node(control)["gpu_fault"]
            one = submit(control, "true")
            until(lambda: job(control, one)["state"] in ("stopping", "succeeded"), "it has ended")
            (task,) = job(control, one)["attempts"][0]["tasks"]
            slow = next(gpu["device_index"] for gpu in node(control)["gpus"] if gpu["uuid"] in task["gpus"])
            other = submit(control, "true") if slow == 3 else one
            until(lambda: job(control, other)["state"] == "stopping", "what was killed is still leaving its GPU")
            until(lambda: job(control, other)["reason"]["code"] == "releasing", "and nobody is told when it is gone")
            waits = submit(control, "true", gpu_count=2)
            until(lambda: abs(node(control)["clock_ahead_s"] - 60) < 5, "its clock is wrong")
            assert node(control)["health"]["state"] == "suspect"
            assert any(words.startswith("its clock is") for words in node(control)["health"]["reasons"])
            metrics = control.metrics()
            assert b"stoker_gpus_drained 2" in metrics
            assert b"stoker_nodes_clock_off 1" in metrics
            for words, fault in (
                ("3 the scratch disk is gone", "health.check (exit 3): the scratch disk is gone"),
                ("hang", f"health.check: {check} didn't answer within 2 s"),
            ):
                said.write_text(f"{words}\n")
                until(lambda fault=fault: node(control)["fault"] == fault, f"the node says: {fault}")
                assert node(control)["health"]["state"] == "drained"
            check.chmod(0o757)
            open_to_others = f"health.check: {check} may be changed by others (mode 757)"
            until(lambda: node(control)["fault"].startswith(open_to_others), "such a program is never run")
            check.chmod(0o755)
            until(lambda: not sleeps(), "what it left in a session of its own has ended with it")
            control.ask("POST", "/api/v1/nodes/n1/drain", {"reason": "new RAM"})
            said.write_text("0\n")
            until(lambda: node(control)["fault"] == "", "the check finds nothing")
            assert node(control)["drain"] == "new RAM", "what a person drained stays drained"
            control.ask("POST", "/api/v1/nodes/n1/resume", {})
            agent.kill()
            script.write_text(
                f"{GPUS}faults: [{{kind: hot, gpu: 2, temperature_c: 87}}, {{kind: throttled, gpu: 3}}]\n"
            )
            agent.start()
            until_state(control, waits, "succeeded")
            ail = {2: "suspect warm", 3: "suspect throttled"}
            until(lambda: ailing(control) == ail, "one was cool for long enough, another is near it, one is slow")
            cool = submit(control, "true", gpu_count=2)
            until_state(control, cool, "succeeded")
            (task,) = job(control, cool)["attempts"][0]["tasks"]
            assert [gpu["device_index"] for gpu in node(control)["gpus"] if gpu["uuid"] not in task["gpus"]] == [2, 3]
