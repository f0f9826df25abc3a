"""Which commands are there, and how does a command end?

The root of the command line. A command either returns, or raises: a StokerError becomes an error, a hint and the exit
status that `wire.status` gives its code; Ctrl-C becomes 130, a reader who went away ends us without a word, and a file
that can hold no more with a line.
"""

import errno
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Final, NoReturn

import click

from stoker import __version__
from stoker.cli.display.problem import refused, show_problem
from stoker.cli.server import server_option

EXIT_INTERRUPTED: Final = 130
EXIT_READER_GONE: Final = 141
"""128 + SIGPIPE, what other programs of a pipeline end with."""
UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""How a write to a file that can hold no more ends."""
_SECTIONS: Final = {
    "Try it": {"demo": "demo:demo", "up": "up:up"},
    "Jobs": {
        "submit": "submit:submit",
        "list": "listing:list_jobs",
        "top": "top:top",
        "status": "status:status",
        "logs": "logs:logs",
        "why": "why:why",
        "events": "events:events",
        "wait": "wait:wait",
    },
    "Orders to jobs": {name: f"job_operations:{name}" for name in ("cancel", "hold", "release", "requeue", "signal")},
    "Nodes": {"node": "node:node", "gpu": "gpu:gpu", "partition": "partition:partition"},
    "Sharing": {"tenant": "tenant:tenant", "quota": "quota:quota"},
    "Operation": {
        "control": "control:control",
        "agent": "daemon:agent",
        "token": "token:token",
        "backup": "backup:backup",
        "restore": "backup:restore",
        "doctor": "doctor:doctor",
        "usage": "usage:usage",
        "audit": "audit:audit",
        "completion": "completion:completion",
        "version": "version:version",
    },
}
"""Each command by its name: the module below `commands` that has it, and its name there. A module is imported when its
command is asked for: all of them together take a fifth of the time that `stoker list` takes."""
_ALIASES: Final = {"ps": "list"}
_HOMES: Final = {name: home for section in _SECTIONS.values() for name, home in section.items()}


class _Root(click.Group):
    """Lists commands by purpose, and turns what a command raises into an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_HOMES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        home = _HOMES.get(_ALIASES.get(name, name))
        if home is None:
            return None
        module, _, attribute = home.partition(":")
        command: click.Command = getattr(import_module(f"stoker.cli.commands.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as fault:
            from difflib import get_close_matches

            near = get_close_matches(args[0], [*_HOMES, *_ALIASES], n=1)
            if near and not args[0].startswith("-"):
                raise click.UsageError(f"{fault.format_message()} Did you mean {near[0]!r}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(80)) for name, command in commands if command])

    def invoke(self, ctx: click.Context) -> object:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # `stoker.__main__` left it so until here
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except click.exceptions.Exit:
            raise  # before the lines that would import much to find out that it isn't one of ours
        except click.ClickException as fault:
            if "stoker_" in fault.message:  # as a token begins
                from stoker.wire.token import without_secrets

                fault.message = without_secrets(fault.message)  # type: ignore[misc]  # there is no other way to it
            raise
        except refused() as fault:
            ctx.exit(show_problem(fault))
        except UnicodeEncodeError as fault:
            # Whatever option it came by: bytes of the command line that aren't UTF-8 are half surrogates by now.
            raise click.UsageError(
                f"{fault.object!r} holds bytes that aren't UTF-8, and what is sent must be"
            ) from None
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            _forget_reader()
            ctx.exit(EXIT_READER_GONE)
        return answer


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="stoker", message="%(prog)s %(version)s")
@server_option
def root() -> None:
    """Keep every GPU of a cluster fed.

    \b
    Examples:
      stoker demo
      stoker submit --gpus 4 -- python train.py
      stoker list
    """


def _forget_reader() -> None:
    """Nothing more can be printed; without this the interpreter's own flush at exit would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """A descriptor that the caller closed would be that of our next file or socket, and be printed into."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # open for as long as the process lives


def _cannot_write(fault: OSError) -> NoReturn:
    with suppress(OSError):
        click.echo(
            f"error: the output can't be written: {fault.strerror}\nhint: it went to a full or broken file", err=True
        )
    # The interpreter's own flush at exit would complain again, and change the status.
    _forget_reader()
    sys.exit(1)


def main() -> NoReturn:
    """The `stoker` command."""
    if not __debug__:
        sys.exit("error: Python runs with -O, which removes the checks that guard the ledger\nhint: start it without")
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's encoding can't say must not end the command that prints it.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # TextIO of CPython is a wrapper
    try:
        root.main(prog_name="stoker")
    except OSError as fault:
        if fault.filename is not None or fault.errno not in UNWRITABLE:
            raise
        _cannot_write(fault)
    finally:
        # What is left is the interpreter's to clear away, and an exception in the middle of that would be a traceback.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise AssertionError("unreachable: click exits")
