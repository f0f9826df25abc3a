"""The brain imports only msgspec, takes no order from a set, and handles every case by name.

Rules 9, 18 and 22 of the house style, and the runner's promise to need nothing but the standard library.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from tools.tidy_rules.source import Fault, Function, Source

BRAIN: Final = "src/stoker/brain"
RUNNER: Final = "src/stoker/agent/runner"
_RUNNER_PACKAGE: Final = RUNNER.removeprefix("src/").replace("/", ".")
_BRAIN_MAY: Final = ("msgspec", "stoker")
_MAY_BESIDE: Final = {"src/stoker/brain/engine/fragmentation.py": "numpy"}
"""The one file of the brain that may import one library more."""
_RUNNER_MUST_NOT: Final = ("_thread", "asyncio", "concurrent", "multiprocessing", "threading")
_ORDER_FREE: Final = ("sorted", "set", "frozenset", "len", "any", "all", "sum", "min", "max", "Counter")
_ORDER_BOUND: Final = (
    "list",
    "tuple",
    "iter",
    "enumerate",
    "next",
    "zip",
    "map",
    "filter",
    "join",
    "fromkeys",
    "deque",
)


def the_brain_imports_msgspec_only(source: Source) -> Iterator[Fault]:
    if not source.is_python or not source.within(BRAIN):
        return
    for imported in source.imports:
        root = imported.library
        fine = root in _BRAIN_MAY or root in sys.stdlib_module_names or _MAY_BESIDE.get(source.path) == root
        if not fine:
            says = f"{root}: the brain imports nothing from outside but msgspec; compute it with plain lists and ints"
            yield Fault(source.path, imported.line, "brain", says)


def the_runner_stands_alone(source: Source) -> Iterator[Fault]:
    """It lives beside people's jobs on every node: small, and never taken down by a bug elsewhere."""
    if not source.is_python or not source.within(RUNNER):
        return
    for imported in source.imports:
        name, root = imported.module, imported.library
        ours = f"{name}.".startswith(f"{_RUNNER_PACKAGE}.")
        if root in _RUNNER_MUST_NOT or not (ours or root in sys.stdlib_module_names):
            says = f"{name}: the runner uses the standard library only, without asyncio and threads"
            yield Fault(source.path, imported.line, "runner", says)


def every_closed_match_ends_in_assert_never(source: Source) -> Iterator[Fault]:
    """A new case must break the type check in every place that cares.

    Fine too: `assert_never` right behind it, or a match that is all that is left of a function which answers
    something, since mypy then misses the answer.
    """
    if not source.is_python or not source.within("src"):
        return
    fine = {id(function.body[-1]) for _, function in source.functions() if _answers(function)}
    fine |= {id(node) for node in _before_assert_never(source.nodes)}
    for node in source.nodes:
        if (
            isinstance(node, ast.Match)
            and id(node) not in fine
            and all(_is_closed(case.pattern) for case in node.cases[:-1])
        ):
            last = node.cases[-1]
            if _is_closed(last.pattern):
                yield Fault(source.path, node.lineno, "match", "end with `case never: assert_never(never)`")


def _before_assert_never(nodes: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    for block in nodes:
        body = getattr(block, "body", None)
        for before, after in pairwise(body if isinstance(body, list) else []):
            if (
                isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Call)
                and _called(after.value) == "assert_never"
            ):
                yield before


def _answers(function: Function) -> bool:
    return function.returns is not None and not (
        isinstance(function.returns, ast.Constant) and function.returns.value is None
    )


def _is_closed(pattern: ast.pattern) -> bool:
    """Does this pattern name a type or a member, rather than catch what is left?"""
    if isinstance(pattern, ast.MatchOr):
        return all(map(_is_closed, pattern.patterns))
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is not None:
        return _is_closed(pattern.pattern)
    if isinstance(pattern, ast.MatchValue):
        return isinstance(pattern.value, ast.Attribute)
    return isinstance(pattern, ast.MatchClass)


def no_decision_hangs_on_the_order_of_a_set(source: Source) -> Iterator[Fault]:
    """Two processes iterate one set of strings differently, unless their hash seeds agree."""
    if not source.is_python or not source.within(BRAIN):
        return
    scopes: list[ast.Module | Function] = [source.tree, *(function for _, function in source.functions())]
    for scope in scopes:
        known = _set_names(scope)
        for node in _own_nodes(scope):
            if any(_is_set(iterated, known) for iterated in _iterates(node)):
                says = "a set has no order: iterate sorted(...), or dict.fromkeys(...) to drop repeats"
                yield Fault(source.path, node.lineno, "set", says)


def _own_nodes(scope: ast.Module | Function) -> Iterator[ast.stmt | ast.expr]:
    """The nodes of a scope, without those of functions inside it and of comprehensions whose order is lost anyway."""
    todo: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, Function):
            continue
        if isinstance(node, ast.stmt | ast.expr):
            yield node
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call) and _called(node) in _ORDER_FREE and not node.keywords:
            children = [child for child in children if not isinstance(child, ast.GeneratorExp)]
        todo += children


def _iterates(node: ast.AST) -> list[ast.expr]:
    """What this node walks through in an order that somebody could see."""
    if isinstance(node, ast.For):
        return [node.iter]
    if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
        return [generator.iter for generator in node.generators]
    if isinstance(node, ast.Starred):
        return [node.value]
    if isinstance(node, ast.Call):
        name = _called(node)
        if name in _ORDER_BOUND or (name in ("min", "max") and node.keywords):
            return list(node.args)
    return []


def _called(node: ast.Call) -> str:
    return str(getattr(node.func, "id", getattr(node.func, "attr", "")))


def _set_names(scope: ast.Module | Function) -> frozenset[str]:
    """Names that this scope binds to a set, as far as its own text tells."""
    names: list[str] = []
    if not isinstance(scope, ast.Module):
        arguments = (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)
        names += [argument.arg for argument in arguments if _says_set(argument.annotation)]
    for node in _own_nodes(scope):
        if isinstance(node, ast.Assign) and _is_set(node.value, frozenset(names)):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _declares_set(node, names):
            names.append(node.target.id)
    return frozenset(names)


def _declares_set(node: ast.AnnAssign, known: list[str]) -> bool:
    return _says_set(node.annotation) or (node.value is not None and _is_set(node.value, frozenset(known)))


def _says_set(annotation: ast.expr | None) -> bool:
    root = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return isinstance(root, ast.Name) and root.id in ("set", "frozenset", "AbstractSet")


def _is_set(node: ast.expr, known: frozenset[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Name):
        return node.id in known
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return any(_is_set(side, known) or _is_keys(side) for side in (node.left, node.right))
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")


def _is_keys(node: ast.expr) -> bool:
    """`a.keys() | b.keys()` is a set; `a.keys()` alone keeps its order."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"
