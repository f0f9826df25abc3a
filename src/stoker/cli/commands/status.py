"""`stoker status`: how is the cluster, or one job with its whole story?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from stoker.cli.output import output_options, show_value
from stoker.cli.server import connect, server_option
from stoker.cli.table import cell_text
from stoker.cli.words import duration, ran, span_ms, user_of, waited

if TYPE_CHECKING:
    from stoker.wire.rest.cluster import ClusterView
    from stoker.wire.rest.job import AttemptView, JobView


@click.command()
@click.argument("job_id", metavar="[ID]", required=False)
@output_options
@server_option
def status(job_id: str | None, form: str) -> None:
    """Show one job with its attempts, or without an ID the cluster.

    \b
    Examples:
      stoker status
      stoker status 7
      stoker status 7 -o yaml
    """
    from stoker.cli.pause import now_ms

    value: JobView | ClusterView
    if job_id:
        job = connect().job(job_id)
        value, rows = job, _job_rows(job, now_ms())
    else:
        cluster = connect().status()
        value, rows = cluster, _cluster_rows(cluster)
    if form in ("table", "wide"):
        show_pairs(rows)
    else:
        show_value(form, value)


def show_pairs(rows: "Iterator[tuple[str, object]]") -> None:
    """`key  value` lines, values below each other."""
    lines = [(key, cell_text(value)) for key, value in rows]
    margin = max(len(key) for key, _ in lines) + 2
    for key, value in lines:
        click.echo(f"{key:{margin}}{value}")


def _cluster_rows(cluster: "ClusterView") -> "Iterator[tuple[str, object]]":
    simulated = " (simulated)" if cluster.simulated else ""
    yield "cluster", cluster.cluster_id
    yield "version", cluster.version
    yield "nodes", f"{cluster.online_nodes} of {cluster.total_nodes} online{_counts(cluster.nodes)}"
    gpus = f"{cluster.busy_gpus} busy, {cluster.available_gpus} free, {cluster.offline_gpus} offline"
    yield "gpus", f"{cluster.total_gpus}{simulated}: {gpus}"
    yield "jobs", f"{cluster.total_jobs}{_counts(cluster.jobs)}"
    yield "last pass", f"{cluster.last_pass_age_s:.1f}s ago"
    yield "epoch", cluster.epoch
    yield "log position", cluster.position


def _counts(counts: dict[str, int]) -> str:
    shown = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    return f": {shown}" if shown else ""


def _job_rows(job: "JobView", now_ms: int) -> "Iterator[tuple[str, object]]":
    yield "job", job.id
    yield "name", job.name
    yield "state", job.state.value
    if job.reason is not None:
        yield "reason", f"{job.reason.message} [{job.reason.code.value}]"
        yield "hint", job.reason.hint
    yield "exit code", job.exit_code
    yield "command", job.command if isinstance(job.command, str) else " ".join(map(_quoted, job.command))
    yield "asks for", _demand(job)
    yield "priority", job.priority
    yield "tenant", f"{job.tenant}, class {job.job_class.value}, by {user_of(job)}"
    yield "time limit", duration(job.time_limit_ms)
    yield "workdir", job.workdir
    yield "submitted", job.submitted_at
    yield "waited", waited(job, now_ms)
    yield "ran", ran(job, now_ms)
    yield "retries", f"{job.retries_used} of {job.retries} used, {job.requeues_used} requeues"
    for attempt in job.attempts:
        yield from _attempt_rows(attempt, now_ms)


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def _demand(job: "JobView") -> str:
    parts = [f"{job.gpu_count} GPU{'s' * (job.gpu_count != 1)}"]
    if job.gpu_model:
        parts.append(f"model {job.gpu_model}")
    if job.gpu_memory_mb:
        parts.append(f"at least {job.gpu_memory_mb} MiB each")
    parts.append(f"{job.cpus} CPU{'s' * (job.cpus != 1)}")
    if job.memory_mb:
        parts.append(f"{job.memory_mb} MiB")
    gang = f", for each of {job.tasks} tasks" if job.tasks > 1 else ""
    return ", ".join(parts) + gang


def _attempt_rows(attempt: "AttemptView", now_ms: int) -> "Iterator[tuple[str, object]]":
    took = duration(span_ms(attempt.started_at, attempt.ended_at, now_ms))
    outcome = attempt.outcome.value if attempt.outcome else "live"
    meets = f", meets at {attempt.master_addr}:{attempt.master_port}" if attempt.master_port else ""
    yield f"attempt {attempt.number}", f"{outcome}, placed {attempt.placed_at}, ran {took or '-'}{meets}"
    for task in attempt.tasks:
        end = f", {task.cause.value}" if task.cause else ""
        code = f" with code {task.exit_code}" if task.exit_code is not None else ""
        signal = f" by signal {task.signal}" if task.signal else ""
        error = f": {task.error}" if task.error else ""
        yield f"  rank {task.rank}", f"{task.node} [{', '.join(task.gpus) or 'no GPU'}]{end}{code}{signal}{error}"
