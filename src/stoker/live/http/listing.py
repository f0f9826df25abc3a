"""Which jobs does a list show?

Rules: L1  newest first, so that page one is what a person just did
       L2  `after` names the last job of the page before; jobs that arrive meanwhile don't move the next page
       L3  `total` counts every match, also those beyond the page
Limits: without a filter beyond states a page costs its own length. With one every remembered job is looked at, in
slices, so that a long look never holds up the writer.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import JOB_ID_MAX, JobId, parse_job_id
from stoker.brain.domain.job import Job
from stoker.brain.domain.lifecycle import JOB_STATES, JobState
from stoker.brain.state.cluster import ClusterState
from stoker.ports import Clock
from stoker.wire.rest.job import LIST_MAX

SLICE: Final = 1_000
"""Jobs looked at before others get a turn: below a millisecond."""

Wanted = Callable[[Job], bool]


class Page(NamedTuple):
    """Which part of the matches. `before` is exclusive: ids from there on aren't shown."""

    limit: int
    offset: int = 0
    before: JobId = JobId(JOB_ID_MAX + 1)


class Found(NamedTuple):
    jobs: list[Job]
    total: int
    more: bool


def page_of(limit: int, offset: int, after: str) -> Page:
    """Raises: StokerError `bad_job_id`."""
    return Page(min(limit, LIST_MAX), offset, parse_job_id(after) if after else JobId(JOB_ID_MAX + 1))


def states_of(text: str, named: Callable[[str], tuple[JobState, ...]]) -> tuple[JobState, ...]:
    """The states of a list of words with commas between. Empty = every state.

    Raises: StokerError `unknown_state`, naming the words that are known.
    """
    found: dict[JobState, None] = {}
    for word in text.split(",") if text else ():
        states = named(word.strip())
        if not states:
            raise StokerError(_unknown_state(word))
        found.update(dict.fromkeys(states))
    return tuple(found) or tuple(JobState)


def _unknown_state(word: str) -> Refusal:
    known = sorted({name for state, words in JOB_STATES.items() for name in (state.value, words.dgpu, words.mvp)})
    message = f"{word.strip()[:80]!r} is not a state of a job"
    return refuse(
        "unknown_state", message, f"known are: {', '.join(known)}, and the short words of squeue", got=word[:80]
    )


async def select(
    state: ClusterState, states: Iterable[JobState], wanted: Wanted | None, page: Page, clock: Clock
) -> Found:
    """The page of jobs in `states` for which `wanted` holds; None = all of them."""
    ids = [state.indexes.by_state[each].ids for each in states]
    if wanted is None:
        return _slice_of(state, ids, page)
    # The lists change while others get a turn.
    return await _search(state, [list(each) for each in ids], wanted, page, clock)


def _slice_of(state: ClusterState, ids: list[list[JobId]], page: Page) -> Found:
    shown = list(islice(_newest_first(ids, page.before), page.offset, page.offset + page.limit + 1))
    jobs = [state.jobs[job] for job in shown[: page.limit]]
    return Found(jobs, sum(len(each) for each in ids), len(shown) > page.limit)


async def _search(state: ClusterState, ids: list[list[JobId]], wanted: Wanted, page: Page, clock: Clock) -> Found:
    jobs: list[Job] = []
    total, skipped, more = 0, 0, False
    for looked, job_id in enumerate(_newest_first(ids, Page(0).before), start=1):
        if looked % SLICE == 0:
            await clock.sleep(0)
        job = state.jobs.get(job_id)
        if job is None or not wanted(job):
            continue
        total += 1
        if job_id >= page.before:
            continue
        if skipped < page.offset:
            skipped += 1
        elif len(jobs) < page.limit:
            jobs.append(job)
        else:
            more = True
    return Found(jobs, total, more)


def _newest_first(ids: list[list[JobId]], before: JobId) -> Iterator[JobId]:
    return merge(*(_descending(each, before) for each in ids if each), reverse=True)


def _descending(ids: list[JobId], before: JobId) -> Iterator[JobId]:
    for at in range(bisect_left(ids, before) - 1, -1, -1):
        yield ids[at]
