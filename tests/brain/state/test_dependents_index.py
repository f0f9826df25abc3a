"""What does a change of a job cost, when many wait for it or for its neighbours?"""

import pytest

from stoker.brain.domain.array import parse_array
from stoker.brain.domain.dependency import Dependency, DependencyKind, Verdict
from stoker.brain.domain.ids import JobId
from stoker.brain.domain.job import Job
from stoker.brain.state import dependencies
from tests.brain.state.story import Story, spec


def test_a_member_that_moves_is_judged_for_those_who_wait_for_it_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else ten thousand jobs that wait for a member each would make every move of each member cost ten thousand."""
    story = Story()
    story.node("n1", 8)
    array = story.submit(spec(array=parse_array("0-4%1")))
    for index in range(5):
        story.submit(spec(0, after=(Dependency(kind=DependencyKind.OK, job=array, index=index),)))
    assert story.decide() == [f"{array}_0"]
    story.started(JobId(array + 1))
    story.end(JobId(array + 1))
    story.deadlines()
    verdict_of, judged = dependencies.verdict_of, list[JobId]()
    monkeypatch.setattr("tests.brain.state.story.violations", lambda state: [])  # it judges all of them

    def watched(job: Job, jobs: dependencies.Jobs) -> Verdict:
        judged.append(job.id)
        return verdict_of(job, jobs)

    monkeypatch.setattr(dependencies, "verdict_of", watched)
    assert f"{array}_1" in story.decide()
    story.started(JobId(array + 2))
    story.end(JobId(array + 2))
    assert set(judged) == {JobId(array + 7)}
    assert set(story.state.indexes.dependents.decided) == {JobId(array + 7)}
