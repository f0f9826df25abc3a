"""How long from kill -9 of the active control plane to the first acknowledged write of the other one?

Run: `PYTHONPATH=src:. python -m benchmarks.take_over [--kills 20] [--profiles fast default] [--store URL] [--tls]`. Two
control planes, two agents with 50 running processes, somebody who submits all the time. After each kill the next one
waits until the in-sync set has both members again. At the end everything is reckoned: no acknowledged job lost, none
started twice, no running process disturbed, exit codes kept; a run that doesn't hold this has no figure.

Bound, in the same run: what the profile's own timers alone can take (last renewal seen, lease, drift, look).
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.cluster import fsyncs_per_second, machine
from stoker.brain.failover.timing import DEFAULT, FAST, Timing
from tests.real.failing_over import RUNNING, Submitter, begin, kill_and_measure, reckon
from tests.real.pair_process import Pair

TIMINGS = {"fast": FAST, "default": DEFAULT}


def bound_s(timing: Timing) -> float:
    """The longest that the timers alone can take: the last version is seen a look after it was written, and the look
    that confirms its end begins at most one more after the lease."""
    return timing.look_s + timing.expiry_s + timing.look_s


def killed(profile: str, kills: int, running: int, *, store: str, tls: bool) -> tuple[list[float], int]:
    """Seconds of each take-over, and how many jobs were acknowledged meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder,
        Pair(Path(folder) / "pair", profile=profile, store=store, tls=tls) as pair,
    ):
        pair.start()
        work = begin(pair, running=running)
        submitter = Submitter(pair, work)
        submitter.start()
        for number in range(kills):
            kill_and_measure(pair, work, number)
        submitter.end()
        reckon(pair, work)
        return work.take_overs_s, len(work.acknowledged)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--profiles", nargs="+", choices=tuple(TIMINGS), default=list(TIMINGS))
    parser.add_argument("--running", type=int, default=RUNNING, help="processes that run through all of it")
    parser.add_argument("--store", default="", help="URL of a database that both use; empty = a log for each")
    parser.add_argument("--tls", action="store_true", help="over certificates of their own authority")
    asked = parser.parse_args()
    if asked.store and asked.tls:
        parser.error("--tls: without --store")
    if asked.store and len(asked.profiles) > 1:
        parser.error("name one of --profiles: each wants an empty database")
    where = "one PostgreSQL" if asked.store else "a log for each, mode sync"
    where += ", TLS" if asked.tls else ", plain text"
    print(f"{machine()}; {fsyncs_per_second(Path(tempfile.gettempdir())):,.0f} fdatasync/s; {where}\n")
    print("| profile | kills | median s | shortest | longest | timers alone, at most | acknowledged meanwhile |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for profile in asked.profiles:
        took, acknowledged = killed(profile, asked.kills, asked.running, store=asked.store, tls=asked.tls)
        print(
            f"| {profile} | {len(took)} | {statistics.median(took):.2f} | {min(took):.2f} | {max(took):.2f} "
            f"| {bound_s(TIMINGS[profile]):.2f} | {acknowledged} |",
            flush=True,
        )
    undisturbed = f"{asked.running} of {asked.running} processes undisturbed"
    print(f"\nAfter each run: none of the acknowledged jobs lost, none started twice, {undisturbed}.")


if __name__ == "__main__":
    main()
