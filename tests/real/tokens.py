"""Tokens for a control plane of a test's own: made in this process, in its data folder, before it starts."""

import os
from pathlib import Path
from typing import Final, NamedTuple

ADMIN_FILE: Final = "admin"
AGENT_FILE: Final = "agent"


class Tokens(NamedTuple):
    """They lie beside the data folder, so that a second process of the same test finds them too."""

    admin: str
    agent_file: Path


def tokens_of(folder: Path) -> Tokens:
    """Made the first time that anybody asks; until then nothing may run on `folder`."""
    kept = folder.parent / f"{folder.name}.tokens"
    if not kept.exists():
        kept.mkdir(parents=True, mode=0o700)
        for name, role in ((ADMIN_FILE, "admin"), (AGENT_FILE, "agent")):
            _write(kept / name, token_in(folder, role))
    return Tokens((kept / ADMIN_FILE).read_text().strip(), kept / AGENT_FILE)


def token_in(folder: Path, role: str) -> str:
    """The text of a new token of a control plane that doesn't run; as `stoker token create --data-dir` makes it."""
    return f"stoker_none_{role}_{folder.name}"


def _write(path: Path, text: str) -> None:
    """As an agent wants it: readable by nobody else."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
