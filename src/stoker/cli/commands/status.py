"""`stoker status`: the cluster in numbers, or everything about one job."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from stoker.cli.completion import ANY_JOB
from stoker.cli.display.job_details import job_pairs
from stoker.cli.display.output import Form, for_people, show_each, show_pairs, show_value
from stoker.cli.job_end import EXIT_OF_STATE
from stoker.cli.options import OnceCommand
from stoker.cli.server import answer_options, connect

if TYPE_CHECKING:
    from stoker.wire.rest.cluster import ClusterView
    from stoker.wire.rest.job import JobView


@click.command(cls=OnceCommand)
@click.argument("job_ids", metavar="[ID...]", nargs=-1, type=ANY_JOB)
@click.option("--script", is_flag=True, help="Print the script that was submitted with the job, and nothing else.")
@answer_options
def status(job_ids: tuple[str, ...], form: str, script: bool) -> None:
    """Show jobs with their attempts, or without an ID the cluster.

    With -o wide a job's story is whole: environment, times and use of every rank.

    \b
    Examples:
      stoker status
      stoker status 7
      stoker status 7 8 9_3
      stoker status 7 -o yaml
      stoker status 7 --script > train.sh
    """
    if script:
        _print_script(job_ids, form)
        return
    if not job_ids:
        cluster = connect().status()
        show_pairs(form, cluster_pairs(cluster), cluster)
        return
    from stoker.cli.clock import now_ms

    def show(job: "JobView") -> None:
        show_pairs(form, job_pairs(job, now_ms(), whole=form == Form.WIDE), job)

    show_each(form, job_ids, connect().job, show)


def _print_script(job_ids: tuple[str, ...], form: str) -> None:
    """Print the bytes of the script of a job; there may be a whole story in it for a terminal, which stays text."""
    if len(job_ids) != 1:
        raise click.UsageError("--script shows the script of a job: give its ID")
    (job_id,) = job_ids
    shown = connect().script(job_id)
    if not for_people(form):
        show_value(form, shown)
    elif not shown.script:
        raise click.ClickException(
            f"job {job_id} was submitted without a script; `stoker status {job_id}` shows what runs"
        )
    else:
        click.echo(shown.script.encode(shown.encoding.value), nl=not shown.script.endswith("\n"))


def cluster_pairs(cluster: "ClusterView") -> "Iterator[tuple[str, object]]":
    simulated = " (simulated)" if cluster.simulated else ""
    yield "cluster", cluster.cluster_id
    yield "version", cluster.version
    yield "nodes", f"{cluster.online_nodes} of {cluster.total_nodes} online: {_counts(cluster.nodes) or 'none'}"
    gpus = f"{cluster.busy_gpus} busy, {cluster.available_gpus} free, {cluster.offline_gpus} offline"
    if cluster.quarantined_gpus:
        gpus += f", {cluster.quarantined_gpus} quarantined"
    if cluster.lost_gpus:
        gpus += f", {cluster.lost_gpus} lost"
    yield "gpus", f"{cluster.total_gpus}{simulated}: {gpus}"
    if cluster.shared_gpus:
        yield "shared", _sharing(cluster)
    yield "jobs", f"{cluster.running_jobs} run, {cluster.pending_jobs} wait"
    ended = _counts({state: number for state, number in cluster.jobs.items() if state in EXIT_OF_STATE})
    if ended:
        yield "ended", f"{ended}, as far as they are remembered"
    yield "last pass", f"{cluster.last_pass_age_s:.1f}s ago"
    yield "epoch", cluster.epoch
    yield "log position", cluster.position


def _sharing(cluster: "ClusterView") -> str:
    shared, loose = cluster.shared_gpus, cluster.sharing_nodes_without_mps
    if not loose:
        return f"{shared} of the busy ones, within the bounds that MPS keeps"
    return (
        f"{shared} of the busy ones, on {loose} node{'s' * (loose != 1)} without MPS: there only the programs "
        "themselves keep to their shares"
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number)
