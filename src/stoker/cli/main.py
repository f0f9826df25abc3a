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
from typing import Final, NoReturn

import click

from stoker import __version__
from stoker.cli.commands import (
    completion,
    daemon,
    demo,
    doctor,
    gpu,
    listing,
    logs,
    node,
    orders,
    partition,
    status,
    submit,
    top,
    up,
    version,
    wait,
    why,
)
from stoker.cli.problem import refused, show_problem
from stoker.cli.server import server_option

EXIT_INTERRUPTED: Final = 130
EXIT_READER_GONE: Final = 141
"""128 + SIGPIPE, what other programs of a pipeline end with."""
UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""How a write to a file that can hold no more ends."""
_SECTIONS: Final = (
    ("Try it", (demo.demo, up.up)),
    ("Jobs", (submit.submit, listing.list_jobs, top.top, status.status, logs.logs, why.why, wait.wait)),
    ("Orders to jobs", (orders.cancel, orders.hold, orders.release, orders.requeue, orders.signal)),
    ("Nodes", (node.node, gpu.gpu, partition.partition)),
    ("Operation", (daemon.control, daemon.agent, doctor.doctor, completion.completion, version.version)),
)


class _Root(click.Group):
    """Lists commands by purpose, and turns what a command raises into an exit status."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in _SECTIONS:
            rows = [(command.name or "", command.get_short_help_str(80)) for command in commands]
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # `stoker.__main__` left it so until here
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except (click.exceptions.Exit, click.ClickException):
            raise  # before the next line, which would import much to find out that it isn't one of ours
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


for _, _commands in _SECTIONS:
    for _command in _commands:
        root.add_command(_command)
root.add_command(listing.list_jobs, "ps")


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
