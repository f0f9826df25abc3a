"""Node selection of a job by labels, names and taints.

Grammar of a selector: that of Kubernetes' label selectors (`zone=a,disk!=hdd,tier in (x,y),!slow`). Equal selections
are equal values: conditions, names and tolerations are sorted and none is repeated, and `a=b` is `a in (b)`.

Rules: W1  commas mean and; `!=` and `notin` also hold on a node without the key
       W2  a selector without conditions holds everywhere
       W3  a toleration of a key tolerates taints of that key with any value; with `=VALUE` only of that value; `*`
           tolerates every taint
       W4  a node is admitted when no name excludes it, every condition holds, and every taint of it is tolerated
       W5  of two selections that both must hold, conditions and names add up, and so do tolerations
       W6  a list of patterns holds on a node whose name is like one of them; no selector has such a condition
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from typing import Final, NamedTuple, assert_never

import msgspec

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.label import (
    HOSTNAME,
    NO_SCHEDULE,
    Fault,
    Taint,
    key_fault,
    label_of,
    pair_fault,
    syntax_error,
    taint_text,
    taints_of,
    value_fault,
)
from stoker.brain.domain.node import Node

SELECTOR_MAX: Final = 64 * 1024
"""Characters of a selector; a longer one is refused."""
_TOKEN: Final = re.compile(r"[ \t\r\n]*(==|!=|[=!(),<>]|[^ \t\r\n=!(),<>]+|$)")
_FaultOf = Callable[[str], Fault | None]
_SYMBOLS: Final = frozenset({"==", "!=", "=", "!", "(", ")", ",", "<", ">"})


class Operator(StrEnum):
    """Operators of a condition on a label."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "absent"
    LIKE = "like"
    """Values are patterns with `*` and `?`: of the nodes that a tenant may use."""


class Requirement(msgspec.Struct, frozen=True):
    """A condition on one label of a node; `values` are sorted, and empty for `exists` and `absent`."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class Toleration(msgspec.Struct, frozen=True):
    """Toleration of taints: an empty key stands for every taint, `value` None for any value of the key."""

    key: str = ""
    value: str | None = None


class Where(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """Node selection, of which all parts must hold; the empty one admits every node without taints."""

    require: tuple[Requirement, ...] = ()
    exclude: tuple[NodeName, ...] = ()
    tolerate: tuple[Toleration, ...] = ()

    @property
    def terms(self) -> int:
        """Number of values, names and tolerations, which is what a look at a node costs."""
        values = sum(len(requirement.values) or 1 for requirement in self.require)
        return values + len(self.exclude) + len(self.tolerate)


ANYWHERE = Where()


def make_where(selector: str = "", exclude: Iterable[str] = (), tolerate: Iterable[str] = ()) -> Where:
    """Return the selection that people write as a selector, names and tolerations.

    Raises: StokerError `bad_selector` or `bad_toleration`.
    """
    return _canonical(parse_selector(selector), map(NodeName, filter(None, exclude)), map(parse_toleration, tolerate))


def named_like(lists: Iterable[Sequence[str]]) -> Where:
    """Return the selection of nodes whose names are like a pattern of each of these lists (W6)."""
    return _canonical([Requirement(HOSTNAME, Operator.LIKE, tuple(patterns)) for patterns in lists], (), ())


def both(one: Where, other: Where) -> Where:
    """Return the selection that holds where both hold (W5)."""
    if one in (ANYWHERE, other):
        return other
    if other == ANYWHERE:
        return one
    return _canonical(one.require + other.require, one.exclude + other.exclude, one.tolerate + other.tolerate)


def _canonical(require: Iterable[Requirement], exclude: Iterable[NodeName], tolerate: Iterable[Toleration]) -> Where:
    return Where(
        require=_sorted(require), exclude=tuple(sorted(dict.fromkeys(exclude))), tolerate=_least(list(tolerate))
    )


def _least(tolerations: list[Toleration]) -> tuple[Toleration, ...]:
    # Without those that a wider one makes needless (W3).
    if Toleration() in tolerations:
        return (Toleration(),)
    wide = {each.key: None for each in tolerations if each.value is None}
    needed = dict.fromkeys(each for each in tolerations if each.value is None or each.key not in wide)
    return tuple(sorted(needed, key=lambda each: (each.key, each.value or "")))


def _sorted(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    return tuple(sorted(dict.fromkeys(requirements), key=lambda each: (each.key, each.operator.value, each.values)))


# -- selectors -----------------------------------------------------------------------------------------------------


class _SelectorToken(NamedTuple):
    """A word or symbol of a selector, with its place in the text."""

    text: str
    """Empty at the end of the selector."""
    at: int

    @property
    def is_word(self) -> bool:
        return bool(self.text) and self.text not in _SYMBOLS

    @property
    def shown(self) -> str:
        return repr(self.text[:40]) if self.text else "the end"


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """Read `zone=a`, `zone==a`, `zone!=a`, `zone in (a,b)`, `zone notin (a,b)`, `zone`, `!zone`, with commas between.

    Raises: StokerError `bad_selector`, which says at which column.
    """
    if len(text) > SELECTOR_MAX:
        raise _bad_selector(text, (SELECTOR_MAX, f"it is longer than {SELECTOR_MAX} characters"))
    return _sorted(_Parser(text).requirements())


class _Parser:
    """Recursive-descent parser of one selector, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def requirements(self) -> Iterator[Requirement]:
        if not self._next.text:
            return
        while True:
            yield self._requirement()
            if not self._next.text:
                return
            if self._next.text != ",":
                raise self._unexpected("a comma between conditions")
            self._take()

    def _requirement(self) -> Requirement:
        absent = self._next.text == "!"
        if absent:
            self._take()
        key = self._word("the key of a label", key_fault)
        if absent:
            return Requirement(key, Operator.ABSENT)
        if self._next.text in ("", ","):
            return Requirement(key, Operator.EXISTS)
        operator = self._take()
        match operator.text:
            case "=" | "==":
                return Requirement(key, Operator.IN, (self._value(),))
            case "!=":
                return Requirement(key, Operator.NOT_IN, (self._value(),))
            case "in" | "notin":
                return Requirement(key, Operator(operator.text), self._values())
            case "<" | ">":
                raise self._fault(operator, f"{operator.shown} compares numbers, which selectors can't do here")
        raise self._fault(operator, f"{operator.shown} stands where `=`, `!=`, `in`, `notin` or a comma is wanted")

    def _value(self) -> str:
        return "" if self._next.text in ("", ",") else self._word("a value", value_fault)

    def _values(self) -> tuple[str, ...]:
        if self._next.text != "(":
            raise self._unexpected("`(` and values")
        self._take()
        if self._next.text == ")":
            raise self._unexpected("a value between the brackets")
        found = []
        while True:
            found.append("" if self._next.text in (",", ")") else self._word("a value", value_fault))
            if self._next.text not in (",", ")"):
                raise self._unexpected("a comma or `)`")
            if self._take().text == ")":
                return tuple(sorted(dict.fromkeys(found)))

    def _word(self, wanted: str, fault_of: _FaultOf) -> str:
        if not self._next.is_word:
            raise self._unexpected(wanted)
        word = self._take()
        fault = fault_of(word.text)
        if fault:
            raise _bad_selector(self._text, (word.at + fault[0], fault[1]))
        return word.text

    def _take(self) -> _SelectorToken:
        taken, self._next = self._next, next(self._tokens, _SelectorToken("", len(self._text)))
        return taken

    def _unexpected(self, wanted: str) -> StokerError:
        return self._fault(self._next, f"{self._next.shown} stands where {wanted} is wanted")

    def _fault(self, token: _SelectorToken, why: str) -> StokerError:
        return _bad_selector(self._text, (token.at, why))


def _tokens(text: str) -> Iterator[_SelectorToken]:
    at = 0
    while True:
        found = _TOKEN.match(text, at)
        assert found is not None, f"the pattern matches every text, but not {text[at : at + 20]!r}"
        yield _SelectorToken(found[1], found.start(1))
        if not found[1]:
            return
        at = found.end()


def _bad_selector(text: str, fault: Fault) -> StokerError:
    hint = "write conditions such as `zone=a`, `zone!=a`, `zone in (a,b)`, `zone`, `!zone`, with commas between them"
    return syntax_error("bad_selector", "the selector {} can't be read", text, fault, hint)


def selector_text(requirements: Iterable[Requirement]) -> str:
    """Return conditions as people write them; the inverse of `parse_selector`."""
    return ",".join(map(_requirement_text, requirements))


def _requirement_text(requirement: Requirement) -> str:
    key, values = requirement.key, requirement.values
    match requirement.operator:
        case Operator.EXISTS:
            return key
        case Operator.ABSENT:
            return f"!{key}"
        case Operator.IN if len(values) == 1:
            return f"{key}={values[0]}"
        case Operator.NOT_IN if len(values) == 1:
            return f"{key}!={values[0]}"
        case operator:
            return f"{key} {operator.value} ({','.join(values)})"


# -- tolerations ---------------------------------------------------------------------------------------------------


def parse_toleration(text: str) -> Toleration:
    """Read `KEY`, `KEY=VALUE` (`KEY=` for a taint without value) or `*`; `:NoSchedule` may stand behind each.

    Raises: StokerError `bad_toleration`.
    """
    said, colon, effect = text.partition(":")
    if colon and effect != NO_SCHEDULE:
        raise _bad_toleration(text, (len(said) + 1, f"{NO_SCHEDULE} is the only effect here"))
    if said == "*":
        return Toleration()
    key, equals, value = said.partition("=")
    fault = pair_fault(key, value)
    if fault:
        raise _bad_toleration(text, fault)
    return Toleration(key, value if equals else None)


def _bad_toleration(text: str, fault: Fault) -> StokerError:
    hint = "write the `KEY` of a taint, `KEY=VALUE`, or `*` for every taint"
    return syntax_error("bad_toleration", "{} tolerates no taint,", text, fault, hint)


def toleration_text(toleration: Toleration) -> str:
    """Return a toleration as people write it; the inverse of `parse_toleration`."""
    if not toleration.key:
        return "*"
    return toleration.key if toleration.value is None else f"{toleration.key}={toleration.value}"


# -- which nodes ---------------------------------------------------------------------------------------------------


def admits(where: Where, name: NodeName, labels: Mapping[str, str], taints: Sequence[Taint]) -> bool:
    """Return whether a job that selects `where` may run on the node (W4).

    Labels and taints are those of `label.labels_of` and `label.taints_of`.
    """
    if name in where.exclude:
        return False
    for requirement in where.require:
        if not _holds(requirement, labels.get(requirement.key)):
            return False
    return not taints or _all_tolerated(taints, where.tolerate)


def selects(where: Where, node: Node) -> bool:
    """Return whether `where` admits a node; a caller that asks often keeps labels and taints, and asks `admits`."""
    return names_and_labels_admit(where, node) and _all_tolerated(taints_of(node), where.tolerate)


def names_and_labels_admit(where: Where, node: Node) -> bool:
    """Return whether the node would be admitted if it had no taints."""
    return node.name not in where.exclude and all(
        _holds(requirement, label_of(node, requirement.key)) for requirement in where.require
    )


def _holds(requirement: Requirement, value: str | None) -> bool:
    # W1. `value` None: the node has no label of that key.
    operator = requirement.operator
    if operator is Operator.IN:
        return value in requirement.values
    if operator is Operator.NOT_IN:
        return value not in requirement.values
    if operator is Operator.EXISTS:
        return value is not None
    if operator is Operator.ABSENT:
        return value is None
    if operator is Operator.LIKE:
        return value is not None and _pattern(requirement.values).fullmatch(value) is not None
    assert_never(operator)


@lru_cache(maxsize=1_024)
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)))


def _all_tolerated(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> bool:
    return all(_tolerated(taint, tolerations) for taint in taints)


def _tolerated(taint: Taint, tolerations: Sequence[Toleration]) -> bool:
    return any(not each.key or (each.key == taint.key and each.value in (None, taint.value)) for each in tolerations)


def labels_meet(requirements: Iterable[Requirement], labels: Mapping[str, str]) -> bool:
    """Return whether these labels, of a job, meet every condition (W1, W2)."""
    return all(_holds(requirement, labels.get(requirement.key)) for requirement in requirements)


def why_not(where: Where, name: NodeName, labels: Mapping[str, str], taints: Sequence[Taint]) -> str:
    """Return the first thing that keeps the job away, in words about the node; empty = nothing does."""
    if name in where.exclude:
        return "it is excluded by name"
    for requirement in where.require:
        value = labels.get(requirement.key)
        if not _holds(requirement, value):
            return _unmet(requirement, value)
    for taint in taints:
        if not _tolerated(taint, where.tolerate):
            return f"its taint {taint_text(taint)} isn't tolerated"
    return ""


def _unmet(requirement: Requirement, value: str | None) -> str:
    has = f"it has no label {requirement.key}" if value is None else f"its label {requirement.key} is {value!r}"
    return f"{has}, and {_requirement_text(requirement)} is wanted"


def where_text(where: Where) -> str:
    """Return a selection in words: `zone=a; not n1, n2; tolerates gpu`; empty for the empty selection."""
    parts = [selector_text(where.require)]
    parts.append(f"not {', '.join(where.exclude)}" if where.exclude else "")
    parts.append(f"tolerates {', '.join(map(toleration_text, where.tolerate))}" if where.tolerate else "")
    return "; ".join(filter(None, parts))
