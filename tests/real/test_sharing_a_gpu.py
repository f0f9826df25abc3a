"""Shares of GPUs with real processes: several tasks on one device at a time, and one that has it alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.wire.client import Client, JobBody
from stoker.wire.rest.job import JobView
from tests.real.up_process import UpProcess, until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path, "--nodes", "1", "--gpus-per-node", "1") as cluster:
        with Client(cluster.url) as client:
            until(lambda: client.status().online_nodes == 1, what="a node")
        yield cluster


def body(**wishes: Any) -> JobBody:  # noqa: ANN401  # fields of a body
    return JobBody(command="env; exec sleep 100", **wishes)


def running(client: Client, *jobs: JobView) -> bool:
    return all(client.job(job.id).state.value == "running" for job in jobs)


def test_sharers_run_side_by_side_on_one_device_and_who_wants_it_whole_waits_for_the_last(up: UpProcess) -> None:
    with Client(up.url) as client:
        first, second = (client.submit(body(gpu_share=share, gpu_memory_mb=8_192)) for share in (0.6, 0.3))
        until(lambda: running(client, first, second), what="both on one GPU")
        whole, third = client.submit(body(gpu_count=1)), client.submit(body(gpu_share=0.2, time_limit="10m"))
        (gpu,) = client.gpus().gpus
        assert [(each.job, each.share, each.memory_mb) for each in gpu.sharers] == [
            (first.id, 0.6, 8_192),
            (second.id, 0.3, 8_192),
        ]
        assert (gpu.status, gpu.free_share, client.quota().batch.used) == ("busy", 0.1, 0.9)
        said = until(lambda: reason_of(client, third), what="a reason")
        assert "no GPU that suits it has 0.2 free; the largest rest is 0.1" in said
        client.cancel(first.id)
        until(lambda: running(client, third), what="the third, which is over before the whole GPU is free")
        for job in (second, third):
            client.cancel(job.id)
        until(lambda: running(client, whole), what="the whole GPU, once the last sharer has gone")
        assert client.gpus().gpus[0].sharers == []


def reason_of(client: Client, job: JobView) -> str:
    reason = client.job(job.id).reason
    return reason.message if reason is not None and reason.code.value == "insufficient_share" else ""


def test_a_sharer_finds_its_share_its_bound_and_its_one_device_in_its_environment(up: UpProcess) -> None:
    with Client(up.url) as client:
        job = client.submit(body(gpu_share=0.4))
        until(lambda: running(client, job), what="a sharer")
        (task,) = client.job(job.id).attempts[-1].tasks
        assert (task.gpu_share, task.gpu_memory_mb) == (0.4, int(client.gpus().gpus[0].memory_mb * 0.4))
        env = until(lambda: client.logs(job.id).data.decode(), what="its environment")
        assert "STOKER_GPU_SHARE=0.4" in env
        assert f"CUDA_VISIBLE_DEVICES={task.gpus[0]}" in env
        assert "CUDA_MPS" not in env
        assert f"STOKER_GPU_MEMORY_MB={task.gpu_memory_mb}" in env
