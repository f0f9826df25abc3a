"""One expression for what a rule says about a few lines of text."""

from collections.abc import Sequence
from textwrap import dedent

from tools.tidy_rules.source import Fault, FileRule, Source, TreeRule


def caught(rule: FileRule, path: str, text: str) -> list[str]:
    """`LINE: what it says` for each fault of a file rule."""
    return [_shown(fault) for fault in rule(Source(path, dedent(text)))]


def caught_in(rule: TreeRule, files: dict[str, str]) -> list[str]:
    """`LINE: what it says` for each fault of a tree rule over `files`."""
    sources: Sequence[Source] = [Source(path, dedent(text)) for path, text in files.items()]
    return [_shown(fault) for fault in rule(sources)]


def _shown(fault: Fault) -> str:
    return f"{fault.line}: {fault.says}"
