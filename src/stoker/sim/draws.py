"""Draws of chance that depend on nothing but their names, so that a run with a seed is the same everywhere.

The n-th draw of a stream doesn't depend on how many others were drawn between: two runs that are compared meet the same
failures, whatever their policies do meanwhile.

Source: BLAKE2 (RFC 7693) as a counter-based generator; exponential draws by inversion.
"""

import hashlib
import math
from collections.abc import Iterator

_BITS = 53
"""Of a double's mantissa."""


def uniform(*names: object) -> float:
    """Return the draw of this name from the open interval from 0 to 1."""
    digest = hashlib.blake2b("/".join(map(str, names)).encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> (64 - _BITS)) + 0.5) / (1 << _BITS)


def exponentials(mean: int, *names: object) -> Iterator[int]:
    """Yield whole numbers, at least 1, whose mean is `mean`, exponentially distributed."""
    number = 0
    while True:
        yield max(1, round(-math.log(uniform(*names, number)) * mean))
        number += 1
