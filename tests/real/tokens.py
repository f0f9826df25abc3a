"""Tokens for a control plane of a test's own: made in this process, in its data folder, before it starts."""

import asyncio
import io
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from stoker.adapters.clock import SystemClock
from stoker.adapters.entropy import SystemEntropy
from stoker.adapters.history_sql import SqliteHistory
from stoker.adapters.log_sqlite import SqliteLog
from stoker.adapters.logs import StructuredTelemetry
from stoker.brain.domain.access import LOCAL, Role, Token
from stoker.brain.state.commands import CreateToken
from stoker.live.control import active, recover_control
from stoker.live.settings import ControlSettings
from stoker.live.world import World
from stoker.wire.token import digest_of, fresh_token, id_of

_KEPT: Final = {"admin": Role.ADMIN, "agent": Role.AGENT}


class Tokens(NamedTuple):
    """They lie beside the data folder, so that a second process of the same test finds them too."""

    admin: str
    agent_file: Path


def tokens_of(folder: Path) -> Tokens:
    """Made the first time that anybody asks; until then nothing may run on `folder`."""
    kept = folder.parent / f"{folder.name}.tokens"
    if not kept.exists():
        texts = made_in(folder, list(_KEPT.values()))
        kept.mkdir(parents=True, mode=0o700)
        for name, text in zip(_KEPT, texts, strict=True):
            _write(kept / name, text)
    return Tokens((kept / "admin").read_text().strip(), kept / "agent")


def made_in(folder: Path, roles: Sequence[Role]) -> list[str]:
    """The texts of new tokens of a control plane that doesn't run, as `stoker token create --data-dir` makes them.

    In a thread of its own, because some who ask have an event loop already.
    """
    texts: list[str] = []
    thread = threading.Thread(target=lambda: texts.extend(asyncio.run(_made(folder, roles))))
    thread.start()
    thread.join()
    assert len(texts) == len(roles), f"no tokens could be made in {folder}"
    return texts


async def _made(folder: Path, roles: Sequence[Role]) -> list[str]:
    clock, entropy = SystemClock(), SystemEntropy()
    world = World(clock=clock, entropy=entropy, telemetry=StructuredTelemetry(clock, stream=io.BytesIO()))
    log, history = SqliteLog(folder), SqliteHistory(folder)
    try:
        await log.open()
        control = await recover_control(ControlSettings(data_dir=folder), log, history, world)
        async with active(control):
            texts = [fresh_token(entropy) for _ in roles]
            for text, role in zip(texts, roles, strict=True):
                token = Token(id=id_of(text), digest=digest_of(text), role=role)
                await control.committer.ask(CreateToken(by=LOCAL, token=token))
        return texts
    finally:
        await history.close()
        await log.close()


def _write(path: Path, text: str) -> None:
    """As an agent wants it: readable by nobody else."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
