"""Scripts that are submitted: which word is one, what its directives say, and what may be wrong with it.

Rules: S1  a first word without `--` before it is a script if it names a text file here that begins with `#!`, has
           directives, or isn't a program on PATH too; `-` is a script on standard input; all else is a command as it
           stands on the node
       S2  directives are the lines `#STOKER OPTIONS` and `#SBATCH OPTIONS` before the first line of code
       S3  an option of the command line replaces that of the script, one of `#STOKER` that of `#SBATCH`
       S4  a directive that can't be followed is one error, with file and line and the nearest option
       S5  what can't run anywhere is refused; what may be right on the node and isn't here is only said
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from stoker.cli.sbatch import BadDirective, Option, options_in, translated

if TYPE_CHECKING:
    from click.parser import _OptionParser

    from stoker.brain.domain.errors import Refusal

STDIN: Final = "-"
BYTES_MAX: Final = 4 << 20
"""More isn't even read: whatever a cluster allows, a request holds no more."""
_LOOKED_AT: Final = 8_192
"""Bytes in which a program, which is no text, has a zero."""
_DIRECTIVE: Final = re.compile(r"#(STOKER|SBATCH)(?:[ \t]+(.*))?$")
_NOT_IN_SCRIPTS: Final = frozenset({"server", "token", "token_file", "form", "as_json"})
"""Options about the person who submits."""
_RUN_BY: Final = {
    ".py": "python3", ".R": "Rscript", ".r": "Rscript", ".jl": "julia", ".pl": "perl", ".rb": "ruby", ".js": "node",
    ".lua": "lua", ".m": "octave", ".php": "php",
}  # fmt: skip
"""What runs a file of such a name, which `/bin/sh` can't."""
_REFUSED_FOR: Final = {
    "bad_time": ("time_limit", "lost_after", "checkpoint"),
    "bad_lost_after": ("lost_after",),
    "bad_signal": ("signal",),
    "bad_notify": ("notify", "notify_to"),
    "bad_secret": ("secret_names",),
    "unknown_secret": ("secret_names",),
    "unknown_tenant": ("tenant",),
    "time_limit_too_long": ("time_limit",),
    "bad_priority": ("priority",),
    "priority_above_tier": ("priority",),
    "bad_size": ("gpu_memory", "memory"),
    "bad_label": ("label_words",),
    "bad_array": ("array",),
    "bad_dependency": ("after",),
    "bad_begin": ("begin",),
    "bad_selector": ("where",),
    "unknown_partition": ("partition",),
    "unknown_node": ("exclude",),
}
"""Parameters that a submit may be refused for, by the code of the refusal."""
WhichProgram = Callable[[str], bool]
"""Whether a word names a program on PATH here."""


class JobScript(NamedTuple):
    """A script as it was read."""

    name: str
    """Of its file, without folders."""
    text: str
    """Bytes that aren't UTF-8 as half surrogates."""
    path: str
    """As it was typed, for messages."""


class _Directive(NamedTuple):
    """An option that a directive gives."""

    param: click.Option
    words: list[str]
    line: int


def found_script(word: str, on_path: WhichProgram) -> JobScript | None:
    """Return the script that the first word of a command is (S1); None = it is a command.

    Raises: click.UsageError.
    """
    if word == STDIN:
        return _checked(JobScript("stdin", _read_stdin(), "standard input"))
    if not os.path.isfile(word):
        return None
    try:
        with open(word, "rb") as file:
            begin = file.read(_LOOKED_AT)
            if b"\0" in begin:
                return None
            content = begin + file.read(BYTES_MAX + 1 - len(begin))
    except OSError:
        return None  # which isn't a fault: the node may be able to read it
    script = JobScript(os.path.basename(word), os.fsdecode(content), word)
    lines = script.text.split("\n", 1)
    if lines[0].startswith("#!") or any(_directives(script)):
        return _checked(script)
    if "/" not in word and on_path(word):
        return None
    program = _RUN_BY.get(os.path.splitext(word)[1])
    if program:
        raise click.UsageError(
            f"{word} has no `#!` line, so it would be run by /bin/sh\n"
            f"hint: `stoker submit ... -- {program} {word}` runs the file as it is on the node; with `#!/usr/bin/env "
            f"{program}` as its first line a copy is kept"
        )
    return _checked(script)


def _read_stdin() -> str:
    content = sys.stdin.buffer.read(BYTES_MAX + 1)
    if b"\0" in content[:_LOOKED_AT]:
        raise click.UsageError("what stands on standard input is no text, so it can't be a script")
    return os.fsdecode(content)


def _checked(script: JobScript) -> JobScript:
    """Refuse what runs nowhere (S5)."""
    if not script.text.strip():
        raise click.UsageError(f"{script.path}: the script is empty")
    size = len(os.fsencode(script.text))
    if size > BYTES_MAX:
        raise click.UsageError(
            f"{script.path} has more than {BYTES_MAX} bytes, which no cluster takes as a script\n"
            "hint: let a short script call it where the nodes can read it"
        )
    first = script.text.partition("\n")[0]
    if first.startswith("\ufeff"):
        raise click.UsageError(
            f"{script.path} begins with a byte order mark, before which no program of a `#!` line is found\n"
            f"hint: `sed -i '1s/^\\xEF\\xBB\\xBF//' {shlex.quote(script.path)}` takes it away"
        )
    if first.startswith("#!") and first.endswith("\r"):
        raise click.UsageError(
            f"{script.path}: its lines end as on Windows, so {first[2:].strip()} would not be found\n"
            f"hint: `sed -i 's/\\r$//' {shlex.quote(script.path)}` mends it"
        )
    return script


def remarks(script: JobScript, on_path: WhichProgram) -> Iterator[str]:
    """Yield what looks wrong about a script here and may be right on the node (S5)."""
    first, *rest = script.text.split("\n")
    words = first[2:].split() if first.startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if words and not (os.access(words[0], os.X_OK) if "/" in words[0] else on_path(words[0])):
        yield f"its first line names {words[0]}, which isn't here; on the node it has to be"
    code = next((at for at, line in enumerate(rest, 2) if _is_code(line)), len(rest) + 2)
    for at, line in enumerate(rest, 2):
        if at > code and line.startswith("#STOKER "):
            yield f"line {at}: a directive behind the first line of code (line {code}) is a comment"
            return


def command_remark(words: Sequence[str], on_path: WhichProgram, *, as_it_stands: bool) -> str:
    """Return what looks wrong about a command; empty = nothing. `as_it_stands`: behind `--`, where less is said."""
    word = words[0] if words else ""
    if not word or any(letter.isspace() for letter in word):
        return ""
    if not as_it_stands and not os.path.exists(word) and ("/" in word or not on_path(word)):
        return _missing_remark(word)
    if "/" in word or on_path(word) or not os.path.isfile(word):
        return ""
    program = _RUN_BY.get(os.path.splitext(word)[1])
    better = f"{program} {word}" if program else f"./{word}"
    return f"{word} is a file here and no program on PATH: did you mean `-- {better}`?"


def _missing_remark(word: str) -> str:
    """Return what is said about a first word that is nothing here; a node may have it, unless it is a mistype."""
    from difflib import get_close_matches

    folder, name = os.path.split(word)
    try:
        there = sorted(entry.name for entry in os.scandir(folder or ".") if entry.is_file())
    except OSError:
        there = []
    near = get_close_matches(name, there, n=1)
    hint = f"did you mean {os.path.join(folder, near[0])}?" if near else "it is run as a program of the node"
    what = "isn't here" if "/" in word else "is neither a file here nor a program on PATH"
    return f"{word} {what}: {hint}"


class ScriptOptions(NamedTuple):
    """The options that a script gives."""

    words: list[str]
    """Of a command line."""
    notes: list[str]
    """For the person."""
    lines: dict[str, int]
    """Where they stand, by name of the parameter."""


def option_words(script: JobScript, given: frozenset[str], parser: "_OptionParser") -> ScriptOptions:
    """Return the options of a script.

    `given` are names of parameters that the command line gives, which are left out (S3); `parser` is the command's.

    Raises: click.UsageError (S4).
    """
    own: list[_Directive] = []
    slurm: list[Option] = []
    try:
        for line, kind, text in _directives(script):
            if kind == "STOKER":
                own += _said(parser, _split(text, line), line)
            else:
                slurm += options_in(text, line)
        there = translated(slurm)
        theirs = [said for name, value, line in there.options for said in _translated(parser, name, value, line)]
        _check_once(own)
    except BadDirective as fault:
        raise click.UsageError(f"{script.path}, line {fault.line}: {fault}") from None
    names = given | {_name(said) for said in own}
    kept = [said for said in theirs if _name(said) not in names] + [said for said in own if _name(said) not in given]
    words = [word for said in kept for word in said.words]
    return ScriptOptions(words, there.notes, {_name(said): said.line for said in kept})


def located(refusal: "Refusal", path: str, lines: Mapping[str, int]) -> "Refusal":
    """Return the refusal of a submit with file and line, if what it is about stands in a directive (S4)."""
    from stoker.brain.domain.errors import refuse

    found = [lines[name] for name in _REFUSED_FOR.get(refusal.code, ()) if name in lines]
    if len(found) != 1:
        return refusal
    return refuse(refusal.code, f"{path}, line {found[0]}: {refusal.message}", refusal.hint, **refusal.facts)


def _name(said: _Directive) -> str:
    return said.param.name or ""


def _directives(script: JobScript) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of each directive (S2)."""
    for line, text in enumerate(script.text.split("\n"), 1):
        if _is_code(text):
            return
        found = _DIRECTIVE.match(text.rstrip("\r"))
        if found:
            yield line, found[1], found[2] or ""


def _is_code(line: str) -> bool:
    words = line.strip()
    return bool(words) and not words.startswith("#")


def _split(text: str, line: int) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as fault:
        raise BadDirective(line, f"it can't be read: {fault}", "quotes come in pairs") from None


def _translated(parser: "_OptionParser", name: str, value: str, line: int) -> list[_Directive]:
    return _said(parser, [f"{name}={value}" if value else name], line)


def _said(parser: "_OptionParser", words: list[str], line: int) -> list[_Directive]:
    """Return the options that these words give. Raises BadDirective."""
    said: list[_Directive] = []
    rest = list(words)
    while rest:
        # One option at a time, so that each keeps its words.
        for count in range(1, len(rest) + 1):
            try:
                values, _, order = parser.parse_args(rest[:count])
                option = next((each for each in order if isinstance(each, click.Option)), None)
                if option is not None and parser.ctx is not None:
                    option.type_cast_value(parser.ctx, values[option.name or ""])
            except click.BadOptionUsage as fault:
                if count == len(rest):
                    raise BadDirective(line, fault.format_message()) from None
                continue
            except click.UsageError as fault:
                raise BadDirective(line, fault.format_message()) from None
            if option is None:
                hint = "directives have options only; what runs is the script"
                raise BadDirective(line, f"{rest[0]!r} is no option", hint)
            if option.name in _NOT_IN_SCRIPTS or option.is_eager:  # as --help is
                raise BadDirective(line, f"{rest[0]} belongs on the command line, not into a script")
            said.append(_Directive(option, rest[:count], line))
            rest = rest[count:]
            break
    return said


def _check_once(own: Sequence[_Directive]) -> None:
    first: dict[str, int] = {}
    for said in own:
        before = first.setdefault(_name(said), said.line)
        if before != said.line and not said.param.multiple:
            hint = f"line {before} gives it too; give it once"
            raise BadDirective(said.line, f"{said.words[0].partition('=')[0]} is given twice", hint)
