"""The machine's source of random ids and seeds.

The only module that draws randomness; everything else gets ids, seeds and jitter through the `Entropy` port.
"""

import random
from typing import Final

_SEED_BITS: Final = 63


class SystemEntropy:
    """The operating system's randomness behind the `Entropy` port."""

    def __init__(self) -> None:
        # SystemRandom holds no state, so a forked or copied process can't repeat its parent's draws.
        self._dice = random.SystemRandom()

    def uid(self) -> str:
        import uuid_utils  # half a MiB, and an agent makes one id in its life

        return str(uuid_utils.uuid7())

    def seed(self) -> int:
        return self._dice.getrandbits(_SEED_BITS)

    def jitter(self, low: float, high: float) -> float:
        assert low <= high, f"empty range: {low=} {high=}"
        return self._dice.uniform(low, high)
