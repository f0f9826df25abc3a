"""What an agent says about the machine it runs on."""

import resource
from pathlib import Path

import pytest
from msgspec import structs

from stoker.adapters.entropy import SystemEntropy
from stoker.agent import machine as measuring
from stoker.agent.machine import boot_id, describe, local_address, node_name, usable_cpus, usable_memory_mb
from stoker.agent.main import UID_NAME, _agent_uid
from stoker.agent.settings import (
    LIMITS,
    AgentSettings,
    ControlConnectionSettings,
    ExecutorSettings,
    GpuSettings,
    NodeSettings,
)
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import GpuUuid, NodeName
from stoker.ports import ProbedGpu, ProbeResult

FOUND = ProbeResult(
    gpus=(ProbedGpu(uuid=GpuUuid("GPU-a"), index=0, model="V100", memory_mb=16_384, utilization_percent=7),),
    simulated=True,
    cpus=4,
    memory_mb=32_768,
)


def machine(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize("host", ["n1", "gpu-1", "gpu-box-1", "a-b-c-d", "GPU01.lab.Example"])
def test_a_node_is_named_after_its_host(host: str) -> None:
    assert node_name(AgentSettings(), host) == host


def test_the_name_in_the_settings_wins() -> None:
    assert node_name(AgentSettings(node=NodeSettings(name="n7")), "host") == "n7"


def test_a_host_without_a_usable_name_is_told_what_to_set() -> None:
    with pytest.raises(StokerError) as refused:
        node_name(AgentSettings(), "héte")
    assert "node.name" in refused.value.refusal.hint


def test_a_container_offers_its_share_and_not_its_host(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__meminfo="MemTotal:       67108864 kB\nHugePages_Total:       0\n",
        sys__fs__cgroup__cpu_DOT_max="150000 100000\n",
        sys__fs__cgroup__memory_DOT_max="1073741824\n",
    )
    assert usable_cpus(root) == 1
    assert usable_memory_mb(root) == 1_024


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc__self__cgroup": "0::/system.slice/stoker-agent.service\n",
            "sys__fs__cgroup__system.slice__stoker-agent.service__memory_DOT_max": "max\n",
            "sys__fs__cgroup__system.slice__memory_DOT_max": "1073741824\n",
        },
        {
            "proc__self__cgroup": "9:cpu,cpuacct:/\n5:memory:/agent\n0::/\n",
            "sys__fs__cgroup__memory__agent__memory_DOT_limit_in_bytes": "1073741824\n",
            "sys__fs__cgroup__memory__memory_DOT_limit_in_bytes": "9223372036854771712\n",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_an_agent_in_a_unit_with_limits_offers_what_the_unit_or_what_holds_it_may_use(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert usable_memory_mb(machine(tmp_path, proc__meminfo="MemTotal:       67108864 kB\n", **files)) == 1_024


def test_memory_for_its_own_is_not_offered_and_little_memory_bounds_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def offered(usable_mb: int) -> tuple[int, int, str]:
        monkeypatch.setattr(measuring, "usable_memory_mb", lambda: usable_mb)
        settings = AgentSettings(node=NodeSettings(cpus=64))
        inventory = describe(settings, NodeName("n1"), "uid-1", ProbeResult(gpus=()), "9.9").inventory
        return inventory.cpus, inventory.memory_mb, inventory.limits

    assert offered(65_536) == (64, 65_408, "")
    assert offered(256) == (16, 128, "offers 16 of 64 CPUs, since tasks here may have only 128 MiB of memory")
    assert offered(64)[:2] == (1, 8)


@pytest.mark.parametrize("name", ["as", "data"])
def test_no_task_is_promised_more_memory_than_one_process_may_have(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By a limit of the agent, which its jobs inherit, or by theirs, which wins."""
    option = {"as": "-v", "data": "-d"}[name]
    own = {"RLIMIT_AS": (-1, -1), "RLIMIT_DATA": (-1, -1)}

    def offered(limits: dict[str, str], memory_mb: int = 0) -> tuple[int, str]:
        settings = AgentSettings(
            node=NodeSettings(cpus=4, memory_mb=memory_mb), executor=ExecutorSettings(limits=limits)
        )
        inventory = describe(settings, NodeName("n1"), "uid-1", ProbeResult(gpus=()), "9.9").inventory
        return inventory.memory_mb, inventory.limits

    monkeypatch.setattr(measuring, "usable_memory_mb", lambda: 65_536)
    numbers = {getattr(resource, each): both for each, both in own.items()}
    monkeypatch.setattr(resource, "getrlimit", lambda limit: numbers.get(limit, (1_024, 1_024)))
    assert offered({}) == (65_408, "")
    numbers[LIMITS[name]] = (4 << 30, -1)
    words = f"offers 4096 of 65408 MiB of memory, since a process here may have no more (`ulimit {option}`)"
    assert offered({}) == (4_096, words)
    assert offered({name: "8G"})[0] == 8_192
    assert offered({name: "unlimited"}) == (65_408, "")
    assert offered({}, memory_mb=50_000) == (50_000, ""), "who sets it knows that jobs have several processes"


def test_without_limits_the_whole_machine_is_offered(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__meminfo="MemTotal:       67108864 kB\n",
        sys__fs__cgroup__cpu_DOT_max="max 100000\n",
        sys__fs__cgroup__memory_DOT_max="max\n",
    )
    assert usable_memory_mb(root) == 65_536
    assert usable_cpus(root) >= 1


def test_the_boot_id_is_the_kernels(tmp_path: Path) -> None:
    root = machine(tmp_path, proc__sys__kernel__random__boot_id="7c2e\n")
    assert boot_id(root) == "7c2e"


def test_what_settings_say_wins_over_the_script_and_the_script_over_measuring() -> None:
    told = AgentSettings(
        node=NodeSettings(
            cpus=2, address="10.1.1.1", labels={"rack": "r1"}, taints=("night:NoSchedule", "gpu=old:NoSchedule")
        )
    )
    inventory = describe(told, NodeName("n1"), "uid-1", FOUND, "9.9").inventory
    assert (inventory.cpus, inventory.memory_mb, inventory.address) == (2, 32_768, "10.1.1.1")
    assert inventory.taints == ("gpu=old:NoSchedule", "night:NoSchedule"), "one form of each, in one order"
    assert (inventory.labels, inventory.agent_uid, inventory.version) == ({"rack": "r1"}, "uid-1", "9.9")
    assert [(gpu.uuid, gpu.simulated) for gpu in inventory.gpus] == [("GPU-a", True)]


def test_a_busy_gpu_is_the_same_inventory_as_an_idle_one() -> None:
    """Else every look would register the node anew."""
    idle = ProbeResult(
        gpus=(structs.replace(FOUND.gpus[0], utilization_percent=0),), simulated=True, cpus=4, memory_mb=32_768
    )
    settings = AgentSettings(node=NodeSettings(address="10.1.1.1"))
    assert describe(settings, NodeName("n"), "u", idle, "1") == describe(settings, NodeName("n"), "u", FOUND, "1")


def test_our_address_is_the_one_on_the_way_to_the_control_plane() -> None:
    assert local_address("127.0.0.1:9090") == "127.0.0.1"
    settings = AgentSettings(control=ControlConnectionSettings(addresses=("127.0.0.1:9090",)))
    assert describe(settings, NodeName("n"), "u", FOUND, "1").inventory.address == "127.0.0.1"


def test_by_what_an_agent_is_known_again_is_closed_to_the_jobs_that_pass_through_its_folder(tmp_path: Path) -> None:
    """Whoever knew it could take the node's name with the token of any other agent. Older versions left it open."""
    made = _agent_uid(tmp_path, SystemEntropy())
    kept = tmp_path / UID_NAME
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.chmod(0o644)
    assert _agent_uid(tmp_path, SystemEntropy()) == made
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("mps", "listens", "told"),
    [("auto", True, True), ("auto", False, False), ("off", True, False), ("on", False, True)],
)
def test_mps_is_told_where_its_daemon_listens_unless_the_settings_say_otherwise(
    tmp_path: Path, mps: str, listens: bool, told: bool
) -> None:
    if listens:
        (tmp_path / "control").touch()
    gpu = GpuSettings(mps=mps, mps_pipe_dir=str(tmp_path))  # type: ignore[arg-type]  # one of its words
    settings = AgentSettings(gpu=gpu)
    inventory = describe(settings, NodeName("n"), "u", FOUND, "1").inventory
    assert (inventory.mps, inventory.shares_gpus) == (str(tmp_path) if told else "", True)
