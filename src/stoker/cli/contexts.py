"""Named clusters of a person: where each one's settings are, and which of them commands ask.

The folder of the person's settings, `$XDG_CONFIG_HOME/stoker` or `~/.config/stoker`, has `config.yaml`, which is the
context `default`, `contexts/NAME.yaml` for each other one, with the same keys, and `context`, the name of the present
one.

Rules: X1  `--context` on the command line is nearer than STOKER_CONTEXT, and that than the present context; without any
           of them it is `default`, which is always there
       X2  a name that is none of a context's is refused, with the nearest names; nothing is asked then
       X3  only the file of the chosen context is read: what is wrong with another one's stops nothing
"""

import os
import re
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from stoker.brain.domain.errors import StokerError

DEFAULT: Final = "default"
VARIABLE: Final = "STOKER_CONTEXT"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
"""Also the name of a file."""
_KEY: Final = "stoker.context"
_SPOKEN: Final = "stoker.context.spoken"
_ENDING: Final = ".yaml"
_PRESENT: Final = "context"
_BYTES_MAX: Final = 1_024


def remember_context(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    """Keep the value of `--context` for this command, or that of its variable."""
    spoken = ctx.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
    if value and (spoken or _KEY not in ctx.meta):
        ctx.meta[_KEY] = value
    if value and spoken:
        ctx.meta[_SPOKEN] = True


def context_was_spoken(ctx: click.Context) -> bool:
    """Return whether `--context` stands on the command line, and not only in the environment."""
    return _SPOKEN in ctx.meta


def chosen_context(ctx: click.Context) -> str:
    """Return the name of the context of this command, which may not be there (X1).

    Raises: StokerError `context_unknown` for what can't be a name, `bad_settings`.
    """
    name: str = ctx.meta.get(_KEY) or present_context()
    if not NAME.fullmatch(name):
        raise unknown(name)
    return name


def present_context() -> str:
    """Return the name of the present context. Raises: StokerError `bad_settings`."""
    path = os.path.join(config_folder(), _PRESENT)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_BYTES_MAX).strip() or DEFAULT
    except (FileNotFoundError, NotADirectoryError):
        return DEFAULT
    except OSError as fault:
        from stoker.brain.domain.errors import refusal_error

        hint = "mend or remove it; `stoker context use NAME` writes it anew, and --context names one for a command"
        raise refusal_error("bad_settings", f"{path} can't be read: {fault.strerror}", hint) from fault


def present_path() -> str:
    """Return the path of the file that names the present context."""
    return os.path.join(config_folder(), _PRESENT)


def config_folder() -> str:
    """Return the folder of the person's own settings, whether it is there or not."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    # The specification says that a relative one is to be ignored.
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.config"), "stoker")


def settings_path(name: str) -> str:
    """Return the path of the settings of a context, whether they are there or not."""
    assert NAME.fullmatch(name), f"{name!r} is no name of a context"
    if name == DEFAULT:
        return os.path.join(config_folder(), "config.yaml")
    return os.path.join(config_folder(), "contexts", name + _ENDING)


def context_names() -> list[str]:
    """Return the names of all contexts: `default` first, then by name."""
    try:
        files = os.listdir(os.path.join(config_folder(), "contexts"))
    except OSError:
        files = []
    names = sorted(file.removesuffix(_ENDING) for file in files if file.endswith(_ENDING))
    return [DEFAULT, *(name for name in names if NAME.fullmatch(name) and name != DEFAULT)]


def unknown(name: str) -> "StokerError":
    """Return the refusal of a name that is none of a context's (X2)."""
    from difflib import get_close_matches

    from stoker.brain.domain.errors import refusal_error

    names = context_names()
    near = get_close_matches(name, names, n=3)
    known = f"is it {' or '.join(near)}?" if near else f"there are {', '.join(names[:20])};"
    hint = f"{known} `stoker context add NAME URL` adds one"
    return refusal_error("context_unknown", f"there is no context {name[:80]!r}", hint, context=name[:80])
