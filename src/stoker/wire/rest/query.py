"""Which parameters does a route take that takes none?

So that a misspelt filter is refused instead of silently ignored, there too.
"""

import msgspec


class NoQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing."""
