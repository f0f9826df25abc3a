"""Listing of jobs: filters, pages and totals over the state and the history.

From the state come those that it remembers, from the history those that it has forgotten. The state is read first,
then what the history is about to write, then the history: a job only ever moves that way, so none is missed, and one
that is met twice is shown as it was met first.

Rules: L1  newest first, so that page one is what a person just did, unless another order is asked for (`job_order`)
       L2  `after` names the last job of the page before; jobs that arrive, end or are forgotten meanwhile don't move
           the next page
       L3  `total` counts every match that the state remembers, also those beyond the page
       L4  members that never became records are listed too, where members are wanted
       L5  with what is live first, a job that moves on while the list is made stands where it was, once
       L6  by a column only jobs are sorted that the state remembers; one whose value changes between two pages may be
           met twice, or on neither
Limits: without a filter beyond states, and while there is no array, a page costs its own length. Else every remembered
job is looked at, and so it is for a list that is sorted by a column, in slices, so that a long look never holds up the
writer; of what is looked at no more than two pages are kept. The history is asked only where a page
reaches down to a job that was forgotten.
"""

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby, islice
from typing import Final, NamedTuple

from msgspec.structs import replace

from stoker.brain.domain.access import Caller
from stoker.brain.domain.array import INDEX_MAX, Spans, contains, count_of, index_of, member_id, parse_job_ref
from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.errors import Refusal, StokerError, refusal_error, refuse
from stoker.brain.domain.ids import JOB_ID_MAX, JobId, TenantName
from stoker.brain.domain.job import Job, lazy_member
from stoker.brain.domain.job_filter import NAME_PATTERN_MAX, NAME_STARS_MAX, JobFilter, is_pattern, narrows
from stoker.brain.domain.lifecycle import JOB_STATES, JobState, states_named
from stoker.brain.domain.units import NEVER, Instant
from stoker.brain.domain.where import parse_selector
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.validation.lookups import tenant_fault
from stoker.control.access import Sights
from stoker.control.control_plane import ControlPlane
from stoker.control.queries.job_lookup import history_failed, lookup_job, record_of
from stoker.control.queries.job_order import GROUPS, Order, SortKey, order_of
from stoker.control.queries.planned_starts import planned_jobs
from stoker.ports import Clock, HistoryFailed
from stoker.wire.rest.decode import bad_value
from stoker.wire.rest.job import LIST_MAX, JobListQuery
from stoker.wire.text import parse_timestamp

SLICE: Final = 1_000
"""Jobs looked at before others get a turn: below a millisecond."""
OFFSET_MAX: Final = 100_000
"""Who wants to see further pages with `after`, which costs the same for every page."""
ARRAYS_PER_TURN: Final = 100
"""Records of arrays read from the history at once."""


class JobPage(NamedTuple):
    """Part of the matches to show; `before` is exclusive: ids from there on aren't shown."""

    limit: int
    offset: int = 0
    before: JobId = JobId(JOB_ID_MAX + 1)
    part: str = ""
    """With what is live first: the part of the list in which the page begins; empty = the first one, if `is_parted`."""
    is_parted: bool = False
    """Whether what is live comes first."""
    order: Order | None = None
    """By a column, from behind the job `behind`; None = newest first, in each part."""
    behind: Job | None = None
    is_planned: bool = False
    """Only what has a reservation, by planned start."""

    @property
    def reach(self) -> int:
        """Number of rows that are wanted, one more than are shown, to know whether there is a next page."""
        return self.offset + self.limit + 1


class Found(NamedTuple):
    jobs: list[Job]
    total: int
    last: JobId | None
    """After which the next page begins; None = there is none."""
    parts: Mapping[JobId, str] = {}
    """Where what is live comes first: the part of the list in which each job stands."""

    def cursor(self, last: JobId) -> str:
        """Return the `after` of a page that begins behind this job."""
        return f"{self.parts[last]}.{last}" if last in self.parts else str(last)


class LazyMembers(NamedTuple):
    """Members of one array that match and are no records."""

    array: Job
    spans: Spans


async def page_of(control: ControlPlane, query: JobListQuery, sees: Sights) -> JobPage:
    """Return the page that a query asks for.

    Raises: StokerError `bad_job_id`, `bad_parameter`, `job_unknown`, `history_unavailable`, or as `lookup_job`.
    """
    limit, offset, after = min(query.limit, LIST_MAX), query.offset, query.after
    if offset > OFFSET_MAX:
        wanted = f"at most {OFFSET_MAX}; `after` with the last id of a page leads to the next one"
        raise bad_value("offset", wanted=wanted, got=str(offset), kind="parameter")
    if query.planned and (query.sort or offset or after):
        raise bad_value("planned", wanted="left out beside `sort`, `offset` and `after`", got="true", kind="parameter")
    if offset and query.sort:
        wanted = "left out beside `sort`; `after` with the `next` of a page leads to the next one"
        raise bad_value("offset", wanted=wanted, got=str(offset), kind="parameter")
    if query.planned:
        return JobPage(limit, is_planned=True)
    order = order_of(query.sort, control.committer.now(), sees)
    if order is not None:
        return JobPage(limit, order=order, behind=await lookup_job(after, control) if after else None)
    part, dot, place = after.partition(".") if query.sort else ("", "", after)
    if query.sort and after and (not dot or part not in GROUPS):
        raise bad_value("after", wanted="the `next` of the page before", got=repr(after[:80]), kind="parameter")
    before = JobId(JOB_ID_MAX + 1) if not place else await _place_of(control, place)
    return JobPage(limit, offset, before, part, is_parted=bool(query.sort))


async def _place_of(control: ControlPlane, after: str) -> JobId:
    """Return the id by which a job or member stands in the order."""
    ref = parse_job_ref(after)
    if ref.members is None:
        return ref.job
    array = await record_of(control, ref.job)
    index = ref.members[0][0]
    spec = array.spec.array if array is not None and array.members is not None else None
    if spec is None or count_of(ref.members) > 1 or not contains(spec.indexes, index):
        hint = "use the `next` of the page before, or the last id on it"
        raise refusal_error("job_unknown", f"there is no member {str(ref)[:80]} to go on after", hint)
    return member_id(ref.job, spec, index)


def filter_of(query: JobListQuery, now: Instant, caller: Caller, sees: Sights) -> JobFilter:
    """Return the filter of a query of jobs.

    Raises: StokerError `bad_parameter`, `unknown_state`, `bad_moment`, `bad_selector`, `bad_job_id`, `bad_array`.
    """
    if query.tenant and query.tenant_id and query.tenant != query.tenant_id:
        raise bad_value("tenant_id", wanted="left out beside `tenant`", got="another tenant", kind="parameter")
    if query.mine and query.user not in ("", caller.account):
        raise bad_value("user", wanted=f"left out beside `mine`, or {caller.account}", got=query.user, kind="parameter")
    _check_pattern(query.name)
    user = caller.account if query.mine else query.user
    labels = parse_selector(query.label)
    array = _array_named(query.array) if query.array else JobId(0)
    return JobFilter(
        states=states_of(query.state, states_named),
        tenant=query.tenant or query.tenant_id,
        job_class=JobClass(query.job_class) if query.job_class else None,
        user=user,
        name=query.name,
        labels=labels,
        array=array,
        since=Instant(parse_timestamp(query.since, now)) if query.since else NEVER,
        until=Instant(parse_timestamp(query.until, now)) if query.until else NEVER,
        members=query.members or bool(array),
        # Whoever could ask for a hidden name would learn it by what matches.
        among=sees.tenants() if user or query.name or labels else None,
    )


def _check_pattern(name: str) -> None:
    if is_pattern(name) and (len(name) > NAME_PATTERN_MAX or name.count("*") > NAME_STARS_MAX):
        wanted = f"a pattern of at most {NAME_PATTERN_MAX} characters with at most {NAME_STARS_MAX} stars"
        raise bad_value("name", wanted=wanted, got=f"{len(name)} with {name.count('*')}", kind="parameter")


def _array_named(text: str) -> JobId:
    ref = parse_job_ref(text)
    if ref.members is not None:
        message = f"{text[:80]} isn't the id of a whole array, so it has no members to list"
        hint = f"leave the index out: {ref.job}; `stoker status {text[:80]}` shows members"
        raise StokerError(refuse("bad_parameter", message, hint))
    return ref.job


def states_of(text: str, named: Callable[[str], tuple[JobState, ...]]) -> tuple[JobState, ...]:
    """Return the states of a list of words with commas between. Empty = every state.

    Raises: StokerError `unknown_state`, naming the words that are known.
    """
    found: dict[JobState, None] = {}
    for word in text.split(",") if text else ():
        states = named(word.strip())
        if not states:
            raise StokerError(_unknown_state(word))
        found.update(dict.fromkeys(states))
    return tuple(found)


def _unknown_state(word: str) -> Refusal:
    known = sorted({name for state, words in JOB_STATES.items() for name in (state.value, words.dgpu, words.mvp)})
    message = f"{word.strip()[:80]!r} is not a state of a job"
    return refuse(
        "unknown_state", message, f"known are: {', '.join(known)}, and the short words of squeue", got=word[:80]
    )


async def select(control: ControlPlane, wanted: JobFilter, page: JobPage) -> Found:
    """Return the page of jobs that match.

    Raises: StokerError `unknown_tenant`, `history_unavailable`, `job_unknown` or `not_an_array`.
    """
    if wanted.array:
        await _check_array(control, wanted.array)
    if page.is_planned:
        jobs = planned_jobs(control, wanted)
        found = Found(jobs[: page.limit], len(jobs), None)
    elif page.order is not None:
        found = await _sorted(control, wanted, page, page.order)
    elif page.is_parted:
        found = await _live_first(control, wanted, page)
    else:
        remembered, total = await _remembered(control, wanted, page)
        found = await _with_forgotten(control, wanted, page, remembered, total)
    if wanted.tenant and not found.total and not found.jobs:
        check_tenant(control.committer.state, wanted.tenant)
    return found


async def _check_array(control: ControlPlane, array: JobId) -> None:
    record = await record_of(control, array)
    if record is None:
        raise refusal_error("job_unknown", f"there is no job {array}", "`stoker list` shows those that there are")
    if record.members is None:
        hint = f"`stoker status {record.label}` shows it"
        raise refusal_error("not_an_array", f"job {record.label} is no array", hint, job_id=record.label)


def check_tenant(state: ClusterState, name: str) -> None:
    """Refuse the name of a tenant that doesn't exist, which would else look like a tenant without jobs.

    It is asked where nothing was found. A tenant that was deleted is found as long as its jobs are.

    Raises: StokerError `unknown_tenant`.
    """
    gone = tenant_fault(state, TenantName(name))
    if gone is not None:
        raise StokerError(gone)


async def _with_forgotten(
    control: ControlPlane, wanted: JobFilter, page: JobPage, remembered: list[Job], total: int
) -> Found:
    """Return the page of what the state remembers, with what only the history knows between."""
    rows: dict[JobId, Job | None] = {job.id: job for job in remembered}
    floor = remembered[-1].id if len(remembered) == page.reach else JobId(0)
    if _reaches_the_forgotten(control, wanted, floor):
        try:
            async for job, record in _forgotten(control, wanted, page):
                rows.setdefault(job, record)
            return await _found(control, rows, total, page)
        except HistoryFailed as fault:
            raise history_failed(fault) from fault
    return await _found(control, rows, total, page)


async def _found(control: ControlPlane, rows: dict[JobId, Job | None], total: int, page: JobPage) -> Found:
    ids = sorted(rows, reverse=True)[page.offset : page.reach]
    shown = ids[: page.limit]
    stored = [job for job in shown if rows[job] is None]
    records = {job.id: job for job in await control.history.store.jobs(stored)} if stored else {}
    jobs = [rows[job] or records.get(job) for job in shown]
    # What was trimmed from the history since is left out.
    return Found([job for job in jobs if job is not None], total, shown[-1] if len(ids) > page.limit else None)


async def _remembered(control: ControlPlane, wanted: JobFilter, page: JobPage) -> tuple[list[Job], int]:
    """The newest `page.reach` rows of the state, and how many match in all."""
    part = _RowsOfStates(control.committer.state, wanted, wanted.states or tuple(JobState))
    return await part.newest(page, control.clock)


class _RowsOfStates:
    """The jobs of some states at one instant, though others get a turn while they are looked at."""

    def __init__(self, state: ClusterState, wanted: JobFilter, states: Sequence[JobState]) -> None:
        self._state, self._wanted = state, wanted
        ids = [state.indexes.by_state[each].entries for each in states]
        self._all_match = not narrows(wanted) and not state.indexes.arrays
        # The lists change while others get a turn, which they don't get where every job matches.
        self._ids = ids if self._all_match else [list(each) for each in ids]
        arrays = sorted(state.indexes.arrays, reverse=True) if wanted.members else []
        records = [state.jobs[each] for each in arrays if each in state.jobs]
        self._unborn = _unborn(records, replace(wanted, states=tuple(states)))

    async def newest(self, page: JobPage, clock: Clock) -> tuple[list[Job], int]:
        """Return the newest `page.reach` rows, and how many match in all."""
        if self._all_match:
            newest = islice(_newest_first(self._ids, page.before), page.reach)
            jobs = [job for each in newest if (job := self._state.jobs.get(each)) is not None]
            return jobs, sum(map(len, self._ids))
        jobs, total = await _search(self._state, self._ids, self._wanted, page, clock)
        total += sum(count_of(each.spans) for each in self._unborn)
        rows = merge(jobs, _unborn_rows(self._unborn, page.before), key=_id_of, reverse=True)
        return list(islice(rows, page.reach)), total

    def matching(self) -> Iterator[Job | None]:
        """Yield every row, and None for each record that is looked at and doesn't match."""
        for job_id in _newest_first(self._ids, JobPage(0).before):
            job = self._state.jobs.get(job_id)
            yield job if job is not None and self._wanted.matches(job, self._state.shown_state(job)) else None
        yield from _unborn_rows(self._unborn, JobPage(0).before)


async def _live_first(control: ControlPlane, wanted: JobFilter, page: JobPage) -> Found:
    """Return a page of the parts of the list one after another (L5)."""
    state, places = control.committer.state, list(GROUPS)
    parts = {name: [each for each in states if each in (wanted.states or JobState)] for name, states in GROUPS.items()}
    looks = {name: _RowsOfStates(state, wanted, states) for name, states in parts.items() if states}
    rows: dict[JobId, tuple[Job, str]] = {}
    begins, total = places.index(page.part or places[0]), 0
    for name, look in looks.items():
        place = places.index(name)
        within = JobPage(page.limit + 1, before=page.before if place == begins else JobPage(0).before)
        jobs, count = await look.newest(within, control.clock)
        total += count
        if place < begins:
            continue  # only counted
        if name == places[-1] and len(rows) <= page.limit:
            ended = replace(wanted, states=tuple(parts[name]))
            jobs = (await _with_forgotten(control, ended, within, jobs, count)).jobs
        for job in jobs:
            rows.setdefault(job.id, (job, name))
    shown = list(islice(rows.values(), page.limit))
    more = len(rows) > page.limit
    where = {job.id: name for job, name in shown}
    return Found([job for job, _ in shown], total, shown[-1][0].id if more and shown else None, where)


async def _sorted(control: ControlPlane, wanted: JobFilter, page: JobPage, order: Order) -> Found:
    """Return a page in the order of a column (L6)."""
    state = control.committer.state
    behind = order.key(page.behind, state.shown_state(page.behind)) if page.behind is not None else None
    kept: list[tuple[SortKey, Job]] = []
    total = 0
    for looked, job in enumerate(_RowsOfStates(state, wanted, wanted.states or tuple(JobState)).matching(), start=1):
        if looked % SLICE == 0:
            await control.clock.sleep(0)
        if job is None:
            continue
        total += 1
        key = order.key(job, state.shown_state(job))
        if behind is None or order.is_after(key, behind):
            kept.append((key, job))
            if len(kept) > 2 * page.reach:
                _keep_first(kept, page.reach, order)
    _keep_first(kept, page.reach, order)
    jobs = [job for _, job in kept[: page.limit]]
    return Found(jobs, total, jobs[-1].id if len(kept) > page.limit and jobs else None)


def _keep_first(kept: list[tuple[SortKey, Job]], most: int, order: Order) -> None:
    kept.sort(key=lambda row: row[0], reverse=order.descending)
    del kept[most:]


async def _search(
    state: ClusterState, ids: list[list[JobId]], wanted: JobFilter, page: JobPage, clock: Clock
) -> tuple[list[Job], int]:
    jobs: list[Job] = []
    total = 0
    for looked, job_id in enumerate(_newest_first(ids, JobPage(0).before), start=1):
        if looked % SLICE == 0:
            await clock.sleep(0)
        job = state.jobs.get(job_id)
        if job is None or not wanted.matches(job, state.shown_state(job)):
            continue
        total += 1
        if job_id < page.before and len(jobs) < page.reach:
            jobs.append(job)
    return jobs, total


def _newest_first(ids: list[list[JobId]], before: JobId) -> Iterator[JobId]:
    return merge(*(_descending(each, before) for each in ids if each), reverse=True)


def _descending(ids: list[JobId], before: JobId) -> Iterator[JobId]:
    for at in range(bisect_left(ids, before) - 1, -1, -1):
        yield ids[at]


def _id_of(job: Job) -> JobId:
    return job.id


# -- members that are no records -----------------------------------------------------------------------------------


def _unborn(arrays: Iterable[Job], wanted: JobFilter) -> list[LazyMembers]:
    """Return the matching members that never became records (L4).

    All members of one kind look alike, so one of them is asked.
    """
    found: list[LazyMembers] = []
    for array in arrays if wanted.members else ():
        _, members = array.as_array
        for spans in (members.lazy, *(gone.indexes for gone in members.cancelled)):
            one = lazy_member(array, spans[0][0]) if spans else None
            if one is not None and wanted.matches(one, one.state):
                found.append(LazyMembers(array, spans))
    return found


def _unborn_rows(unborn: Sequence[LazyMembers], before: JobId) -> Iterator[Job]:
    """Newest first. `unborn` is in the order of its arrays, newest first."""
    for array, kinds in groupby(unborn, key=lambda each: each.array):
        spec, _ = array.as_array
        place = before - array.id - 1
        if place <= 0:
            continue
        below = INDEX_MAX + 1 if place >= spec.count else index_of(array.id, spec, before)
        for index in merge(*(_indexes_down(each.spans, below) for each in kinds), reverse=True):
            member = lazy_member(array, index)
            assert member is not None, f"member {index} is no longer lazy: {array.story()}"
            yield member


def _indexes_down(spans: Spans, below: int) -> Iterator[int]:
    for first, last, step in reversed(spans):
        if first < below:
            top = min(last, first + (below - 1 - first) // step * step)
            yield from range(top, first - 1, -step)


# -- what the state has forgotten ----------------------------------------------------------------------------------


def _reaches_the_forgotten(control: ControlPlane, wanted: JobFilter, floor: JobId) -> bool:
    """May a forgotten job stand on the page, whose oldest row so far is `floor`? (0 = it isn't full.)"""
    newest = control.history.newest_pruned
    # Members that never became records have higher ids than the array that was forgotten.
    return wanted.may_have_ended and newest > 0 and (wanted.members or newest >= floor)


async def _forgotten(
    control: ControlPlane, wanted: JobFilter, page: JobPage
) -> AsyncIterator[tuple[JobId, Job | None]]:
    """The newest `page.reach` of them; None = its record is still to be read."""
    known, history = control.committer.state.jobs, control.history
    waiting = [job for job in history.ended().values() if job.id not in known]
    for job in waiting:
        if job.id < page.before and wanted.matches(job, job.state):
            yield job.id, job
    below, found = page.before, 0
    while found < page.reach:
        ids = await history.store.ids(wanted, below, page.reach)
        for job_id in ids:
            if job_id not in known:
                found += 1
                yield job_id, None
        if len(ids) < page.reach:
            break
        below = ids[-1]
    if wanted.members:
        arrays = [job for job in waiting if job.members is not None and wanted.array in (0, job.id)]
        async for member in _forgotten_unborn(control, wanted, page, arrays):
            yield member.id, member


async def _forgotten_unborn(
    control: ControlPlane, wanted: JobFilter, page: JobPage, arrays: Sequence[Job]
) -> AsyncIterator[Job]:
    """L4. `arrays` aren't in the store yet."""
    known, found = control.committer.state.jobs, 0
    below = min(page.before, JobId(wanted.array + 1)) if wanted.array else page.before
    for member in islice(_unborn_rows(_unborn(arrays, wanted), page.before), page.reach):
        yield member
    while found < page.reach:
        stored = await control.history.store.arrays(below, ARRAYS_PER_TURN)
        unborn = _unborn([each for each in stored if each.id not in known and wanted.array in (0, each.id)], wanted)
        for member in islice(_unborn_rows(unborn, page.before), page.reach - found):
            found += 1
            yield member
        if len(stored) < ARRAYS_PER_TURN or wanted.array:
            return
        below = stored[-1].id
