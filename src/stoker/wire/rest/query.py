"""Shapes of routes that take no parameters, and of those that take no body.

So that a misspelt filter is refused instead of silently ignored, there too.
"""

import msgspec


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing."""


class NoBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing."""
