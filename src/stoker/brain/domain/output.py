"""Paths of the files into which tasks write, from the patterns of their jobs.

Rules: P1  `%j` job id (of a member: its own, `123_4`), `%A` id of the array or job, `%a` index in the array, `%x` name,
           `%N` node, `%t` rank, `%%` a percent sign: Slurm's letters; any other is refused
       P2  the pattern names a file: it doesn't end in a slash, and isn't `.` or `..`
       P3  a name that is filled in can't lead out of the folder: a slash in it becomes an underscore, and so does a
           name that is nothing but dots
       P4  without `%t` and `%N` all ranks share one file, wherever they run: only rank 0, which goes first where ranks
           have a rendezvous, may empty it
"""

import re
from typing import Final

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.job import Job

_HOLE: Final = re.compile(r"%(.?)", re.DOTALL)
_LETTERS: Final = "jAaxNt%"


def pattern_fault(field: str, pattern: str) -> Refusal | None:
    """Return the refusal of a pattern that can't name a file (P1, P2)."""
    if not pattern:
        return None
    unknown = next((found[0] for found in _HOLE.finditer(pattern) if found[1] not in _LETTERS or not found[1]), None)
    if unknown is not None:
        message = f"{field} {pattern[:80]!r} has {unknown!r}, which stands for nothing"
        hint = "%j is the job, %A the array, %a the index, %x the name, %N the node, %t the rank, %% a percent sign"
        return refuse("bad_output", message, hint, field=field)
    if pattern.endswith("/") or pattern.rsplit("/", 1)[-1] in (".", ".."):
        hint = "name a file in it, such as `logs/%j.out`"
        return refuse("bad_output", f"{field} {pattern[:80]!r} names a folder", hint, field=field)
    return None


def output_path(pattern: str, job: Job, node: NodeName, rank: int) -> str:
    """Return the path of one rank's file (P1, P3), from the working directory unless absolute; empty stays empty."""
    fills = {
        "j": job.label,
        "A": str(job.array_of or job.id),
        "a": str(job.array_index) if job.array_of else "0",
        "x": _part(job.spec.name),
        "N": _part(node),
        "t": str(rank),
        "%": "%",
    }
    return _HOLE.sub(lambda found: fills[found[1]], pattern)


def _part(name: str) -> str:
    return name.replace("/", "_") if name.strip(".") else "_"


def must_append(pattern: str, rank: int) -> bool:
    """Return whether a rank must not empty the file, since lower ranks write to it too (P4)."""
    letters = [found[1] for found in _HOLE.finditer(pattern)]
    return bool(pattern) and rank > 0 and "t" not in letters and "N" not in letters
