"""How many pages does a list of jobs take?

One where the limit allows it; a longer list is asked for page by page, newest first, so that a person needn't know that
there are pages.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.wire.client import Client
    from stoker.wire.rest.job import JobListView, JobView


def gather(client: "Client", given: "dict[str, Any]", limit: int | None) -> "JobListView":
    """Up to `limit` jobs that match, as one page. None = all of them."""
    from stoker.wire.client import JobListQuery
    from stoker.wire.rest.job import LIST_MAX, JobListView

    jobs: list[JobView] = []
    after: str | None = ""
    total = 0
    while after is not None and (limit is None or len(jobs) < limit):
        size = LIST_MAX if limit is None else min(LIST_MAX, limit - len(jobs))
        page = client.jobs(JobListQuery(**given, limit=size, after=after))
        jobs += page.jobs
        # What arrived while we paged is no page of ours.
        total, after = total or page.total, page.next
    return JobListView(jobs=jobs, total=max(total, len(jobs)), limit=limit or len(jobs), next=after)
