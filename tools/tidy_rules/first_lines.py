"""The first line of a docstring is one declarative sentence about what the thing is or does.

Rule 33 of the house style, for each module of `src` and `tools`, each class in it, and each public function and method
of a module or class. Classes and functions may do without a docstring; that modules have one is `names.py`'s rule.
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tools.tidy_rules.source import Fault, Function, Source

_HELPING: Final = (
    r"(?:is|isn't|are|aren't|was|were|does|doesn't|do|don't|did|didn't|can|can't|could|couldn't|may|might|must|will|won't"
    r"|would|wouldn't|shall|should|shouldn't|has|hasn't|have|haven't|had)\b"
)
_SUBJECT: Final = (
    r"(?:an?|the|this|that|these|those|it|its|he|she|they|their|we|our|you|your|i|my|any|anybody|each|every|everybody"
    r"|some|somebody|nobody|there|one|both|all|no)\b"
)
_PRONOUN: Final = r"(?:it|he|she|they|we|you|i|there|somebody|anybody|nobody)\b"
_QUESTION_FORMS: Final = (
    # "What is ...", "When does ...", "Who's ..."
    rf"(?:what|which|who|whom|whose|how|when|where|why)(?:'s\b|\s+{_HELPING})",
    # "Which limit would ...", "Whose output is ...", "How far has ...", "How many GPUs are ..."
    rf"(?:what|which|whose)\s+(?!{_SUBJECT})\w+\s+{_HELPING}",
    rf"how\s+(?!{_SUBJECT})\w+\s+(?:\w+\s+)?{_HELPING}",
    # "Is it ...", "May a job ...", "Does the state ..."; "Do the rest." and "Have a look." are orders, not questions.
    rf"(?!do\b|have\b){_HELPING}\s+{_SUBJECT}",
    rf"(?:do|have)\s+{_PRONOUN}",
)
_QUESTION: Final = re.compile("|".join(_QUESTION_FORMS), re.IGNORECASE)
_CLAUSE: Final = re.compile(r"(?:what|which|who|whom|whose|how|why)\b|(?:when|where)\b(?!.*,)", re.IGNORECASE)
_RIDDLE: Final = re.compile(r"\b(?:who(?:m)?ever|the others)\b", re.IGNORECASE)
_NUMBER: Final = r"[A-Z]{1,2}\d{1,2}"
_NUMBER_ALONE: Final = re.compile(
    rf"(?:[Rr]ules?\s+)?{_NUMBER}(?:(?:,|,?\s+and|\s+to)\s*{_NUMBER})*[.:,]?(?:\s+(?:Raises|Returns)\b.*)?$"
)
_CODE: Final = re.compile(r"`[^`]*`")
_CLOSING: Final = "\"')]`"


class FirstLine(NamedTuple):
    """The first line of one docstring: `kind` is module, class or function, `name` is dotted inside the file."""

    kind: str
    name: str
    line: int
    text: str


def first_lines(source: Source) -> Iterator[FirstLine]:
    """The first lines of a file in the order of its text; those that lack a docstring are left out."""
    for kind, name, node in _entries(source.tree):
        docstring = ast.get_docstring(node)
        if docstring:
            yield FirstLine(kind, name, node.body[0].lineno, docstring.partition("\n")[0])


def first_lines_are_statements(source: Source) -> Iterator[Fault]:
    """A question, a riddle, a number alone and half a sentence make the reader look elsewhere."""
    yield from _faults(source, not_a_statement)


def first_lines_name_their_subject(source: Source) -> Iterator[Fault]:
    """`What a probe found.` names nothing that a reader could search for; `GPUs that a probe found.` does."""
    yield from _faults(source, without_a_subject)


def not_a_statement(text: str) -> str:
    """The reason why a first line is no declarative sentence; empty for one that is."""
    prose = _CODE.sub("``", text)
    if re.search(r"\?(?:\W*$|\s)", prose) or _QUESTION.match(prose):
        return "it is a question: say what the thing is or does"
    if riddle := _RIDDLE.search(prose):
        return f"'{riddle[0]}' leaves open who or what: name it"
    if _NUMBER_ALONE.match(prose):
        return "a rule's number never stands alone: write the rule's text"
    if not prose.rstrip(_CLOSING).endswith((".", ":")):
        return "it isn't one sentence on one line: end it with a period, or shorten it"
    return ""


def without_a_subject(text: str) -> str:
    """The reason why a first line lacks its noun, although it asks nothing; empty for one that has it."""
    opener = _CLAUSE.match(text)
    if opener and not not_a_statement(text):
        return f"'{opener[0]} ...' has no noun to search for: begin with what the thing is or does"
    return ""


def _faults(source: Source, complaint: Callable[[str], str]) -> Iterator[Fault]:
    if not source.is_python or not source.within("src", "tools"):
        return
    for first in first_lines(source):
        why = complaint(first.text)
        if why:
            yield Fault(source.path, first.line, "first-line", f"{first.name or 'the module'}: {why}")


def _entries(tree: ast.Module) -> Iterator[tuple[str, str, ast.Module | ast.ClassDef | Function]]:
    yield "module", "", tree
    yield from _documented(tree, "")


def _documented(node: ast.AST, prefix: str) -> Iterator[tuple[str, str, ast.ClassDef | Function]]:
    """(kind, dotted name, node) for each class and public function below a module or class; never inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            if not child.name.startswith("_"):
                yield "function", prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield "class", prefix + child.name, child
            yield from _documented(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.stmt):
            yield from _documented(child, prefix)
