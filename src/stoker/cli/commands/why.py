"""`stoker why`: the reason why a job waits or ended."""

from typing import TYPE_CHECKING

import click

from stoker.cli.completion import ANY_JOB
from stoker.cli.display.job_details import why_lines
from stoker.cli.display.output import Form, folded, show_each, show_lines
from stoker.cli.options import OnceCommand
from stoker.cli.server import answer_options, connect

if TYPE_CHECKING:
    from stoker.wire.rest.why import WhyView


@click.command(cls=OnceCommand)
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=ANY_JOB)
@answer_options
def why(job_ids: tuple[str, ...], form: str) -> None:
    """Say what keeps a job from running, or what ended it.

    With -o wide the numbers behind it are listed too.

    \b
    Examples:
      stoker why 7
      stoker why 7 8
      stoker why 7 --json
    """

    def show(answer: "WhyView") -> None:
        show_lines(form, folded(why_lines(answer, whole=form == Form.WIDE)), answer)

    show_each(form, job_ids, connect().why, show)
