"""List the first line of every module's docstring, or find class names that are defined twice.

A reader who sees only these lines should know what each module is for.

Usage: python -m tools.first_lines [PATH] [--classes]    PATH is `src` unless given
       python -m tools.first_lines [PATH] --duplicates   status 1 if there are any

With `--classes` the classes and public functions follow their module; `!` marks a first line that tidy refuses, with
the reason behind it.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.python_files import python_files
from tools.tidy_rules.classes import defined_twice
from tools.tidy_rules.first_lines import first_lines, not_a_statement, without_a_subject
from tools.tidy_rules.source import Source


def listing(sources: Sequence[Source], *, with_classes: bool) -> Iterator[str]:
    """One line for each module, and with `with_classes` for each documented class and public function."""
    for source in sources:
        entries = list(first_lines(source))
        if not entries or entries[0].kind != "module":
            yield _marked(f"{source.path}: ", "no module docstring" if with_classes else "")
        for entry in entries:
            why = not_a_statement(entry.text) or without_a_subject(entry.text)
            if entry.kind == "module":
                yield _marked(f"{source.path}: {entry.text}", why if with_classes else "")
            elif with_classes:
                yield _marked(f"    {entry.kind} {entry.name}: {entry.text}", why)


def _marked(text: str, why: str) -> str:
    return f"! {text}    [{why}]" if why else f"  {text}"


def duplicates(sources: Sequence[Source]) -> Iterator[str]:
    """One line for each class name that several modules define, with all its places."""
    for name, places in defined_twice(sources).items():
        yield f"{name}: {', '.join(map(str, places))}"


def main(arguments: Sequence[str]) -> int:
    """Print the lines; 1 if class names were asked about and one is defined twice."""
    parser = argparse.ArgumentParser(prog="python -m tools.first_lines", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", nargs="?", default="src", type=Path, help="the tree to read (default: src)")
    parser.add_argument("--classes", action="store_true", help="classes and public functions too, faults marked")
    parser.add_argument("--duplicates", action="store_true", help="class names that two modules define")
    given = parser.parse_args(arguments)
    sources = list(python_files(given.path))
    if given.duplicates:
        twice = list(duplicates(sources))
        print("\n".join(twice) or "every class name stands for one thing")
        return 1 if twice else 0
    for line in listing(sources, with_classes=given.classes):
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
