"""Which parameters does a route take that takes none, and which body?

So that a misspelt filter is refused instead of silently ignored, there too.
"""

import msgspec


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing."""


class NoBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing."""
