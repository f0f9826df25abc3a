"""What an agent's settings accept, and what they say when they don't."""

from pathlib import Path

import msgspec
import pytest

from stoker.adapters.settings.loader import load
from stoker.agent.settings import ADDRESS, AgentSettings, job_limits
from stoker.brain.domain.errors import StokerError

DESIGN_FILE = """\
data_dir: /var/lib/stoker-agent
node: {name: "", labels: {}, taints: [], cpus: 0, memory_mb: 0}
control: {addresses: ["127.0.0.1:9090"], token_file: ""}
gpu: {detection: auto, script: ""}
executor: {kinds: [process], default_image: "", allow_root: false}
log: {level: info, format: json}
"""


def read(tmp_path: Path, text: str) -> AgentSettings:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return load(AgentSettings, path, {}, {}).value


def test_the_file_of_the_design_is_the_default(tmp_path: Path) -> None:
    designed = read(tmp_path, DESIGN_FILE)
    assert designed.control.addresses == (ADDRESS,), "that of a node that has joined nowhere else"
    assert msgspec.structs.replace(designed, control=AgentSettings().control) == AgentSettings()


@pytest.mark.parametrize("name", ["gpu01", "gpu-01", "gpu-node-01", "a-b-c-d", "GPU01.Lab.example.org", "n_1", "9"])
def test_host_names_with_dashes_dots_and_capitals_are_names(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, f"node: {{name: {name!r}}}\n").node.name == name


@pytest.mark.parametrize("address", ["h:1", "[::1]:9090", "[fe80::1%eth0]:9090", "10.0.0.1:65535", "n_1.a.:9090"])
def test_an_address_of_either_family_is_taken(tmp_path: Path, address: str) -> None:
    assert read(tmp_path, f"control: {{addresses: ['{address}']}}\n").control.addresses == (address,)
    host = address.rpartition(":")[0].strip("[]")
    assert read(tmp_path, f"node: {{address: '{host}'}}\n").node.address == host


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("node: {name: 'a b'}", "node: name: 'a b'"),
        (f"node: {{name: {'x' * 64}}}", "1 to 63 letters"),
        ("node: {name: '../../etc'}", "1 to 63 letters"),
        ("node: {cpus: -1}", "cpus: -1 is below 0"),
        ("node: {taints: [x]}", "'x' is not a taint, at column 2: `:NoSchedule` is missing (nearest: `x:NoSchedule`)"),
        ("node: {taints: [' gpu = old:noschedule']}", "(nearest: `gpu=old:NoSchedule`)"),
        ("node: {taints: ['gpu=a b:NoExecute']}", "(nearest: `gpu=a-b:NoSchedule`)"),
        ("node: {taints: [':NoSchedule']}", "a key is missing"),
        ("node: {taints: ['a:NoSchedule', 'a=b:NoSchedule']}", "a node has one taint of a key"),
        ("node: {taints: [gpu: NoSchedule]}", "taints"),
        ("node: {labels: {'a b': c}}", "' ' may not stand in a key: only letters, digits"),
        ("node: {labels: {'a b': c}}", "(nearest: `a-b: c`)"),
        ("node: {labels: {zone: 'rack/7'}}", "(nearest: `zone: rack-7`)"),
        ("node: {labels: {Example.com/zone: a}}", "(nearest: `example.com/zone: a`)"),
        (f"node: {{labels: {{zone: {'x' * 64}}}}}", "at most 63 are taken"),
        ("node: {labels: {stoker.io/hostname: a}}", "are Stoker's own"),
        ("node: {labels: {'': a}}", "a key is missing"),
        ("control: {token_file: /etc/token}", "it is shown in plain text only, which `insecure: true` says"),
        ("control: {addresses: [localhost]}", "'localhost' isn't HOST:PORT"),
        ("control: {addresses: ['h:70000']}", "isn't HOST:PORT"),
        ("control: {addresses: ['256.1.1.1:9090']}", "'256.1.1.1:9090' isn't HOST:PORT"),
        ("control: {addresses: ['1.2.3.4.5:9']}", "'1.2.3.4.5:9' isn't HOST:PORT"),
        ("control: {addresses: ['-h:1']}", "'-h:1' isn't HOST:PORT"),
        ("control: {addresses: [':9090']}", "':9090' isn't HOST:PORT (nearest: '127.0.0.1:9090')"),
        ("control: {addresses: ['::1:9090']}", "isn't HOST:PORT (nearest: '[::1]:9090')"),
        ("control: {addresses: ['http://h:9090']}", "isn't HOST:PORT (nearest: 'h:9090')"),
        ("control: {addresses: ['a:1,b:2']}", "isn't HOST:PORT; name each on its own, as in ['a:9090', 'b:9090']"),
        ("control: {addresses: ['a b:1']}", "isn't HOST:PORT, such as 'control.example.org:9090'"),
        ("control: {addresses: ['[h]:1']}", "isn't HOST:PORT"),
        ("control: {addresses: ['me@h:1']}", "isn't HOST:PORT"),
        ("control: {addresses: ['h:1', 'h:1']}", "'h:1' is named twice"),
        ("node: {address: 'h:9090'}", "'h:9090' isn't a host name or an IP address, without a port"),
        ("node: {address: 'http://h'}", "isn't a host name"),
        ("gpu: {detection: scripted}", "must name a file"),
        ("gpu: {detection: nvidia-smi, script: x}", "would not read it"),
        ("gpu: {detection: nvml, script: x}", "would not read it"),
        ("gpu: {detection: rocm}", "rocm"),
        ("executor: {kinds: []}", "needs at least one"),
        ("executor: {default_image: x}", "wants `container` among the `kinds`"),
        ("executor: {kinds: [container], default_image: ''}", "it must name one"),
        ("executor: {kinds: [process, container], limits: {as: 1G}}", "can't be set for a container"),
        ("executor: {docker: {socket: docker.sock}}", "isn't an absolute path"),
        ("executor: {docker: {mounts_allowed: ['/a:/b']}}", "isn't an absolute path"),
        ("executor: {docker: {registry_auth: config.json}}", "isn't an absolute path"),
        ("executor: {umask: '999'}", "'999' isn't three octal digits"),
        ("executor: {umask: '22'}", "'22' isn't three octal digits"),
        ("executor: {limits: {files: 1}}", "'files' is no limit; known: as, core, cpu"),
        ("executor: {limits: {nofile: many}}", "limits: nofile: 'many' is neither `unlimited` nor a whole number"),
        ("executor: {limits: {nofile: 20:10}}", "limits: nofile: the soft limit 20 is above the hard limit 10"),
        ("executor: {limits: {nofile: unlimited:10}}", "the soft limit unlimited is above the hard limit 10"),
        ("executor: {limits: {memlock: 1.5G}}", "'1.5G' is neither"),
        ("executor: {limits: {memlock: 99999999T}}", "99999999T is above 9223372036854775807"),
        ("executor: {log_head_mb: 0}", "isn't between 1 and 65536 MiB"),
        ("nodes: {}", "nodes isn't a setting (nearest: node)"),
    ],
)
def test_a_fault_is_named_with_its_file(tmp_path: Path, text: str, wanted: str) -> None:
    with pytest.raises(StokerError) as refused:
        read(tmp_path, text + "\n")
    assert refused.value.refusal.code == "bad_settings"
    assert wanted in refused.value.refusal.message
    assert "agent.yaml" in refused.value.refusal.message


def test_limits_of_jobs_are_read_as_systemd_writes_them(tmp_path: Path) -> None:
    text = "executor: {limits: {nofile: 65536, core: '0:unlimited', memlock: unlimited, stack: 8M:1G, as: 10:59}}\n"
    assert job_limits(read(tmp_path, text).executor) == {
        "nofile": (65_536, 65_536), "core": (0, -1), "memlock": (-1, -1), "stack": (8 << 20, 1 << 30), "as": (10, 59),
    }  # fmt: skip
