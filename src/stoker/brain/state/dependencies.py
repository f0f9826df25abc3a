"""Index of jobs that wait for other jobs, and of how those conditions are decided.

Rules: D1  a job whose record is gone has ended: `any` and `after` are met, how it ended is no longer known, so `ok` and
           `notok` never will be
       D2  all conditions of a job must be met; one that never can be settles it at once
       D3  a condition that was met stays met (`Job.met`), also when the record of the other job goes or it is requeued,
           while other conditions are still open
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from stoker.brain.domain.dependency import Dependency, DependencyKind, Verdict
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job, member_of
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.units import NEVER

Jobs = Mapping[JobId, Job]


def target_of(dependency: Dependency, jobs: Jobs) -> Job | None:
    """The job or member that a condition speaks of; None when its record is gone."""
    job = jobs.get(dependency.job)
    if dependency.index is None or job is None:
        return job
    return member_of(job, dependency.index, jobs)


def verdict(dependency: Dependency, jobs: Jobs) -> Verdict:
    target = target_of(dependency, jobs)
    kind = dependency.kind
    if target is None:  # D1
        return Verdict.MET if kind in (DependencyKind.ANY, DependencyKind.AFTER) else Verdict.NEVER
    if kind is DependencyKind.AFTER and target.started_at != NEVER:
        return Verdict.MET
    return verdict_on_end(kind, target.state) if target.is_final else Verdict.WAITS


def verdict_on_end(kind: DependencyKind, state: JobState) -> Verdict:
    """Return the verdict of a condition on a job that ended in `state`."""
    match kind:
        case DependencyKind.ANY | DependencyKind.AFTER:
            return Verdict.MET
        case DependencyKind.OK:
            return Verdict.MET if state is JobState.SUCCEEDED else Verdict.NEVER
        case DependencyKind.NOT_OK:
            return Verdict.NEVER if state is JobState.SUCCEEDED else Verdict.MET
        case _:
            assert_never(kind)


def open_conditions(job: Job) -> Iterator[Dependency]:
    """Yield the conditions that aren't met for good (D3)."""
    return (each for place, each in enumerate(job.spec.after) if place not in job.met)


def met_places(job: Job, jobs: Jobs) -> tuple[int, ...]:
    """Return the places of the conditions that are met, now or for good."""
    after = enumerate(job.spec.after)
    return tuple(place for place, each in after if place in job.met or verdict(each, jobs) is Verdict.MET)


def verdict_of(job: Job, jobs: Jobs) -> Verdict:
    """Return whether a condition is met, can never be met, or is open (D2)."""
    verdicts = [verdict(each, jobs) for each in open_conditions(job)]
    if Verdict.NEVER in verdicts:
        return Verdict.NEVER
    return Verdict.WAITS if Verdict.WAITS in verdicts else Verdict.MET


def never_because(job: Job, jobs: Jobs) -> tuple[Dependency, str]:
    """The first condition that can never be met, and why in words."""
    lost = next(each for each in open_conditions(job) if verdict(each, jobs) is Verdict.NEVER)
    target = target_of(lost, jobs)
    if target is None:
        return lost, "its record is gone, and with it how it ended"
    return lost, f"it ended {target.state}"


@dataclass(slots=True)
class Dependents:
    """Index of the jobs that wait for other jobs, and of those for which it is decided.

    Each change of a job costs as many verdicts as jobs wait for that very job or member, and only changes that may
    turn a verdict cost any: ten thousand jobs may each wait for another member of one array.
    """

    _jobs: Jobs = field(compare=False)
    waiting: dict[JobId, dict[int | None, dict[JobId, None]]] = field(default_factory=dict, init=False)
    """Blocked jobs, by the job or array that they wait for, and the index of the member. None = all of it."""
    decided: dict[JobId, Verdict] = field(default_factory=dict, init=False)
    """Blocked jobs that needn't wait any longer."""

    def job_changed(self, old: Job | None, new: Job | None) -> None:
        was, is_now = _blocked(old), _blocked(new)
        told = old is not None and new is not None and old.spec is not new.spec and old.spec.after != new.spec.after
        if was and (told or not is_now) and old is not None:
            self._leave(old)
        if is_now and (told or not was) and new is not None:
            for each in new.spec.after:
                self.waiting.setdefault(each.job, {}).setdefault(each.index, {})[new.id] = None
            self._judge(new)
        if self.waiting and _turns_verdicts(old, new):
            changed = new or old
            assert changed is not None, "a change has a before or an after"
            for index, dependents in self.waiting.get(changed.id, {}).items():
                # Of its members those that are no records are as their array has them.
                if index is None or changed.members is not None:
                    self._judge_all(dependents)
            if changed.array_of:
                self._judge_all(self.waiting.get(changed.array_of, {}).get(changed.array_index, {}))

    def settled_by(self, job: Job) -> list[Job]:
        """Return those who wait for that job, or for its array, with the conditions noted that are met now (D3)."""
        of_array = self.waiting.get(job.array_of, {})
        waiting: dict[JobId, None] = {**of_array.get(None, {}), **of_array.get(job.array_index, {})}
        for dependents in self.waiting.get(job.id, {}).values():
            waiting.update(dependents)
        noted = (replace(each, met=met_places(each, self._jobs)) for each in map(self._jobs.__getitem__, waiting))
        return [each for each in noted if each.met != self._jobs[each.id].met]

    def _judge_all(self, dependents: Iterable[JobId]) -> None:
        for dependent in dependents:
            self._judge(self._jobs[dependent])

    def _judge(self, job: Job) -> None:
        found = verdict_of(job, self._jobs)
        if found is Verdict.WAITS:
            self.decided.pop(job.id, None)
        else:
            self.decided[job.id] = found

    def _leave(self, job: Job) -> None:
        self.decided.pop(job.id, None)
        for each in job.spec.after:
            by_index = self.waiting.get(each.job, {})
            dependents = by_index.get(each.index, {})
            if job.id in dependents:
                del dependents[job.id]
                if not dependents:
                    del by_index[each.index]
                if not by_index:
                    del self.waiting[each.job]


def _blocked(job: Job | None) -> bool:
    return job is not None and job.blocked and not job.is_final


def _turns_verdicts(old: Job | None, new: Job | None) -> bool:
    """May a condition that speaks of this job be met now that wasn't, or the other way round?"""
    if old is None or new is None or old.state is not new.state or old.started_at != new.started_at:
        return True
    return old.members is not None and new.members is not None and old.members.cancelled != new.members.cancelled
