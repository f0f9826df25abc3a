"""Command `stoker logs`: output of tasks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stoker.cli.completion import ANY_JOB
from stoker.cli.display.messages import refused, show_problem
from stoker.cli.job_end import goes_on, is_over, tell_end
from stoker.cli.log_reader import STREAMS_MAX, Headings, LogReader, RankPrefix, Source, Write, follow_together
from stoker.cli.options import OnceCommand
from stoker.cli.server import FOLLOW_PATIENCE_S, connect, server_option

if TYPE_CHECKING:
    from stoker.wire.client import Client


@click.command(cls=OnceCommand)
@click.argument("names", metavar="ID[.RANK]...", nargs=-1, required=True, type=ANY_JOB)
@click.option("-f", "--follow", is_flag=True, help="Go on as the task writes, until the job ends.")
@click.option("--tail", type=click.IntRange(0, 1_000_000), help="Begin with the last N lines.", metavar="N")
@click.option("--rank", type=click.IntRange(0), help="Which task of the gang. [default: 0]")
@click.option("--all-ranks", is_flag=True, help="Every task of the gang, each line with its rank before it.")
@click.option("--attempt", type=click.IntRange(1), help="Which attempt. [default: the newest]")
@server_option
def logs(
    names: tuple[str, ...], follow: bool, tail: int | None, rank: int | None, all_ranks: bool, attempt: int | None
) -> None:
    """Print what tasks wrote to stdout and stderr.

    7.2 is rank 2 of job 7, and 9_3.2 that of a member. Of several jobs each has a heading, as with tail. With -f it is
    said on stderr how the job ended.

    \b
    Examples:
      stoker logs 7
      stoker logs -f --tail 20 7
      stoker logs 7.3 --attempt 1
      stoker logs -f --all-ranks 7
      stoker logs 7 8
    """
    if all_ranks and (rank is not None or len(names) > 1):
        raise click.UsageError("--all-ranks is of one job, and says every rank of it: leave --rank and other ids out")
    client = connect(FOLLOW_PATIENCE_S) if follow else connect()
    sources = _ranks_of(client, names[0]) if all_ranks else [_source(name, rank) for name in names]
    if follow and len(sources) > STREAMS_MAX:
        raise click.UsageError(
            f"{len(sources)} tasks were named, and at most {STREAMS_MAX} are followed at once: name some of them, such "
            f"as {sources[0].job_id}.0 {sources[0].job_id}.1"
        )
    if not follow:
        _copy(client, sources, attempt or 0, tail, prefixed=all_ranks)
        return
    job_ids = list(dict.fromkeys(source.job_id for source in sources))
    with goes_on(" ".join(job_ids)):
        _follow(client, sources, attempt, tail, prefixed=all_ranks)
        if attempt is None:
            for job in map(client.job, job_ids):
                if is_over(job):
                    tell_end(job)


def _source(name: str, rank: int | None) -> Source:
    """Read `7`, `7.2` or `9_3.2`."""
    job_id, dot, spoken = name.partition(".")
    if not dot:
        return Source(job_id, rank or 0)
    if not (spoken.isascii() and spoken.isdigit()):
        raise click.UsageError(f"{name!r} names no rank: write the id, a dot and a number, such as 7.2")
    if rank is not None:
        raise click.UsageError(f"{name} names a rank, and so does --rank: give one of them")
    return Source(job_id, int(spoken))


def _ranks_of(client: "Client", job_id: str) -> list[Source]:
    if "." in job_id:
        raise click.UsageError(f"{job_id} names one rank, and --all-ranks means every one: give one of them")
    job = client.job(job_id)
    ranks = len(job.attempts[-1].tasks) if job.attempts else job.tasks
    return [Source(job_id, rank) for rank in range(ranks)]


def _copy(client: "Client", sources: Sequence[Source], attempt: int, tail: int | None, *, prefixed: bool) -> None:
    """Print each after the other; with several all are tried, and the first refusal's exit status counts."""
    headings = Headings()
    worst = 0
    for source in sources:
        prefix = RankPrefix(source.rank) if prefixed else None
        write = prefix or (headings.writer(source, _name(source)) if len(sources) > 1 else None)
        try:
            LogReader(client, *source, write).copy(attempt, tail)
        except refused() as fault:
            if len(sources) == 1:
                raise
            status = show_problem(fault)
            worst = worst or status
        if prefix is not None:
            prefix.close()
    click.get_current_context().exit(worst)


def _follow(
    client: "Client", sources: Sequence[Source], attempt: int | None, tail: int | None, *, prefixed: bool
) -> None:
    if len(sources) == 1 and not prefixed:
        LogReader(client, *sources[0]).follow(attempt, tail)
        return
    headings = Headings()
    prefixes = [RankPrefix(source.rank) for source in sources if prefixed]
    writers: Sequence[Write] = prefixes or [headings.writer(source, _name(source)) for source in sources]
    readers = [LogReader(client, *source, write, alone=False) for source, write in zip(sources, writers, strict=True)]
    try:
        follow_together(readers, attempt, tail)
    finally:
        for prefix in prefixes:
            prefix.close()


def _name(source: Source) -> str:
    return f"{source.job_id}.{source.rank}" if source.rank else source.job_id
