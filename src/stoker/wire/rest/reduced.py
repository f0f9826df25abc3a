"""REST shapes of jobs for callers of other tenants, without what is private.

That it is there, whose it is, how much of the cluster it takes and since when: what people need to understand why they
wait. What it does and where is left out, and so is what the reasons say of it.
"""

from stoker.brain.domain.demand import Demand
from stoker.brain.domain.ids import Principal
from stoker.brain.domain.job import Job, JobSpec
from stoker.wire.rest.job import JobDetails


def reduced(shown: JobDetails) -> JobDetails:
    """The same job as strangers see it."""
    return shown._replace(job=reduced_job(shown.job), reduced=True)


def reduced_job(job: Job) -> Job:
    """Return a record that holds nothing else than callers of other tenants may see.

    A new field of a record stays hidden until it is named here.
    """
    spec = job.spec
    demand = Demand(gpu_count=spec.demand.gpu_count, tasks=spec.demand.tasks)
    seen = JobSpec(
        name="",
        demand=demand,
        command="",
        priority=spec.priority,
        time_limit_ms=spec.time_limit_ms,
        tenant=spec.tenant,
        job_class=spec.job_class,
        array=spec.array,
        begin=spec.begin,
    )
    return Job(
        id=job.id,
        uid="",
        spec=seen,
        by=Principal(""),
        submitted_at=job.submitted_at,
        state=job.state,
        started_at=job.started_at,
        ended_at=job.ended_at,
        array_of=job.array_of,
        array_index=job.array_index,
        members=job.members,
    )
