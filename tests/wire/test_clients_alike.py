"""The two clients have the same methods, and each says once what it does."""

import inspect

import pytest

from stoker.wire.client.async_client import AsyncClient
from stoker.wire.client.sync_client import Client


def methods(kind: type) -> dict[str, object]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


def test_both_clients_have_the_same_methods() -> None:
    assert methods(Client).keys() == methods(AsyncClient).keys()


@pytest.mark.parametrize("name", sorted(methods(Client)))
def test_a_method_takes_the_same_in_both_clients_and_answers_the_same(name: str) -> None:
    one, other = vars(Client)[name], vars(AsyncClient)[name]
    if isinstance(one, property):
        assert isinstance(other, property)
        return
    said, said_too = inspect.signature(one), inspect.signature(other)
    assert said.parameters == said_too.parameters
    assert str(said.return_annotation).replace("Iterator", "AsyncIterator") in (
        str(said_too.return_annotation),
        str(said_too.return_annotation).replace("AsyncAsync", "Async"),
    )


@pytest.mark.parametrize("name", sorted(methods(Client)))
def test_every_method_says_what_it_does(name: str) -> None:
    assert inspect.getdoc(vars(Client)[name])
