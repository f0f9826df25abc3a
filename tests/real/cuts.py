"""Two machines on one wire: network namespaces joined by a bridge, whose packets can be dropped in either direction.

Needs root, `ip` and `iptables`. Everything made is gone afterwards.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import pytest

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("iptables") and shutil.which("nsenter")),
    reason="needs root, iproute2, iptables and nsenter",
)
_BRIDGE: Final = "sb{}"
_MADE = count()


@dataclass(frozen=True, slots=True)
class Machine:
    """One namespace."""

    namespace: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words before a command that is to run on it."""
        return ("ip", "netns", "exec", self.namespace)

    def drop_from(self, address: str) -> None:
        """What comes from there is lost from now on; what goes there isn't."""
        _run(*self.prefix, "iptables", "-A", "INPUT", "-s", address, "-j", "DROP")

    def heal(self) -> None:
        _run(*self.prefix, "iptables", "-F", "INPUT")


@contextmanager
def machines(*names: str) -> Iterator[tuple[Machine, ...]]:
    """Each reaches each, and the test reaches all."""
    number = f"{os.getpid() % 1_000}x{next(_MADE)}"  # the kernel takes its time to forget a namespace
    bridge, net = _BRIDGE.format(number), f"10.199.{os.getpid() % 250}"
    made = tuple(Machine(f"stk{number}{name}", f"{net}.{at}") for at, name in enumerate(names, 2))
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{net}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for machine in made:
            _join(machine, bridge)
        yield made
    finally:
        for machine in made:
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "del", machine.namespace)
        with suppress(subprocess.CalledProcessError):
            _run("ip", "link", "del", bridge)


def _join(machine: Machine, bridge: str) -> None:
    name = machine.namespace
    _run("ip", "netns", "add", name)
    _run("ip", "link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
    _run("ip", "link", "set", f"v{name}", "master", bridge, "up")
    _run("ip", "-n", name, "addr", "add", f"{machine.address}/24", "dev", "eth0")
    _run("ip", "-n", name, "link", "set", "eth0", "up")
    _run("ip", "-n", name, "link", "set", "lo", "up")


@contextmanager
def unmounted(pid: int, folder: Path) -> Iterator[None]:
    """For that process alone, which has a mount namespace of its own, another file system lies over the folder."""
    inside = ("nsenter", "-t", str(pid), "-m")
    _run(*inside, "mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder))
    try:
        yield
    finally:
        with suppress(subprocess.CalledProcessError):
            _run(*inside, "umount", "-l", str(folder))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=30)
