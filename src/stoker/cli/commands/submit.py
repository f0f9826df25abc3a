"""Command `stoker submit`: makes a job of a command line.

Rules: U1  stdout gets the id (or, with --json, the job) and nothing else
       U2  what a person didn't say isn't sent: defaults are the cluster's
       U3  nothing of the caller's environment travels but the few variables that make a command find its programs
       U4  a time to begin at is meant by the wall clock of whoever types it, but counts from the server's where it
           says `now`
       U5  a submit whose answer was lost is sent again under the same key, also to whoever takes over meanwhile, and
           makes one job
       U6  bytes of the command, its variables and its paths arrive as they were typed, whatever the locale is: where
           they aren't UTF-8, all are sent as Latin-1, in which any byte is a letter
       U8  a first word that is a script (`stoker.cli.job_script`) is sent as it is now; its directives are options
       U7  who asks for GPUs and says no command wants to see them: it is `nvidia-smi`, as in `gpu-cli submit`
"""

import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from stoker.cli.clock import begin_here
from stoker.cli.completion import tenants
from stoker.cli.display.formatting import duration
from stoker.cli.display.messages import refused
from stoker.cli.display.output import for_people, show_value
from stoker.cli.display.safe_text import visible
from stoker.cli.job_end import exit_of, goes_on, perhaps_submitted, tell_end, wait_for
from stoker.cli.options import OnceCommand, adding, with_options
from stoker.cli.server import FOLLOW_PATIENCE_S, answer_options, connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stoker.cli.job_script import JobScript
    from stoker.wire.client import JobBody
    from stoker.wire.rest.job import JobView

LOOK: Final = "nvidia-smi"
SCRIPT: Final = "stoker.script"
"""Key under which the command's context has the script that was found."""
LINES: Final = "stoker.script_lines"
"""And the lines on which its directives give options."""
SENT: Final = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG")


class _GpuNumber(click.ParamType[str]):
    """A share of a GPU, or where `whole` says so a number of GPUs too; kept as it was typed."""

    name = "n"

    def __init__(self, *, whole: bool = True) -> None:
        self._whole = whole

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from stoker.brain.domain.errors import StokerError
        from stoker.brain.domain.gpu import parse_gpu_share

        if not (self._whole and value.isascii() and value.isdigit()):
            try:
                parse_gpu_share(value)
            except StokerError as fault:
                count = "a whole number, nor a share of one: " if self._whole else "a share of a GPU: "
                either = "neither" if self._whole else "not"
                hint = fault.refusal.hint
                share = "that is above 0 and at most 1, with three decimals at most"
                self.fail(f"{value[:40]!r} is {either} {count}{share}; {hint}", param, ctx)
        return value


_options: Final = with_options(
    # what each task needs
    click.option("--gpus", "gpu_count", type=_GpuNumber(), help="GPUs of each task; 0.25 shares one. [default: 0]"),
    click.option(
        "--gpu-share", type=_GpuNumber(whole=False), metavar="S", help="Part of one GPU for each task, such as 0.25."
    ),
    click.option(
        "--tasks", type=click.IntRange(1), metavar="N", help="Gang members, placed all or nothing. [default: 1]"
    ),
    click.option("--gpu-memory", metavar="SIZE", help="Least memory of a GPU, such as 16GiB; the bound of a share."),
    click.option("--gpu-model", metavar="MODEL", help="Only such GPUs: V100, or 1g.10gb for a MIG instance."),
    click.option("--cpus", type=click.IntRange(1), metavar="N", help="CPUs of each task. [default: 1]"),
    click.option("--memory", metavar="SIZE", help="Host memory of each task, such as 64GiB. [default: no limit]"),
    # on which nodes
    click.option("--tasks-per-node", type=click.IntRange(1), metavar="K", help="At most so many tasks on one node."),
    click.option("--partition", metavar="P", help="A named part of the cluster, with its own limits."),
    adding("--where", "SEL", "Only nodes with such labels: zone=a,disk!=hdd,'tier in (x,y)'."),
    click.option("--exclude", metavar="NODES", multiple=True, help="Not these nodes: gpu-1,gpu-2."),
    click.option(
        "--tolerate", metavar="T", multiple=True, help="A taint that doesn't keep it away: KEY, KEY=VALUE or '*'."
    ),
    # with which policy
    click.option("--tenant", shell_complete=tenants, help="Whose quota it draws on. [default: the token's]"),
    click.option("--class", "job_class", type=click.Choice(["online", "batch"]), help="Its pool. [default: batch]"),
    click.option(
        "--priority", metavar="P", help="A whole number, or low, normal, high, urgent. [default: the tenant's]"
    ),
    click.option(
        "--time",
        "time_limit",
        metavar="T",
        help="Longest run: 30 (minutes), 2h, 1-12:00:00, 90s. [default: the partition's, else the cluster's]",
    ),
    click.option("--retries", type=click.IntRange(0), metavar="N", help="Tries after a non-zero exit. [default: 0]"),
    click.option("--comment", metavar="C", help="For people."),
    click.option(
        "--label",
        "label_words",
        metavar="KEY=VALUE",
        multiple=True,
        help="To find it by, as in `list --label`; may be repeated.",
    ),
    click.option("--no-requeue", is_flag=True, help="Don't start it again when its node is lost."),
    click.option(
        "--lost-after",
        metavar="D",
        help="Silence of its node after which it ends there and starts elsewhere: 10m, 2h, never. [default: the "
        "cluster's]",
    ),
    click.option(
        "--preemptible/--no-preemptible",
        default=None,
        help="Whether it may be stopped and started again for a job of a higher priority, which "
        "--no-requeue rules out. [default: no]",
    ),
    click.option(
        "--checkpoint",
        metavar="EVERY",
        help="How often it writes a checkpoint to $STOKER_CHECKPOINT_DIR, from which it goes on: 10m, none.",
    ),
    click.option(
        "--signal",
        metavar="[SIG][@LEAD]",
        help="Warn it before its GPUs are taken back and before its time limit: USR1@90 (seconds), TERM@2m.",
    ),
    # when, and how many
    click.option("--array", metavar="SPEC", help="Members: 0-9, 1,3,7, 0-98:2; with %3 at most 3 at once."),
    click.option("--after", metavar="ok:ID,...", multiple=True, help="Wait for others: ok:7, any:7, notok:7, after:7."),
    click.option("--begin", metavar="T", help="Not before: 16:00, tomorrow, 2026-12-01T10:00, now+2h."),
    click.option("--hold", is_flag=True, help="Wait until it is released."),
    # who is told
    click.option(
        "--notify",
        metavar="EVENTS",
        multiple=True,
        help="Be told: end,fail,start,'wait>1h'; none = of nothing. [default: the tenant's]",
    ),
    click.option(
        "--notify-to",
        metavar="TARGET",
        multiple=True,
        help="Whom: mail:ada@example.org, webhook:NAME, https://..., slack:https://... [default: the tenant's]",
    ),
    # the command
    click.option("--name", help="For people. [default: the program's]"),
    click.option("--visible", type=click.Choice(["uuid", "index"]), help="How CUDA_VISIBLE_DEVICES names GPUs."),
    click.option("--image", metavar="I", help="Run it in a container of this image: ghcr.io/team/train:3."),
    click.option(
        "--mount",
        "mounts",
        metavar="SRC:DST[:ro]",
        multiple=True,
        help="Let the container see a path of the node, if that allows it; may be repeated.",
    ),
    click.option(
        "--shm-size", metavar="SIZE", help="Shared memory of the container, such as 16GiB. [default: the node's]"
    ),
    click.option(
        "--network", type=click.Choice(["host", "bridge", "none"]), help="Network of the container. [default: host]"
    ),
    click.option("--entrypoint", metavar="PROG", help="Instead of the image's; '' = none."),
    click.option("--env", "variables", metavar="K=V", multiple=True, help="One variable; may be repeated."),
    click.option(
        "--secret",
        "secret_names",
        metavar="NAME[=VAR]",
        multiple=True,
        help="A secret of `stoker secret set`, as the variable of its name or as VAR; may be repeated.",
    ),
    adding(
        "--export",
        "ALL|NONE|NAMES",
        "Variables to send: all, none (nor the working directory), NAME,NAME or NAME=VALUE; ALL,X=1 too. [default: "
        f"{', '.join(SENT)}; with --image none]",
    ),
    click.option("--workdir", metavar="DIR", help="Where it runs. [default: here; with --image where that says]"),
    click.option(
        "--output", metavar="F", help="File on the node for what it writes, from where it runs: %j id, %A_%a member."
    ),
    click.option("--error", metavar="F", help="File of its own for stderr. [default: as --output]"),
    # what follows the submit
    click.option("-i", "--interactive", is_flag=True, help="Be in its terminal once it runs; always with -t."),
    click.option("-t", "--tty", is_flag=True, help="Give it a terminal; always with -i. It ends with this one."),
    click.option("--detach", "detached", is_flag=True, help="With -it: don't enter it; it goes on without anybody."),
    click.option("--wait", "waits", is_flag=True, help="Wait for its end, and exit as it did."),
    click.option("--follow", is_flag=True, help="Print what it writes until it ends, and exit as it did."),
)


class SubmitCommand(OnceCommand):
    """The command, whose first word may be a script, with options of its own (U8)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if ctx.resilient_parsing else self._with_script(ctx, args))

    def _with_script(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments with the options of the script that they name, if they name one."""
        parser = self.make_parser(ctx)
        values, _, order = parser.parse_args(list(args))
        words = values.get("command")
        if not isinstance(words, tuple | list) or not words:
            return args
        from shutil import which

        from stoker.cli.job_script import command_remark, found_script, option_words, remarks

        def on_path(word: str) -> bool:
            return which(word) is not None

        options = args[: len(args) - len(words)]
        as_it_stands = options[-1:] == ["--"]
        script = None if as_it_stands else found_script(words[0], on_path)
        if script is None:
            if remark := command_remark(words, on_path, as_it_stands=as_it_stands):
                _note(remark)
            return args
        given = frozenset(param.name or "" for param in order if isinstance(param, click.Option))
        said, notes, lines = option_words(script, given, parser)
        for note in (*notes, *remarks(script, on_path)):
            _note(f"{script.path}: {note}")
        ctx.meta[SCRIPT], ctx.meta[LINES] = script, lines
        return [*said, *options, "--", script.name, *words[1:]]


def _note(text: str) -> None:
    click.echo(f"note: {visible(text)}", err=True)


@click.command(context_settings={"allow_interspersed_args": False}, cls=SubmitCommand)
@_options
@answer_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARG]... | -- COMMAND...")
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    form: str,
    waits: bool,
    follow: bool,
    **given: Any,  # noqa: ANN401  # click gives each option its own type
) -> None:
    """Submit a job and print its id.

    SCRIPT is a text file here, or - for standard input. A copy of it is kept with the job and run with ARG by what its
    `#!` line names, else by /bin/sh. Lines `#STOKER --gpus 2` before its first line of code are options, and so are
    those `#SBATCH` options that have a counterpart; the command line wins.

    COMMAND is run as it stands on the node; one single argument with blanks in it is a line for the shell. A first word
    without `--` is a SCRIPT if it names a file that begins with `#!` or has such lines, or that is no program on PATH.
    With --gpus and no COMMAND it is nvidia-smi.

    \b
    Examples:
      stoker submit train.sh --epochs 3
      stoker submit --gpus 4 -- python train.py --epochs 3
      stoker submit --gpus 1 --time 2h --wait -- 'make data && ./train'
      stoker submit --priority low --gpus 8 --tasks 2 -- torchrun train.py
      stoker submit --array 0-99%8 -- './one $STOKER_ARRAY_INDEX'
      stoker submit --after ok:7 --begin 22:00 --where zone=a -- ./report
      stoker submit --preemptible --checkpoint 10m --signal USR1@90 -- ./train
      stoker submit --notify end,fail --notify-to mail:ada@example.org -- ./train
      stoker submit --secret WANDB_API_KEY --secret TEAM=HF_TOKEN -- ./train
      stoker submit -it --gpus 1 -- bash
    """
    enters = _enters(given, follow=follow, waits=waits)
    with perhaps_submitted(), _directives_named(ctx):
        job = connect().submit(job_body(given, os.environ, _here, ctx.meta.get(SCRIPT)))
    if enters:
        from stoker.cli.session_command import run_interactive

        ctx.exit(run_interactive(ctx, job.id))
    plain = for_people(form)
    if plain:
        click.echo(job.id)
        if given.get("time_limit") is None and sys.stderr.isatty():
            _note(_default_limit(job))
    elif not waits or follow:
        show_value(form, job)
    if not (waits or follow):
        return
    if follow:
        from stoker.cli.log_reader import LogReader

        with goes_on(job.id):
            LogReader(connect(FOLLOW_PATIENCE_S), job.id, rank=0).follow(attempt=None, tail=None)
    job = wait_for(job.id)
    tell_end(job)
    if waits and not follow and not plain:
        show_value(form, job)
    ctx.exit(exit_of(job))


def _enters(given: dict[str, Any], *, follow: bool, waits: bool) -> bool:
    """Return whether this terminal becomes the job's, and prepare what that is submitted with. Raises: UsageError."""
    if follow and given.get("array"):
        raise click.UsageError(
            "--follow follows one job, and each member of an array writes: use --wait, or `stoker logs -f ID_INDEX`"
        )
    interactive = given.pop("interactive")
    if interactive != given["tty"] or (given["detached"] and not interactive):
        raise click.UsageError("a job has a terminal with -it, both; and --detach goes with these")
    if not interactive or given["detached"]:
        return False
    from stoker.cli.session_terminal import needs_terminal

    if follow or waits:
        raise click.UsageError("-it waits for the job by itself: leave --wait and --follow out")
    needs_terminal()
    given["no_requeue"] = True  # nobody would know in which attempt they are
    term = os.environ.get("TERM")
    if term and not any(each.startswith("TERM=") for each in given["variables"]):
        given["variables"] = (*given["variables"], f"TERM={term}")
    return True


@contextmanager
def _directives_named(ctx: click.Context) -> "Iterator[None]":
    """Say, when what a directive of the script gives is refused, where it stands (U8)."""
    try:
        yield
    except refused() as fault:
        if SCRIPT not in ctx.meta:
            raise
        from stoker.brain.domain.errors import StokerError
        from stoker.cli.job_script import located

        raise StokerError(located(fault.refusal, ctx.meta[SCRIPT].path, ctx.meta[LINES])) from fault


def _default_limit(job: "JobView") -> str:
    """Say the time limit that a job was given which named none."""
    whose = f"partition {job.partition}" if job.partition else "this cluster"
    return f"time limit {duration(job.time_limit_ms)}, the default of {whose}; --time sets another"


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise click.UsageError("the folder you are in was deleted; name another with --workdir") from None


def job_body(
    given: "Mapping[str, Any]",
    environ: "Mapping[str, str]",
    here: Callable[[], str],
    script: "JobScript | None" = None,
) -> "JobBody":
    """The request that a command line means. `here` answers the working directory, if it is needed."""
    from stoker.wire.client import JobBody
    from stoker.wire.text import parse_memory_mb

    said = {name: given[name] for name in JobBody.__struct_fields__ if given.get(name) not in (None, False, ())}
    body: dict[str, Any] = {name: list(each) if isinstance(each, tuple) else each for name, each in said.items()}
    if given.get("begin") is not None:
        body["begin"] = begin_here(given["begin"])  # U4
    said_gpus = [None if body.pop(name, None) is None else str(given[name]) for name in ("gpu_count", "gpu_share")]
    body |= _gpus(*said_gpus)
    for field, word in (("gpu_memory_mb", "gpu_memory"), ("memory_mb", "memory"), ("shm_mb", "shm_size")):
        if given.get(word) is not None:
            body[field] = parse_memory_mb(given[word])
    if given.get("label_words"):
        from stoker.brain.domain.label import parse_job_labels

        body["labels"] = parse_job_labels(given["label_words"])
    if given.get("no_requeue"):
        body["requeue"] = False
    if script is not None:
        body["script"] = script.text
    looks = (body.get("gpu_count") or "gpu_share" in body) and not given.get("image")
    words = given["command"] or ((LOOK,) if looks else ())
    body["command"] = _command(words) if script is None else list(words)
    exported = (given.get("export") or "").split(",")
    named = _secrets(given.get("secret_names") or ())
    sent = {
        name: value for name, value in _sent(exported, environ, image=given.get("image")).items() if name not in named
    }
    body["env"] = sent | _spoken(given.get("variables") or ())
    if named:
        body["secrets"] = named
    nothing = any(word.upper() == "NONE" for word in exported)
    nothing = nothing or bool(given.get("image"))  # the image has its own
    body["workdir"] = _absolute(given["workdir"], here) if given.get("workdir") else "" if nothing else here()
    return JobBody(**_as_typed(body))


def _gpus(count: str | None, share: str | None) -> dict[str, Any]:
    """Return the fields of `--gpus` and `--gpu-share`. Raises: click.UsageError, StokerError `bad_gpu_share`."""
    from stoker.brain.domain.gpu import WHOLE_GPU, parse_gpu_share

    found: dict[str, Any] = {}
    if count is not None and count.isascii() and count.isdigit():
        found["gpu_count"] = int(count)
        if share is not None and not int(count):
            raise click.UsageError(f"--gpus {count} asks for no GPU and --gpu-share {share} for one: give one of them")
    elif count is not None:
        if share is not None:
            raise click.UsageError(f"--gpus {count} and --gpu-share {share} both ask for a share: give one of them")
        share = count
    return found if share is None else {**found, "gpu_share": parse_gpu_share(share) / WHOLE_GPU}


def _as_typed(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body with the bytes that were typed, which Python has read in the encoding of the locale (U6)."""
    try:
        return body | _decoded(body, "utf-8")
    except UnicodeDecodeError:
        return body | _decoded(body, "latin-1") | {"encoding": "latin-1"}


def _decoded(body: dict[str, Any], encoding: str) -> dict[str, Any]:
    """Return the fields of the body that become bytes on a node. Raises: UnicodeDecodeError."""

    def text(typed: str) -> str:
        return os.fsencode(typed).decode(encoding)

    command = body["command"]
    return {
        **{name: text(body[name]) for name in ("workdir", "output", "error", "script") if name in body},
        "command": text(command) if isinstance(command, str) else list(map(text, command)),
        "env": {text(name): text(value) for name, value in body["env"].items()},
    }


def _command(words: tuple[str, ...]) -> str | list[str]:
    if len(words) == 1 and any(letter.isspace() for letter in words[0]):
        return words[0]
    return list(words)


def _absolute(folder: str, here: Callable[[], str]) -> str:
    """A relative folder is meant from where the person is, not from where the job will be."""
    return folder if os.path.isabs(folder) else os.path.normpath(os.path.join(here(), folder))


def _sent(words: list[str], environ: "Mapping[str, str]", *, image: object = None) -> dict[str, str]:
    """The caller's variables that travel (U3), by the words of --export. An image has its own PATH."""
    names = [word for word in words if word]
    groups = {word.upper() for word in names} & {"ALL", "NONE"}
    if len(groups) > 1:
        raise click.BadParameter("ALL and NONE contradict each other: give one of them", param_hint="--export")
    names = [word for word in names if word.upper() not in groups]
    if missing := [name for name in names if "=" not in name and name not in environ]:
        said = f"not set here: {', '.join(missing)}; a value with commas in it is given with --env"
        raise click.BadParameter(said, param_hint="--export")
    sent = _all(environ) if "ALL" in groups else {}
    if not (groups or names or image):
        sent = _spoken([f"{name}={environ[name]}" for name in SENT if name in environ])
    return sent | _spoken([word if "=" in word else f"{word}={environ[word]}" for word in names], "--export")


def _secrets(given: "Sequence[str]") -> dict[str, str]:
    """Secrets by the variables that get their values."""
    named: dict[str, str] = {}
    for word in given:
        name, equals, variable = word.partition("=")
        if not name or (equals and not variable):
            raise click.BadParameter(f"{word!r} is not NAME or NAME=VARIABLE", param_hint="--secret")
        if named.setdefault(variable or name, name) != name:
            said = f"{variable or name} would get two secrets, {named[variable or name]} and {name}"
            raise click.BadParameter(said, param_hint="--secret")
    return named


def _all(environ: "Mapping[str, str]") -> dict[str, str]:
    """A token is its owner's: a job's environment is shown to the whole tenant, so it goes only if it is named."""
    return {name: value for name, value in environ.items() if name != "STOKER_TOKEN"}


def _spoken(pairs: "Sequence[str]", option: str = "--env") -> dict[str, str]:
    variables: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        if variables.setdefault(name, value) != value:
            raise click.BadParameter(f"{name} is given twice, with different values", param_hint=option)
    return variables
