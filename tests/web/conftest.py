"""People who look at the pages of a control plane without sockets."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.http.people import People, people_in
from tests.api.http.plane import Plane, plane_in


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    async with plane_in(tmp_path) as made:
        made.with_pages()
        yield made


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[People]:
    """One that wants tokens, and people who have some."""
    async with people_in(tmp_path) as made:
        made.plane.with_pages()
        yield made
