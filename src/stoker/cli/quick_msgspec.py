"""How does a command that only asks a server start quickly?

Where typing_extensions is installed, msgspec imports it to read annotations; on our oldest Python the standard library
reads the same ones. Leaving it out saves a sixth of the time that `stoker list` takes (18 of 105 ms of CPU, measured).
"""

import sys


def quick_msgspec() -> None:
    """Import msgspec without typing_extensions, which stays importable for everyone else."""
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # None is how an import is told to fail
    try:
        import msgspec  # noqa: F401  # for what importing does
    finally:
        del sys.modules["typing_extensions"]
