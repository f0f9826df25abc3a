"""Figures of GPUs, from the driver's library to who asks: REST, the command line, and whoever scrapes an agent."""

import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stoker.adapters.bounded_run import ProgramTimeout
from stoker.adapters.gpu_probe.devices import DriverMissing
from stoker.adapters.gpu_probe.nvidia_smi_sampler import SmiSampler
from stoker.adapters.gpu_probe.nvml_sampler import NvmlSampler
from stoker.brain.domain.gpu_telemetry import RemappedRows
from tests.real.agent_process import AgentProcess, alive, job, submit, until, until_state
from tests.real.control_process import ControlProcess, free_port
from tests.real.nvml_stub import MODEL, NvmlStub, mig_uuid, uuid, uuids

SHORT_S = 3.0


@pytest.fixture
def stub(tmp_path: Path) -> NvmlStub:
    return NvmlStub(tmp_path)


@pytest.fixture
def sampler(stub: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlSampler]:
    for name, value in stub.environ.items():
        monkeypatch.setenv(name, value)
    sampler = NvmlSampler(SHORT_S)
    yield sampler
    sampler.close()


def reader_of(sampler: NvmlSampler) -> int:
    process = sampler._process
    assert process is not None
    return process.pid


def test_one_reader_stays_and_tells_all_that_changes(stub: NvmlStub, sampler: NvmlSampler) -> None:
    stub.tell(gpu_0_utilization="57", gpu_0_temperature="55", gpu_0_power="123456", gpu_0_used="1000")
    stub.tell(gpu_1_processes="12:100 13:200", gpu_2_handle="!15", gpu_3_ecc="1", gpu_3_utilization="999")
    first = sampler().samples
    assert [sample.uuid for sample in first] == [uuid(0), uuid(1), "", uuid(3)]
    (a, b, c, d) = first
    assert (a.utilization_percent, a.temperature_c, a.power_mw, a.memory_used_mb) == (57, 55, 123_456, 1_000)
    assert [(process.pid, process.memory_mb) for process in b.processes or ()] == [(12, 100), (13, 200)]
    assert (c.fault, d.ecc_errors, d.utilization_percent) == ("GPU is lost", 1, None)
    stub.tell(gpu_0_sm_clock="1980", gpu_0_memory_clock="2619", gpu_0_energy="5000000000", gpu_0_clock_events="0x44")
    stub.tell(gpu_0_rows="1:2:1:0", gpu_1_clock_events="!13", gpu_1_throttle_reasons="8")
    (a, b, _, d) = sampler().samples
    assert (a.sm_clock_mhz, a.memory_clock_mhz, a.energy_mj, a.clock_events) == (1_980, 2_619, 5_000_000_000, 0x44)
    assert (a.rows, d.rows) == (RemappedRows(1, 2, pending=True, failed=False), None)
    assert (b.clock_events, d.clock_events) == (8, None), "a driver before 535 has another name for it"
    pid = reader_of(sampler)
    stub.tell("2.handle", gpu_1_xid="1:79", gpu_3_uuid="!15")
    later = sampler((0, 2, 3)).samples
    assert [sample.uuid for sample in later] == uuids([0, 2, 3]), "one that is lost keeps its name"
    assert later[2].fault == "GPU is lost"
    assert sampler((1,)).samples[0].xids == (79,), "it waited to be asked for"
    assert sampler((1,)).samples[0].xids == ()
    assert reader_of(sampler) == pid


def test_a_reader_that_hangs_crashes_or_is_killed_costs_one_look_and_the_next_begins_another(
    stub: NvmlStub, sampler: NvmlSampler
) -> None:
    sampler()
    pid = reader_of(sampler)
    stub.tell(gpu_1_temperature="!hang")
    look = sampler()
    assert not alive(pid)
    assert [bool(sample.unanswered) for sample in look.samples] == [False, True, False, False]
    assert (look.samples[1].uuid, look.samples[1].unanswered) == (uuid(1), "NVML didn't answer within 3 s")
    with pytest.raises(ProgramTimeout, match="NVML didn't answer within 3 s"):
        sampler((1,))
    stub.tell(gpu_1_temperature="!crash")
    with pytest.raises(OSError, match=r"NVML crashed \(signal 11\)"):
        sampler()
    stub.tell(gpu_1_temperature="40")
    assert sampler().samples[1].temperature_c == 40
    subprocess.run(["kill", "-9", str(reader_of(sampler))], check=True)
    with pytest.raises(OSError, match=r"signal 9|reader of NVML"):
        sampler()
    assert len(sampler().samples) == 4
    stub.tell(count="!9")
    with pytest.raises(OSError, match="Driver Not Loaded"):
        sampler()


def test_t5_each_mig_instance_is_a_sample_and_what_is_wrong_with_its_gpu_is_wrong_with_it(
    stub: NvmlStub, sampler: NvmlSampler
) -> None:
    stub.divide(1, 0, 3)
    stub.tell(gpu_1_temperature="66", gpu_1_power="300000", gpu_1_utilization="!3", gpu_1_ecc="4")
    stub.tell(**{"gpu_1_mig.0.used": "500", "gpu_1_mig.3.processes": "12:100"})
    look = sampler()
    assert look.divided == (uuid(1),)
    assert [sample.index for sample in look.samples] == [0, 2, 3, 2_000, 2_003]
    first, other = look.samples[-2:]
    assert (first.uuid, first.parent, first.memory_used_mb) == (mig_uuid(1, 0), uuid(1), 500)
    assert (first.temperature_c, first.power_mw, first.ecc_errors, first.utilization_percent) == (66, 300_000, 4, None)
    assert [process.pid for process in other.processes or ()] == [12]
    stub.tell(gpu_1_xid="1:94:10")
    assert sampler((2_000,)).samples[0].xids == (), "it is the other's"
    assert [sample.xids for sample in sampler((2_003, 0)).samples] == [(), (94,)]
    stub.tell(gpu_1_xid="2:79")
    assert sampler((2_000,)).samples[0].xids == (79,)
    assert sampler((2_003,)).samples[0].xids == (79,), "it is everybody's, and waited to be asked for"
    stub.tell(gpu_1_migs="3")
    assert [sample.index for sample in sampler().samples] == [0, 2, 3, 2_003]
    stub.tell(gpu_1_handle="!15")
    (lost,) = sampler((2_003,)).samples
    assert (lost.uuid, lost.fault) == (mig_uuid(1, 3), "GPU is lost")
    for gone in ("gpu_1_migs", "gpu_1_mig.3.uuid"):
        stub.tell("1.handle", **{gone: "!999"})
        (lost,) = sampler((2_003,)).samples
        assert (lost.uuid, lost.fault) == (mig_uuid(1, 3), "Unknown Error")
        stub.tell(**{"gpu_1_migs": "3", "gpu_1_mig.3.uuid": mig_uuid(1, 3)})
    stub.tell(gpu_1_mig="!999")
    (unknown,) = sampler((2_003,)).samples
    assert (unknown.uuid, unknown.fault) == (mig_uuid(1, 3), "")
    assert unknown.unanswered == "its GPU doesn't tell its MIG instances: Unknown Error"
    stub.tell(gpu_1_mig="0")
    look = sampler()
    assert ([sample.index for sample in look.samples], look.divided) == ([0, 1, 2, 3], ())


def test_a_missing_library_is_nothing_to_ask(
    tmp_path: Path, sampler: NvmlSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(DriverMissing):
        sampler()


def cli(control: ControlProcess, *words: str) -> str:
    argv = [sys.executable, "-m", "stoker", *words, "--server", control.url, "--token", control.tokens.admin]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def gpus(control: ControlProcess) -> dict[str, Any]:
    return {gpu["uuid"]: gpu for gpu in control.ask("GET", "/api/v1/gpus")[1]["gpus"]}


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def assert_bad_requests_are_answered_in_one_line(port: int) -> None:
    bad = ((b"GET / HTTP/1.1\r\n\r\n", b"404"), (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"), (b"\0" * 9_000, b"400"))
    for asked, status in bad:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(asked)
            assert connection.recv(64).startswith(b"HTTP/1.1 " + status)


def test_who_asks_sees_what_each_gpu_does_and_for_which_job(tmp_path: Path, stub: NvmlStub) -> None:
    stub.tell(gpu_0_utilization="57", gpu_0_temperature="55", gpu_0_power="123000", gpu_0_used="1000")
    stub.tell(gpu_0_sm_clock="810", gpu_0_memory_clock="2619", gpu_0_energy="7", gpu_0_clock_events="0x48")
    stub.tell(gpu_0_rows="0:2:0:0", gpu_0_links="0:0000:11:00.0", gpu_1_links="0:0000:10:00.0")
    with ControlProcess(tmp_path / "control") as control:
        agent = AgentProcess(tmp_path / "n1", control, name="n1")
        settings = agent.settings.read_text()
        agent.write(
            settings.replace(
                f"script: {agent.folder / 'gpus.yaml'}",
                "detection: nvml, telemetry_s: 300, watch_s: 1, probe_again_s: 1",
            )
        )
        port = free_port()
        agent.add(f"metrics: {{address: '127.0.0.1:{port}'}}")
        agent.environ |= stub.environ
        with agent:
            until(lambda: gpus(control).get(uuid(0), {}).get("figures"), "its figures are known")
            shown = gpus(control)[uuid(0)]["figures"]
            assert (shown["utilization_percent"], shown["temperature_c"], shown["power_w"]) == (57, 55, 123.0)
            assert shown["memory_used_mb"] == 1_000
            assert not shown["stale"]
            holds = submit(control, "sleep 600", gpu_count=4)
            until_state(control, holds, "running")
            found = {gpu["uuid"]: gpu["figures"] for gpu in job(control, holds)["gpus"]}
            assert found[uuid(0)]["utilization_percent"] == 57
            listed = cli(control, "gpu", "list")
            assert "57%" in listed
            assert "1000 MiB" in listed
            assert f"{uuid(0)} on n1: 57%, 1000 MiB, 55 C, 123 W, 810 MHz" in cli(control, "status", holds)
            assert "57%, 1000 MiB, 55 C, 123 W" in cli(control, "node", "show", "n1")
            labels = f'gpu="0",UUID="{uuid(0)}",device="nvidia0",modelName="{MODEL}",Hostname="n1",hpc_job="{holds}"'
            held = f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 57\n"
            # Five minutes between two looks: what is seen sooner is seen because somebody reads the node's figures.
            until(lambda: gpus(control) and held in scraped(port), "the newest look was made while the job had it")
            page = scraped(port)
            assert f"DCGM_FI_DEV_FB_USED{{{labels}}} 1000\n" in page
            assert f"DCGM_FI_DEV_FB_FREE{{{labels}}} 80559\n" in page
            assert f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 55\n" in page
            assert f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} 123.000\n" in page
            energy = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
            assert f"# TYPE {energy} counter\n{energy}{{{labels}}} 7\n" in page
            for name, value in (("SM_CLOCK", 810), ("MEM_CLOCK", 2_619), ("CLOCKS_EVENT_REASONS", 0x48)):
                assert f"DCGM_FI_DEV_{name}{{{labels}}} {value}\n" in page
            for name, value in (("UNCORRECTABLE_REMAPPED_ROWS", 2), ("ROW_REMAP_PENDING", 0), ("ROW_REMAP_FAILURE", 0)):
                assert f"DCGM_FI_DEV_{name}{{{labels}}} {value}\n" in page
            assert "slowed down (hot)" in cli(control, "gpu", "list")
            shown = cli(control, "node", "show", "n1")
            assert "GPUs 0, 1: each to each, 1 lanes" in shown
            assert "PCI 00000000:10:00.0" in shown
            assert next(family.name for family in text_string_to_metric_families(page)) == "DCGM_FI_DEV_GPU_UTIL"
            assert_bad_requests_are_answered_in_one_line(port)
            stub.divide(3, 1)
            mig = f'gpu="3",UUID="{mig_uuid(3, 1)}",device="nvidia3",modelName="{MODEL} MIG 1g.10gb",GPU_I_ID="8"'
            shown_as = f'DCGM_FI_DEV_FB_USED{{{mig},GPU_I_PROFILE="1g.10gb"'
            until(lambda: gpus(control) and shown_as in scraped(port), "an instance is shown")
            assert "DCGM_FI_DEV_GPU_UTIL" in scraped(port)


def test_where_there_is_no_library_the_same_figures_come_from_nvidia_smi(tmp_path: Path) -> None:
    row = f"0, {uuid(0)}, {MODEL}, 81559, 9000, 57, 55, 123.00, 00000000:10:00.0"
    figures = f"0, {uuid(0)}, 9000, 57, 55, 123.00, 0, Disabled, 1980, 2619, 0x0000000000000004"
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.write_text(
        f'#!/bin/sh\ncase "$1" in *pci.bus_id*) echo "{row}";; *event_reasons.active) echo "it is not a valid field";; '
        f'*throttle_reasons.active) echo "{figures}";; --query-compute-apps*) cat {tmp_path}/processes;; '
        f"--query-remapped-rows*) echo {uuid(0)}, 0, 2, 0, 0; test -e {tmp_path}/knows_rows || exit 2;; esac\n"
    )
    fake.chmod(0o755)
    (tmp_path / "processes").write_text(f"{uuid(0)}, 1, 9000\n")
    (told,) = SmiSampler(str(fake))().samples
    assert (told.sm_clock_mhz, told.clock_events, told.rows) == (1_980, 0x4, None)
    (tmp_path / "knows_rows").touch()
    assert SmiSampler(str(fake))().samples[0].rows == RemappedRows(uncorrectable=2)
    with ControlProcess(tmp_path / "control") as control:
        agent = AgentProcess(tmp_path / "n1", control, name="n1")
        agent.write(agent.settings.read_text().replace(f"script: {agent.folder / 'gpus.yaml'}", "detection: auto"))
        agent.environ |= {"PATH": f"{fake.parent}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(tmp_path / "nowhere")}
        with agent:
            until(lambda: gpus(control).get(uuid(0), {}).get("figures"), "its figures are known")
            shown = gpus(control)[uuid(0)]
            assert (shown["figures"]["utilization_percent"], shown["figures"]["power_w"]) == (57, 123.0)
            until(lambda: gpus(control)[uuid(0)]["health"]["kind"] == "process", "a process that is no job is on it")
            (tmp_path / "processes").write_text("")
            fake.write_text(fake.read_text().replace("9000,", "3,"))
            until(lambda: gpus(control)[uuid(0)]["status"] == "idle", "it is offered once it is clean")
            until_state(control, submit(control, "true", gpu_count=1), "succeeded")
            fake.write_text(fake.read_text().replace("123.00, 0,", "123.00, 1,"))
            until(lambda: gpus(control)[uuid(0)]["health"]["kind"] == "ecc", "an uncorrected error more takes it out")
