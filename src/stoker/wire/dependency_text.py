"""Parsing of dependencies such as `ok:12,any:13_4`.

`ok:12`, `any:7_3`, `after:#0`, several with commas between them; Slurm's words (`afterok:12:13`) are read too.

Rules: A1  a bare id means `ok:`; behind another kind it is refused, since `any:1,2` could mean either
       A2  ids with colons between them share the kind before them
       A3  `#0` is the first job of the same list, `7_3` a member of array 7
Source: sbatch(1), option --dependency, but for its `?`, delays and `singleton`, which have no counterpart here.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from stoker.brain.domain.array import parse_job_ref
from stoker.brain.domain.dependency import Dependency, DependencyKind
from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.ids import JOB_ID_MAX

_KINDS: Final = {
    **{kind.value: kind for kind in DependencyKind},
    "afterok": DependencyKind.OK,
    "afterany": DependencyKind.ANY,
    "afternotok": DependencyKind.NOT_OK,
}
_SIBLING: Final = re.compile(r"#([0-9]{1,9})", re.ASCII)
_ID: Final = re.compile(r"([0-9]{1,16})(?:_([0-9]{1,8}))?", re.ASCII)
AFTER_TEXT_MAX: Final = 64 * 1024
"""Characters of one text; a longer one is refused."""
_SHOWN_MAX: Final = 80


def parse_dependencies(texts: Iterable[str]) -> tuple[Dependency, ...]:
    """Each condition once, in the order given.

    Raises: StokerError `bad_dependency`.
    """
    return tuple(dict.fromkeys(each for text in texts for each in _conditions(text)))


def _conditions(text: str) -> Iterator[Dependency]:
    if len(text) > AFTER_TEXT_MAX:
        raise _bad(text, f"it is longer than {AFTER_TEXT_MAX} characters")
    spoken: DependencyKind | None = None
    for part in text.split(","):
        word, colon, ids = part.strip().partition(":")
        if not colon and not word.isalpha():
            if spoken not in (None, DependencyKind.OK):
                raise _bad(text, f"{word[:20]!r} stands without a kind behind `{spoken}:`", hint=_BARE_HINT)
            yield _condition(text, DependencyKind.OK, word)
            continue
        spoken = _KINDS.get(word.lower())
        if spoken is None:
            raise _bad(text, f"{word[:20]!r} is no kind of dependency")
        for each in ids.split(":"):
            yield _condition(text, spoken, each)


def _condition(text: str, kind: DependencyKind, name: str) -> Dependency:
    sibling = _SIBLING.fullmatch(name)
    if sibling:
        return Dependency(kind=kind, sibling=int(sibling[1]))
    found = _ID.fullmatch(name)
    if found is None or not 1 <= int(found[1]) <= JOB_ID_MAX:
        raise _bad(text, _why_no_id(name))
    ref = parse_job_ref(name)
    return Dependency(kind=kind, job=ref.job, index=None if ref.members is None else ref.members[0][0])


def _why_no_id(name: str) -> str:
    if not name:
        return "a job's id is missing"
    if "[" in name:
        return f"{name[:20]!r} names several members, which are named one by one here"
    if "?" in name:
        return "`?` would mean any one of them, which isn't possible here"
    if "+" in name:
        return f"{name[:20]!r} names a delay, which isn't possible here"
    return f"{name[:20]!r} is not a job's id"


_HINT: Final = (
    "write a kind and an id, such as `ok:12`, `any:7_3`, `notok:12:13` or `after:#0`, with commas between them"
)
_BARE_HINT: Final = "say the kind each time: `any:1,any:2` or `any:1:2`, and `any:1,ok:2` if that is meant"


def _bad(text: str, why: str, *, hint: str = _HINT) -> StokerError:
    shown = text[:_SHOWN_MAX]
    return refusal_error("bad_dependency", f"{shown!r} can't be waited for: {why}", hint, got=shown)
