"""Warnings in the log of what is wrong, said once and not over and over.

Rules: W1  what is wrong is said once, and again only after it was otherwise
       W2  where the words change each time (a number in them does), they are said COMPLAINTS_MAX times at most
"""

from typing import Final

from stoker.ports import Telemetry

COMPLAINTS_MAX: Final = 5


class Complaints:
    """Warnings that were said, by what they are about."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._said: dict[str, list[object]] = {}

    def warn(self, name: str, about: str, **fields: object) -> None:
        said = self._said.setdefault(about, [])
        if (name, fields) not in said and len(said) < COMPLAINTS_MAX:
            said.append((name, fields))
            self._telemetry.warn(name, **fields)

    def over(self, *about: str) -> None:
        """Note that nothing is wrong with these any more: the next warning about them is said."""
        for each in about:
            self._said.pop(each, None)
