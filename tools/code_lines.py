"""Count the code lines of a tree, for each package, and find its longest line.

Rules: C1  a code line is a physical line that holds at least one token of code: a token that is neither a comment nor a
           line break nor indentation, and no docstring; so blank lines and lines with only a comment don't count
       C2  a docstring is any statement that is a bare string: of a module, class or function, and behind an attribute
       C3  a token over several lines, such as a long string in an expression, counts with each of them
       C4  generated code (`wire/gen`) and hidden folders are left out
       C5  a package counts with the packages inside it

Usage: python -m tools.code_lines [PATH] [--longest]     PATH is `src` unless given
"""

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from tools.python_files import python_files
from tools.tidy_rules.source import Source

LINE_LENGTH_MAX: Final = 120
_NO_CODE: Final = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
)


def code_lines(source: Source) -> int:
    """The number of code lines of one file (C1 to C3). Raises: SyntaxError."""
    documented = _docstring_lines(source)
    counted: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in documented
        if token.type not in _NO_CODE and not is_docstring:
            counted.update(range(token.start[0], token.end[0] + 1))
    return len(counted)


def _docstring_lines(source: Source) -> set[int]:
    lines: set[int] = set()
    for node in source.nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def by_package(sources: Sequence[Source]) -> dict[str, int]:
    """Folder -> code lines in it and beneath it (C5), in order of path; `.` is the whole tree."""
    totals: Counter[str] = Counter({".": 0})
    for source in sources:
        lines = code_lines(source)
        for folder in PurePosixPath(source.path).parents:
            totals[str(folder)] += lines
    return dict(sorted(totals.items()))


def longest_lines(sources: Sequence[Source]) -> list[tuple[int, str]]:
    """(characters, `PATH:LINE`) of the longest line and of every other one over LINE_LENGTH_MAX, longest first."""
    measured = [
        (len(line), f"{source.path}:{number}") for source in sources for number, line in enumerate(source.lines, 1)
    ]
    measured.sort(key=lambda each: (-each[0], each[1]))
    return [*measured[:1], *(each for each in measured[1:] if each[0] > LINE_LENGTH_MAX)]


def main(arguments: Sequence[str]) -> int:
    """Print the count, or with `--longest` the longest lines: then 1 if one is over LINE_LENGTH_MAX."""
    parser = argparse.ArgumentParser(prog="python -m tools.code_lines", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", nargs="?", default="src", type=Path, help="the tree to count (default: src)")
    parser.add_argument("--longest", action="store_true", help=f"the longest line; {LINE_LENGTH_MAX} are allowed")
    given = parser.parse_args(arguments)
    sources = list(python_files(given.path))
    if given.longest:
        longest = longest_lines(sources)
        for length, place in longest:
            print(f"{length:8,}  {given.path / place}")
        return 1 if any(length > LINE_LENGTH_MAX for length, _ in longest) else 0
    for folder, lines in by_package(sources).items():
        print(f"{lines:8,}  {given.path / folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
