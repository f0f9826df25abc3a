"""Programs of the machine that some tests need, and that `tools/setup.sh programs` installs where it may."""

import shutil

import pytest


def lacking(*programs: str) -> str:
    """Which of them isn't there; empty = none."""
    missing = [name for name in programs if shutil.which(name) is None]
    return f"no {', '.join(missing)} here (tools/setup.sh programs)" if missing else ""


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips what is marked where one of them isn't there, and says which."""
    return pytest.mark.skipif(bool(lacking(*programs)), reason=lacking(*programs))


def skip_without(*programs: str) -> None:
    if lacking(*programs):
        pytest.skip(lacking(*programs))
