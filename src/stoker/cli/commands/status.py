"""`stoker status`: the cluster in numbers, or everything about one job."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from stoker.cli.completion import ANY_JOB
from stoker.cli.display.job_details import job_pairs
from stoker.cli.display.output import Form, show_each, show_pairs
from stoker.cli.job_end import EXIT_OF_STATE
from stoker.cli.options import OnceCommand
from stoker.cli.server import answer_options, connect

if TYPE_CHECKING:
    from stoker.wire.rest.cluster import ClusterView
    from stoker.wire.rest.job import JobView


@click.command(cls=OnceCommand)
@click.argument("job_ids", metavar="[ID...]", nargs=-1, type=ANY_JOB)
@answer_options
def status(job_ids: tuple[str, ...], form: str) -> None:
    """Show jobs with their attempts, or without an ID the cluster.

    With -o wide a job's story is whole: environment, times and use of every rank.

    \b
    Examples:
      stoker status
      stoker status 7
      stoker status 7 8 9_3
      stoker status 7 -o yaml
    """
    if not job_ids:
        cluster = connect().status()
        show_pairs(form, cluster_pairs(cluster), cluster)
        return
    from stoker.cli.clock import now_ms

    def show(job: "JobView") -> None:
        show_pairs(form, job_pairs(job, now_ms(), whole=form == Form.WIDE), job)

    show_each(form, job_ids, connect().job, show)


def cluster_pairs(cluster: "ClusterView") -> "Iterator[tuple[str, object]]":
    simulated = " (simulated)" if cluster.simulated else ""
    yield "cluster", cluster.cluster_id
    yield "version", cluster.version
    yield "nodes", f"{cluster.online_nodes} of {cluster.total_nodes} online: {_counts(cluster.nodes) or 'none'}"
    gpus = f"{cluster.busy_gpus} busy, {cluster.available_gpus} free, {cluster.offline_gpus} offline"
    if cluster.quarantined_gpus:
        gpus += f", {cluster.quarantined_gpus} quarantined"
    yield "gpus", f"{cluster.total_gpus}{simulated}: {gpus}"
    yield "jobs", f"{cluster.running_jobs} run, {cluster.pending_jobs} wait"
    ended = _counts({state: number for state, number in cluster.jobs.items() if state in EXIT_OF_STATE})
    if ended:
        yield "ended", f"{ended}, as far as they are remembered"
    yield "last pass", f"{cluster.last_pass_age_s:.1f}s ago"
    yield "epoch", cluster.epoch
    yield "log position", cluster.position


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number)
