"""Changes of the named clusters of a person.

Rules: C1  what changes is written under the lock of the folder, each file whole or not at all
Limits: CONTEXTS_MAX contexts beside `default`.
"""

from pathlib import Path
from typing import Final

from stoker.brain.domain.errors import refusal_error
from stoker.cli.contexts import (
    DEFAULT,
    config_folder,
    context_names,
    present_context,
    present_path,
    settings_path,
    unknown,
)
from stoker.cli.wiring.settings import (
    UserSettings,
    forget_user_settings,
    settings_lock,
    write_present,
    write_user_settings,
)
from stoker.wire.client.servers import parsed_servers

CONTEXTS_MAX: Final = 100


def add_context(name: str, servers: str, token: str, ca: bytes, *, use: bool) -> None:
    """Add a context; `ca` is PEM. Raises: StokerError `context_exists`, `bad_server` or `config_unwritable`."""
    parsed_servers(servers)
    path = Path(settings_path(name))
    with settings_lock(Path(config_folder())):
        if name == DEFAULT or path.exists():
            hint = f"`stoker login {servers} --context {name}` changes it"
            raise refusal_error("context_exists", f"there is a context {name!r} already", hint, context=name)
        if len(context_names()) > CONTEXTS_MAX:
            message = f"there are {CONTEXTS_MAX} contexts, and no more can be added"
            raise refusal_error("too_many_contexts", message, "remove some: `stoker context remove NAME`")
        write_user_settings(path, UserSettings(server=servers, token=token), ca)
        if use:
            write_present(Path(present_path()), name)


def use_context(name: str) -> None:
    """Make a context the present one. Raises: StokerError `context_unknown` or `config_unwritable`."""
    with settings_lock(Path(config_folder())):
        _must_exist(name)
        write_present(Path(present_path()), name)


def remove_context(name: str) -> bool:
    """Remove a context; return whether it was the present one, whose place `default` takes.

    Raises: StokerError `context_unknown` or `config_unwritable`.
    """
    assert name != DEFAULT, "it is always there"
    with settings_lock(Path(config_folder())):
        _must_exist(name)
        was_present = present_context() == name
        if was_present:
            write_present(Path(present_path()), DEFAULT)
        forget_user_settings(Path(settings_path(name)))
    return was_present


def _must_exist(name: str) -> None:
    if name not in context_names():
        raise unknown(name)
