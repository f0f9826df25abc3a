"""Translation of `#SBATCH` options into those of `stoker submit`.

What has a counterpart is translated, as truly as it can be: where sbatch counts per node or per job, `stoker submit`
counts per task, and what doesn't come out even is refused. What has none is ignored by name, unless without it
something else would run, or elsewhere, or with less than it needs: that is refused.

Source: sbatch(1).
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from stoker.brain.domain.suggestion import did_you_mean

_FLAG, _MAYBE, _VALUE = "flag", "maybe", "value"
"""Whether an option takes a value."""


class Option(NamedTuple):
    """One option of sbatch: its value, if it was given one, and the line of the script that says it."""

    name: str
    value: str
    line: int

    def __str__(self) -> str:
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


class Translated(NamedTuple):
    """Options for `stoker submit`, by name, with the lines that they come from; and what is told to the person."""

    options: "list[tuple[str, str, int]]"
    """Name, value (empty = a flag) and line."""
    notes: list[str]


class BadDirective(Exception):
    """A directive that can't be followed: its line, what is wrong with it, and what to do instead."""

    def __init__(self, line: int, message: str, hint: str = "") -> None:
        super().__init__(f"{message}{f': {hint}' if hint else ''}")
        self.line = line


_SAME: Final = {
    "job-name": "--name",
    "time": "--time",
    "partition": "--partition",
    "array": "--array",
    "output": "--output",
    "error": "--error",
    "comment": "--comment",
    "chdir": "--workdir",
    "export": "--export",
    "hold": "--hold",
    "no-requeue": "--no-requeue",
    "wait": "--wait",
}
"""Options that mean the same, by their names there."""
_SHORT: Final = {
    "A": "account", "a": "array", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task",
    "D": "chdir", "d": "dependency", "e": "error", "F": "nodefile", "G": "gpus", "H": "hold", "i": "input",
    "J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution", "N": "nodes",
    "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet", "q": "qos", "S": "core-spec",
    "s": "oversubscribe", "t": "time", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_COUNTED: Final = (
    "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu", "gpus",
    "gpus-per-node", "gpus-per-task", "gres",
)  # fmt: skip
"""Options that say how much is needed; they are read together."""
_OF_SLURM: Final = (
    "acctg-freq", "bb", "bbf", "clusters", "contiguous", "core-spec", "cpu-freq", "deadline", "delay-boot",
    "distribution", "extra", "extra-node-info", "get-user-env", "gpu-bind", "gpu-freq", "gres-flags", "hint",
    "ignore-pbs", "kill-on-invalid-dep", "mcs-label", "mem-bind", "network", "no-kill", "ntasks-per-core",
    "ntasks-per-socket", "overcommit", "oversubscribe", "parsable", "power", "prefer", "profile", "propagate",
    "quiet", "segment", "sockets-per-node", "cores-per-socket", "spread-job", "stepmgr", "switches",
    "thread-spec", "threads-per-core", "time-min", "tmp", "tres-bind", "tres-per-task", "use-min-nodes",
    "verbose", "wckey",
)  # fmt: skip
"""Options about how Slurm works, which are ignored by name."""
_IGNORED: Final = {
    "account": "jobs draw on your token's tenant, or on that of --tenant",
    "qos": "",
    "mail-type": "mail wants an address: `--mail-user=ada@example.org`",
    "mail-user": "",
    "open-mode": "",
    "nice": "`#STOKER --priority` takes its place",
    "priority": "`#STOKER --priority` takes its place",
    "reservation": "",
    "requeue": "",
    **dict.fromkeys(_OF_SLURM, ""),
}
"""Options without a counterpart, whose loss changes nothing of what runs; and what may be said of them."""
_REFUSED: Final = {
    "constraint": "select nodes by their labels: `#STOKER --where KEY=VALUE`",
    "exclusive": "ask for the CPUs and GPUs of a node: `#STOKER --cpus 64 --gpus 8`",
    "input": "redirect it in the script: `python train.py < FILE`",
    "licenses": "nothing here counts licences; leave the line out if the job may start without",
    "nodefile": "name the nodes: `#STOKER --where 'stoker.io/hostname in (a,b)'`",
    "export-file": "set the variables in the script",
    "ntasks-per-gpu": "say the GPUs of each task: `#STOKER --gpus 1`",
    "test-only": "leave the line out",
    "uid": "a job runs as the account of its token",
    "gid": "a job runs as the account of its token",
    "wrap": "write the command into the script",
    "reboot": "leave the line out",
    **dict.fromkeys(("container", "container-id"), "name an image: `#STOKER --image IMAGE`"),
    **dict.fromkeys(("container-image", "container-mounts"), "name an image: `#STOKER --image IMAGE`"),
}
"""Options without a counterpart that change what runs, where, or with what; and what to do instead."""
_TRANSLATED: Final = ("begin", "dependency", "exclude", "nodelist", "signal")
_FLAGS: Final = frozenset(
    {"hold", "no-requeue", "requeue", "contiguous", "overcommit", "parsable", "quiet", "verbose", "spread-job"}
    | {"test-only", "use-min-nodes", "wait", "ignore-pbs", "reboot", "stepmgr"}
)
_MAYBE_VALUED: Final = frozenset({"exclusive", "get-user-env", "no-kill", "oversubscribe", "nice", "propagate"})
KNOWN: Final = frozenset({*_SAME, *_COUNTED, *_IGNORED, *_REFUSED, *_TRANSLATED})
_KINDS: Final = {"afterok": "ok", "afterany": "any", "afternotok": "notok", "after": "after"}
_MAILED: Final = {"BEGIN": "start", "END": "end", "FAIL": "fail", "ALL": "start,end,fail", "NONE": "none"}
_MEMORY: Final = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_KIB_OF: Final = {"K": 1, "M": 1 << 10, "": 1 << 10, "G": 1 << 20, "T": 1 << 30}
_LATER: Final = re.compile(r"now\+(\d+)(second|minute|hour|day|week)?s?")
_UNITS: Final = {None: "s", "second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}


def options_in(text: str, line: int) -> Iterator[Option]:
    """Yield the options of one line behind `#SBATCH`. Raises BadDirective."""
    words = _words(text, line)
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, value = _SHORT.get(word[1], ""), word[2:]
            equals = "=" if value else ""
            if not name:
                raise BadDirective(line, f"sbatch has no option -{word[1]}")
        else:
            raise BadDirective(
                line, f"{word!r} is no option", "options begin with `--`, and values with blanks are quoted"
            )
        kind = _FLAG if name in _FLAGS else _MAYBE if name in _MAYBE_VALUED else _VALUE
        if name not in KNOWN:
            hint = did_you_mean(f"--{name}", sorted(f"--{each}" for each in KNOWN), "`man sbatch` lists its options")
            raise BadDirective(line, f"sbatch has no option --{name}", hint)
        if kind == _VALUE and not equals:
            if not words:
                raise BadDirective(line, f"--{name} needs a value")
            value = words.pop(0)
        if kind == _FLAG and equals:
            raise BadDirective(line, f"--{name} takes no value")
        yield Option(name, value, line)


def _words(text: str, line: int) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as fault:
        raise BadDirective(line, f"it can't be read: {fault}", "quotes come in pairs") from None


def translated(given: Sequence[Option]) -> Translated:
    """Return what these options are for `stoker submit`; of one that is given twice the last holds.

    Raises BadDirective.
    """
    by_name = {option.name: option for option in given}
    mail = [*_mail(by_name)]
    made: list[tuple[str, str, int]] = [*mail]
    ignored: list[Option] = []
    for name, option in by_name.items():
        if mail and name.startswith("mail-"):
            continue
        if name in _REFUSED:
            raise BadDirective(option.line, f"{option} has no counterpart here", _REFUSED[name])
        if name in _SAME:
            made.append((_SAME[name], option.value, option.line))
        elif name in _READ:
            made += ((said, value, option.line) for said, value in _READ[name](option))
        elif name in _IGNORED and name != "requeue":  # which is how it is without a word
            ignored.append(option)
    made += _needs({name: by_name[name] for name in _COUNTED if name in by_name})
    notes = [_ignored_text(ignored)] if ignored else []
    if any(name == "--tasks" for name, _, _ in made):
        notes.append("each task runs the whole script, and there is no srun: leave the word out of its lines")
    return Translated(made, notes)


def _ignored_text(ignored: Sequence[Option]) -> str:
    named = ", ".join(f"--{option.name} (line {option.line})" for option in ignored)
    why = "; ".join(dict.fromkeys(filter(None, (_IGNORED[option.name] for option in ignored))))
    return f"ignored, for want of a counterpart: {named}{f'; {why}' if why else ''}"


# -- one by one ----------------------------------------------------------------------------------------------------


def _begin(option: Option) -> list[tuple[str, str]]:
    later = _LATER.fullmatch(option.value)
    return [("--begin", f"now+{later[1]}{_UNITS[later[2]]}" if later else option.value)]


def _dependency(option: Option) -> list[tuple[str, str]]:
    if "?" in option.value:
        raise BadDirective(option.line, f"{option}: one of several is no condition here", "a job waits for all of them")
    after: list[str] = []
    for condition in option.value.split(","):
        kind, *ids = condition.split(":")
        if kind not in _KINDS or not ids or any("+" in each for each in ids):
            hint = "afterok, afterany, afternotok and after have one, each with ids: `afterok:12:13`"
            raise BadDirective(option.line, f"the dependency {condition!r} has no counterpart here", hint)
        after += [f"{_KINDS[kind]}:{each}" for each in ids]
    return [("--after", ",".join(after))]


def _exclude(option: Option) -> list[tuple[str, str]]:
    return [("--exclude", _names(option))]


def _nodelist(option: Option) -> list[tuple[str, str]]:
    return [("--where", f"stoker.io/hostname in ({_names(option)})")]


def _signal(option: Option) -> list[tuple[str, str]]:
    # B: and R: say which processes hear it, and for which reservation: here all do, but for shells that don't catch it.
    return [("--signal", option.value.removeprefix("R").removeprefix("B").removeprefix(":"))]


def _mail(given: Mapping[str, Option]) -> Iterator[tuple[str, str, int]]:
    """Yield whom to tell of what; nothing where one of the two isn't said, or is none that there is here."""
    what, whom = given.get("mail-type"), given.get("mail-user")
    if what is None or whom is None or "@" not in whom.value:
        return
    events = [_MAILED[word] for word in what.value.upper().split(",") if word in _MAILED]
    if events:
        yield "--notify", ",".join(dict.fromkeys(",".join(events).split(","))), what.line
        yield "--notify-to", f"mail:{whom.value}", whom.line


def _names(option: Option) -> str:
    if "[" in option.value:
        raise BadDirective(option.line, f"{option}: ranges of names aren't read here", "write each name, with commas")
    return option.value


_READ: Final[Mapping[str, Callable[[Option], list[tuple[str, str]]]]] = {
    "begin": _begin,
    "dependency": _dependency,
    "exclude": _exclude,
    "nodelist": _nodelist,
    "signal": _signal,
}

# -- how much ------------------------------------------------------------------------------------------------------


def _needs(given: Mapping[str, Option]) -> Iterator[tuple[str, str, int]]:
    """Yield tasks, GPUs, CPUs and memory: sbatch counts some of them per job or node, and we per task."""
    nodes, tasks = _count(given, "nodes"), _count(given, "ntasks")
    per_node = _count(given, "ntasks-per-node")
    total = tasks or (nodes or 1) * (per_node or 1)
    here = per_node or (-(-total // nodes) if nodes else total)  # on one node, as far as is said
    if nodes and total > nodes:
        line = next(given[name].line for name in ("ntasks", "ntasks-per-node") if name in given)
        hint = (
            "say what each node runs as one task: `#STOKER --tasks 2 --gpus 8`, and torchrun or mpirun starts the rest"
        )
        raise BadDirective(
            line,
            f"{total} tasks on {nodes} {'node' if nodes == 1 else 'nodes'}: they can't be kept together on a node here",
            hint,
        )
    for name, value in (
        ("--tasks", total if total > 1 else 0),
        ("--tasks-per-node", here if nodes and nodes > 1 else 0),
    ):
        if value:
            yield name, str(value), next(given[each].line for each in _COUNTED if each in given)
    gpus, line = 0, 0
    for name in ("gpus-per-task", "gpus-per-node", "gres", "gpus"):
        if name not in given:
            continue
        option = given[name]
        count, model = _gpus(option)
        gpus, line = _per_task(option, count, {"gpus-per-task": 1, "gpus": total}.get(name, here)), option.line
        yield "--gpus", str(gpus), line
        if model:
            yield "--gpu-model", model, line
        break
    yield from _cpus_and_memory(given, gpus, here)


def _cpus_and_memory(given: Mapping[str, Option], gpus: int, here: int) -> Iterator[tuple[str, str, int]]:
    cpus, cpu_line = _count(given, "cpus-per-task"), 0
    if cpus:
        cpu_line = given["cpus-per-task"].line
    elif "cpus-per-gpu" in given:
        cpu_line = given["cpus-per-gpu"].line
        cpus = (_count(given, "cpus-per-gpu") or 1) * _of_gpus(given["cpus-per-gpu"], gpus)
    if cpus:
        yield "--cpus", str(cpus), cpu_line
    for name, times in (("mem", 1), ("mem-per-cpu", cpus or 1), ("mem-per-gpu", gpus)):
        if name in given:
            option = given[name]
            kib = _kib(option) * (_of_gpus(option, times) if name == "mem-per-gpu" else times)
            if name == "mem":
                kib = _per_task(option, kib, here)
            yield "--memory", f"{-(-kib // 1024)}MiB", option.line
            return


def _count(given: Mapping[str, Option], name: str) -> int | None:
    """The number that an option says; None = it isn't given. Raises BadDirective."""
    if name not in given:
        return None
    low, dash, high = given[name].value.partition("-")
    if not low.isascii() or not low.isdigit() or not int(low) or (dash and high != low):
        hint = "a job is given as much as it says" if dash else ""
        raise BadDirective(given[name].line, f"{given[name]} is no number above 0", hint)
    return int(low)


def _gpus(option: Option) -> tuple[int, str]:
    """The GPUs that `gpu:a100:2`, `a100:2` or `2` asks for, and their model."""
    words = option.value.split(":")
    if option.name == "gres":
        if words[0] != "gpu" or "," in option.value:
            hint = "of generic resources there are only GPUs here, of one kind: `--gres=gpu:a100:2`"
            raise BadDirective(option.line, f"{option} has no counterpart here", hint)
        words = words[1:] or ["1"]
    number, model = words[-1], ":".join(words[:-1])
    if option.name == "gres" and not number.isdigit() and not model:
        number, model = "1", number
    if not (number.isascii() and number.isdigit()) or ":" in model:
        raise BadDirective(option.line, f"{option} says no number of GPUs", "write it as `a100:2`, or `2`")
    return int(number), model


def _per_task(option: Option, amount: int, tasks: int) -> int:
    """What each of so many tasks has of an amount. Raises BadDirective."""
    if amount % tasks:
        hint = "say what each task needs: `#STOKER --gpus N`"
        raise BadDirective(option.line, f"{option} can't be divided evenly among {tasks} tasks", hint)
    return amount // tasks


def _of_gpus(option: Option, gpus: int) -> int:
    if not gpus:
        raise BadDirective(option.line, f"{option} counts by GPU, and the script asks for none", "ask for GPUs")
    return gpus


def _kib(option: Option) -> int:
    found = _MEMORY.fullmatch(option.value)
    if found is None or not int(found[1]):
        hint = "a size such as 16G; all of a node's memory can't be asked for without its size"
        raise BadDirective(option.line, f"{option} is no size of memory above 0", hint)
    return int(found[1]) * _KIB_OF[found[2].upper()]
