"""Which jobs come first: by id, or by what falls due?"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from stoker.brain.domain.ids import JobId
from stoker.brain.domain.units import Instant


class SortedIds:
    """Ids in ascending order. Most arrive at the end and leave at the front, which a plain list does well."""

    __slots__ = ("ids",)

    def __init__(self, ids: Iterable[JobId] = ()) -> None:
        self.ids: list[JobId] = sorted(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[JobId]:
        return iter(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SortedIds) and self.ids == other.ids

    __hash__ = None  # type: ignore[assignment]  # mutable, so it has no hash

    def add(self, job: JobId) -> None:
        if not self.ids or job > self.ids[-1]:
            self.ids.append(job)
        else:
            insort(self.ids, job)

    def remove(self, job: JobId) -> None:
        at = bisect_left(self.ids, job)
        assert self.ids[at : at + 1] == [job], f"job {job} is not in this index"
        del self.ids[at]


class Agenda:
    """What falls due when, earliest first."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[tuple[Instant, JobId]] = []

    def __len__(self) -> int:
        return len(self.entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Agenda) and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]  # mutable, so it has no hash

    def add(self, at: Instant, job: JobId) -> None:
        insort(self.entries, (at, job))

    def remove(self, at: Instant, job: JobId) -> None:
        i = bisect_left(self.entries, (at, job))
        assert self.entries[i : i + 1] == [(at, job)], f"job {job} is not due at {at}"
        del self.entries[i]

    def head(self) -> Instant | None:
        return self.entries[0][0] if self.entries else None

    def due(self, now: Instant) -> list[JobId]:
        """Jobs that are due at `now` or were before."""
        found: list[JobId] = []
        for at, job in self.entries:
            if at > now:
                break
            found.append(job)
        return found
