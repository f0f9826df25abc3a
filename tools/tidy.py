"""Check the tree for what types, lint and import contracts can't say; every fault names what to write instead.

Usage: python -m tools.tidy [RULE...]     RULE is the name of a rule's function; then only these are asked, and also
                                          those of NOT_YET
"""

import gc
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from tools.tidy_rules import (
    calls,
    classes,
    doors,
    first_lines,
    names,
    outside,
    purity,
    retired,
    silence,
    size,
    small_files,
    testing,
)
from tools.tidy_rules.source import Fault, FileRule, Source, TreeRule

ROOT: Final = Path(__file__).resolve().parent.parent
FILE_RULES: Final[tuple[FileRule, ...]] = (
    names.no_drawer_names,
    names.packages_open_with_prose,
    retired.no_retired_words,
    first_lines.first_lines_are_statements,
    first_lines.first_lines_name_their_subject,
    calls.banned_names_stay_at_home,
    calls.no_shell_in_subprocesses,
    silence.silenced_checks_say_why,
    silence.open_ends_have_an_issue,
    silence.only_supervisors_catch_everything,
    silence.groups_are_raised_by_except_alone,
    purity.the_brain_imports_msgspec_only,
    purity.the_runner_stands_alone,
    purity.every_closed_match_ends_in_assert_never,
    purity.no_decision_hangs_on_the_order_of_a_set,
    testing.test_names_are_sentences,
    testing.tests_never_sleep,
    outside.no_machine_is_named,
)
TREE_RULES: Final[tuple[TreeRule, ...]] = (
    names.one_noun_one_file_name,
    classes.one_class_name_one_thing,
    size.nothing_outgrows_the_ratchet,
    small_files.small_files_have_a_reason,
    doors.libraries_enter_through_their_doors,
    outside.every_code_is_in_the_table,
)
NOT_YET: Final[frozenset[FileRule | TreeRule]] = frozenset()
"""Rules that are written and tested, but not asked yet, since the tree still offends against them.

To take one out is to switch it on; an empty set is the aim."""

RULES: Final[tuple[FileRule | TreeRule, ...]] = (*FILE_RULES, *TREE_RULES)
SWITCHED_ON: Final = tuple(rule for rule in RULES if rule not in NOT_YET)


def tracked(root: Path) -> list[Source]:
    """Every text file that git knows or would add, in order of path."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    return [
        Source(path, text) for path in sorted(set(listed.split("\0"))) if path and (text := _text(root / path)) != ""
    ]


def _text(path: Path) -> str:
    """Empty for a file that is gone, a link, or not text."""
    if path.is_symlink() or not path.is_file():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def faults(sources: Sequence[Source], asked: Collection[FileRule | TreeRule] = SWITCHED_ON) -> Iterator[Fault]:
    """Every fault of the rules that are asked; a file that isn't Python any more is one fault of its own."""
    readable: list[Source] = []
    for source in sources:
        try:
            assert not source.is_python or source.tree is not None
        except SyntaxError as error:
            yield Fault(source.path, error.lineno or 1, "syntax", str(error.msg))
        else:
            readable.append(source)
    for source in readable:
        for rule in FILE_RULES:
            if rule in asked:
                yield from rule(source)
    for tree_rule in TREE_RULES:
        if tree_rule in asked:
            yield from tree_rule(readable)


def main(arguments: Sequence[str] = ()) -> int:
    """Print the faults in order; 1 if there is one, 2 if a rule of that name isn't known."""
    known = {rule.__name__: rule for rule in RULES}
    strange = [name for name in arguments if name not in known]
    if strange:
        print(f"no rule {', '.join(strange)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    asked = [known[name] for name in arguments] or SWITCHED_ON
    found = sorted(set(faults(tracked(ROOT), asked)))
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    gc.disable()  # trees are kept to the end: to look for garbage in them takes more than to parse them
    raise SystemExit(main(sys.argv[1:]))
