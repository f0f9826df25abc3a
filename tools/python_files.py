"""The Python files below a folder, for tools that look at any tree, in a repository or not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tools.tidy_rules.source import Source

_GENERATED: Final = "/wire/gen/"


def python_files(root: Path) -> Iterator[Source]:
    """Every Python file below `root` in order of path, named relative to `root`; generated and hidden ones left out.

    Raises: FileNotFoundError where there is no such folder.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root} is no folder")
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if _GENERATED not in f"/{inside.as_posix()}" and not any(part.startswith(".") for part in inside.parts):
            yield Source(inside.as_posix(), path.read_text(encoding="utf-8"))
