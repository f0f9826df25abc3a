"""Whole machines for tests: Debian with systemd under qemu, without KVM, whose power is cut by killing qemu.

What a guest has flushed to a disk is in a file of this machine when qemu is killed; what was in the guest's memory is
lost. That is a power cut as the guest's file system sees it; `test_machines.py` shows that what nobody synced is lost.

A boot of kernel and systemd takes long without KVM. So one machine has booted, and its memory is in a file: the
*template*. Others go on from there within seconds, as often as wanted. The data disk isn't in it: it is plugged in
afterwards. What such a machine skips is the boot of kernel and systemd alone. `Machine.revive` gives it what that
would have given: the time of day, randomness and a boot id of its own. Its disk is mounted, the file system's journal
replayed and the daemons started as after any boot.
"""

import hashlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import pytest

from tests.programs import lacking
from tests.real.control_process import free_port
from tests.real.machine_image import ROOT, SHELL_PORT, Image, NotHere, alone, image, make_once, project_disk, run

PROGRAMS: Final = ("qemu-system-x86_64", "mmdebstrap", "mke2fs", "chroot", "setpriv", "unshare")
MEMORY_MB: Final = 768
DISK_B: Final = 6 << 30
"""For an image, a template, and what some machines write."""
HOST: Final = "10.0.2.2"
"""The loopback of the machine that runs the tests, as a guest reaches it."""
BOOT_S_MAX: Final = 1_800.0
"""For whatever a machine does, beside other tests on two cores. Alone it boots in fifteen seconds."""

ORDER_S_MAX: Final = 300.0
FIRST_BOOT_S_MAX: Final = 300.0
"""Where the template takes longer, tests of machines would take hours."""

# Once after a boot. The imports bring bytecode into memory.
_PREPARE: Final = """
install -m 644 /opt/stoker/deploy/systemd/*.service /etc/systemd/system/
systemctl daemon-reload
cd /opt/stoker/src
python3 -c 'import stoker.cli.main, stoker.live.main, stoker.live.control_plane, stoker.agent.main'
"""


class Done(NamedTuple):
    """How a script in a machine ended, and both its outputs."""

    rc: int
    output: str


class Template(NamedTuple):
    """A machine that has booted and waits: its disk, and a file with its memory and devices."""

    image: Image
    project: Path
    root: Path
    memory: Path


def template() -> Template:
    """Made once for all processes that test this state of the checkout. Skips where no machine can be had."""
    if os.geteuid() != 0:
        pytest.skip("mmdebstrap needs root")
    if said := lacking(*PROGRAMS):
        pytest.skip(said)
    if (free := shutil.disk_usage(ROOT).free) < DISK_B:
        pytest.skip(f"machines need {DISK_B >> 30} GiB of disk, and {free >> 30} are free")
    made_of = image()
    digest = hashlib.sha256(str(made_of.root).encode() + Path(__file__).read_bytes())
    for path in sorted(path for name in ("src", "deploy") for path in (ROOT / name).rglob("*") if path.is_file()):
        if path.suffix != ".pyc":
            digest.update(str(path).encode() + path.read_bytes())
    folder = ROOT / "build" / "machine"
    made = Template(made_of, folder / "project.img", folder / "root.img", folder / "memory")
    key = folder / "key"
    with alone(folder):
        if not key.exists() or key.read_text() != digest.hexdigest():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            make_once(folder, lambda: _make_template(made))
            key.write_text(digest.hexdigest())
    return made


def _make_template(made: Template) -> None:
    project_disk(made.image, made.project)
    run("cp", "--sparse=always", "--reflink=auto", made.image.root, made.root)
    with Machine(made.memory.parent, "template") as machine:
        machine.boot(made, keep_root=True, within_s=FIRST_BOOT_S_MAX)
        machine.save(made.memory)


class Machine:
    """One machine: `boot` or `revive` starts it; `cut` ends it as a power cut does, and so does the end of the test."""

    def __init__(self, folder: Path, name: str, *ports: int, disk: Path | None = None) -> None:
        """`ports` of it are reached by `port_of`; `disk` is its data disk."""
        self.folder, self.name, self.disk = folder, name, disk
        self._ports = {port: free_port() for port in (SHELL_PORT, *ports)}
        self._process: subprocess.Popen[bytes] | None = None
        self._monitor = folder / f"{name}.qmp"
        self._console = folder / f"{name}.console"

    def port_of(self, port: int) -> int:
        """On the loopback here, what is that port there."""
        return self._ports[port]

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def _start(self, made: Template, root: Path, *words: str, overlay: bool = True) -> None:
        forwards = "".join(f",hostfwd=tcp:127.0.0.1:{here}-:{there}" for there, here in self._ports.items())
        disks = (
            f"file={root},if=virtio,format=raw,snapshot={'on' if overlay else 'off'}",
            f"file={made.project},if=virtio,format=raw,readonly=on",
        )
        quiet = "root=/dev/vda rw console=ttyS0 quiet loglevel=3 net.ifnames=0 mitigations=off audit=0 tsc=reliable"
        self._monitor.unlink(missing_ok=True)
        with self._console.open("ab") as console:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL"),  # so that it doesn't outlive a killed test
                    *("nice", "-n", "5"),  # other tests measure times; those of machines wait long
                    "qemu-system-x86_64",
                    *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MB)),
                    *("-display", "none", "-nodefaults", "-no-reboot", "-serial", "stdio"),
                    *("-kernel", str(made.image.kernel), "-initrd", str(made.image.initrd), "-append", quiet),
                    *(word for disk in disks for word in ("-drive", disk)),
                    *("-netdev", f"user,id=net{forwards}", "-device", "virtio-net-pci,netdev=net"),
                    *("-qmp", f"unix:{self._monitor},server=on,wait=off", *words),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )

    def boot(self, made: Template, *words: str, keep_root: bool = False, within_s: float = BOOT_S_MAX) -> Self:
        """From power on, with an untouched system, until it takes orders. `words`: more of qemu's command line.

        Raises: NotHere where it doesn't boot in time.
        """
        self._start(made, made.root if keep_root else made.image.root, *words, overlay=not keep_root)
        self.until_it_answers(within_s)
        self.do(_PREPARE, timeout_s=BOOT_S_MAX)
        return self._with_its_disk()

    def revive(self, made: Template) -> Self:
        """From the template's memory, as if it had just booted."""
        self._start(made, made.root, "-incoming", f"exec:cat {made.memory}")
        self._until_it_is("paused")  # as it was when it was saved
        self.go_on()
        boot_id = "/proc/sys/kernel/random/boot_id"
        self.set_clock()
        self.do(
            f"python3 -IS /usr/local/sbin/reseed {secrets.token_hex(64)}; "
            f"echo {uuid.uuid4()} >/run/boot_id; mount --bind /run/boot_id {boot_id}",
            timeout_s=BOOT_S_MAX,
        )
        return self._with_its_disk()

    def _with_its_disk(self) -> Self:
        if self.disk is not None:
            disk = {"driver": "file", "filename": str(self.disk)}
            self.order("blockdev-add", driver="raw", file=disk, **{"node-name": "data"})
            self.order("device_add", driver="virtio-blk-pci", drive="data", id="data")
            wait = "for each in $(seq 600); do [ -b /dev/vdc ] && break; sleep 0.05; done"
            self.do(f"{wait}; mount-data /dev/vdc", timeout_s=BOOT_S_MAX)
        return self

    def save(self, memory: Path) -> None:
        """Its memory into a file, then it is gone."""
        self.do("sync", timeout_s=BOOT_S_MAX)
        self.pause()
        self.order("migrate-set-parameters", **{"max-bandwidth": 1 << 34})
        self.order("migrate", uri=f"exec:cat >{memory}")
        deadline = time.monotonic() + BOOT_S_MAX
        while (status := self.order("query-migrate").get("status")) != "completed":
            assert status != "failed", self.console()
            assert time.monotonic() < deadline, status
            time.sleep(0.05)
        self.order("quit")
        assert self._process is not None
        self._process.wait(BOOT_S_MAX)

    def cut(self) -> None:
        """The power goes: nothing in the machine has time for anything."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait(BOOT_S_MAX)

    def pause(self) -> None:
        """Its hypervisor stops it: all its clocks stand still, but for the one on its board."""
        self.order("stop")

    def go_on(self) -> None:
        self.order("cont")

    def suspend(self) -> None:
        """To memory (ACPI S3), as when somebody shuts a laptop. CLOCK_BOOTTIME and the wall clock count that time."""
        self.do("(sleep 0.5; echo mem >/sys/power/state) >/dev/null 2>&1 &")
        self._until_it_is("suspended")

    def wake(self) -> None:
        self.order("system_wakeup")
        self.until_it_answers(BOOT_S_MAX)

    def set_clock(self) -> None:
        """Its wall clock becomes that of this machine, as a time service would set it."""
        self.do(f"date -s @{time.time():.3f}", timeout_s=BOOT_S_MAX)

    def _until_it_is(self, status: str) -> None:
        deadline = time.monotonic() + BOOT_S_MAX
        while (seen := self.order("query-status")["status"]) != status:
            assert time.monotonic() < deadline, (seen, self.console())
            time.sleep(0.05)

    def plug_network(self, number: int, **socket: str) -> None:
        """A second card, with the address 192.168.7.NUMBER, on a network that the words of `socket` name."""
        self.order("netdev_add", type="socket", id="shared", **socket)
        mac = f"52:54:00:12:35:{number:02x}"
        self.order("device_add", driver="virtio-net-pci", netdev="shared", id="shared", mac=mac)
        wait = "for each in $(seq 600); do ip link show eth1 >/dev/null 2>&1 && break; sleep 0.05; done"
        self.do(f"{wait}; ip addr add 192.168.7.{number}/24 dev eth1; ip link set eth1 up", timeout_s=BOOT_S_MAX)

    def order(self, command: str, **arguments: object) -> dict[str, object]:
        """A command of qemu's monitor. Source: QEMU QMP Reference Manual."""
        deadline = time.monotonic() + BOOT_S_MAX
        with socket.socket(socket.AF_UNIX) as wire:
            wire.settimeout(BOOT_S_MAX)
            while True:
                try:
                    wire.connect(str(self._monitor))
                    break
                except OSError:
                    assert self._process is not None
                    assert self._process.poll() is None, self.console()
                    assert time.monotonic() < deadline, self.console()
                    time.sleep(0.02)
            with wire.makefile("rw") as lines:
                lines.readline()  # its greeting
                for said in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                    lines.write(json.dumps(said) + "\n")
                    lines.flush()
                    while "event" in (answer := json.loads(lines.readline())):
                        pass
        assert "return" in answer, (command, answer)
        return dict(answer["return"])

    def sh(self, script: str, timeout_s: float = ORDER_S_MAX) -> Done:
        """Raises: OSError where it doesn't answer in time; AssertionError where its shell ended without a word."""
        with socket.create_connection(("127.0.0.1", self._ports[SHELL_PORT]), timeout=timeout_s) as wire:
            wire.sendall(f"export SYSTEMD_BUS_TIMEOUT={BOOT_S_MAX:.0f}; {script}".encode())
            wire.shutdown(socket.SHUT_WR)
            said = b""
            while part := wire.recv(65_536):
                said += part
        output, _, rc = said.decode(errors="replace").rpartition("rc ")
        if not rc.strip().isdigit():
            raise ConnectionError(f"{self.name} doesn't answer: {said[-300:]!r}")
        return Done(int(rc), output)

    def do(self, script: str, timeout_s: float = ORDER_S_MAX) -> str:
        """What must succeed."""
        done = self.sh(f"set -e; {script}", timeout_s)
        assert done.rc == 0, f"{self.name}: {script}: {done}\n{self.console()}"
        return done.output

    def until_it_answers(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while True:
            with suppress(OSError):
                if self.sh("true", timeout_s=30.0).rc == 0:
                    return
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise NotHere(f"{self.name} doesn't answer within {within_s:.0f} s: {self.console()[-900:]}")
            time.sleep(0.1)

    def console(self) -> str:
        return self._console.read_text(errors="replace")[-4_000:] if self._console.exists() else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.cut()
