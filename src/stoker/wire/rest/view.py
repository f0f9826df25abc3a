"""Parts that views are made of: fields copied by their names, and times as they are written for the outside."""

from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from stoker.brain.domain.units import NEVER, Instant

View = TypeVar("View", bound=msgspec.Struct)


def view_of(shape: type[View], source: object, **given: object) -> View:
    """Return a view with the fields that are `given`; all others are those of `source` of the same names."""
    return shape(**{name: getattr(source, name) for name in shape.__struct_fields__ if name not in given}, **given)


def iso(at: Instant) -> str:
    """ISO 8601 in UTC with milliseconds: `2026-11-28T02:37:13.042Z`."""
    return f"{datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec='milliseconds')[:-6]}Z"


def iso_or_none(at: Instant) -> str | None:
    """None for what hasn't happened."""
    return None if at == NEVER else iso(at)
