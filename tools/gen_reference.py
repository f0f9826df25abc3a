"""Generate the pages of `docs/reference` from the code, or check that the committed pages are what they would be.

Usage: python -m tools.gen_reference [--check]
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.reference.commands import commands
from tools.reference.rest import rest
from tools.reference.settings import settings
from tools.reference.telemetry import telemetry
from tools.reference.words import error_codes, reasons, states

REFERENCE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference"
PAGES: Final[dict[str, Callable[[], str]]] = {
    "states.md": states,
    "reasons.md": reasons,
    "error-codes.md": error_codes,
    "settings.md": settings,
    "commands.md": commands,
    "rest.md": rest,
    "telemetry.md": telemetry,
}


def stale() -> dict[str, str]:
    """Pages that differ from what the code says, with what they should say."""
    fresh = {name: draw() for name, draw in PAGES.items()}
    return {name: text for name, text in fresh.items() if not _says(REFERENCE / name, text)}


def _says(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` only say whether they are current."""
    for name, text in stale().items():
        if arguments == ["--check"]:
            print(f"docs/reference/{name} isn't what the code says; run `make reference`", file=sys.stderr)
            continue
        REFERENCE.mkdir(parents=True, exist_ok=True)
        (REFERENCE / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 1 if arguments == ["--check"] and stale() else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
