"""Training on several GPUs and machines as people type it: real `torch.distributed` programs, without a line on Stoker.

PyTorch is Debian's, with gloo in place of NCCL, since no GPU is needed for that; the GPUs are simulated. Each program
adds the ranks of all processes up, so that every one of them says what only the whole world knows.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from stoker.wire.client import Client
from tests.programs import needs
from tests.real.forks import ran_text
from tests.real.up_process import UpProcess, environment, stoker, until

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600), needs("torchrun", "mpirun")]

PYTHON: Final = "/usr/bin/python3"
"""The one that Debian's PyTorch belongs to."""
TORCHRUN: Final = "/usr/bin/torchrun"
ADD_UP: Final = """
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has {int(total)}", flush=True)
"""
PLAIN: Final = f'import torch, torch.distributed as dist\ndist.init_process_group("gloo")\n{ADD_UP}'
OF_MPI: Final = f"""import os, torch, torch.distributed as dist
rank, size = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
dist.init_process_group("gloo", rank=rank, world_size=size)
{ADD_UP}"""
TEED: Final = ("--env", "PET_REDIRECTS=1", "--env", "PET_TEE=1")
"""torchrun of PyTorch 1.13 fails under Python 3.11 unless it is told where output goes."""
PATIENCE_S: Final = 500.0
"""Sixteen processes that import PyTorch, on two cores that others use as well."""
TWO_BY_TWO: Final = ("--tasks", "4", "--tasks-per-node", "2")


class Cluster:
    """Two nodes, and a folder with the programs."""

    def __init__(self, up: UpProcess, folder: Path) -> None:
        self._up = up
        self._folder = folder

    def world(self, *words: str) -> list[str]:
        """What every process of a job said of its world, in the order of their ranks."""
        asked = stoker("submit", "--wait", "--env", "OMP_NUM_THREADS=1", "--output", "said.%j", *words)
        env = environment(self._folder, STOKER_SERVER=self._up.url)
        done = ran_text(asked, env=env, cwd=self._folder, timeout_s=PATIENCE_S)
        assert done.stdout, done.stderr
        job = done.stdout.split()[0]
        said = (self._folder / f"said.{job}").read_text()
        assert done.returncode == 0, (done.stderr, said)
        return sorted(re.findall(r"rank \d+ of \d+ has \d+", said), key=lambda line: int(line.split()[1]))


def everyone(size: int) -> list[str]:
    return [f"rank {rank} of {size} has {size * (size + 1) // 2}" for rank in range(size)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("torch")
    (folder / "train.py").write_text(PLAIN)
    (folder / "mpi.py").write_text(OF_MPI)
    with UpProcess(folder, "--nodes", "2", "--gpus-per-node", "8", data_dir=folder / "data") as up:
        with Client(up.url) as client:  # what no node could run that has joined is refused
            until(lambda: client.status().online_nodes == 2, what="both nodes")
        yield Cluster(up, folder)


def test_torchrun_of_two_tasks_of_eight_gpus_is_one_world_of_sixteen(cluster: Cluster) -> None:
    said = cluster.world("--gpus", "8", "--tasks", "2", *TEED, "--", TORCHRUN, "train.py")
    assert said == everyone(16)


def test_torchrun_of_two_tasks_on_each_of_two_nodes_is_one_world(cluster: Cluster) -> None:
    assert cluster.world("--gpus", "1", *TWO_BY_TWO, *TEED, "--", TORCHRUN, "train.py") == everyone(4)


def test_torchrun_in_a_job_of_one_task_starts_a_process_for_each_gpu(cluster: Cluster) -> None:
    assert cluster.world("--gpus", "2", *TEED, "--", TORCHRUN, "train.py") == everyone(2)


def test_a_program_that_is_started_once_per_task_meets_the_others_by_its_environment(cluster: Cluster) -> None:
    assert cluster.world("--gpus", "1", *TWO_BY_TWO, "--", PYTHON, "train.py") == everyone(4)


def test_a_program_for_several_processes_runs_as_a_job_of_one_task_too(cluster: Cluster) -> None:
    assert cluster.world("--", PYTHON, "train.py") == everyone(1)


def test_mpirun_starts_a_process_for_each_slot_of_the_host_file(cluster: Cluster) -> None:
    mpirun = f"mpirun --allow-run-as-root --hostfile $STOKER_HOSTFILE {PYTHON} mpi.py"
    line = f"if [ $RANK = 0 ]; then {mpirun}; fi"
    assert cluster.world("--gpus", "1", *TWO_BY_TWO, "--", line) == everyone(4)


def test_a_launcher_that_takes_the_world_by_options_as_accelerate_does_finds_them_in_the_environment(
    cluster: Cluster,
) -> None:
    """accelerate hands exactly these on to torch.distributed.run."""
    options = (
        "--nnodes $NNODES --node_rank $NODE_RANK --nproc_per_node $PET_NPROC_PER_NODE "
        "--master_addr $MASTER_ADDR --master_port $MASTER_PORT"
    )
    line = f"{PYTHON} -m torch.distributed.run {options} train.py"
    assert cluster.world("--gpus", "2", "--tasks", "2", *TEED, "--", line) == everyone(4)
