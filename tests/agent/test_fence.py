"""Rules F1 to F3 of `agent/fence.py`."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.agent.fence import FILE_NAME, PLACE_BYTES, FileFence
from stoker.agent.ports import Obeyed
from stoker.brain.domain.ids import Epoch
from tests.disk_calls import disk_calls


def obeyed(epoch: int, cluster_id: str = "0192-cluster") -> Obeyed:
    return Obeyed(cluster_id, Epoch(epoch))


async def test_what_was_kept_last_is_read_by_the_next_agent(tmp_path: Path) -> None:
    fence = FileFence(tmp_path)
    assert fence.read() == Obeyed()
    for epoch in range(1, 8):
        await fence.keep(obeyed(epoch))
        assert FileFence(tmp_path).read() == fence.read() == obeyed(epoch)


async def test_another_cluster_may_begin_with_a_lower_epoch(tmp_path: Path) -> None:
    await FileFence(tmp_path).keep(obeyed(1_007))
    await FileFence(tmp_path).keep(obeyed(2, "another"))
    assert FileFence(tmp_path).read() == obeyed(2, "another")


async def test_what_is_kept_is_on_the_disk_when_that_is_said(tmp_path: Path) -> None:
    """F1: the file with both its places and its name, then each place that is written."""
    with disk_calls() as made:
        fence = FileFence(tmp_path)
    assert made == ["write obeyed.new", "fsync obeyed.new", "rename obeyed.new", f"fsync {tmp_path.name}"]
    for epoch in (1, 2):
        with disk_calls() as made:
            await fence.keep(obeyed(epoch))
        assert made == ["pwrite obeyed", "fsync obeyed"]


@pytest.mark.parametrize("cut", [0, 1, 40, PLACE_BYTES - 1])
async def test_a_write_that_was_cut_short_leaves_the_one_before(tmp_path: Path, cut: int) -> None:
    fence = FileFence(tmp_path)
    await fence.keep(obeyed(1))
    before = (tmp_path / FILE_NAME).read_bytes()
    await fence.keep(obeyed(2))
    after = (tmp_path / FILE_NAME).read_bytes()
    (at,) = [at for at in (0, PLACE_BYTES) if before[at : at + PLACE_BYTES] != after[at : at + PLACE_BYTES]]
    torn = after[: at + cut] + before[at + cut :]
    (tmp_path / FILE_NAME).write_bytes(torn)
    assert FileFence(tmp_path).read() in (obeyed(1), obeyed(2))


async def test_a_file_of_which_nothing_is_whole_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    await FileFence(tmp_path).keep(obeyed(1))
    (tmp_path / FILE_NAME).write_bytes(b"x" * 2 * PLACE_BYTES)
    with pytest.raises(OSError, match=r"obeyed is damaged; remove it once no older control plane"):
        FileFence(tmp_path)


def test_only_the_agents_account_can_read_it(tmp_path: Path) -> None:
    FileFence(tmp_path)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0


def test_a_disk_that_takes_no_more_bytes_keeps_no_new_epoch_out(tmp_path: Path) -> None:
    """The file has both its places from the beginning."""
    FileFence(tmp_path)
    program = (
        "import asyncio, sys; from pathlib import Path; from stoker.agent.fence import FileFence\n"
        "from stoker.agent.ports import Obeyed\n"
        "fence = FileFence(Path(sys.argv[1]))\n"
        "[asyncio.run(fence.keep(Obeyed('c', n))) for n in range(1, 6)]\n"
    )

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * PLACE_BYTES, 2 * PLACE_BYTES))

    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, preexec_fn=full, env=dict(os.environ))
    assert FileFence(tmp_path).read() == Obeyed("c", Epoch(5))
