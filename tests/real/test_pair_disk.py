"""What if the disk of the active control plane is full, or the clocks on the walls jump?"""

import http.client
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from tests.real.failing_over import NOT_NOW, post
from tests.real.moved_clocks import MovedClocks
from tests.real.pair_process import Half, Pair, until

pytestmark = pytest.mark.timeout(300)

JOB = {"command": "true", "gpu_count": 1}


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[None]:
    folder.mkdir(parents=True, mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="only root may mount a small disk")
def test_a_full_disk_refuses_writes_serves_reads_hands_over_and_is_whole_again_once_there_is_room(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path / "pair")
    with small_disk(pair.a.folder, 24), pair:
        pair.start()
        if pair.active is pair.b:  # the one with the small disk must be active
            pair.b.terminate()
            pair.until_active(pair.a)
            pair.b.start()
            pair.until_whole()
        jobs = {post(pair.a, JOB) for _ in range(3)}
        full = pair.a.folder / "something-large"
        with suppress(OSError), full.open("wb") as file:
            while True:
                file.write(bytes(64 * 1024))
        told: list[str] = []
        body = {"command": "x" * 60_000, "gpu_count": 1}
        for _ in range(200):
            try:
                status, answer = pair.a.ask("POST", "/api/v1/jobs", body)
            except (OSError, http.client.HTTPException):
                break
            if status not in (200, 201):
                told.append(answer["code"])
                break
            jobs.add(answer["id"])
        assert told[:1] in (["log_failed"], ["not_active"], ["lease_lost"], []), told
        pair.until_active(pair.b)
        until(lambda: pair.a.answers, pair.story)
        seen = {each["id"] for each in pair.a.ask("GET", "/api/v1/jobs?limit=1000")[1]["jobs"]}
        assert jobs <= seen, "what was acknowledged can be read on the full disk"
        newer = post(pair.b, JOB)
        full.unlink()
        pair.until_whole(60)
        listed = [
            {each["id"] for each in half.ask("GET", "/api/v1/jobs?limit=1000")[1]["jobs"]} for half in pair.halves
        ]
        assert listed[0] == listed[1]
        assert listed[0] >= jobs | {newer}


def _wall_s(half: Half) -> float:
    """What the clock on the wall says there."""
    client = http.client.HTTPConnection(half.host, half.http_port, timeout=10)
    try:
        client.request("GET", "/health")
        return parsedate_to_datetime(client.getresponse().headers["Date"]).timestamp()
    finally:
        client.close()


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs a C compiler")
@pytest.mark.parametrize("by_s", [3_600, -3_600], ids=["an hour forward", "an hour back"])
@pytest.mark.parametrize("who", ["the active one", "the standby"])
def test_a_jump_of_a_wall_clock_changes_nothing(tmp_path: Path, by_s: int, who: str) -> None:
    with Pair(tmp_path / "pair") as pair:
        clocks = {half.name: MovedClocks(tmp_path / half.name) for half in pair.halves}
        for half in pair.halves:
            half.environ = clocks[half.name].environ
        pair.start()
        active = pair.active
        epoch = active.standing()["epoch"]
        jumping = active if who == "the active one" else pair.standby
        before = post(active, JOB)
        clocks[jumping.name].correct(by_s)
        until(lambda: abs(_wall_s(jumping) - time.time() - by_s) < 60, lambda: "its clock didn't jump")
        after = [post(active, JOB) for _ in range(20)]
        with suppress(*NOT_NOW):
            until(lambda: False, str, 1.5)  # three leases long
        assert pair.active is active
        assert active.standing()["epoch"] == epoch
        assert active.standing()["in_sync"] == ["a", "b"]
        assert after == sorted(after, key=int)
        assert int(before) < int(after[0])
