"""Machines that run Stoker by its shipped units: what is on their disks, and agents outside that work for them."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from stoker.brain.domain.access import Role
from stoker.wire.rest.token import NewTokenBody
from tests.real.agent_process import AgentProcess
from tests.real.control_process import ControlProcess
from tests.real.machine_image import Image, data_disk, uid_of
from tests.real.tokens import Tokens, token_in, tokens_of, written
from tests.real.virtual_machine import HOST, Machine

CUTS: Final = int(os.environ.get("STOKER_POWER_CUTS") or "3")
MANY: Final = 20
"""So many cuts are asked for where there is time for all that machines can meet."""
NOT_HERE: Final = "NOT PROVED HERE: no machine is started where STOKER_POWER_CUTS is 0"
wanted: Final = pytest.mark.skipif(not CUTS, reason=NOT_HERE)
if_many: Final = pytest.mark.skipif(CUTS < MANY, reason=f"takes long: STOKER_POWER_CUTS={MANY} asks for it")
PATIENCE_S: Final = 900.0
HTTP, GRPC = 8080, 9090
CONTROL: Final = f"""data_dir: /var/lib/stoker
http: {{host: 0.0.0.0, port: {HTTP}}}
grpc: {{host: 0.0.0.0, port: {GRPC}, node_port: 0}}
tls: {{mode: "off"}}
"""
NODE: Final = """data_dir: /var/lib/stoker-agent
node: {{name: n1, cpus: 16}}
control: {{addresses: ["{host}:{port}"], insecure: true, token_file: /etc/stoker/agent.token}}
gpu: {{script: /etc/stoker/gpus.yaml}}
executor: {{allow_root: true}}
"""


def until(holds: Callable[[], object], what: Callable[[], str], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def start(machine: Machine, unit: str) -> None:
    """By the shipped unit; that a control plane means plain text is said on its command line alone."""
    if unit == "stoker-control":
        plain = "sed -i 's/stoker control/& --insecure/' /etc/systemd/system/stoker-control.service"
        machine.do(f"{plain}; systemctl daemon-reload")
    machine.do(f"systemctl start {unit}")


def control_machine(folder: Path, image: Image) -> tuple[Machine, Tokens]:
    """A machine for a control plane, and tokens for it."""
    stage = folder / "stage"
    data = stage / "var/lib/stoker"
    admin = tokens_of(data).admin
    kept = shutil.move(data.with_name("stoker.tokens"), folder / "tokens")
    (stage / "etc/stoker").mkdir(parents=True)
    (stage / "etc/stoker/control.yaml").write_text(CONTROL)
    for path in (data, *data.iterdir()):
        os.chown(path, uid_of("stoker", image), -1)
    return Machine(folder, "control", HTTP, GRPC, disk=data_disk(folder / "control.img", stage)), Tokens(
        admin, Path(kept) / "agent"
    )


def node_machine(folder: Path, control: ControlProcess) -> tuple[Machine, str]:
    """A machine for the agent `n1` of a control plane outside, and the token of a person whose account it has.

    Jobs find a file `/srv/proof` there that they may add to.
    """
    stage = folder / "stage"
    user = token_in(control.folder, NewTokenBody(role=Role.USER, tenant="default", user="ada"))
    (stage / "etc/stoker").mkdir(parents=True)
    (stage / "var/lib/stoker-agent").mkdir(parents=True, mode=0o711)
    (stage / "etc/stoker/agent.yaml").write_text(NODE.format(host=HOST, port=control.grpc_port))
    (stage / "etc/stoker/gpus.yaml").write_text("gpus: [{count: 4, model: Tesla V100, memory_mb: 16384}]\n")
    written(stage / "etc/stoker/agent.token", control.tokens.agent_file.read_text())
    proof = stage / "proof"
    proof.touch()
    proof.chmod(0o666)
    return Machine(folder, "node", disk=data_disk(folder / "node.img", stage)), user


@contextmanager
def agents(folder: Path, machine: Machine, token_file: Path) -> Iterator[list[AgentProcess]]:
    """Two of the control plane in that machine, outside."""
    started = []
    try:
        for name in ("n1", "n2"):
            agent = AgentProcess(folder / name, name=name)
            agent.environ["STOKER__CONTROL__TOKEN_FILE"] = str(token_file)
            agent.write(agent.settings.read_text().replace("127.0.0.1:1", f"127.0.0.1:{machine.port_of(GRPC)}"))
            started.append(agent.start())
        yield started
    finally:
        for agent in started:
            agent.__exit__(None, None, None)
