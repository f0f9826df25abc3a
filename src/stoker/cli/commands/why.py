"""`stoker why`: what keeps a job, or what ended it?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from stoker.cli.id_types import ANY_JOB
from stoker.cli.output import Form, output_options, show_lines
from stoker.cli.server import connect, server_option
from stoker.cli.table import cell_text

if TYPE_CHECKING:
    from stoker.wire.rest.job import WhyView


@click.command()
@click.argument("job_id", metavar="ID", type=ANY_JOB)
@output_options
@server_option
def why(job_id: str, form: str) -> None:
    """Say what keeps a job from running, or what ended it.

    With -o wide the numbers behind it are listed too.

    \b
    Examples:
      stoker why 7
      stoker why 7 --json
    """
    answer = connect().why(job_id)
    show_lines(form, why_lines(answer, whole=form == Form.WIDE), answer)


def why_lines(answer: "WhyView", *, whole: bool = False) -> Iterator[str]:
    """What to fix first, what would change it, and with `whole` the facts."""
    yield f"job {answer.id} is {answer.state.value}: {cell_text(answer.message)}"
    if answer.position is not None and answer.waiting is not None:
        alike = f", {answer.similar_ahead} before it ask for the same" if answer.similar_ahead else ""
        yield f"queue: {answer.position} of {answer.waiting}{alike}"
    if answer.hint:
        yield f"hint: {cell_text(answer.hint)}"
    if whole:
        for name, value in sorted(answer.facts.items()):
            yield f"{cell_text(name)}: {cell_text(value)}"
