"""How many processes `true` a second do HyperQueue and Ray run on this machine? Rows beside ours in `throughput`.

Run: `python -m benchmarks.peers NAME TASKS`, by an interpreter in whose environment the peer is installed (`pip install
hyperqueue ray`, tried with 0.27 and 2.60). It needs nothing of Stoker. Both keep all in memory: nothing is durable when
it is acknowledged, no task has a cgroup, and neither proves that a process is gone.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

WORKERS = 128
"""Tasks at a time, as we have GPUs."""
WAIT_S_MAX = 120


def hyperqueue_rate(tasks: int) -> float:
    """One job of many tasks on one worker. Its client only looks once a second, so the rate is that of the last look
    which still saw some unfinished: four times as many are submitted."""
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    tasks *= 4
    with LocalCluster() as cluster:
        cluster.start_worker(WorkerConfig(cores=WORKERS))
        client, job, looks = cluster.client(), Job(), [(0.0, 0)]
        for _ in range(tasks):
            job.program(["/bin/true"])
        began = time.perf_counter()

        def look(jobs: dict[int, dict[str, int]]) -> None:
            looks.append((time.perf_counter() - began, sum(each["finished"] for each in jobs.values())))

        client.connection.wait_for_jobs((client.submit(job).id,), look)
    took_s, finished = max(((took, done) for took, done in looks if done < tasks), default=(0.0, 0))
    if not finished:
        took_s, finished = looks[-1]
    return finished / took_s


def ray_rate(tasks: int) -> float:
    """Tasks on workers that are warm, each of which spawns `true`."""
    import ray

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, configure_logging=False)
    run = ray.remote(num_cpus=1)(_spawned)
    ray.get([run.remote() for _ in range(tasks)])
    began = time.perf_counter()
    ray.get([run.remote() for _ in range(tasks)])
    took_s = time.perf_counter() - began
    ray.shutdown()
    return tasks / took_s


def _spawned() -> int:
    return os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]


PEERS: dict[str, tuple[str, Callable[[int], float]]] = {
    "hyperqueue": ("HyperQueue, one job (in memory, no output kept)", hyperqueue_rate),
    "ray": ("Ray, tasks on warm workers that spawn `true`", ray_rate),
}


def peer_rows(python: str, tasks: int) -> list[tuple[str, float | str]]:
    """Each peer with its tasks a second, or with why there is no figure. `python`: interpreter that has them."""
    return [(words, _measured(python, name, tasks)) for name, (words, _) in PEERS.items()]


def _measured(python: str, name: str, tasks: int) -> float | str:
    program = [python, "-m", "benchmarks.peers", name, str(tasks)]
    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory(prefix="stoker-peer-") as folder:
        env = {**os.environ, "HOME": folder, "PYTHONPATH": str(root)}
        try:
            done = subprocess.run(
                program, cwd=folder, env=env, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as fault:
            return str(fault)
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().rpartition("\n")[2]
    return float(said) if done.returncode == 0 else said or f"it ended with {done.returncode}"


def measure_one() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("tasks", type=int)
    given = parser.parse_args()
    if find_spec(given.name) is None:
        sys.exit(f"not measured: {given.name} isn't installed")
    print(PEERS[given.name][1](given.tasks))


if __name__ == "__main__":
    measure_one()
