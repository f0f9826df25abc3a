"""The Python client of the REST interface: one description of the endpoints, a blocking and an asyncio client over it.

The command line and programs use it. It never imports a runtime. The public names below are imported on first use, so
that one part of this package doesn't load all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.brain.domain.errors import StokerError as StokerError
    from stoker.wire.client.calls import LogPart as LogPart
    from stoker.wire.client.clients import AsyncClient as AsyncClient
    from stoker.wire.client.clients import Client as Client
    from stoker.wire.client.follow import LogDecoder as LogDecoder
    from stoker.wire.client.servers import DEFAULT_SERVER as DEFAULT_SERVER
    from stoker.wire.client.staleness import Notice as Notice
    from stoker.wire.client.staleness import Stale as Stale
    from stoker.wire.client.staleness import Waiting as Waiting
    from stoker.wire.rest.forward import ForwardQuery as ForwardQuery
    from stoker.wire.rest.job import JobListQuery as JobListQuery
    from stoker.wire.rest.log import LogQuery as LogQuery
    from stoker.wire.rest.secret import SecretBody as SecretBody
    from stoker.wire.rest.secret import SecretListQuery as SecretListQuery
    from stoker.wire.rest.secret import SecretQuery as SecretQuery
    from stoker.wire.rest.submit import JobBody as JobBody
    from stoker.wire.rest.submit import JobPatch as JobPatch
    from stoker.wire.rest.task import TaskListQuery as TaskListQuery

_MODULE_OF = {
    "DEFAULT_SERVER": "stoker.wire.client.servers",
    "AsyncClient": "stoker.wire.client.clients",
    "Client": "stoker.wire.client.clients",
    "ForwardQuery": "stoker.wire.rest.forward",
    "JobBody": "stoker.wire.rest.submit",
    "JobPatch": "stoker.wire.rest.submit",
    "JobListQuery": "stoker.wire.rest.job",
    "LogDecoder": "stoker.wire.client.follow",
    "LogPart": "stoker.wire.client.calls",
    "LogQuery": "stoker.wire.rest.log",
    "Notice": "stoker.wire.client.staleness",
    "SecretBody": "stoker.wire.rest.secret",
    "SecretListQuery": "stoker.wire.rest.secret",
    "SecretQuery": "stoker.wire.rest.secret",
    "Stale": "stoker.wire.client.staleness",
    "StokerError": "stoker.brain.domain.errors",
    "TaskListQuery": "stoker.wire.rest.task",
    "Waiting": "stoker.wire.client.staleness",
}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
