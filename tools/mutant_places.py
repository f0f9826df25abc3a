"""Places of the code where a small change makes a mutant, and the drawing of some of them (M1 and M2 of `mutants`)."""

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

PACKAGE: Final = "src/stoker/"
DEEP: Final = ("brain", "agent/runner")
"""Where packages inside packages count for themselves."""
_COMPARISONS: Final = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_SUMS: Final = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult}
_LOG_LINES: Final = ("debug", "info", "warning", "error", "exception", "complain")


@dataclass(frozen=True, order=True, slots=True)
class Mutant:
    """A place of the code and what stands there instead."""

    path: str
    line: int
    start: int
    end: int
    """Bytes of the file that are replaced."""
    kind: str
    before: str
    around: str = field(compare=False, repr=False)
    """The lines that it is in."""
    within: str
    """Names of the class and the function around it, and how many alike stand before it there."""
    instead: ast.AST | str = field(compare=False, repr=False)

    @property
    def after(self) -> str:
        """Code that stands there instead. Made when it is asked for: most are never drawn."""
        return self.instead if isinstance(self.instead, str) else f"({ast.unparse(self.instead)})"

    @property
    def name(self) -> str:
        """Name in the table, which stays as long as the code itself stays, wherever that moves."""
        text = "\0".join((self.path, self.within, self.kind, " ".join(self.before.split())))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def room(self) -> str:
        """The package that counts for itself."""
        folders = self.path.removeprefix(PACKAGE).split("/")[:-1]
        return "/".join(folders[: 2 if "/".join(folders).startswith(DEEP) else 1]) or "stoker"

    def applied(self, content: bytes) -> bytes:
        return content[: self.start] + self.after.encode() + content[self.end :]

    def __str__(self) -> str:
        short = [" ".join(text.split()) for text in (self.before, self.after)]
        return f"`{self.path.removeprefix(PACKAGE)}:{self.line}` {self.kind}: `{short[0][:90]}` -> `{short[1][:90]}`"


class Places(ast.NodeVisitor):
    """Every mutant of one file that a test might find (M2)."""

    def __init__(self, path: str, content: bytes) -> None:
        self.mutants: list[Mutant] = []
        self._path = path
        self._content = content
        self._line_starts = [0]
        for line in content.splitlines(keepends=True):
            self._line_starts.append(self._line_starts[-1] + len(line))
        self._in_constant = self._in_init = False
        self._scope: tuple[str, ...] = ()
        self._alike: Counter[tuple[object, ...]] = Counter()
        self.visit(ast.parse(content))

    def _add(self, node: ast.expr | ast.stmt, kind: str, instead: ast.AST | str) -> None:
        start, end = (
            self._line_starts[(line or 1) - 1] + (column or 0)
            for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        )
        before = self._content[start:end].decode()
        alike = (self._scope, kind, " ".join(before.split()))
        within = f"{'.'.join(self._scope)} {self._alike[alike]}"
        self._alike[alike] += 1
        around = b"".join(self._content.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno]).decode()
        self.mutants.append(Mutant(self._path, node.lineno, start, end, kind, before, around, within, instead))

    # --- what isn't entered ---------------------------------------------------------------------------------------

    def visit_Assert(self, node: ast.Assert) -> None: ...

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if not any(ast.unparse(base).startswith(("Protocol", "TypedDict")) for base in node.bases):
            self._enter(node.name, node.body)

    def _enter(self, name: str, body: Sequence[ast.stmt]) -> None:
        self._scope += (name,)
        for statement in body:
            self.visit(statement)
        self._scope = self._scope[:-1]

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before, self._in_init = self._in_init, node.name == "__init__"
        for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each)):
            self.visit(default)
        self._enter(node.name, node.body)
        self._in_init = before

    visit_AsyncFunctionDef = visit_FunctionDef

    # --- statements -------------------------------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
            self.generic_visit(node)
        else:
            for statement in node.body:
                self.visit(statement)

    def visit_Expr(self, node: ast.Expr) -> None:
        match node.value:
            case ast.Constant():
                return  # a docstring, or `...`
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in (*_LOG_LINES, "assert_never"):
                return
            case ast.Call() | ast.Await():
                self._add(node, "statement left out", "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        # Without the first value of a name nothing would run at all, which every test finds.
        named = (each for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name))
        if not self._in_init and not any(isinstance(each.ctx, ast.Store) for each in named):
            self._add(node, "statement left out", "pass")
        if not any(isinstance(target, ast.Name) and target.id == "TYPE_CHECKING" for target in node.targets):
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add(node, "statement left out", "pass")
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._in_constant = any(
                isinstance(each, ast.Name) and each.id == "Final" for each in ast.walk(node.annotation)
            )
            self.visit(node.value)
            self._in_constant = False

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._add(node, "answer changed", "return None")
        self.generic_visit(node)

    # --- expressions ------------------------------------------------------------------------------------------------

    def _negate(self, test: ast.expr) -> None:
        self._add(test, "negated", ast.UnaryOp(ast.Not(), test))

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operator = type(node.ops[0])
        if len(node.ops) == 1 and operator in _COMPARISONS:
            turned = ast.Compare(node.left, [_COMPARISONS[operator]()], node.comparators)
            self._add(node, "comparison changed", turned)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, "and for or", ast.BoolOp(other, node.values))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = any(isinstance(side, ast.JoinedStr | ast.List | ast.Tuple | ast.Constant) and not _is_number(side)
                      for side in (node.left, node.right))  # fmt: skip
        if type(node.op) in _SUMS and not self._in_constant and not is_text:
            self._add(node, "other sum", ast.BinOp(node.left, _SUMS[type(node.op)](), node.right))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if self._in_constant:
            return
        if isinstance(node.value, bool):
            self._add(node, "truth changed", str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, "number changed", f"({node.value + 1})")

    def visit_Call(self, node: ast.Call) -> None:
        is_named_task = isinstance(node.func, ast.Attribute) and node.func.attr == "create_task"
        if node.keywords and node.keywords[-1].arg is not None and not is_named_task:
            fewer = ast.Call(node.func, node.args, node.keywords[:-1])
            self._add(node, f"argument {node.keywords[-1].arg} left out", fewer)
        self.generic_visit(node)


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def places(root: Path, only: str) -> list[Mutant]:
    """Every mutant of the files whose path within the package begins so, in order."""
    found: list[Mutant] = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith(f"{PACKAGE}{only}") and "/wire/gen/" not in name:
            found += Places(name, path.read_bytes()).mutants
    return sorted(found)


def drawn(found: Sequence[Mutant], seed: int, count: int) -> list[Mutant]:
    """Draw so many, some of each room, in the order in which to judge them: that of chance, not of rooms (M1)."""
    rooms: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in found:
        rooms[mutant.room].append(mutant)
    count = min(count, len(found))
    shares = {room: min(len(all_of_it), 1) for room, all_of_it in rooms.items()}
    while sum(shares.values()) < count:
        room = max(rooms, key=lambda each: (len(rooms[each]) / (shares[each] + 1), each))
        shares[room] += 1

    def chance(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.name}".encode()).digest()

    picked = [mutant for room in sorted(rooms) for mutant in sorted(rooms[room], key=chance)[: shares[room]]]
    return sorted(picked, key=chance)[:count]
