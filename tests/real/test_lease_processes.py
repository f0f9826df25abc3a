"""The marker's folder and the operating system: processes that race, die and sleep, and file systems in trouble."""

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

from stoker.adapters.clock import SystemClock
from stoker.adapters.lease_folder.lease import FileLease
from stoker.adapters.lease_folder.versions import LeaseRecordFolder
from stoker.ports import LeaseUnreachable
from tests.adapters.folder_place import MANY, FolderPlace, calls_of_a_put, folder, newest, put
from tests.contracts.lease import lease_record
from tests.real.lease_racers import HERE, RACER, program, race

# Makes a child that puts version 2 of a folder and is hit by a signal before its nth system call there; then waits for
# a line before it lets the child go on. Says what became of it.
NURSERY = """
import asyncio, json, os, signal, sys, threading
from pathlib import Path
from stoker.adapters.clock import SystemClock
from stoker.adapters.lease_folder.lease import FileLease
from stoker.ports import LeaseUnreachable
from tests.adapters.folder_place import between_calls
from tests.contracts.lease import lease_record

async def put(folder):
    lease = FileLease(folder, SystemClock(), timeout_s=20)
    try:
        return await lease.put(lease_record(2, by="victim"))
    except LeaseUnreachable:
        return "unreachable"
    finally:
        await lease.close()

for line in sys.stdin:
    told = json.loads(line)
    pid = os.fork()
    if pid == 0:
        with between_calls(told["step"], lambda: signal.pthread_kill(threading.get_ident(), told["signal"])):
            done = asyncio.run(put(Path(told["folder"])))
        Path(told["answer"]).write_text(json.dumps(done))
        os._exit(0)
    _, status = os.waitpid(pid, os.WUNTRACED)
    print(json.dumps(os.WIFSTOPPED(status)), flush=True)
    if os.WIFSTOPPED(status):
        sys.stdin.readline()
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)
        print("ended", flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> FolderPlace:
    return FolderPlace(tmp_path / "marker")


def test_z2_of_processes_that_race_exactly_one_wins_each_version(place: FolderPlace) -> None:
    """Also while two of them are killed: what they won without saying so is nobody else's."""
    names = [f"cp{number}" for number in range(5)]
    won = race(str(place.folder), names, 60, kills=2)
    assert all(len(winners) == 1 for winners in won.values()), {v: w for v, w in won.items() if len(w) > 1}
    assert place.versions == list(range(1, 61)), "no version was skipped, and none younger than a minute is gone"
    for version in place.versions:
        told = json.loads(place.file(version).read_text())["marker"]["holder"]["name"]
        # Nobody says so where its writer was killed, or where another one was there with the next before it had looked.
        assert won.get(version, [told]) == [told]
    assert len(won) >= 15


def test_z1_a_witness_sees_versions_grow_while_many_write(place: FolderPlace) -> None:
    seen: dict[int, str] = {}
    order: list[int] = []
    with ExitStack() as running:
        for name in ("a", "b", "c"):
            running.enter_context(program(RACER, str(place.folder), name, "60"))
        witness = LeaseRecordFolder(place.folder, SystemClock(), 5.0)
        until = time.monotonic() + 50
        while (not order or order[-1] < 60) and time.monotonic() < until:
            found = witness.read()
            if found is not None:
                assert seen.setdefault(found.version, found.mark) == found.mark, "a version never changes"
                order.append(found.version)
    assert order[-1] == 60
    assert order == sorted(order)


@pytest.fixture(scope="module")
def nursery() -> Iterator[tuple[IO[str], IO[str]]]:
    with program(NURSERY) as (into, out, _):
        yield into, out


def _steps() -> range:
    """Before each system call of a put."""
    return range(1, 9)


def test_these_are_all_steps_of_a_put(place: FolderPlace) -> None:
    assert len(calls_of_a_put(place.folder)) == len(_steps())


@pytest.mark.parametrize("step", _steps())
def test_z4_a_writer_killed_before_any_system_call_leaves_its_version_whole_or_not_at_all(
    place: FolderPlace, nursery: tuple[IO[str], IO[str]], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # of the others, who write many
    place.goes_on(1)
    told = {"step": step, "signal": signal.SIGKILL, "folder": str(place.folder), "answer": "/dev/null"}
    print(json.dumps(told), file=nursery[0], flush=True)
    assert json.loads(nursery[1].readline()) is False
    found = newest(place)
    assert found in (lease_record(1, by="busy"), lease_record(2, by="victim"))
    done = put(folder(place), lease_record(2, by="other"))
    assert done is (found == lease_record(1, by="busy"))
    assert newest(place) == lease_record(2, by="other" if done else "victim")
    place.goes_on(MANY)
    assert place.leftovers() == []


@pytest.mark.parametrize("through", [2, MANY])
@pytest.mark.parametrize("step", _steps())
def test_z3_a_writer_stopped_before_any_system_call_undoes_nothing_when_it_goes_on(  # pytest's
    place: FolderPlace,
    nursery: tuple[IO[str], IO[str]],
    step: int,
    through: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # of the others, who write many
    place.goes_on(1)
    told = {
        "step": step,
        "signal": signal.SIGSTOP,
        "folder": str(place.folder),
        "answer": str(tmp_path / "answer"),
    }
    print(json.dumps(told), file=nursery[0], flush=True)
    assert json.loads(nursery[1].readline()) is True
    linked = place.versions[-1] == 2
    place.goes_on(max(through, 3 if linked else 2))
    before = place.newest.read_bytes()
    print("go on", file=nursery[0], flush=True)
    assert nursery[1].readline() == "ended\n"
    assert json.loads((tmp_path / "answer").read_text()) in (False, "unreachable")
    assert place.newest.read_bytes() == before
    last = place.versions[-1]
    place.goes_on(last + 1)
    assert place.versions[-1] == last + 1


# --- file systems in trouble ----------------------------------------------------------------------------------------


@contextmanager
def mounted(*words: str | Path) -> Iterator[None]:
    if subprocess.run(["mount", *words], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", words[-1]], capture_output=True, check=False)


async def unreachable(lease: FileLease, version: int) -> str:
    """Neither to be read nor to be written; how that is told."""
    with pytest.raises(LeaseUnreachable) as caught:
        await lease.put(lease_record(version))
    return str(caught.value)


async def test_a_full_disk_refuses_new_versions_keeps_the_old_ones_and_heals(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=64k", "tmpfs", disk):
        lease = FileLease(disk, SystemClock(), timeout_s=5)
        assert await lease.put(lease_record(1))
        subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'filler'}", "bs=4k"], capture_output=True, check=False)
        said = await unreachable(lease, 2)
        assert said == (
            f"the marker folder {disk} can't be used: No space left on device; "
            "free some space there: nobody can stay active, or become so, without writing to it"
        )
        assert await lease.read() == lease_record(1)
        assert sorted(path.name for path in disk.iterdir()) == ["0000000000000001.marker", "filler"]
        (disk / "filler").unlink()
        assert await lease.put(lease_record(2)) is True
        await lease.close()


async def test_storage_that_is_taken_away_is_unreachable_until_it_is_back(tmp_path: Path) -> None:
    """What lies beneath is an empty folder, in which anybody could be the first."""
    shared, here = tmp_path / "shared", tmp_path / "here"
    shared.mkdir()
    here.mkdir()
    lease = FileLease(here, SystemClock(), timeout_s=5)
    with mounted("--bind", shared, here):
        for version in (1, 2):
            assert await lease.put(lease_record(version))
    assert "see that the shared storage is mounted" in await unreachable(lease, 3)
    with pytest.raises(LeaseUnreachable, match="shows no version"):
        await lease.read()
    assert list(here.iterdir()) == []
    with mounted("--bind", shared, here):
        assert await lease.read() == lease_record(2)
        subprocess.run(["mount", "-o", "remount,ro,bind", here], check=True)
        assert "mount that storage writable" in await unreachable(lease, 3)
        assert await lease.read() == lease_record(2)
        subprocess.run(["mount", "-o", "remount,rw,bind", here], check=True)
        assert await lease.put(lease_record(3)) is True
    await lease.close()


@contextmanager
def dead_server(at: Path) -> Iterator[None]:
    """A file system whose server answers nothing, as of NFS when the network is gone: whoever touches it hangs."""
    device = os.open("/dev/fuse", os.O_RDWR) if os.access("/dev/fuse", os.W_OK) else -1
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if device < 0 or libc.mount(b"dead", os.fsencode(at), b"fuse", 0, options):
        pytest.skip("no file system of our own can be mounted here")
    try:
        yield
    finally:
        os.close(device)  # whoever hangs is told that nobody is there
        libc.umount2(os.fsencode(at), 2)


async def test_z5_a_file_system_that_hangs_costs_its_time_and_one_thread_and_heals(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    lease = FileLease(here, SystemClock(), timeout_s=0.3)
    assert await lease.put(lease_record(1))
    with dead_server(here):
        began = time.monotonic()
        assert "doesn't answer: it hasn't come back within 0.3 s" in await unreachable(lease, 2)
        assert time.monotonic() - began < 3
        threads = threading.active_count()
        began = time.monotonic()
        for _ in range(20):
            assert "still hangs" in await unreachable(lease, 2)
            with pytest.raises(LeaseUnreachable):
                await lease.read()
        assert time.monotonic() - began < 3
        assert threading.active_count() == threads
    until = time.monotonic() + 20
    while True:
        try:
            assert await lease.read() == lease_record(1)
            break
        except LeaseUnreachable:
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
    assert await lease.put(lease_record(2)) is True
    await lease.close()


READER = """
import asyncio, os, sys
from pathlib import Path
from stoker.adapters.clock import SystemClock
from stoker.adapters.lease_folder.lease import FileLease
from stoker.ports import LeaseUnreachable

if len(sys.argv) > 2:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)

async def main():
    lease = FileLease(Path(sys.argv[1]), SystemClock(), timeout_s=0.5)
    try:
        await lease.read()
    except LeaseUnreachable as fault:
        print(fault, flush=True)
    await lease.close()

asyncio.run(main())
"""


def test_b4_a_process_ends_although_its_file_system_hangs(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    with dead_server(here):
        done = subprocess.run(
            [sys.executable, "-c", READER, str(here)], capture_output=True, text=True, timeout=30, check=False
        )
    assert done.returncode == 0, done.stderr
    assert "doesn't answer" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_a_folder_of_another_account_is_refused_with_what_to_do(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "marker")
    place.goes_on(1)
    done = subprocess.run(
        [sys.executable, "-c", READER, str(place.folder), "as another account"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{HERE}/src"},
    )
    assert "Permission denied; all control planes must run as one account, which owns that folder" in done.stdout


SECRET = """
import sys
from pathlib import Path
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.lease_folder.secret import peer_secret
sys.stdin.readline()
print(peer_secret(Path(sys.argv[1]), SystemEntropy()))
"""


def test_e1_processes_that_make_the_secret_at_once_all_have_the_same(tmp_path: Path) -> None:
    with ExitStack() as running:
        makers = [running.enter_context(program(SECRET, str(tmp_path))) for _ in range(6)]
        for into, _, _ in makers:
            print(file=into, flush=True)
        assert len({out.readline() for _, out, _ in makers}) == 1
