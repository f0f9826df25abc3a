"""Filters of the templates: how amounts, spans, states and commands read on a page."""

import shlex
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from stoker.brain.domain.ids import Principal, account_of
from stoker.wire.rest.job import JobView

_SECOND_MS, _MINUTE_MS, _HOUR_MS, _DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
NONE: Final = "\N{EN DASH}"
_GIB_MB: Final = 1_024
_SECRET_WORDS: Final = ("TOKEN", "SECRET", "PASSW", "CREDENTIAL", "PRIVATE", "API_KEY", "APIKEY", "ACCESS_KEY", "AUTH")


def span(ms: float | None) -> str:
    """Return a span of time in two units at most: `3 d 4 h`, `12 min 5 s`; empty for none."""
    if ms is None:
        return ""
    units = (("d", _DAY_MS), ("h", _HOUR_MS), ("min", _MINUTE_MS), ("s", _SECOND_MS))
    left, words = round(ms), list[str]()
    for name, size in units:
        count, left = divmod(left, size)
        if count or (name == "s" and not words):
            words.append(f"{count} {name}")
        elif words:
            break
        if len(words) == 2:
            break
    return " ".join(words)


def memory(mb: int | None) -> str:
    """Return an amount of memory: `80 GiB`, `512 MiB`; a dash for none."""
    if not mb:
        return NONE
    return f"{mb / _GIB_MB:.3g} GiB" if mb >= _GIB_MB else f"{mb} MiB"


def number(value: float | None) -> str:
    """Return a number without needless zeros; a dash for none."""
    return NONE if value is None else f"{value:,.10g}"


def command_line(command: str | tuple[str, ...] | list[str]) -> str:
    """Return a job's command as somebody would type it."""
    return command if isinstance(command, str) else shlex.join(command)


def gpus(job: JobView) -> str:
    """Return what a job asks for in GPUs: `8`, `2 x 4`, `0.3`."""
    if job.gpu_share < 1:
        return f"{job.gpu_share:g}" if job.tasks == 1 else f"{job.tasks} x {job.gpu_share:g}"
    return str(job.gpu_count) if job.tasks == 1 or not job.gpu_count else f"{job.tasks} x {job.gpu_count}"


def owner(job: JobView) -> str:
    """Return the account whose job it is."""
    return account_of(job.user, Principal(job.submitted_by))


def since(job: JobView) -> str:
    """Return since when a job is in its state, about: its end, else its newest start, else since when it waits."""
    if job.ended_at:
        return job.ended_at
    if not job.attempts:
        return job.started_at or job.submitted_at
    newest = job.attempts[-1]
    return newest.ended_at or newest.started_at or newest.placed_at


def ms_between(start: str | None, end: str | None) -> float | None:
    """Return the milliseconds between two times of REST; None where one is missing."""
    if not start or not end:
        return None
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds() * _SECOND_MS


def words(code: object) -> str:
    """Return a code of the wire in words: `out_of_memory` is `out of memory`."""
    return str(code).replace("_", " ")


def percent(part: float, whole: float) -> float:
    """Return how many percent a part is; 0 of nothing."""
    return round(100 * part / whole, 2) if whole else 0.0


def names_secret(name: str) -> bool:
    """Return whether the name of a variable says that its value is nobody's to read over somebody's shoulder."""
    return any(word in name.upper() for word in _SECRET_WORDS)


FILTERS: Final[Mapping[str, Callable[..., object]]] = {
    "span": span,
    "memory": memory,
    "number": number,
    "command_line": command_line,
    "gpus": gpus,
    "names_secret": names_secret,
    "owner": owner,
    "since": since,
    "words": words,
}
