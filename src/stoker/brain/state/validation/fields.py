"""Checks of single values of a command: texts, names, accounts, numbers and time limits."""

import re
from typing import Final

from stoker.brain.domain.errors import FactValue, Refusal, refuse
from stoker.brain.domain.label import value_fault
from stoker.brain.domain.units import human_duration

_ACCOUNT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,30}\$?")
"""What useradd(8) takes, with capitals and dots, which directories of accounts have."""


def text_fault(
    field: str, text: str, bytes_max: int, *, called: str = "", hint: str = "say it in fewer words"
) -> Refusal | None:
    """Return the refusal of a text of more than `bytes_max` bytes of UTF-8; `called` names it in the message."""
    size = len(text.encode(errors="replace"))
    return None if size <= bytes_max else refuse_long_text(field, called or field, size, bytes_max, hint)


def refuse_long_text(field: str, called: str, size: int, bytes_max: int, hint: str) -> Refusal:
    """Return the refusal of a text of `size` bytes where at most `bytes_max` are taken."""
    message = f"{called} has {size} bytes; at most {bytes_max} are taken"
    return refuse("text_too_long", message, hint, field=field, bytes=size, bytes_max=bytes_max)


def comment_fault(comment: str, bytes_max: int) -> Refusal | None:
    """Return the refusal of a comment of more than `bytes_max` bytes of UTF-8."""
    return text_fault("comment", comment, bytes_max, called="the comment")


def name_fault(code: str, noun: str, name: str, example: str) -> Refusal | None:
    """Return the refusal of a name that is empty or can't be the value of a label."""
    fault = value_fault(name) if name else (0, "it is empty")
    if fault is None:
        return None
    at, why = fault[0] + 1, fault[1].replace("a value", "a name")
    message = f"{name[:80]!r} can't be the name of a {noun}, at column {at}: {why}"
    return refuse(code, message, f"write a word such as {example}", got=name[:80], column=at)


def account_fault(user: str) -> Refusal | None:
    """Return the refusal of a name that no Unix account can have; the empty name is none, and taken."""
    if not user or _ACCOUNT.fullmatch(user):
        return None
    hint = (
        "a name has up to 32 letters, digits, `_`, `-` and `.`, and begins with a letter or `_`; "
        "`getent passwd` shows those of a node"
    )
    return refuse("bad_user", f"{user[:80]!r} can't be the name of a Unix account", hint, user=user[:80])


def refuse_out_of_range(field: str, value: int, low: int, high: int, hint: str = "") -> Refusal:
    """Return the refusal of a number outside `low` to `high`, both of which are taken."""
    message = f"{field} is {value}; it must be from {low} to {high}"
    hint = hint or f"give {field} a value in that range"
    return refuse("out_of_range", message, hint, field=field, value=value, low=low, high=high)


def time_limit_fault(
    limit_ms: int,
    limit_max_ms: int,
    scope: str,
    hint: str = "let the job resume from a checkpoint",
    **facts: FactValue,
) -> Refusal | None:
    """Return the refusal of a job's time limit above the longest; `scope` says of what that is the longest."""
    if limit_ms <= limit_max_ms:
        return None
    longest = human_duration(limit_max_ms)
    message = f"a time limit of {human_duration(limit_ms)} was asked for; the longest {scope} is {longest}"
    hint = f"ask for at most {longest}, or {hint}"
    return refuse("time_limit_too_long", message, hint, limit_ms=limit_ms, limit_max_ms=limit_max_ms, **facts)
