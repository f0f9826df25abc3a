"""The pair that `docs/howto/set-up-a-pair.md` describes, step by step: two machines, a third with the storage that they
share by NFS, and the units that are shipped with their own restrictions.
"""

import http.client
import json
import os
import re
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from stoker.wire.client import Client, JobBody
from tests.real.control_process import free_port
from tests.real.machine_image import ROOT, data_disk, uid_of
from tests.real.stoker_machine import GRPC, HTTP, PATIENCE_S, until, wanted
from tests.real.virtual_machine import Done, Machine, Template

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(3_600), wanted]

PAGE: Final = (ROOT / "docs/howto/set-up-a-pair.md").read_text().partition("## With PostgreSQL")[0]
HOSTS: Final = {"host-a": 1, "host-b": 2, "storage": 3}
SERVE: Final = """mkdir -p /srv/shared /var/lib/nfs/v4recovery
echo '/srv/shared *(rw,sync,no_root_squash,no_subtree_check,fsid=0)' >/etc/exports
modprobe nfsd; mount -t nfsd nfsd /proc/fs/nfsd; exportfs -a
rpc.mountd -N 3; rpc.nfsd -N 3 -G 10 -L 10 4"""


def settings() -> str:
    """Those that the page shows, of host-a."""
    (found,) = re.findall(r"```yaml\n *# /etc/stoker/control.yaml on host-a\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def command(*beginning: str) -> str:
    """The commands of the page that begin so, each as it stands there."""
    lines = [line.strip() for line in PAGE.splitlines() if line.startswith(" " * 8)]
    found = [line for begins in beginning for line in lines if line.startswith(begins)]
    assert len(found) == len(beginning), (beginning, lines)
    return "; ".join(found)


class Host:
    """A machine of the pair, and what lies on its disk."""

    def __init__(self, folder: Path, name: str, made: Template, network: dict[str, str]) -> None:
        self.name, self.made, self.network = name, made, network
        stage = folder / f"{name}.stage"
        (stage / "etc/stoker").mkdir(parents=True)
        data = stage / "var/lib/stoker"
        data.mkdir(parents=True)
        os.chown(data, uid_of("stoker", made.image), -1)
        text = settings()
        if name == "host-b":  # as the page says
            text = text.replace("name: a", "name: b").replace("host-b", "host-x").replace("host-a", "host-b")
            text = text.replace("host-x", "host-a")
        (stage / "etc/stoker/control.yaml").write_text(text)
        self.machine = Machine(folder, name, HTTP, GRPC, disk=data_disk(folder / f"{name}.img", stage))

    def up(self) -> None:
        """A machine in which an administrator has named the hosts, and the storage in /etc/fstab."""
        self.machine.revive(self.made).plug_network(HOSTS[self.name], **self.network)
        names = "".join(rf"192.168.7.{number} {name}\n" for name, number in HOSTS.items())
        self.machine.do(
            rf"hostname {self.name}; printf '{names}' >>/etc/hosts; mkdir -p /shared; "
            r"printf 'storage:/ /shared nfs4 hard,retry=0 0 0\n' >>/etc/fstab; systemctl daemon-reload"
        )

    def may_write(self) -> None:
        """The third step of the page."""
        self.machine.do(f"cd /opt/stoker; {command('install -D -m 644', 'systemctl daemon-reload')}")

    def start(self) -> Done:
        return self.machine.sh("systemctl start stoker-control", timeout_s=300)

    def journal(self) -> str:
        return self.machine.sh("journalctl -u stoker-control --no-pager -o cat", timeout_s=120).output

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.machine.port_of(HTTP)}"

    def ask(self, path: str, token: str = "") -> tuple[int, Any]:
        unproved = ssl._create_unverified_context()  # whom the token trusts is the client's to find out, below
        port = self.machine.port_of(HTTP)
        wire = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=unproved)
        try:
            wire.request("GET", path, headers={"authorization": f"Bearer {token}"} if token else {})
            answer = wire.getresponse()
            return answer.status, json.loads(answer.read() or b"null")
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        finally:
            wire.close()

    @property
    def is_active(self) -> bool:
        return self.ask("/ready")[0] == 200


def told_by_the_active(hosts: Sequence[Host], story: Callable[[], str]) -> tuple[Host, str]:
    """Which one is active, and what the last step of the page says there.

    A lease may go from one to the other while machines without KVM are so busy.
    """
    told: list[tuple[Host, str]] = []

    def tells() -> bool:
        for host in hosts:
            done = host.machine.sh(command("stoker control status", "stoker token create"), timeout_s=300)
            if done.rc == 0 and "error:" not in done.output:
                told.append((host, done.output))
        return bool(told)

    until(tells, story)
    return told[0]


def test_the_documented_pair_runs_under_its_units_waits_for_its_storage_and_outlives_a_machine(
    tmp_path: Path, made: Template
) -> None:
    network = {"mcast": f"230.0.0.1:{free_port()}", "localaddr": "127.0.0.1"}
    storage = Machine(tmp_path, "storage")
    hosts = [Host(tmp_path, name, made, network) for name in ("host-a", "host-b")]

    def story() -> str:
        return "\n".join(f"{host.name}: {host.journal()[-3_000:]}" for host in hosts)

    with storage, hosts[0].machine, hosts[1].machine:
        storage.revive(made).plug_network(HOSTS["storage"], **network)
        for host in hosts:
            host.up()
            host.may_write()
        first, _ = hosts
        done = first.start()
        assert done.rc != 0, "started beside the empty folder that lies under storage which isn't mounted"
        assert "dependency" in done.output.lower(), done
        storage.do(SERVE)

        first.machine.do(f"systemctl start shared.mount; {command('install -d -m 700')}", timeout_s=120)
        first.machine.do("rm -r /etc/systemd/system/stoker-control.service.d; systemctl daemon-reload")
        first.start()
        until(lambda: "ReadWritePaths=" in first.journal(), first.journal)
        assert not first.is_active
        first.machine.do("systemctl stop stoker-control", timeout_s=120)
        first.may_write()

        for host in hosts:
            assert host.start().rc == 0, host.journal()
        active, said = told_by_the_active(hosts, story)
        standby = next(host for host in hosts if host is not active)
        assert "active" in said, said
        (token,) = re.findall(r"stoker_\w{8}_\S+", said)

        def in_sync(host: Host) -> list[str]:
            status, answer = host.ask("/api/v1/control", token)
            return list(answer["in_sync"]) if status == 200 else []

        until(lambda: in_sync(active) == ["a", "b"], story)
        with Client(",".join(host.url for host in hosts), token=token, patience_s=PATIENCE_S) as client:
            kept = [client.submit(JobBody(command="true", hold=True)).id for _ in range(20)]
            active.machine.cut()
            until(lambda: standby.is_active, standby.journal)
            assert {client.job(each).state for each in kept} == {"held"}
            active.up()
            active.may_write()
            assert active.start().rc == 0, active.journal()
            until(lambda: in_sync(standby) == ["a", "b"], story)
            assert not active.is_active
