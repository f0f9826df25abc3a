"""Shapes of REST requests and responses, one module per noun.

They convert between text and the brain's nouns. Whether a command is allowed is decided elsewhere. A module is imported
when its name is first used, since a command needs few of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker.wire.rest import audit as audit
    from stoker.wire.rest import cluster as cluster
    from stoker.wire.rest import decode as decode
    from stoker.wire.rest import event as event
    from stoker.wire.rest import exec_session as exec_session
    from stoker.wire.rest import forward as forward
    from stoker.wire.rest import job as job
    from stoker.wire.rest import log as log
    from stoker.wire.rest import node as node
    from stoker.wire.rest import partition as partition
    from stoker.wire.rest import quota as quota
    from stoker.wire.rest import secret as secret
    from stoker.wire.rest import submit as submit
    from stoker.wire.rest import task as task
    from stoker.wire.rest import tenant as tenant
    from stoker.wire.rest import token as token
    from stoker.wire.rest import usage as usage
    from stoker.wire.rest import why as why
else:

    def __getattr__(name: str) -> object:
        """Import a module of this package on first use."""
        full = f"{__name__}.{name}"
        try:
            return import_module(full)
        except ModuleNotFoundError as fault:
            if fault.name != full:
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
