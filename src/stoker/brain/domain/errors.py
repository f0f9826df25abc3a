"""What does Stoker say when it refuses?

A refusal is a value with four parts, so that a person, a program and a test can each read the part meant for them.
"""

import msgspec

FactValue = int | str | bool
Facts = dict[str, FactValue]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a command was not carried out, and what to do next.

    `code` is stable and listed in `wire/status.py`; `message` says what happened with names and numbers;
    `hint` says what to do next; `facts` repeats the numbers for machines.
    """

    code: str
    message: str
    hint: str
    facts: Facts = msgspec.field(default_factory=dict)


class StokerError(Exception):
    """A refusal on its way up to whoever asked."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.code}: {refusal.message}")
        self.refusal = refusal


def refuse(code: str, message: str, hint: str, **facts: FactValue) -> Refusal:
    """A refusal in one line."""
    return Refusal(code=code, message=message, hint=hint, facts=facts)
