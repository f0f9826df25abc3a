"""Commands that drop no option without a word, and the decorator that gives a command a set of options.

It is apart from the options themselves, since every command imports it and only some pay for paths.

Rules: R1  an option that is given again adds to what it said before, or is refused, in every command; only a flag says
           nothing more the second time
"""

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
AddOption = Callable[[Any], Any]
"""A decorator as `click.option` makes it."""
_GIVEN: Final = "stoker.options_given"


class OnceCommand(click.Command):
    """Command that refuses an option which is given twice and doesn't add up (R1)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # of a line that is still being typed
            # Shared by the whole line: `stoker --server A list --server B` is one that names it twice.
            given: dict[str | None, click.Option] = ctx.meta.setdefault(_GIVEN, {})
            for option in self.make_parser(ctx).parse_args(list(args))[2]:
                if isinstance(option, click.Option) and not option.multiple:
                    if earlier := given.get(option.name):
                        _refuse_another(ctx, earlier, option)
                    given[option.name] = option
        return super().parse_args(ctx, args)


class OnceGroup(OnceCommand, click.Group):
    """Group of such commands."""

    command_class = OnceCommand
    group_class = type


class FiniteRange(click.FloatRange):
    """Number between two others; `nan`, which is neither below nor above any, is refused too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401  # click gives each type its own
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


def _refuse_another(ctx: click.Context, earlier: click.Option, option: click.Option) -> None:
    before, now = ("/".join((each.opts[-1], *each.secondary_opts)) for each in (earlier, option))
    if before != now:
        ctx.fail(f"{before} and {now} say the same thing, and only one could hold: give one of them")
    if not option.is_flag or option.secondary_opts:
        ctx.fail(f"{now} is given twice, and only one could hold: give it once")


def adding(name: str, metavar: str, help_text: str) -> AddOption:
    """Return an option that adds up; the command receives one text with commas between what was given."""
    return click.option(name, metavar=metavar, help=help_text, multiple=True, callback=joined)


def joined(ctx: click.Context, option: click.Parameter, given: tuple[str, ...]) -> str | None:
    """Return what an option was given, with commas between; None = nothing. A callback."""
    return ",".join(given) if given else None


def with_options(*options: AddOption) -> Callable[[Command], Command]:
    """Return a decorator that gives a command these options, listed in this order by its help."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
