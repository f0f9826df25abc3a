"""The disks that test machines are made of: Debian with systemd, the project, and data.

The *image* is Debian with the packages that `requirements.txt` pins: made once for a lock, kept in the user's cache.
The *project disk* has `src/` and `deploy/` of this checkout and is mounted read-only at `/opt/stoker`. The *data disk*
has all that outlives a boot of a machine.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
SUITE: Final = "bookworm"
KERNEL: Final = "linux-image-cloud-amd64"
PACKAGES: Final = (
    *("systemd", "systemd-sysv", "udev", "kmod", "busybox-static", "iproute2", "python3", "ca-certificates"),
    "nfs-kernel-server",  # storage that machines share; it serves only where a test says so
)
SHELL_PORT: Final = 7_000
SITE: Final = "usr/local/lib/python3.11/dist-packages"
BUILD_S_MAX: Final = 420.0
"""For each step: beside other tests all of them together take a minute."""
UNUSED_S: Final = 7 * 86_400.0
UNFIT_S: Final = 1_800.0
"""For so long nobody tries again what couldn't be made."""

MODULES: Final = ("virtio_pci", "virtio_blk", "virtio_net")
# Debian's own initial RAM disk takes some seconds more at each boot, and longer to make.
_INIT: Final = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
for each in {modules}; do /bin/busybox insmod /$each; done
until [ -b /dev/vdb ]; do /bin/busybox sleep 0.05; done
/bin/busybox mount -t ext4 /dev/vda /new
/bin/busybox mount -t ext4 -o ro /dev/vdb /new/opt/stoker
exec /bin/busybox switch_root /new /sbin/init
"""

_NETWORK: Final = """[Unit]
Description=Address and route as the user network of qemu wants them
Before=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip link set lo up
ExecStart=ip link set eth0 up
ExecStart=ip addr add 10.0.2.15/24 dev eth0
ExecStart=ip route add default via 10.0.2.2
[Install]
WantedBy=multi-user.target
"""
_SHELL_SOCKET: Final = f"""[Unit]
Description=A shell of root for each connection: how tests give orders
[Socket]
ListenStream={SHELL_PORT}
Accept=yes
MaxConnections=64
TriggerLimitIntervalSec=0
[Install]
WantedBy=sockets.target
"""
# The script is read whole first, so that nothing it starts reads the rest of it.
_SHELL: Final = """[Unit]
CollectMode=inactive-or-failed
[Service]
ExecStart=/bin/bash -c 'script=$(cat); bash -c "$script" </dev/null 2>&1; echo "rc $?"'
StandardInput=socket
StandardOutput=socket
StandardError=socket
KillMode=process
Environment=HOME=/root
"""
# All that outlives a boot is on one disk: settings, what the daemons keep, and what the tests' own jobs write.
_MOUNT_DATA: Final = """#!/bin/sh -e
mount -t ext4 "$1" /srv
for each in etc/stoker var/lib/stoker var/lib/stoker-agent; do
    [ -d "/srv/$each" ] || continue
    mkdir -p "/$each"
    mount --bind "/srv/$each" "/$each"
done
"""
_RESEED: Final = """
import fcntl, struct, sys
said = bytes.fromhex(sys.argv[1])
with open("/dev/random", "wb") as file:
    fcntl.ioctl(file, 0x40085203, struct.pack("ii", 8 * len(said), len(said)) + said)  # RNDADDENTROPY
    fcntl.ioctl(file, 0x5207)  # RNDRESEEDCRNG
"""
_COMMAND: Final = """#!/usr/bin/python3
from stoker.__main__ import main
main()
"""
_UNWANTED: Final = (
    *("getty@.service", "serial-getty@.service", "console-getty.service", "getty-static.service"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"),
    *("e2scrub_reap.service", "systemd-hwdb-update.service", "systemd-update-utmp.service", "modprobe@.service"),
    *("systemd-tmpfiles-clean.timer", "systemd-journal-catalog-update.service", "systemd-journal-flush.service"),
    *("systemd-pstore.service", "systemd-binfmt.service", "systemd-update-utmp-runlevel.service"),
    *("dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount"),
    *("rpcbind.service", "rpcbind.socket", "rpc-statd.service", "rpc-statd-notify.service", "nfs-blkmap.service"),
)


class Image(NamedTuple):
    """Files that every machine is made of."""

    kernel: Path
    initrd: Path
    root: Path
    tree: Path
    """What is in `root`, to run its Python in."""


class NotHere(Exception):
    """What this machine can't do, or can't reach."""


def run(*words: str | Path, timeout_s: float = BUILD_S_MAX) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}"
    return done.stdout


def fetch(*words: str | Path) -> None:
    """Raises: NotHere where the packages can't be had."""
    try:
        run(*words)
    except AssertionError as fault:
        raise NotHere(str(fault)[-900:]) from fault


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time makes what is at `path`; another one waits, and finds it made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_once(folder: Path, make: Callable[[], None]) -> None:
    """Make what is to lie in `folder`, or skip. Call it `alone`.

    Where Debian can't be had, or a machine doesn't boot in time, each of the tests would else wait for that anew.
    """
    said = folder.with_suffix(".unfit")
    if said.exists() and time.time() - said.stat().st_mtime < UNFIT_S:
        pytest.skip(f"no machine here: {said.read_text()}")
    said.unlink(missing_ok=True)
    try:
        make()
    except (NotHere, subprocess.TimeoutExpired) as fault:
        said.write_text(str(fault)[-1_000:])
        pytest.skip(f"no machine here: {said.read_text()}")


def cpio(files: Sequence[tuple[str, int, bytes]]) -> bytes:
    """An archive of (name, mode, bytes). Source: Linux, buffer-format.rst, "newc"."""
    whole = b""
    for number, (name, mode, content) in enumerate([*files, ("TRAILER!!!", 0, b"")], start=1):
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % each for each in fields) + name.encode() + b"\0"
        whole += head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)
    return whole


def image() -> Image:
    """Made where it isn't there yet. Skips where Debian's packages can't be had."""
    lock = (ROOT / "requirements.txt").read_bytes()
    key = hashlib.sha256(lock + Path(__file__).read_bytes()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker-tests" / f"machine-{key}"
    with alone(folder):
        if not folder.exists():
            half = folder.with_suffix(".new")
            shutil.rmtree(half, ignore_errors=True)
            make_once(folder, lambda: _make_image(half))
            half.rename(folder)
            _forget_old(folder)
        os.utime(folder)
    return Image(folder / "vmlinuz", folder / "initrd", folder / "root.img", folder / "tree")


def _forget_old(newest: Path) -> None:
    """Images of other checkouts that nobody has used for long."""
    for each in newest.parent.glob("machine-????????????????"):
        if time.time() - each.stat().st_mtime > UNUSED_S:
            shutil.rmtree(each, ignore_errors=True)


def _make_image(folder: Path) -> None:
    tree = folder / "tree"
    folder.mkdir()
    # Where this ends before its time, so does all that it has started or mounted.
    alone_there = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    # A tree that isn't whole is thrown away, so no file of it need be synced.
    quick = ("--quiet", "--mode=root", "--variant=apt", "--dpkgopt=force-unsafe-io")
    fetch(*alone_there, "mmdebstrap", *quick, f"--include={','.join(PACKAGES)}", SUITE, tree)
    _take_kernel(tree, folder)
    _furnish(tree)
    uv = Path(sys.executable).with_name("uv")
    site = tree / SITE
    fetch(
        *(uv, "pip", "install", "-q", "--python", sys.executable, "--target", site, "--python-version", "3.11"),
        *("--python-platform", "x86_64-unknown-linux-gnu", "--only-binary", ":all:"),
        *("--require-hashes", "-r", ROOT / "requirements.txt"),
    )
    run("chroot", tree, "python3", "-m", "compileall", "-q", "-j2", f"/{SITE}")
    run("mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0", "-d", tree, folder / "root.img", "2G")


def _take_kernel(tree: Path, folder: Path) -> None:
    """Its files without its scripts, which would make an initial RAM disk of Debian's own."""
    shutil.copy("/etc/resolv.conf", tree / "etc/resolv.conf")
    script = f"""cd /tmp && apt-get update -qq
        name=$(apt-cache depends {KERNEL} | sed -n 's/.*Depends: //p' | head -n 1)
        apt-get download -qq "$name" && dpkg -x "$name"_*.deb kernel
        mv kernel/lib/modules /usr/lib/ && mv kernel/boot/vmlinuz-* /boot/ && depmod "${{name#linux-image-}}"
        rm -rf /tmp/* /var/lib/apt/lists/* /var/cache/apt/*"""
    fetch("chroot", tree, "sh", "-ec", script)
    (kernel,) = (tree / "boot").glob("vmlinuz-*")
    shutil.copy(kernel, folder / "vmlinuz")
    found = {path.name: path.read_bytes() for path in _modules(tree)}
    programs = {
        "bin/busybox": (tree / "bin/busybox").read_bytes(),
        "init": _INIT.format(modules=" ".join(found)).encode(),
    }
    folders = [(name, 0o040755, b"") for name in ("bin", "dev", "new")]
    files = [(name, 0o100755, content) for name, content in (programs | found).items()]
    (folder / "initrd").write_bytes(cpio([*folders, *files]))
    shutil.rmtree(tree / "boot")


def _modules(tree: Path) -> list[Path]:
    """Files of `MODULES`, each after those that it needs. Source: modules.dep(5)."""
    (listed,) = (tree / "lib/modules").glob("*/modules.dep")
    order: dict[Path, None] = {}
    for line in listed.read_text().splitlines():
        module, _, needed = line.partition(":")
        if Path(module).stem in MODULES:
            order |= dict.fromkeys(listed.parent / each for each in [*reversed(needed.split()), module])
    return list(order)


def _furnish(tree: Path) -> None:
    system = tree / "etc/systemd/system"
    texts = {
        "etc/hostname": "machine\n",
        "etc/hosts": "127.0.0.1 localhost machine\n",
        "etc/machine-id": "",
        "etc/systemd/system/network.service": _NETWORK,
        "etc/systemd/system/shell.socket": _SHELL_SOCKET,
        "etc/systemd/system/shell@.service": _SHELL,
        "etc/systemd/journald.conf.d/here.conf": "[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\n",
        "usr/local/sbin/mount-data": _MOUNT_DATA,
        "usr/local/sbin/reseed": _RESEED,
        "usr/local/bin/stoker": _COMMAND,
        f"{SITE}/stoker.pth": "/opt/stoker/src\n",
    }
    for name, text in texts.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if "bin/" in name else 0o644)
    for name in _UNWANTED:
        (system / name).symlink_to("/dev/null")
    (tree / "opt/stoker").mkdir()
    enabled = ("network.service", "shell.socket")
    people = "useradd --system --home-dir /var/lib/stoker stoker; useradd -m -u 2001 ada"
    asleep = "systemctl -q disable nfs-server nfs-client.target remote-fs.target"
    run("chroot", tree, "sh", "-ec", f"{people}; systemctl -q enable {' '.join(enabled)}; {asleep}")


def project_disk(made_of: Image, path: Path) -> Path:
    """`src/` and `deploy/` with the guest's own bytecode. Paths in tracebacks are those of the guest."""
    stage = made_of.tree / "tmp" / path.name
    shutil.rmtree(stage, ignore_errors=True)
    for name in ("src", "deploy"):
        shutil.copytree(ROOT / name, stage / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    inside = f"/tmp/{path.name}"
    words = ("python3", "-m", "compileall", "-q", "-j2", "-s", inside, "-p", "/opt/stoker")
    run("chroot", made_of.tree, *words, "--invalidation-mode", "unchecked-hash", f"{inside}/src")
    path.unlink(missing_ok=True)
    run("mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0", "-d", stage, path, "128M")
    shutil.rmtree(stage)
    return path


def data_disk(path: Path, stage: Path, size: str = "512M") -> Path:
    """With what is in the folder `stage`, owners and modes too."""
    run("mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0", "-d", stage, path, size)
    return path


def uid_of(account: str, made_of: Image) -> int:
    """In the image."""
    rows = (line.split(":") for line in (made_of.tree / "etc/passwd").read_text().splitlines())
    return next(int(row[2]) for row in rows if row[0] == account)
