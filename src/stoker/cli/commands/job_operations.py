"""Commands `stoker cancel`, `hold`, `release`, `requeue`, `signal` and `update`, which change jobs by their ids.

Rules: J1  every id is tried, whatever became of the ids before it; the exit status is that of the first refusal
       J2  an id may name a job, a member of an array, or some of them: `7`, `7_3`, `7_[0-4,9]`
       J3  instead of ids there may be filters, by the rules of `job_selection`
       J4  what an update doesn't say stays as it is; an empty text takes back what was said: `--after ''`
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from stoker.cli.clock import begin_here
from stoker.cli.completion import ANY_JOB, JOBS_THEN_SIGNAL, OPEN_JOB
from stoker.cli.display.formatting import members_text
from stoker.cli.display.messages import refused, show_problem
from stoker.cli.display.output import for_people, show_value
from stoker.cli.display.safe_text import visible
from stoker.cli.job_selection import MOVED_ON, Selection, check_chosen, select_jobs, selection_options
from stoker.cli.options import Command, OnceCommand, adding, with_options
from stoker.cli.server import answer_options, connect

if TYPE_CHECKING:
    from stoker.wire.client import Client, JobPatch
    from stoker.wire.rest.job import JobsToldView, JobView

_update_options: Final = with_options(
    # what may change while a job runs too
    click.option(
        "--time", "time_limit", metavar="T", help="Longest run, from its start: 30 (minutes), 2h, 1-12:00:00, 90s."
    ),
    click.option("--name", help="For people."),
    click.option("--comment", metavar="C", help="For people."),
    click.option("--priority", metavar="P", help="A whole number, or low, normal, high, urgent."),
    click.option("--retries", type=click.IntRange(0), metavar="N", help="Tries after a non-zero exit."),
    click.option("--requeue/--no-requeue", default=None, help="Whether it starts again when its node is lost."),
    # what may change while it waits
    click.option("--after", metavar="ok:ID,...", multiple=True, help="Wait for these, instead of all before."),
    click.option("--begin", metavar="T", help="Not before: 16:00, tomorrow, 2026-12-01T10:00, now+2h; now = at once."),
    click.option("--gpus", "gpu_count", type=click.IntRange(0), metavar="N", help="GPUs of each task."),
    click.option("--gpu-memory", metavar="SIZE", help="Least memory of a GPU, such as 16GiB."),
    click.option("--gpu-model", metavar="MODEL", help="Only such GPUs."),
    click.option("--cpus", type=click.IntRange(1), metavar="N", help="CPUs of each task."),
    click.option("--memory", metavar="SIZE", help="Host memory of each task, such as 64GiB; 0 = no limit."),
    click.option("--tasks", type=click.IntRange(1), metavar="N", help="Gang members."),
    click.option("--tasks-per-node", type=click.IntRange(0), metavar="K", help="At most so many on one node; 0 = any."),
    click.option("--partition", metavar="P", help="A named part of the cluster."),
    adding("--where", "SEL", "Only nodes with such labels, instead of all before."),
    click.option("--exclude", metavar="NODES", multiple=True, help="Not these nodes, instead of all before."),
    click.option("--tolerate", metavar="T", multiple=True, help="Taints that don't matter, instead of all before."),
    click.option("--lost-after", metavar="D", help="Silence of its node after which it starts elsewhere: 10m, never."),
    click.option(
        "--preemptible/--no-preemptible", default=None, help="Whether it gives way to jobs of a higher priority."
    ),
    click.option("--checkpoint", metavar="EVERY", help="How often it writes a checkpoint: 10m, none."),
    click.option("--signal", metavar="[SIG][@LEAD]", help="Warning before its end: USR1@90, TERM@2m; none = no other."),
)


SendOperation = Callable[[str], "JobsToldView"]
_SELECTIONS: Final = {
    "cancel": Selection("cancelled", "pending,held,starting,running", lambda job: True),
    "hold": Selection(
        "held",
        "pending,starting,running",
        lambda job: job.members.pending > 0 if job.members else job.state == "pending",
    ),
    "release": Selection(
        "released",
        "held,pending,starting,running",
        lambda job: job.members.held > 0 if job.members else job.state == "held",
    ),
    "requeue": Selection(
        "run once more",
        "pending,running,failed,timeout,out_of_memory,node_failed",
        lambda job: job.members.failed > 0 if job.members else job.state not in ("pending", "running"),
    ),
    "requeue --hold": Selection("stopped and held", "starting,running", lambda job: True),
    "signal": Selection("signalled", "running", lambda job: True),
}
"""Jobs that an operation selects by filters without a state: those to which it can do something."""
LINES_MAX: Final = 20
"""Beyond that the members of one answer are counted, not listed."""


def _operation(ids: click.ParamType[str]) -> Callable[[Command], Command]:
    """Return a decorator that makes a command of a function, with jobs by id or filter, the form of the answer and a
    server.
    """
    argument = click.argument("job_ids", metavar="[ID...]", nargs=-1, type=ids)
    return with_options(click.command(cls=OnceCommand), argument, selection_options, answer_options)


@_operation(OPEN_JOB)
def cancel(job_ids: tuple[str, ...], form: str, **given: Any) -> None:  # noqa: ANN401  # each filter has its type
    """Cancel jobs: terminate, wait a grace time, kill.

    A job is `cancelled` once its processes are gone; until then it is `stopping`. An ID may name members of an array:
    7_3, or 7_[0-4,9]. Every id is tried; the exit status is that of the first refusal.

    \b
    Examples:
      stoker cancel 7
      stoker cancel 7 8 '9_[0-499]'
      stoker cancel --mine --name 'train-*'
      stoker cancel --array 9 --state pending --yes
    """
    client = connect()
    give(form, _chosen(client, "cancel", job_ids, given), client.cancel, selected=not job_ids)


@_operation(OPEN_JOB)
def hold(job_ids: tuple[str, ...], form: str, **given: Any) -> None:  # noqa: ANN401  # each filter has its type
    """Keep waiting jobs from starting, until they are released.

    What runs isn't touched: a running job is refused, and of an array those members are held that have not started.

    \b
    Examples:
      stoker hold 7
      stoker hold '9_[100-199]'
    """
    client = connect()
    give(form, _chosen(client, "hold", job_ids, given), client.hold, selected=not job_ids)


@_operation(OPEN_JOB)
def release(job_ids: tuple[str, ...], form: str, **given: Any) -> None:  # noqa: ANN401  # each filter has its type
    """Let held jobs start.

    \b
    Examples:
      stoker release 7
    """
    client = connect()
    give(form, _chosen(client, "release", job_ids, given), client.release, selected=not job_ids)


@_operation(ANY_JOB)
@click.option("--hold", is_flag=True, help="Hold them once they have stopped, until `stoker release`.")
def requeue(job_ids: tuple[str, ...], form: str, *, hold: bool, **given: Any) -> None:  # noqa: ANN401  # each filter has its type
    """Run jobs once more, under their own ids.

    What is live is stopped first, as by a cancel: a terminate signal, the grace time, a kill. What has ended waits
    again. Of an array its failed members are taken.

    \b
    Examples:
      stoker requeue 7
      stoker requeue 9_3
      stoker requeue --hold 7    # stop it, and let it go on when it is released
      stoker requeue --mine --state failed
    """
    client = connect()
    chosen = _chosen(client, "requeue --hold" if hold else "requeue", job_ids, given)
    give(form, chosen, lambda job_id: client.requeue(job_id, hold=hold), selected=not job_ids)


@click.command(cls=OnceCommand)
@click.argument("words", metavar="[ID...] SIGNAL", nargs=-1, required=True, type=JOBS_THEN_SIGNAL)
@selection_options
@answer_options
def signal(words: tuple[str, ...], form: str, **given: Any) -> None:  # noqa: ANN401  # each filter has its type
    """Send a signal to the processes of running jobs.

    SIGNAL is a name or a number: USR1, SIGUSR1, 10. It reaches every process of every task; what ends by it is no
    cancelled job, but one that ended by a signal.

    \b
    Examples:
      stoker signal 7 USR1
      stoker signal 7 8 9_3 TERM
      stoker signal --mine --label team=nlp USR1
    """
    *job_ids, name = words
    if not job_ids and name[:1].isdigit() and not any(given.values()):
        raise click.UsageError("give the ids of jobs, and then a signal")
    client = connect()
    chosen = _chosen(client, "signal", job_ids, given)
    give(form, chosen, lambda job_id: client.signal(job_id, name.upper()), selected=not job_ids)


@click.command(cls=OnceCommand)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=OPEN_JOB)
@_update_options
@answer_options
def update(job_ids: tuple[str, ...], form: str, **given: Any) -> None:  # noqa: ANN401  # click gives each its own type
    """Change jobs after their submit.

    What waits may change in all of these; what runs in --time, --name, --comment, --priority, --retries, --requeue,
    --preemptible, --checkpoint and --signal. Its owner may give it up to the longest time of its partition: all checks
    of a submit hold. An ID may name members of an array: 9_3, or 9_[0-4]. An empty text takes back what was said:
    --after ''.

    \b
    Examples:
      stoker update 7 --time 4h
      stoker update 7 8 --priority high --where zone=a
      stoker update '9_[3-5]' --time 30
    """
    body = patch_of(given)
    client = connect()
    give(form, job_ids, lambda job_id: client.update(job_id, body))


def patch_of(given: Mapping[str, Any]) -> "JobPatch":
    """Return the request that a command line means (J4)."""
    from stoker.wire.client import JobPatch
    from stoker.wire.text import parse_memory_mb

    names = JobPatch.__struct_fields__
    said = {name: value for name, value in given.items() if name in names and value not in (None, ())}
    body: dict[str, Any] = {name: list(each) if isinstance(each, tuple) else each for name, each in said.items()}
    for field in ("after", "exclude", "tolerate"):
        if field in body:
            body[field] = [each for each in body[field] if each]
    if body.get("begin"):
        body["begin"] = begin_here(body["begin"])
    for field, word in (("gpu_memory_mb", "gpu_memory"), ("memory_mb", "memory")):
        if given.get(word) is not None:
            body[field] = parse_memory_mb(given[word])
    if not body:
        raise click.UsageError("say what to change, such as --time 4h")
    return JobPatch(**body)


def _chosen(client: "Client", operation: str, job_ids: Sequence[str], given: "dict[str, Any]") -> Sequence[str]:
    """Return the ids that were given, or those that filters select (J3)."""
    if not check_chosen(job_ids, given):
        return job_ids
    return select_jobs(client, _SELECTIONS[operation], given, yes=given["yes"])


def give(form: str, job_ids: Sequence[str], send: SendOperation, *, selected: bool = False) -> None:
    """Change each job by `send`, print its state after it, and end with the first refusal's exit status (J1).

    `selected`: by a filter, so that a job which has moved on since is no fault.
    """
    done: list[JobView] = []
    worst = 0
    for job_id in job_ids:
        try:
            answered = send(job_id)
        except refused() as fault:
            if selected and fault.refusal.code in MOVED_ON:
                click.echo(f"not touched: {visible(fault.refusal.message)}", err=True)
                continue
            status = show_problem(fault)
            worst = worst or status
            continue
        done += answered.jobs
        if for_people(form):
            for line in _lines(job_id, answered):
                click.echo(line)
        elif answered.total > len(answered.jobs):
            click.echo(f"only {len(answered.jobs)} of the {answered.total} jobs of {job_id} are shown", err=True)
    if not for_people(form):
        show_value(form, done)
    click.get_current_context().exit(worst)


def _lines(asked: str, told: "JobsToldView") -> Iterator[str]:
    if told.total <= LINES_MAX:
        yield from map(state_line, told.jobs)
        return
    untouched = told.total - told.changed
    rest = f"; to {untouched} it made no difference" if untouched else ""
    yield f"{told.changed} of the {told.total} jobs of {visible(asked)} were told{rest}"


def state_line(job: "JobView") -> str:
    """Return a line with the job's state. An array is ended by the writer a moment after its last member is."""
    members = job.members
    said = f"; {visible(job.message)}" if job.message else ""
    if members is None:
        return f"job {job.id} is {job.state.value}{said}"
    over = members.total == members.succeeded + members.failed + members.cancelled
    return f"job {job.id}{'' if over else f' is {job.state.value}'}: {members_text(members)}{said}"
