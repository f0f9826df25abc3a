"""How far behind is a standby while much is submitted, and how long does one that was away need to catch up?

Run: `PYTHONPATH=src:. python -m benchmarks.replication [--seconds 20] [--rate 1000] [--behind 100000] [--dir FOLDER]`.
Two `stoker control` with a log each, in mode sync and one `--profile`; keep-alive clients submit at a steady rate.
Lag is what the active itself measures for each batch, from handing it to the standby to the standby's word that its
disk has it (`stoker_replication_seconds`). Then the standby is killed, jobs are submitted in bulk until it lacks as
many facts as asked, and it is started again: the time runs from its start (so Python's is in it) until it is in the
in-sync set, which it is only once it has them all on its disk and in its state.

Floor, in the same run: fdatasync on that disk.

Must: lag below 100 ms at the 99th percentile under 1,000 submissions/s; 100,000 facts caught up in less than 10 s.
"""

import argparse
import asyncio
import http.client
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.cluster import fsyncs_per_second, machine
from benchmarks.submissions import BULK, JOB, KeepAlive, request_of
from tests.real.pair_process import Half, Pair

CLIENTS: Final = 64
LAG_MS, CATCH_UP_S = 100, 10
_BUCKET: Final = re.compile(r'stoker_replication_seconds_bucket\{le="([^"]+)",peer="\w+"\} (\S+)')


def buckets(half: Half) -> dict[float, float]:
    """Batches that took at most so many seconds."""
    status, text = _metrics(half)
    assert status == 200, text
    return {float(most): float(count) for most, count in _BUCKET.findall(text)}


def _metrics(half: Half) -> tuple[int, str]:
    client = http.client.HTTPConnection(half.host, half.http_port, timeout=10)
    try:
        client.request("GET", "/metrics", headers={"authorization": f"Bearer {half.token}"})
        answer = client.getresponse()
        return answer.status, answer.read().decode()
    finally:
        client.close()


def quantile(before: dict[float, float], after: dict[float, float], part: float) -> float:
    """At most so many seconds, for that part of the batches between: the upper end of its bucket."""
    counts = {most: after[most] - before.get(most, 0.0) for most in sorted(after)}
    total = counts[max(counts)]
    return next(most for most, count in counts.items() if count >= part * total)


async def submit_steadily(half: Half, rate: float, seconds: float) -> tuple[int, float]:
    """How many were answered, and in how many seconds. Whoever isn't answered yet isn't asked again."""
    loop = asyncio.get_running_loop()
    request = posted(half, JOB)
    here = half.host, half.http_port
    made = [await loop.create_connection(lambda: KeepAlive(lambda: request), *here) for _ in range(CLIENTS)]
    clients = [client for _, client in made]
    began = time.perf_counter()
    sent = 0
    while (now := time.perf_counter() - began) < seconds:
        idle: Iterator[KeepAlive] = (client for client in clients if client.left <= 0)
        for client in idle:
            if sent >= now * rate:
                break
            client.left, sent = 1, sent + 1
            client.send()
        await asyncio.sleep(0.002)
    while any(client.left > 0 for client in clients):
        await asyncio.sleep(0.002)
    took = time.perf_counter() - began
    for connection, client in made:
        client.done.cancel()
        connection.close()
    return sum(client.answers for client in clients), took


def posted(half: Half, body: object) -> bytes:
    return request_of("POST", "/api/v1/jobs", json.dumps(body).encode(), f"Authorization: Bearer {half.token}\r\n")


def lag(pair: Pair, rate: float, seconds: float) -> str:
    active = pair.active
    asyncio.run(submit_steadily(active, rate, min(2.0, seconds)))
    before = buckets(active)
    answered, took = asyncio.run(submit_steadily(active, rate, seconds))
    after = buckets(active)
    p50, p99, longest = (quantile(before, after, part) * 1_000 for part in (0.5, 0.99, 1.0))
    verdict = f"{LAG_MS} ms: {'yes' if p99 <= LAG_MS else 'NO'}"
    total = after[max(after)] - before.get(max(before, default=0.0), 0.0)
    return f"| {answered / took:,.0f} | {total:,.0f} | {p50:g} | {p99:g} | {longest:g} | {verdict} |"


def catch_up(pair: Pair, behind: int) -> str:
    active, standby = pair.active, pair.standby
    standby.kill()
    began_at = position(active)
    bulk = {"jobs": [JOB] * BULK}
    while position(active) < began_at + behind:
        status, answer = active.ask("POST", "/api/v1/jobs", bulk, timeout_s=60)
        assert status == 201, answer
    lacks = position(active) - began_at
    began = time.perf_counter()
    standby.start()
    first = _seconds(lambda: standby.answers, began)
    whole = _seconds(lambda: active.standing().get("in_sync") == ["a", "b"], began)
    how = "a backup" if "backup_installed" in standby.output() else "records"
    verdict = f"{CATCH_UP_S} s: {'yes' if whole <= CATCH_UP_S else 'NO'}"
    return f"| {lacks:,} | {how} | {first:.2f} | {whole:.2f} | {verdict} |"


def position(half: Half) -> int:
    return int(half.standing()["position"])


def _seconds(true: Callable[[], bool], began: float) -> float:
    while not true():
        assert time.perf_counter() - began < 300, "not within 300 s"
        time.sleep(0.02)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--behind", type=int, default=100_000)
    parser.add_argument("--profile", choices=("default", "fast"), default="default")
    parser.add_argument("--dir", type=Path, default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stoker-bench-", dir=asked.dir) as folder:
        print(f"{machine()}; {fsyncs_per_second(Path(folder)):,.0f} fdatasync/s; profile {asked.profile}, mode sync\n")
        with Pair(Path(folder) / "pair", profile=asked.profile) as pair:
            most = {"tenant_pending_jobs_max": 1_000_000, "tenant_job_bytes_max": 1 << 40, "job_bytes_max": 1 << 40}
            pair.extra = {"policy": most, "log": {"level": "info"}}
            pair.start()
            print("| submissions/s | batches | lag ms, median at most | 99 % at most | all at most | must |")
            print("|---:|---:|---:|---:|---:|---|")
            print(lag(pair, asked.rate, asked.seconds), flush=True)
            print("\n| facts behind | by | s until it answers | s until it is in sync | must |")
            print("|---:|---|---:|---:|---|")
            print(catch_up(pair, asked.behind), flush=True)


if __name__ == "__main__":
    main()
