"""How is it said what keeps a job, or what ended it?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.cli.display.table import cell_text

if TYPE_CHECKING:
    from stoker.wire.rest.job import WhyView


def why_lines(answer: "WhyView", *, whole: bool = False) -> Iterator[str]:
    """What to fix first, what would change it, and with `whole` the facts."""
    yield f"job {answer.id} is {answer.state.value}: {cell_text(answer.message)}"
    if answer.position is not None and answer.waiting is not None:
        alike = f", {answer.similar_ahead} before it ask for the same" if answer.similar_ahead else ""
        yield f"queue: {answer.position} of {answer.waiting}{alike}"
    if answer.lent is not None:
        yield f"lent: {cell_text(answer.lent.message)}"
    if answer.hint:
        yield f"hint: {cell_text(answer.hint)}"
    if whole:
        for name, value in sorted(answer.facts.items()):
            yield f"{cell_text(name)}: {cell_text(value)}"
