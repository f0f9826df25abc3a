"""Access of `stoker token` to tokens: a server, or the data folder of a running or stopped one.

Rules: D1  without a data folder the server is asked, as by every other command
       D2  a control plane that runs on the data folder is asked over its socket there, which only its own account and
           root can open: no token is wanted
       D3  one that is stopped, or was never started, has its log opened under the lock that it would hold itself
       D4  root acts as the owner of the folder, so that a control plane that isn't root can read what was written
       D5  while a control plane starts or ends, it holds the folder and has no socket yet, or no longer: that is waited
           out for a few seconds
       D6  where it is one of several, a stopped one is left alone: the others may have gone on without it
       D7  so is one whose log is in a database: the folder doesn't say which, since its address may hold a password
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from stoker.adapters.clock import SystemClock
from stoker.adapters.data_folder.marks import ELSEWHERE_NAME, STORE_NAME, member_in
from stoker.adapters.data_folder.ownership import hold_folder, unusable
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.log_store import log_at
from stoker.adapters.logs import StructuredTelemetry
from stoker.brain.domain.access import OWNER, TokenId
from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.state.commands import CreateToken, RevokeToken
from stoker.cli.clock import sleep_blocking
from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts
from stoker.control.snapshots import writing
from stoker.live.main import as_refusals
from stoker.ports import EventLog
from stoker.wire.client.clients import SocketClient
from stoker.wire.client.trust import fingerprint_of
from stoker.wire.local_socket import SOCKET_NAME, is_served
from stoker.wire.rest.token import (
    NewTokenBody,
    NewTokenView,
    TokenListView,
    TokenView,
    listed,
    new_token_view,
    token_of,
    token_view,
)
from stoker.wire.token import fresh_token, id_of, with_fingerprint

HELD_TRIES: Final = 20
HELD_PAUSE_S: Final = 0.25
_UP_FOLDER: Final = "control"
"""Where `stoker up` has its control plane's folder within its own."""

Answer = TypeVar("Answer")


class FolderTokens:
    """Tokens of the control plane whose data folder this is, which is asked anew each time: D2 or D3.

    Each method raises StokerError `data_dir_unusable`, `data_dir_held`, `store_moved`, `store_too_new`, `log_damaged`
    or `log_failed` beside what a control plane refuses with.
    """

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir.absolute()

    def create_token(self, body: NewTokenBody) -> NewTokenView:
        return self._ask(lambda tokens: tokens.create_token(body))

    def tokens(self) -> TokenListView:
        return self._ask(lambda tokens: tokens.tokens())

    def revoke_token(self, token_id: str) -> TokenView:
        return self._ask(lambda tokens: tokens.revoke_token(token_id))

    def _ask(self, ask: Callable[["StoppedTokens | SocketClient"], Answer]) -> Answer:
        hint = "another program uses that folder: stop it, or name the data_dir of a control plane"
        return once_free(self._folder, lambda: self._ask_now(ask), hint)

    def _ask_now(self, ask: Callable[["StoppedTokens | SocketClient"], Answer]) -> Answer:
        if not is_served(self._folder / SOCKET_NAME):
            must_have_its_log(self._folder)
            return ask(StoppedTokens(self._folder))
        with SocketClient(self._folder / SOCKET_NAME) as client:
            return ask(client)


def once_free(folder: Path, work: Callable[[], Answer], hint: str = "") -> Answer:
    """Do `work` in a data folder, waiting while a control plane starts or ends there (D5).

    Raises: as `work` does; in the end `data_dir_held`, with `hint` in place of its own.
    """
    must_be_control(folder)
    for left in reversed(range(HELD_TRIES)):
        try:
            return work()
        except StokerError as fault:
            if fault.refusal.code != "data_dir_held":
                raise
            if not left:
                raise StokerError(replace(fault.refusal, hint=hint or fault.refusal.hint)) from fault
        sleep_blocking(HELD_PAUSE_S)
    raise AssertionError("unreachable: the last try returns or raises")


@asynccontextmanager
async def log_of_stopped(folder: Path, store_url: str = "") -> AsyncIterator[tuple[EventLog, ControlPorts]]:
    """Yield the log of a control plane that doesn't run, to be opened, with the ports to use it with; close it."""
    clock = SystemClock()
    # Standard output is the command's: what the log has to say of itself, the control plane says at its start.
    ports = ControlPorts(clock=clock, entropy=SystemEntropy(), telemetry=StructuredTelemetry(clock, level="error"))
    log = log_at(folder, store_url, clock, ports.entropy, ports.telemetry)
    try:
        yield log, ports
    finally:
        await log.close()


def act_as_owner(folder: Path) -> None:
    """D4. For the rest of this process."""
    try:
        status = folder.stat()
        if os.geteuid() == 0 and status.st_uid != 0:
            os.setegid(status.st_gid)
            os.seteuid(status.st_uid)
    except FileNotFoundError:
        return
    except OSError as fault:
        raise unusable(folder, fault) from fault


@contextmanager
def as_owner(folder: Path) -> Iterator[None]:
    """Open the tokens for as long as the block lasts."""
    who, group = os.geteuid(), os.getegid()
    act_as_owner(folder)
    try:
        yield
    finally:
        if os.geteuid() != who:
            os.seteuid(who)
            os.setegid(group)


class StoppedTokens:
    """Tokens of a control plane that doesn't run, read and changed in its data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create_token(self, body: NewTokenBody) -> NewTokenView:
        self._must_be_alone()

        async def create(committer: Committer) -> NewTokenView:
            text = fresh_token(SystemEntropy(), committer.state.tokens)
            token = token_of(body, text, committer.now())
            await committer.ask(CreateToken(by=OWNER.principal, token=token))
            whole = with_fingerprint(text, fingerprint_beside(self._folder))
            return new_token_view(committer.state.tokens[id_of(text)], whole)

        return self._with_writer(create)

    def tokens(self) -> TokenListView:
        async def look(committer: Committer) -> TokenListView:
            return listed(committer.state.tokens, committer.now())

        is_there = (self._folder / STORE_NAME).exists()
        return self._with_writer(look) if is_there else TokenListView(tokens=[], total=0)

    def revoke_token(self, token_id: str) -> TokenView:
        async def revoke(committer: Committer) -> TokenView:
            token = committer.state.tokens.get(TokenId(token_id))
            await committer.ask(RevokeToken(by=OWNER.principal, id=TokenId(token_id)))
            assert token is not None, "the writer would have refused"
            return token_view(token)

        must_have_store(self._folder)
        self._must_be_alone()
        return self._with_writer(revoke)

    def _must_be_alone(self) -> None:
        """Refuse a stopped control plane of several, for others may have gone on without it (D6)."""
        name = member_in(self._folder)
        if name:
            message = f"{self._folder} is the data folder of control plane {name}, one of several, which doesn't run"
            hint = "ask the active one: with --server, or with --data-dir on its own machine"
            raise StokerError(refuse("not_active", message, hint, active=""))

    def _with_writer(self, work: Callable[[Committer], Awaitable[Answer]]) -> Answer:
        async def write() -> Answer:
            async with log_of_stopped(self._folder) as (log, ports):
                await log.open()
                async with writing(log, ports) as committer:
                    return await work(committer)

        with as_refusals():
            return asyncio.run(write())


_OR_CONFIG: Final = "For a backup, name its settings file by -c instead, with store.url in it or in the environment"


def fingerprint_beside(folder: Path) -> str:
    """Return the fingerprint of the authority that a control plane has made in its data folder; empty = none."""
    try:
        text = (folder / "ca" / "ca.crt").read_text("ascii")
    except (OSError, ValueError):
        return ""
    newest, found, _ = text.partition("-----END CERTIFICATE-----")
    return fingerprint_of(ssl.PEM_cert_to_DER_cert(newest + found)) if found else ""


def must_have_its_log(folder: Path) -> None:
    """D7, where no socket is. Raises: StokerError `store_moved`; `data_dir_held` while it starts or ends."""
    if (folder / ELSEWHERE_NAME).exists():
        hold_folder(folder).release()
        message = f"the log of {folder} is in PostgreSQL, and its control plane doesn't run"
        raise StokerError(refuse("store_moved", message, f"start it, and ask again: it answers then. {_OR_CONFIG}"))


def must_have_store(folder: Path) -> None:
    """Raises: StokerError `data_dir_unusable`."""
    if not any((folder / name).exists() for name in (STORE_NAME, ELSEWHERE_NAME)):
        message = f"{folder} holds no control plane's store"
        raise StokerError(refuse("data_dir_unusable", message, "name the data_dir of its control.yaml"))


def must_be_control(folder: Path) -> None:
    """A person who named the folder of `stoker up` meant the one within."""
    within = folder / _UP_FOLDER
    if not (folder / STORE_NAME).exists() and (within / STORE_NAME).exists():
        message = f"{folder} is the data folder of a `stoker up`, whose control plane has its own within"
        raise StokerError(refuse("data_dir_unusable", message, f"name {within}", path=str(folder)))
