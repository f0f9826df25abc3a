"""What a program asks of its disk, in order: a power loss can't be had in a test, and a sync that is left out has no
other trace."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("write", "pwrite", "fsync", "fdatasync", "link", "rename", "replace", "unlink")


@contextmanager
def disk_calls() -> Iterator[list[str]]:
    """Give what is called in the block, as `fsync journal`; names are what a descriptor has at that time."""
    made: list[str] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(file: int | str | Path, *rest: object, **named: object) -> object:
            path = os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.fspath(file)
            made.append(f"{name} {Path(path).name}")
            return call(file, *rest, **named)

        return instead

    with calls_replaced(NAMES, noted):
        yield made


@contextmanager
def calls_replaced(
    names: Iterable[str], instead_of: Callable[[str, Callable[..., Any]], Callable[..., object]]
) -> Iterator[None]:
    """In the block these functions of `os` are what `instead_of` makes of their names and themselves."""
    before = {name: getattr(os, name) for name in names}
    try:
        for name, call in before.items():
            setattr(os, name, instead_of(name, call))
        yield
    finally:
        for name, call in before.items():
            setattr(os, name, call)
