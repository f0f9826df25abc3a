"""Root of the command line: finds a command by its name, and turns how it ends into an exit status.

A command NAME is the attribute NAME of `commands/NAME.py`, so a new command needs that one file; a table here says
which commands stand elsewhere, and in which order the help lists them. A command either returns, or raises: a
StokerError becomes an error, a hint and the exit status that `wire.status` gives its code; Ctrl-C becomes 130, a reader
who went away ends the command without a word, and a file that can hold no more with a line.
"""

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from stoker import __version__
from stoker.cli.display.messages import refused, show_problem, show_usage_fault
from stoker.cli.options import OnceGroup
from stoker.cli.server import server_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

EXIT_INTERRUPTED: Final = 130
EXIT_READER_GONE: Final = 141
"""128 + SIGPIPE, what other programs of a pipeline end with."""
UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""How a write to a file that can hold no more ends."""
SECTIONS: Final = {
    "Try it": ("demo", "up", "sim"),
    "Access": ("login", "logout", "context"),
    "Jobs": ("submit", "list", "top", "status", "logs", "why", "events", "wait", "exec", "attach"),
    "Orders to jobs": ("cancel", "hold", "release", "requeue", "signal", "update"),
    "Nodes": ("node", "gpu", "partition"),
    "Sharing": ("tenant", "quota", "secret"),
    "Operation": (
        *("control", "agent", "token", "backup", "restore", "doctor", "usage", "audit", "completion", "version"),
    ),
}
"""Commands in the order of the help. A command that is not here stands at the end of the section that its module names
as SECTION, without one at the end of the last section."""
_HOMES: Final = {
    "list": ("listing", "list_jobs"),
    "exec": ("exec_session", "execute"),
    "attach": ("exec_session", "attach"),
    "logout": ("login", "logout"),
    "restore": ("backup", "restore"),
    **{name: ("job_operations", name) for name in SECTIONS["Orders to jobs"]},
}
"""Module below `commands` and attribute in it, for commands whose file has another name than the command."""
_LISTED: Final = frozenset(name for names in SECTIONS.values() for name in names)
"""Commands of the table; only other names cost a look at the folder."""
_ALIASES: Final = {"ps": "list"}


def _found() -> "Iterator[str]":
    """Yield the commands that have a file `commands/NAME.py` and are not in the table, by name."""
    from stoker.cli import commands

    known = {"__init__", *_LISTED, *(module for module, _ in _HOMES.values())}
    files = sorted(file for folder in commands.__path__ for file in os.listdir(folder))
    for name, _, ending in (file.partition(".") for file in files):
        if ending == "py" and name not in known:
            yield name.replace("_", "-")


def _load(name: str) -> "tuple[ModuleType, click.Command]":
    """Import a command's module when the command is asked for: importing all of them takes a fifth of `stoker list`."""
    home, attribute = _HOMES.get(name, (name.replace("-", "_"),) * 2)
    module = import_module(f"stoker.cli.commands.{home}")
    return module, getattr(module, attribute)


def _sections() -> dict[str, list[str]]:
    """Return the names of all commands by section of the help, in its order."""
    sections = {title: list(names) for title, names in SECTIONS.items()}
    for name in _found():
        title = getattr(_load(name)[0], "SECTION", next(reversed(SECTIONS)))
        sections.setdefault(title, []).append(name)
    return sections


SUMMARY_MAX: Final = 200
"""Letters of a command's summary, so that none is cut: it is one sentence."""


class _Root(OnceGroup):
    """Root command: lists commands by purpose, and turns what a command raises into an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in _sections().values() for name in names]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = _ALIASES.get(name, name)
        return _load(name)[1] if name in _LISTED or name in _found() else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as fault:
            from difflib import get_close_matches

            near = get_close_matches(args[0], [*self.list_commands(ctx), *_ALIASES], n=1)
            if near and not args[0].startswith("-"):
                raise click.UsageError(f"{fault.format_message()} Did you mean {near[0]!r}?", ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in _sections().items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, command.get_short_help_str(SUMMARY_MAX)) for name, command in commands if command]
                )

    def main(
        self,
        args: "Sequence[str] | None" = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,  # noqa: ANN401  # as click has it
    ) -> Any:  # noqa: ANN401  # as click has it
        """Run a command line, and say what was wrong with it as every other refusal is said."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.ClickException as fault:
            show_usage_fault(fault)
            sys.exit(fault.exit_code)
        except click.Abort:
            click.echo("error: nothing was done: the question was not answered", err=True)
            sys.exit(1)
        except BrokenPipeError:  # by `--help`, which is printed while the line is read
            _forget_reader()
            sys.exit(EXIT_READER_GONE)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: click.Context) -> object:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # `stoker.__main__` left it so until here
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except click.exceptions.Exit:
            raise  # before the lines that would import much to find out that it is no refusal
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
                f"{fault.object!r} holds bytes that aren't UTF-8, and what is sent must be\n"
                "hint: write it in UTF-8; a command, its variables, folder and files may hold any bytes"
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
    """Nothing more can be printed; without this the interpreter's flush at exit would fail and change the status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _BestEffortFile(io.FileIO):
    """File that drops what it can't take, for stderr: a full or broken one changes nothing about how a command ends."""

    def write(self, text: Any, /) -> int:  # noqa: ANN401  # bytes, or a view of them
        with suppress(OSError):
            written = super().write(text)
            if written is not None:  # None = it would block
                return written
        return len(text)


def _open_streams() -> None:
    """A descriptor that the caller closed would be that of our next file or socket, and be printed into."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # open for as long as the process lives
    # A name that the terminal's encoding can't say must not end the command that prints it.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # TextIO of CPython is a wrapper
    stderr = io.BufferedWriter(_BestEffortFile(sys.stderr.fileno(), "w", closefd=False))
    sys.stderr = io.TextIOWrapper(stderr, sys.stderr.encoding, "backslashreplace", line_buffering=True)


def _cannot_write(fault: OSError) -> NoReturn:
    said = f"error: the output can't be written: {fault.strerror}\nhint: it went to a full or broken file"
    click.echo(said, err=True)
    _forget_reader()
    sys.exit(1)


def main() -> NoReturn:
    """Run the command `stoker` and end the process with its exit status."""
    if not __debug__:
        sys.exit("error: Python runs with -O, which removes the checks that guard the ledger\nhint: start it without")
    _open_streams()
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
