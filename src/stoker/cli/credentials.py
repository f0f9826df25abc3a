"""Token that a command sends, the authority that it trusts, and the server that a person's own file names.

The person's own file is that of the chosen context (`contexts`): it has the keys `server`, `token`, `ca` and
`insecure`; `stoker login` writes it.

Rules: W1  what stands on the command line is nearer than STOKER_TOKEN, which is nearer than the file; the file of a
           context that the command line names is nearer than STOKER_TOKEN
       W2  a token that stood on the command line is overwritten there at once, so that `ps` shows it to nobody for
           longer than a moment
       W3  a file with a token in it that others may read is refused
       W4  the file's token goes to the file's server, and to others only if the file names none; so it is with its `ca`
       W5  no message repeats a token, or what was given for one
"""

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.contexts import DEFAULT, chosen_context, context_was_spoken, settings_path, unknown

if TYPE_CHECKING:
    from stoker.brain.domain.errors import StokerError
    from stoker.cli.wiring.settings import UserSettings
    from stoker.wire.client.trust import Credentials

_TOKEN: Final = "stoker.token"
_FILE: Final = "stoker.token_file"
_KEPT: Final = "stoker.user_settings"
VARIABLE: Final = "STOKER_TOKEN"
INSECURE_VARIABLE: Final = "STOKER_INSECURE"
_BYTES_MAX: Final = 1_024
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_ARGV_AT: Final = (47, 48)
"""Where /proc/self/stat has the bounds of the command line: proc_pid_stat(5), fields 48 and 49."""


def remember_token(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    """Keep the value of `--token` for this command, and hide it from other processes."""
    if value:
        hide(value)
    if value is not None:
        ctx.meta[_TOKEN] = value


def remember_file(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    """Keep the value of `--token-file` for this command."""
    if value is not None:
        ctx.meta[_FILE] = value


def hide(token: str) -> None:
    """Overwrite a token in this process's command line, which is its own memory, so that `ps` shows it no more (W2)."""
    import ctypes

    sought = os.fsencode(token)
    with suppress(OSError, ValueError, IndexError):
        # The second field is a name in parentheses, which may hold anything.
        with open("/proc/self/stat") as about:
            fields = about.read().rpartition(")")[2].split()
        begin, end = (int(fields[at - 2]) for at in _ARGV_AT)
        shown = ctypes.string_at(begin, end - begin)
        if sought in shown:
            ctypes.memmove(begin, shown.replace(sought, b"x" * len(sought)), len(shown))


def server_in_file(ctx: click.Context) -> str:
    """Return the servers that the person's file names; empty = none.

    Raises: StokerError `bad_settings` or `bad_token_file`.
    """
    kept = _kept(ctx)
    return kept.server if kept else ""


def token_for(ctx: click.Context, servers: str) -> str:
    """Return the token to send to these servers; empty = none (W1).

    Raises: StokerError `bad_token`, `bad_token_file`, `bad_settings` or `context_unknown`.
    """
    if typed := typed_token(ctx):
        return typed
    if context_was_spoken(ctx):
        return _kept_token(ctx, servers) or _token_in_environment()
    return _token_in_environment() or _kept_token(ctx, servers)


def _kept_token(ctx: click.Context, servers: str) -> str:
    kept = _kept(ctx)
    if kept is None or not kept.token or not is_among(servers, kept.server):
        return ""
    return _checked(settings_path(chosen_context(ctx)), kept.token)


def _token_in_environment() -> str:
    given = os.environ.get(VARIABLE, "")
    return _checked(VARIABLE, given) if given else ""


def given_token(ctx: click.Context) -> str:
    """Return the token of the command line or of the environment; empty = none. Raises: as `token_for`."""
    return typed_token(ctx) or _token_in_environment()


def typed_token(ctx: click.Context) -> str:
    """Return the token of the command line; empty = none. Raises: as `token_for`."""
    typed, file = ctx.meta.get(_TOKEN), ctx.meta.get(_FILE)
    if typed is not None and file is not None:
        raise click.UsageError("--token and --token-file say the same thing: give one of them", ctx)
    if typed is not None:
        return _checked("--token", typed)
    return token_in(file) if file is not None else ""


def credentials_for(ctx: click.Context, servers: str) -> "Credentials":
    """Return what these servers are shown, and by what they prove who they are.

    Raises: StokerError `bad_token`, `bad_token_file` or `bad_settings`.
    """
    from stoker.wire.client.trust import Credentials

    kept = _kept(ctx)
    ca_file = kept.ca if kept is not None and is_among(servers, kept.server) else ""
    return Credentials(token_for(ctx, servers), ca_file, is_insecure(kept))


def is_insecure(kept: "UserSettings | None") -> bool:
    """Return whether a token may go to any server over plain http."""
    return os.environ.get(INSECURE_VARIABLE, "") == "1" or (kept is not None and kept.insecure)


def _kept(ctx: click.Context) -> "UserSettings | None":
    """Return the settings of the chosen context, read once for each command; None = `default` without a file.

    Raises: StokerError `bad_settings`, `bad_token_file` or `context_unknown`.
    """
    if _KEPT not in ctx.meta:
        ctx.meta[_KEPT] = settings_of(chosen_context(ctx))
    kept: UserSettings | None = ctx.meta[_KEPT]
    return kept


def settings_of(name: str) -> "UserSettings | None":
    """Return the settings of a context; None = it is `default` and has none.

    Raises: StokerError `bad_settings`, `bad_token_file` or `context_unknown`.
    """
    path = settings_path(name)
    try:
        status = os.stat(path)
    except OSError as fault:
        if name != DEFAULT:
            raise unknown(name) from fault
        return None
    from stoker.cli.wiring.settings import read_user_settings

    kept = read_user_settings(path)
    if kept.token:
        _must_be_private(path, status)
    return kept


def is_among(asked: str, kept: str) -> bool:
    """Return whether servers are among those of a file; any are where it names none (W4)."""
    from stoker.wire.client.servers import parsed_servers

    return not kept or set(parsed_servers(asked)) <= set(parsed_servers(kept))


def token_in(path: str) -> str:
    """Return the token in a file. Raises: StokerError `bad_token_file` or `bad_token`."""
    try:
        with open(path, "rb") as file:
            _must_be_private(path, os.fstat(file.fileno()))
            text = file.read(_BYTES_MAX + 1).decode("ascii", "replace").strip()
    except OSError as fault:
        raise _bad_file(path, f"can't be read: {fault.strerror}", "name a file that holds one token") from fault
    if not text:
        raise _bad_file(path, "is empty", "put a token into it, as `stoker token create` prints it")
    return _checked(path, text)


def _must_be_private(path: str, status: os.stat_result) -> None:
    """A file with a token in it that others may read is refused (W3)."""
    if stat.S_ISREG(status.st_mode) and status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise _bad_file(path, f"is open to others than its owner (mode {mode:04o})", f"chmod 600 {path}")


def _bad_file(path: str, what: str, hint: str) -> "StokerError":
    from stoker.brain.domain.errors import StokerError, refuse

    return StokerError(refuse("bad_token_file", f"the token in {path} isn't used: it {what}", hint, path=path))


def _checked(source: str, text: str) -> str:
    """No message repeats a token, or what was given for one (W5)."""
    from stoker.wire.token import is_token

    text = text.strip()
    if is_token(text):
        return text
    from stoker.brain.domain.errors import StokerError, refuse

    raise StokerError(
        refuse(
            "bad_token",
            f"what {source} gives is no token: it has {len(text)} characters",
            "give the whole line that `stoker token create` printed: `stoker_`, an id, and a secret of 43 characters",
            source=source,
        )
    )
