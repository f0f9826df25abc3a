"""Tokens for a control plane of a test's own, made in this process before it starts: a Python less to wait for.

They are made by what `stoker token create --data-dir` calls.
"""

import os
import threading
from pathlib import Path
from typing import Final, NamedTuple

from stoker.brain.domain.access import Role
from stoker.cli.wiring.token_store import FolderTokens
from stoker.wire.rest.token import NewTokenBody

_KEPT: Final = {"admin": Role.ADMIN, "agent": Role.AGENT}


class Tokens(NamedTuple):
    """They lie beside the data folder, so that a second process of the same test finds them too."""

    admin: str
    agent_file: Path


def tokens_of(folder: Path) -> Tokens:
    """Made the first time that anybody asks."""
    kept = folder.parent / f"{folder.name}.tokens"
    if not kept.exists():
        texts = [token_in(folder, NewTokenBody(role=role)) for role in _KEPT.values()]
        kept.mkdir(mode=0o700)
        for name, text in zip(_KEPT, texts, strict=True):
            written(kept / name, text)
    return Tokens((kept / "admin").read_text().strip(), kept / "agent")


def token_in(folder: Path, body: NewTokenBody) -> str:
    """The text of a new token of the control plane of this data folder, whether it runs or not.

    In a thread of its own, because some who ask have an event loop already.
    """
    texts: list[str] = []

    def make() -> None:
        tokens = FolderTokens(folder)
        texts.append(tokens.create_token(body).token)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert texts, f"no token could be made in {folder}"
    return texts[0]


def written(path: Path, text: str) -> Path:
    """A file with a token as an agent wants it: readable by nobody else."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
    return path
