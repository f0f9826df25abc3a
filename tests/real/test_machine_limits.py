"""What a node holds tasks to on a whole machine: systemd and version 2 of cgroups alone, under the shipped unit."""

from pathlib import Path

import pytest

from stoker.wire.client import Client, JobBody
from stoker.wire.rest.job import JobView
from tests.real.control_process import ControlProcess
from tests.real.failing_over import FINAL
from tests.real.stoker_machine import PATIENCE_S, node_machine, start, until, wanted
from tests.real.virtual_machine import Template

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3_600), wanted]

OWN = "/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)"
EATS = "python3 -c 'held = bytearray(400 << 20)'"
SPINS = "taskset -c 0 timeout 40 sh -c 'while :; do :; done'; cut -d' ' -f2 {own}/cpu.stat | head -n 1 >/srv/{name}"


def ended(client: Client, body: JobBody) -> JobView:
    return until_final(client, client.submit(body).id)


def until_final(client: Client, job_id: str) -> JobView:
    until(lambda: client.job(job_id).state in FINAL, lambda: repr(client.job(job_id)), PATIENCE_S)
    return client.job(job_id)


def test_a_machine_of_systemd_and_version_2_holds_tasks_to_memory_cpus_processes_and_devices(
    tmp_path: Path, made: Template
) -> None:
    with ControlProcess(tmp_path / "control") as control, control.client(patience_s=60) as client:
        machine, _ = node_machine(tmp_path, control)
        with machine:
            machine.revive(made)
            machine.do(
                "printf 'gpus:\\n- {model: H100, memory_mb: 80000, device: /dev/zero}\\n"
                "- {model: H100, memory_mb: 80000, device: /dev/full}\\n' >/etc/stoker/gpus.yaml"
            )
            start(machine, "stoker-agent")

            for line in (f"exec {EATS}", f"{EATS}; exit 0"):
                job = ended(client, JobBody(command=line, memory_mb=64))
                assert job.state == "out_of_memory", job
                assert job.reason is not None
                facts = job.reason.facts
                assert 32 <= int(str(facts["peak_mb"])) <= 64, job.reason

            limits = f"cd {OWN}; cat memory.max pids.max cpu.weight >/srv/limits"
            assert ended(client, JobBody(command=limits, memory_mb=64, cpus=3)).state == "succeeded"
            assert machine.do("cat /srv/limits").split() == [str(64 << 20), "4096", "30"]

            loop = "for each in null zero full; do (exec 3</dev/$each) && echo $each; done"
            opens = f"{loop} >/srv/opened 2>/srv/refused; true"
            assert ended(client, JobBody(command=opens, gpu_count=1)).state == "succeeded"
            assert machine.do("cat /srv/opened").split() == ["null", "zero"]
            assert "Operation not permitted" in machine.do("cat /srv/refused")

            jobs = [
                client.submit(JobBody(command=SPINS.format(own=OWN, name=name), cpus=cpus)).id
                for name, cpus in (("many", 4), ("few", 1))
            ]
            for job_id in jobs:
                assert until_final(client, job_id).attempts, "it ended without a start"
            many, few = (int(machine.do(f"cat /srv/{name}")) for name in ("many", "few"))
            assert 2 < many / few < 8, (many, few)

            left = "find /sys/fs/cgroup -name 'stoker-*-*' -type d"
            until(lambda: not machine.do(left).strip(), lambda: machine.do(left))
