"""The two clients have the same methods, each says once what it does, and a method has the name of its endpoint."""

import inspect
import subprocess
import sys

import pytest

from stoker.wire.client import AsyncClient, Client
from stoker.wire.endpoints import ENDPOINTS

CALLS = {"close", "server", "patience_s", "submit_many", "submit_array", "members", "each_job", "wait", "wait_all"}
CALLS |= {"follow_logs", "root"}
"""Methods that ask in their own way what another method asks, or ask nothing."""
UNASKED = {"submit_task", "cancel_task", "backup", "control", "promote", "events", "root_health", "ready"}
UNASKED |= {"metrics", "errors", "forward", "exec", "attach"}
"""Endpoints that the clients have no method for."""


def methods(kind: type) -> dict[str, object]:
    return {name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_")}


def test_both_clients_have_the_same_methods() -> None:
    assert methods(Client).keys() == methods(AsyncClient).keys()


@pytest.mark.parametrize("name", sorted(methods(Client)))
def test_a_method_takes_the_same_in_both_clients_and_answers_the_same(name: str) -> None:
    one, other = methods(Client)[name], methods(AsyncClient)[name]
    if isinstance(one, property):
        assert isinstance(other, property)
        return
    assert callable(one)
    assert callable(other)
    said, said_too = inspect.signature(one), inspect.signature(other)
    assert said.parameters == said_too.parameters
    assert str(said.return_annotation).replace("Iterator", "AsyncIterator") in (
        str(said_too.return_annotation),
        str(said_too.return_annotation).replace("AsyncAsync", "Async"),
    )


@pytest.mark.parametrize("name", sorted(methods(Client)))
def test_every_method_says_what_it_does(name: str) -> None:
    assert inspect.getdoc(methods(Client)[name])
    assert inspect.getdoc(methods(AsyncClient)[name])


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_method_shows_its_name_its_parameters_and_its_answer(kind: type) -> None:
    shown = {name: member for name, member in methods(kind).items() if inspect.isroutine(member)}
    assert shown["submit"].__name__ == "submit"
    assert str(inspect.signature(shown["submit"])) == "(self, job: 'JobBody', *, key: 'str' = '') -> 'JobView'"
    assert str(inspect.signature(shown["nodes"])) == "(self) -> 'list[NodeView]'"


def test_every_endpoint_has_a_method_of_its_name_or_is_known_to_have_none() -> None:
    assert methods(Client).keys() - CALLS == ENDPOINTS.keys() - UNASKED


@pytest.mark.parametrize(
    ("client", "loaded"),
    [("Client", set()), ("AsyncClient", {"asyncio"})],
)
def test_a_client_loads_no_library_but_msgspec_and_the_blocking_one_no_event_loop(
    client: str, loaded: set[str]
) -> None:
    program = f"import sys; from stoker.wire.client import {client}; {client}(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert modules & {"asyncio", "http.client", "email"} == loaded
    third_party = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names
    assert third_party <= {"stoker", "msgspec", "typing_extensions", "__main__", "_distutils_hack", "sitecustomize"}
