"""`stoker why`: the reason why a job waits or ended."""

import click

from stoker.cli.completion import ANY_JOB
from stoker.cli.display.job_details import why_lines
from stoker.cli.display.output import Form, folded, show_lines
from stoker.cli.options import OnceCommand
from stoker.cli.server import answer_options, connect


@click.command(cls=OnceCommand)
@click.argument("job_id", metavar="ID", type=ANY_JOB)
@answer_options
def why(job_id: str, form: str) -> None:
    """Say what keeps a job from running, or what ended it.

    With -o wide the numbers behind it are listed too.

    \b
    Examples:
      stoker why 7
      stoker why 7 --json
    """
    answer = connect().why(job_id)
    show_lines(form, folded(why_lines(answer, whole=form == Form.WIDE)), answer)
