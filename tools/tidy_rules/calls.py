"""Clocks are read, dice thrown, threads started and lines printed only in the one home of each.

Rules 16 and 17 of the house style. The ban is on the name, not only on the call: `default_factory=time.time` reads
the clock too.
"""

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

from tools.tidy_rules.source import Fault, Source

RUNNER: Final = "src/stoker/agent/runner"


class Ban(NamedTuple):
    """`names`: dotted prefixes. `instead`: what to write. `homes`: the only places that may."""

    names: tuple[str, ...]
    instead: str
    homes: tuple[str, ...]


BANS: Final = (
    Ban(
        ("time", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
        "the Clock port: clock.now(), clock.mono(), await clock.sleep(s)",
        # The runner reads its own clock, and a command or a client that polls a server waits in one place; what a
        # person types is meant by the person's wall clock.
        (
            *("src/stoker/adapters/clock.py", RUNNER, "src/stoker/cli/clock.py"),
            "src/stoker/wire/client/backoff.py",
        ),
    ),
    Ban(
        ("asyncio.sleep",),
        "the Clock port: await clock.sleep(s)",
        ("src/stoker/adapters/clock.py", "src/stoker/wire/client/backoff.py"),
    ),
    Ban(
        ("random", "secrets", "uuid.uuid1", "uuid.uuid4", "uuid_utils", "os.urandom", "os.getrandom"),
        "the Entropy port: entropy.uid(), entropy.seed(), entropy.jitter(a, b)",
        # The runner may import nothing of ours, so it names its own life; and a submit draws one key, for which the
        # adapter would cost it a fifth of its time.
        ("src/stoker/adapters/entropy.py", RUNNER, "src/stoker/wire/client/backoff.py"),
    ),
    Ban(
        ("threading", "_thread", "concurrent.futures", "multiprocessing"),
        "an asyncio task; what blocks stands behind a port, in adapters",
        # A rank of the demo is a job: a process of its own, with nothing of ours in it.
        ("src/stoker/adapters", "src/stoker/cli/demo/rank.py"),
    ),
    Ban(
        ("asyncio.to_thread",),
        "an asyncio task; what blocks stands behind a port, in adapters",
        # The root knows that the probe it picked blocks.
        ("src/stoker/adapters", "src/stoker/agent/main.py"),
    ),
    Ban(
        ("importlib.import_module", "__import__"),
        "an import statement, which the import contracts see; what another room gives comes in through a port",
        # A command, a shape and a client are loaded when they are first asked for.
        ("src/stoker/cli/main.py", "src/stoker/wire/rest/__init__.py", "src/stoker/wire/client/__init__.py"),
    ),
    Ban(("print",), "telemetry.event(...) in a runtime, an answer in the command line", ("src/stoker/cli",)),
)
EVERYWHERE: Final = (
    Ban(("pickle", "marshal", "shelve", "dill"), "msgspec: bytes from outside must never become code", ()),
    Ban(("eval", "exec", "os.system", "os.popen"), "a table or an argv list", ()),
)


def banned_names_stay_at_home(source: Source) -> Iterator[Fault]:
    if not source.is_python:
        return
    bans = (*BANS, *EVERYWHERE) if source.within("src") else EVERYWHERE
    first_parts = {name.partition(".")[0] for ban in bans for name in ban.names}
    for node, dotted in _uses(source):
        for ban in bans if dotted.partition(".")[0] in first_parts else ():
            if _matches(dotted, ban.names) and not source.within(*ban.homes) and not _yields(node, dotted):
                yield Fault(source.path, node.lineno, "ban", f"{dotted} is banned here; use {ban.instead}")


def no_shell_in_subprocesses(source: Source) -> Iterator[Fault]:
    """A shell line is something a person submits, never something we build."""
    if not source.is_python or "shell" not in source.text:
        return
    for node, dotted in _uses(source):
        if not isinstance(node, ast.Call) or not dotted.startswith("subprocess."):
            continue
        for keyword in node.keywords:
            if keyword.arg == "shell" and getattr(keyword.value, "value", None) is not False:
                yield Fault(source.path, node.lineno, "ban", f"{dotted}(shell=...) is banned; pass an argv list")


def _imported(source: Source) -> dict[str, str]:
    """Local name -> dotted origin, for everything the file imports."""
    names: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _uses(source: Source) -> Iterator[tuple[ast.expr, str]]:
    """Every use of an imported or built-in name, as a call if it is called, with its dotted origin."""
    imported = _imported(source)
    inner = {id(node.value) for node in source.nodes if isinstance(node, ast.Attribute)}
    called = {id(node.func): node for node in source.nodes if isinstance(node, ast.Call)}
    for node in source.nodes:
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner:
            dotted = _dotted(node, imported)
            if dotted:
                yield called.get(id(node), node), dotted


def _dotted(node: ast.expr, imported: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id if isinstance(node.ctx, ast.Load) else "")
    if isinstance(node, ast.Attribute):
        root = node.value
        while isinstance(root, ast.Attribute):
            root = root.value
        # An attribute of something that isn't a module says nothing about a module of that name.
        if isinstance(root, ast.Name) and root.id in imported:
            return f"{_dotted(node.value, imported)}.{node.attr}"
    return ""


def _matches(dotted: str, names: tuple[str, ...]) -> bool:
    return any(dotted == name or dotted.startswith(f"{name}.") for name in names)


def _yields(node: ast.expr, dotted: str) -> bool:
    """`asyncio.sleep(0)` gives way to other tasks and waits for nothing."""
    return dotted == "asyncio.sleep" and isinstance(node, ast.Call) and getattr(node.args[0], "value", None) == 0
