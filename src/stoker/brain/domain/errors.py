"""Refusals: why a command was not carried out, for people and for programs.

A refusal is a value with four parts, so that a person, a program and a test can each read the part meant for them.
"""

import msgspec

FactValue = int | float | str | bool
Facts = dict[str, FactValue]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Record of why a command was not carried out, and of what to do next.

    `code` is stable and listed in `wire/status.py`; `message` says what happened with names and numbers;
    `hint` says what to do next; `facts` repeats the numbers for machines.
    """

    code: str
    message: str
    hint: str
    facts: Facts = msgspec.field(default_factory=dict)


class StokerError(Exception):
    """A refusal that is raised, for parsers and for code outside the brain."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.code}: {refusal.message}")
        self.refusal = refusal


def refuse(code: str, message: str, hint: str, **facts: FactValue) -> Refusal:
    """Return a refusal; the keyword arguments are its facts."""
    return Refusal(code=code, message=message, hint=hint, facts=facts)


def refusal_error(code: str, message: str, hint: str, **facts: FactValue) -> StokerError:
    """Return a refusal to be raised; the keyword arguments are its facts."""
    return StokerError(Refusal(code=code, message=message, hint=hint, facts=facts))
