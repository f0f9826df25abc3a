"""Check of a real node against nvidia-smi: a control plane and an agent as processes, and programs on the device.

Each check prints a line; the first that fails ends the run with its reason and status 1.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stoker.adapters.gpu_probe.nvidia_smi_text import ROW_FIELDS, parse_rows
from stoker.brain.domain.gpu_telemetry import throttled_by
from tests.real.agent_process import AgentProcess, descendants, job, submit, until, until_state
from tests.real.control_process import ControlProcess, free_port

HOLDER = Path(__file__).with_name("holder.py")
HELD_MB = 3_000
"""More than the leftover that a node allows."""
FIELDS = (
    *(
        "uuid",
        "index",
        "name",
        "memory.total",
        "memory.used",
        "temperature.gpu",
        "power.draw",
        "clocks.sm",
        "clocks.mem",
    ),
    *("clocks_event_reasons.active", "pci.bus_id"),
)


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="stoker-device-") as folder,
        cluster(Path(folder)) as (control, agent, port),
    ):
        checks: tuple[Callable[[ControlProcess], None], ...] = (inventory, figures, attribution, gate, lost_process)
        for check in checks:
            began = time.monotonic()
            check(control)
            say(f"ok  {check.__name__} ({time.monotonic() - began:.1f} s)")
        reader(agent, control)
        page(port)
    say("all checks passed")


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[ControlProcess, AgentProcess, int]]:
    with ControlProcess(folder / "control") as control:
        agent, port = AgentProcess(folder / "n1", control, name="n1"), free_port()
        script = f"script: {agent.folder / 'gpus.yaml'}"
        agent.write(agent.settings.read_text().replace(script, "detection: nvml, telemetry_s: 1, watch_s: 5"))
        agent.add(f"metrics: {{address: '127.0.0.1:{port}'}}")
        if os.geteuid() == 0:
            agent.take_jobs_of("root")
        with agent:
            until(lambda: all(gpu["figures"] for gpu in gpus(control)) and gpus(control), "figures of all GPUs", 60)
            yield control, agent, port


def inventory(control: ControlProcess) -> None:
    ours = [(gpu["uuid"], gpu["model"], gpu["memory_mb"]) for gpu in gpus(control)]
    theirs = [(row["uuid"], row["name"], int(row["memory.total"])) for row in smi()]
    assert [one[:2] for one in ours] == [one[:2] for one in theirs], f"{ours} isn't {theirs}"
    for one, other in zip(ours, theirs, strict=True):
        assert abs(one[2] - other[2]) <= 1_024, f"memory: {one} isn't {other}"
    assert [gpu["bus"] for gpu in gpus(control)] == [row["pci.bus_id"] for row in smi()]
    node = control.ask("GET", "/api/v1/nodes/n1")[1]
    linked = subprocess.run(
        ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=60, check=False
    ).stdout
    lanes = sorted(set(map(int, re.findall(r"\bNV([0-9]+)\b", linked))))
    assert sorted({link["lanes"] for link in node["links"]}) == lanes, (node["links"], linked)
    say(f"    NVLink: {node['links'] or 'none'}; NUMA nodes {[gpu['numa_node'] for gpu in gpus(control)]}")
    say(f"    {len(ours)} GPUs; node health {node['health']}")


def figures(control: ControlProcess) -> None:
    time.sleep(6.0)  # a heartbeat
    theirs = {row["uuid"]: row for row in smi()}
    for gpu in gpus(control):
        ours, other = gpu["figures"], theirs[gpu["uuid"]]
        say(f"    {gpu['uuid']}: {ours}")
        assert abs(ours["temperature_c"] - float(other["temperature.gpu"])) <= 8, (ours, other)
        assert abs(ours["memory_used_mb"] - float(other["memory.used"])) <= 700, (ours, other)
        assert abs(ours["memory_clock_mhz"] - float(other["clocks.mem"])) <= 50 or ours["utilization_percent"] > 0, (
            other
        )
        slow = throttled_by(int(other["clocks_event_reasons.active"], 16))
        assert set(ours["throttled"]) == set(slow) or ours["utilization_percent"] > 0, (ours, other)
        if ours["power_w"] is not None and other["power.draw"][0].isdigit():
            assert abs(ours["power_w"] - float(other["power.draw"])) <= 80, (ours, other)


def attribution(control: ControlProcess) -> None:
    """Memory that a job takes shows on its GPU, and nowhere else."""
    held = hold_in_job(control)
    (mine,) = job(control, held)["gpus"]

    def shown() -> bool:
        found = {gpu["uuid"]: gpu for gpu in gpus(control)}
        own = found[mine["uuid"]]
        return bool(own["current_task"] == held and own["figures"]["memory_used_mb"] >= HELD_MB)

    until(shown, "the job's memory is on its GPU", 60)
    control.ask("DELETE", f"/api/v1/jobs/{held}")
    until_state(control, held, "cancelled")
    until(lambda: idle(control) == len(gpus(control)), "its GPU is clean and offered", 30)


def gate(control: ControlProcess) -> None:
    """Somebody's process keeps a GPU out, and that one alone."""
    with foreign_process():
        until(lambda: any(gpu["health"]["kind"] == "process" for gpu in gpus(control)), "the GPU is out", 60)
        out = [gpu for gpu in gpus(control) if gpu["health"]["state"] == "drained"]
        assert len(out) == 1, out
        say(f"    {out[0]['uuid']}: {out[0]['health']['reason']}")
        waits = submit(control, "true", gpu_count=len(gpus(control)))
        time.sleep(3.0)
        assert job(control, waits)["state"] == "pending", job(control, waits)
    until_state(control, waits, "succeeded")


def lost_process(control: ControlProcess) -> None:
    """A job whose processes are killed by somebody else gives its GPU back clean."""
    held = hold_in_job(control)
    for pid in pids_on_gpus():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    ended = until_state(control, held, "failed", "pending", "running", "node_failed")
    until(lambda: job(control, held)["state"] == "failed", f"it ends as killed: {ended['state']}", 30)
    assert idle(control) == len(gpus(control)), "its GPU was offered before it was clean, or isn't"
    used = [int(row["memory.used"]) for row in smi()]
    assert max(used) < 1_500, f"a GPU that is offered has {used} MiB in use"


def reader(agent: AgentProcess, control: ControlProcess) -> None:
    """The process that asks NVML is killed: figures come back by another."""
    mine = [pid for pid in descendants(agent.pid) if "nvml_reader" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert mine, "no reader"
    os.kill(mine[0], signal.SIGKILL)
    time.sleep(12.0)
    assert all(gpu["figures"]["age_s"] < 10 for gpu in gpus(control)), gpus(control)
    assert agent.rss_mb() <= 64, f"the agent has {agent.rss_mb():.1f} MiB"
    say(f"ok  reader; the agent has {agent.rss_mb():.1f} MiB")


def page(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        said = str(answer.read().decode())
    names = ("GPU_UTIL", "FB_USED", "FB_FREE", "GPU_TEMP", "POWER_USAGE")
    assert all(f"DCGM_FI_DEV_{name}{{" in said for name in names), said
    told = dict(re.findall(r"^(DCGM_FI_DEV_\w+)\{[^}]*\} (\d+)$", said, re.MULTILINE))
    assert int(told["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"]) > 0, told
    assert 0 < int(told["DCGM_FI_DEV_SM_CLOCK"]) < 5_000, told
    words = ["nvidia-smi", f"--query-remapped-rows={','.join(ROW_FIELDS)}", "--format=csv,noheader"]
    rows = parse_rows(subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout)
    names = {
        "uncorrectable": "UNCORRECTABLE_REMAPPED_ROWS",
        "pending": "ROW_REMAP_PENDING",
        "failed": "ROW_REMAP_FAILURE",
    }
    for uuid, row in rows.items():
        for name, figure in names.items():
            found = re.search(rf'^DCGM_FI_DEV_{figure}\{{[^}}]*UUID="{uuid}"[^}}]*\}} (\d+)$', said, re.MULTILINE)
            assert found, (figure, uuid)
            assert int(found[1]) == int(getattr(row, name)), (figure, found[1], row)
    say(f"ok  page; rows {rows}")


def hold_in_job(control: ControlProcess) -> str:
    held = submit(control, [sys.executable, str(HOLDER), str(HELD_MB)], gpu_count=1)
    until_state(control, held, "running", "failed")
    until(lambda: f"holds {HELD_MB}" in log_of(control, held), "it holds memory", 60)
    return held


def log_of(control: ControlProcess, held: str) -> str:
    """What a job that should run has written."""
    request = urllib.request.Request(f"{control.url}/api/v1/jobs/{held}/logs", headers=control.headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        said = str(answer.read().decode())
    assert job(control, held)["state"] != "failed", said
    return said


@contextmanager
def foreign_process() -> Iterator[None]:
    words = [sys.executable, str(HOLDER), str(HELD_MB)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"holds {HELD_MB}\n"
            yield
        finally:
            process.kill()


def pids_on_gpus() -> list[int]:
    """Holders of GPU memory that this run has started."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and str(HOLDER).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def gpus(control: ControlProcess) -> list[dict[str, Any]]:
    return list(control.ask("GET", "/api/v1/gpus")[1]["gpus"])


def idle(control: ControlProcess) -> int:
    return sum(gpu["status"] == "idle" for gpu in gpus(control))


def smi() -> list[dict[str, str]]:
    """The GPUs by nvidia-smi, in PCI order."""
    words = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    return [dict(zip(FIELDS, (cell.strip() for cell in line.split(",")), strict=True)) for line in said.splitlines()]


def say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    try:
        main()
    except AssertionError as fault:
        sys.exit(f"FAILED: {fault}")
