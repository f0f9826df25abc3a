"""The table of endpoints and the routes of the application are the same, and the document names the table's shapes."""

import subprocess
import sys
from typing import Any, get_args

import msgspec
import pytest

from stoker.brain.state.commands import JobOperation
from stoker.wire.endpoints import ENDPOINTS, JSON, KEY_HEADER, Endpoint
from tests.api.http.plane import Plane

Operation = dict[str, Any]

SERVED: dict[tuple[str, str], Operation] = {}
"""What `operations` was answered first: it takes longer to make than most tests, and follows from the code alone."""


async def operations(plane: Plane) -> dict[tuple[str, str], Operation]:
    """Every operation of the served document, by method and path."""
    if not SERVED:
        paths = (await plane.get("/openapi.json")).json["paths"]
        SERVED.update(
            {(method.upper(), path): said for path, methods in paths.items() for method, said in methods.items()}
        )
    return SERVED


def shape_names(content: dict[str, Any]) -> list[str]:
    """Names of the shapes that JSON content may have."""
    schema = content[JSON]["schema"]
    return [each["$ref"].rpartition("/")[2] for each in schema.get("anyOf", [schema])]


def names_of(shapes: tuple[type, ...]) -> list[str]:
    return [each.__name__ for each in shapes]


async def test_every_route_has_a_row_and_every_row_a_route(plane: Plane) -> None:
    assert set(await operations(plane)) == {(row.method, row.path) for row in ENDPOINTS.values()}
    assert len(ENDPOINTS) == len({(row.method, row.path) for row in ENDPOINTS.values()})


def test_every_operation_on_jobs_has_a_row_with_the_name_of_its_action_and_every_such_row_a_command() -> None:
    """The route follows from the two."""
    assert {name for name, row in ENDPOINTS.items() if row.job_operation} == {
        kind.row.action for kind in get_args(JobOperation)
    }


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ENDPOINTS.items()])
async def test_a_route_takes_and_gives_what_its_row_says(plane: Plane, row: Endpoint[object]) -> None:
    said = (await operations(plane))[row.method, row.path]
    parameters = {(each["in"], each["name"]) for each in said["parameters"]}
    query = (
        set() if row.query is None else {("query", each.encode_name) for each in msgspec.structs.fields(row.query())}
    )
    path = {("path", part[1:-1]) for part in row.path.split("/") if part.startswith("{")}
    key = {("header", KEY_HEADER)} if row.keyed else set()
    assert parameters == query | path | key
    body = said.get("requestBody")
    assert (shape_names(body["content"]) if body else []) == names_of(row.bodies)
    (success,) = (status for status in said["responses"] if status < "300")
    content = said["responses"][success]["content"]
    assert (success, list(content)) == (str(row.status), [row.media_type])
    if row.media_type == JSON:
        assert shape_names(content) == names_of(row.answers)
    else:
        assert row.answers == (bytes,)


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in ENDPOINTS.items() if row.query])
async def test_a_route_whose_row_names_a_query_refuses_a_parameter_that_is_not_in_it(
    plane: Plane, row: Endpoint[object]
) -> None:
    assert "unknown_parameter" in str((await operations(plane))[row.method, row.path]["responses"]["400"])


def test_the_table_loads_no_shape_and_no_library() -> None:
    """A command loads the shapes of the endpoints that it calls."""
    program = "import sys; import stoker.wire.endpoints; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"msgspec", "stoker.wire.rest.job", "asyncio"} & set(done.stdout.split())
