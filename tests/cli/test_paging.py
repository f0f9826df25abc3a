"""A list longer than a page is asked for page by page, and a person needn't know."""

import pytest

from stoker.cli.commands.listing import gather
from stoker.wire.client import JobListQuery
from stoker.wire.rest.job import LIST_MAX, JobListView
from tests.cli.views import job


class Server:
    """Has jobs `count` to 1, and remembers what it was asked."""

    def __init__(self, count: int) -> None:
        self._jobs = [job(number) for number in range(count, 0, -1)]
        self.asked: list[JobListQuery] = []

    def jobs(self, query: JobListQuery) -> JobListView:
        self.asked.append(query)
        after = int(query.after or len(self._jobs) + 1)
        rest = [each for each in self._jobs if int(each.id) < after]
        shown = rest[: query.limit]
        following = shown[-1].id if len(rest) > len(shown) else None
        return JobListView(jobs=shown, total=len(self._jobs), limit=query.limit, next=following)


@pytest.mark.parametrize(
    ("limit", "limits"),
    [(50, [50]), (LIST_MAX, [LIST_MAX]), (LIST_MAX + 1, [LIST_MAX, 1]), (None, [LIST_MAX] * 3)],
)
def test_no_more_is_asked_for_than_is_wanted_and_no_page_is_longer_than_the_server_gives(
    limit: int | None, limits: list[int]
) -> None:
    server = Server(2_500)
    page = gather(server, {"name": "train"}, limit)  # type: ignore[arg-type]  # as far as it is used
    assert [query.limit for query in server.asked] == limits
    assert {query.name for query in server.asked} == {"train"}
    wanted = limit or 2_500
    assert [each.id for each in page.jobs] == [str(2_500 - place) for place in range(wanted)]
    assert page.total == 2_500
    assert page.next == (str(2_501 - wanted) if wanted < 2_500 else None)


def test_an_empty_cluster_is_one_empty_page() -> None:
    server = Server(0)
    page = gather(server, {}, None)  # type: ignore[arg-type]  # as far as it is used
    assert (page.jobs, page.total, page.next, len(server.asked)) == ([], 0, None, 1)
