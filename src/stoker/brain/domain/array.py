"""Job arrays, and the grammar of their members in texts such as `0-9%3` or `123_[0-4,7]`.

An array is one record; a member becomes a record of its own when it starts, is held, cancelled or signalled. Members
are counted in spans, so that a hundred thousand of them cost nothing until they run.

Rules: S1  a span is (first, last, step) with first <= last, and last is a member: first + n x step
       S2  spans of one list ascend and don't overlap
       S3  the ids of the members follow that of the array, in ascending order of their indexes: an array of n takes
           n + 1 ids, so that the order of ids stays the order of submission also when a member is requeued
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd
from operator import itemgetter
from typing import Final

import msgspec

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import JOB_ID_MAX, JobId, parse_job_id
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.units import Instant

Span = tuple[int, int, int]
"""First, last and step of some indexes."""
Spans = tuple[Span, ...]

INDEX_MAX: Final = 99_999_999
"""The largest index that an array may name. The policy bounds how many members there are."""
_TEXT_MAX: Final = 64 * 1024
_INTERLEAVED_MAX: Final = 100_000
"""Indexes in ranges that overlap; an array with more of them is refused."""
_PART: Final = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12})(?::([0-9]{1,12}))?)?", re.ASCII)
_REF: Final = re.compile(r"([0-9]+)_(?:([0-9]{1,12})|\[([^\]]*)\])", re.ASCII)


class ArraySpec(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Indexes of the members of an array, and how many members may be live at once."""

    indexes: Spans
    running_max: int = 0
    """0 = no bound but the cluster's."""

    @property
    def count(self) -> int:
        """The number of members."""
        return self.places[-1] + count_of(self.indexes[-1:])

    @cached_property
    def places(self) -> list[int]:
        """The number of members before each span. Cached, since an array may have as many spans as members."""
        return list(accumulate((count_of((span,)) for span in self.indexes[:-1]), initial=0))


class CancelledMembers(msgspec.Struct, frozen=True, kw_only=True):
    """Members that were cancelled before they became records."""

    indexes: Spans
    at: Instant
    by: str


class Members(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Members of an array that are no records: those that wait, were cancelled, or whose records are pruned."""

    lazy: Spans
    """Members that are not yet records: they wait as the array does."""
    waiting: int
    """The number of members in `lazy`."""
    cancelled: tuple[CancelledMembers, ...] = ()
    pruned_ok: int = 0
    """Members that succeeded, whose records are gone."""
    pruned_bad: int = 0
    """Members that ended otherwise, whose records are gone."""
    pruned_cancelled: int = 0
    """Members of `pruned_bad` that were cancelled."""
    pruned_failed: Spans = ()
    """Members of `pruned_bad` that failed, which a requeue of the array runs once more."""
    pruned_succeeded: Spans = ()
    """Members of `pruned_ok`. Of neither list those that an older Stoker pruned are in it: nobody knows which they
    were."""
    pruned_stopped: Spans = ()
    """Members of `pruned_cancelled`."""
    pruned_attempts: int = 0
    """The highest attempt number of any member in the three lists, which those that run once more go on from."""

    def pruned(self) -> tuple[tuple[JobState, Spans], ...]:
        """Return the members whose records are gone by how they ended; of those that failed only that is known."""
        return (
            (JobState.FAILED, self.pruned_failed),
            (JobState.SUCCEEDED, self.pruned_succeeded),
            (JobState.CANCELLED, self.pruned_stopped),
        )

    def pruned_state(self, index: int) -> JobState | None:
        """Return how a member ended whose record is gone; None = it has one, never had one, or that isn't known."""
        return next((state for state, spans in self.pruned() if contains(spans, index)), None)

    def cancelled_with(self, index: int) -> CancelledMembers | None:
        """Return the group of members with which this one was cancelled before it was a record; None = it wasn't."""
        spans, gone = self._cancelled_spans
        if gone:
            at = _span_with(spans, index)
            return None if at is None else gone[at]
        return next((each for each in self.cancelled if contains(each.indexes, index)), None)

    @cached_property
    def _cancelled_spans(self) -> tuple[Spans, list[CancelledMembers]]:
        # All spans in order, and the entry of `cancelled` to which each belongs: members cancelled one by one may leave
        # thousands. Empty where spans interleave (S2).
        pairs = sorted(((span, each) for each in self.cancelled for span in each.indexes), key=lambda pair: pair[0][0])
        spans = tuple(span for span, _ in pairs)
        if any(after[0] <= before[1] for before, after in pairwise(spans)):
            return (), []
        return spans, [each for _, each in pairs]


class JobRef(msgspec.Struct, frozen=True):
    """A job, or some members of an array."""

    job: JobId
    members: Spans | None = None
    """None = the job itself; an array as a whole."""

    def __str__(self) -> str:
        if self.members is None:
            return str(self.job)
        if count_of(self.members) == 1:
            return f"{self.job}_{self.members[0][0]}"
        return f"{self.job}_[{spans_text(self.members)}]"


def parse_array(text: str) -> ArraySpec:
    """Read `0-9`, `1,3,5`, `0-98:2`, each with `%N` for the most at once.

    Raises: StokerError `bad_array`.
    """
    body, percent, most = text.partition("%")
    if percent and not (most.isascii() and most.isdigit() and len(most) <= 9 and int(most) > 0):
        raise _bad_array(text, f"`%{most[:20]}` must be a whole number above 0")
    return ArraySpec(indexes=parse_spans(body, text), running_max=int(most) if percent else 0)


def parse_job_ref(text: str) -> JobRef:
    """Read `123`, `123_4` or `123_[0-4,7]`.

    Raises: StokerError `bad_job_id` or `bad_array`.
    """
    found = _REF.fullmatch(text) if "_" in text and len(text) <= _TEXT_MAX else None
    if found is None:
        return JobRef(parse_job_id(text))
    return JobRef(parse_job_id(found[1]), parse_spans(found[2] or found[3], text))


def parse_spans(body: str, text: str) -> Spans:
    """Read indexes such as `0-4,7,10-20:2`; `text` is the whole text around them, for the message."""
    spans: list[Span] = []
    if len(body) > _TEXT_MAX:
        raise _bad_array(text, f"it is longer than {_TEXT_MAX} characters")
    for part in body.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise _bad_array(text, f"{part[:40]!r} is neither an index nor a range")
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first:
            raise _bad_array(text, f"the range {part[:40]} runs backwards")
        if step < 1:
            raise _bad_array(text, f"the step of {part[:40]} must be above 0")
        if last > INDEX_MAX:
            raise _bad_array(text, f"the index {last} is above {INDEX_MAX}")
        spans.append((first, last - (last - first) % step, step))
    return _merged(spans, text)


def _merged(spans: list[Span], text: str) -> Spans:
    # In ascending order (S2). Spans that interleave are taken apart; an index that is named twice is refused.
    spans.sort()
    if any(after[0] <= before[1] for before, after in pairwise(spans)):
        if count_of(tuple(spans)) > _INTERLEAVED_MAX:
            raise _bad_array(text, f"its ranges overlap and name more than {_INTERLEAVED_MAX} indexes")
        indexes = sorted(indexes_of(tuple(spans)))
        twice = next((index for index, after in pairwise(indexes) if index == after), None)
        if twice is not None:
            raise _bad_array(text, f"the index {twice} is named twice")
        return spans_of(indexes)
    return tuple(spans)


def _bad_array(text: str, why: str) -> StokerError:
    hint = "write indexes such as `0-9`, `1,3,7`, `0-98:2`, and `%3` behind them for at most 3 at once"
    return StokerError(refuse("bad_array", f"{text[:80]!r} names no members of an array: {why}", hint, field="array"))


def count_of(spans: Spans) -> int:
    """Return the number of indexes in the spans."""
    return sum((last - first) // step + 1 for first, last, step in spans)


def indexes_of(spans: Spans) -> Iterator[int]:
    """Yield the indexes in the spans, in ascending order."""
    for first, last, step in spans:
        yield from range(first, last + 1, step)


def contains(spans: Spans, index: int) -> bool:
    """Return whether the spans hold this index."""
    return _span_with(spans, index) is not None


def _span_with(spans: Spans, index: int) -> int | None:
    at = bisect_right(spans, index, key=itemgetter(0)) - 1
    if at < 0:
        return None
    first, last, step = spans[at]
    return at if index <= last and (index - first) % step == 0 else None


def spans_of(indexes: Sequence[int]) -> Spans:
    """Return the spans of ascending indexes without repetition; only indexes in steps of 1 are joined."""
    spans: list[Span] = []
    for index in indexes:
        if spans and spans[-1][1] == index - 1 and spans[-1][2] == 1:
            spans[-1] = (spans[-1][0], index, 1)
        else:
            spans.append((index, index, 1))
    return tuple(spans)


def joined(spans: Spans, indexes: Iterable[int]) -> Spans:
    """Return the spans with other indexes among them; none of these may be in the spans already."""
    found: list[Span] = []
    for span in sorted((*spans, *((index, index, 1) for index in indexes))):
        _add(found, span)
    return tuple(found)


def without(spans: Spans, index: int) -> Spans:
    """Return the spans without one of their indexes."""
    at = _span_with(spans, index)
    if at is None:
        return spans
    first, last, step = spans[at]
    before = ((first, index - step, step),) if index > first else ()
    after = ((index + step, last, step),) if index < last else ()
    return (*spans[:at], *before, *after, *spans[at + 1 :])


def common(spans: Spans, others: Spans) -> Spans:
    """Return the indexes that are in both. Costs a step per span, however many indexes the spans hold."""
    if spans == others:
        return spans
    found: list[Span] = []
    for _, met in _meetings(spans, others):
        _add(found, met)
    return tuple(found)


def difference(spans: Spans, others: Spans) -> Spans:
    """Return the indexes of `spans` that aren't in `others`.

    Costs a step per span, but where every third index or fewer goes: there a step per index.
    """
    if spans == others:
        return ()
    left: list[Span] = []
    taken: dict[int, list[Span]] = {}
    for at, met in _meetings(spans, others):
        taken.setdefault(at, []).append(met)
    for at, (first, last, step) in enumerate(spans):
        for begin, end, stride in taken.get(at, ()):
            _add(left, (first, begin - step, step))
            if stride == 2 * step:
                _add(left, (begin + step, end - step, stride))
            elif stride > 2 * step and begin < end:
                rest = [index for index in range(begin, end, step) if (index - begin) % stride]
                for each in spans_of(rest):
                    _add(left, each)
            first = end + step
        _add(left, (first, last, step))
    return tuple(left)


def _meetings(spans: Spans, others: Spans) -> Iterator[tuple[int, Span]]:
    # What two lists of spans have in common, in ascending order, each with its place in `spans`.
    at = 0
    for place, span in enumerate(spans):
        while at < len(others) and others[at][1] < span[0]:
            at += 1
        following = at
        while following < len(others) and others[following][0] <= span[1]:
            met = _meeting(span, others[following])
            if met is not None:
                yield place, met
            following += 1


def _meeting(one: Span, other: Span) -> Span | None:
    # The common terms of two arithmetic progressions are one again, by the Chinese remainder theorem.
    first, last, step = one
    low, high = max(first, other[0]), min(last, other[1])
    shared = gcd(step, other[2])
    apart = other[0] - first
    if apart % shared:
        return None
    cycle = other[2] // shared
    at = first + apart // shared * pow(step // shared, -1, cycle) % cycle * step
    stride = step * cycle
    at += max(0, -(-(low - at) // stride)) * stride
    return (at, at + (high - at) // stride * stride, stride) if at <= high else None


def _add(spans: list[Span], span: Span) -> None:
    # Joined to the last span where it continues that. An empty span is left out.
    first, last, step = span
    if last < first:
        return
    if first == last:
        step = 1
    if spans:
        begin, end, stride = spans[-1]
        if end + stride == first and (stride == step or first == last):
            spans[-1] = (begin, last, stride)
            return
    spans.append((first, last, step))


def spans_text(spans: Spans) -> str:
    """Return spans as people write them: `0-4,7,10-20:2`."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" if step == 1 else f"{first}-{last}:{step}"
        for first, last, step in spans
    )


def array_text(spec: ArraySpec) -> str:
    """Return the inverse of `parse_array`."""
    return spans_text(spec.indexes) + (f"%{spec.running_max}" if spec.running_max else "")


def member_id(array: JobId, spec: ArraySpec, index: int) -> JobId:
    """Return the job id of a member (S3). `index` must be one of the array's."""
    at = _span_with(spec.indexes, index)
    assert at is not None, f"array {array} has no member {index}"
    first, _, step = spec.indexes[at]
    return JobId(array + 1 + spec.places[at] + (index - first) // step)


def member_ids(array: JobId, spec: ArraySpec, members: Spans) -> Iterator[JobId]:
    """Yield the job ids of several members in ascending order (S3), each searched from the place of the last one."""
    at = 0
    for index in indexes_of(members):
        while index > spec.indexes[at][1]:
            at += 1
        first, _, step = spec.indexes[at]
        yield JobId(array + 1 + spec.places[at] + (index - first) // step)


def index_of(array: JobId, spec: ArraySpec, member: JobId) -> int:
    """Return the index of the member with this job id; the inverse of `member_id`."""
    place = member - array - 1
    assert 0 <= place < spec.count, f"{member} is no member of array {array}"
    at = bisect_right(spec.places, place) - 1
    first, _, step = spec.indexes[at]
    return first + (place - spec.places[at]) * step


def ids_taken(spec: ArraySpec | None) -> int:
    """Return the number of job ids that a job or an array uses up (S3)."""
    return 1 if spec is None else 1 + spec.count


def too_many_ids(first: int, taken: int) -> Refusal | None:
    """Return the refusal of ids beyond the range that every JSON reader keeps exact."""
    if first + taken <= JOB_ID_MAX:
        return None
    return refuse("ids_spent", f"job ids end at {JOB_ID_MAX}", "start a new cluster with an empty data folder")
