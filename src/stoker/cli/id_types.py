"""Which ids and names does a command take, and what may a shell offer in their place?

What an id may look like is the server's to say; here only that there is one: `stoker cancel "$id"` with nothing in
`id` must not ask for everything or for nothing.
"""

from typing import TYPE_CHECKING, Final

import click

from stoker.cli import completion

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class _Named(click.ParamType[str]):
    """A text that isn't empty, offered by `offer`."""

    def __init__(self, name: str, offer: "completion.Completer") -> None:
        self.name = name
        self._offer = offer

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.strip():
            self.fail(f"an empty {self.name} names nothing", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[CompletionItem[str]]":
        return self._offer(ctx, param, incomplete)


ANY_JOB: Final = _Named("id", completion.any_jobs)
OPEN_JOB: Final = _Named("id", completion.open_jobs)
JOBS_THEN_SIGNAL: Final = _Named("id or signal", completion.jobs_then_signal)
NODE: Final = _Named("name", completion.nodes)
