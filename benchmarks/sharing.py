"""What has a cluster that a department shares, beside one person's?

A token with each request, class pools with guarantees, and a tree of tenants in which the benchmark's own has every
limit but those of memory, of which each job would have to say how much it needs. None binds: what is measured is what
it costs to look. Every benchmark of a control plane has all of it, unless it is told `--alone`.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from stoker.brain.domain.access import Role
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.quota import Limits, Quota
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import DAY_MS
from stoker.cli.wiring.token_store import FolderTokens
from stoker.wire.client import Client
from stoker.wire.rest.quota import QuotaBody
from stoker.wire.rest.tenant import NewTenantBody
from stoker.wire.rest.token import NewTokenBody

TOP: Final = TenantName("department")
TEAM: Final = TenantName("team-1")
"""The benchmark's own."""
TEAMS: Final = 8
GUARANTEED: Final = 64
"""GPUs of each team: some jobs run under a guarantee, others on what is borrowed."""
FAR: Final = 1_000_000_000
"""A limit that is looked at and never met."""


class Access(NamedTuple):
    """The texts of tokens; empty = none is sent."""

    admin: str = ""
    agent: str = ""
    user: str = ""

    @property
    def asking(self) -> str:
        """Of whoever is measured."""
        return self.user or self.admin

    @property
    def header(self) -> str:
        """The line that sends it."""
        return f"Authorization: Bearer {self.asking}\r\n" if self.asking else ""


NOBODY: Final = Access()


def alone_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--alone", action="store_true", help="without tenants, guarantees and a user's token")


def tree() -> Iterator[Tenant]:
    """Each after the one that it is beneath."""
    limits = Limits(gpus=FAR, cpus=FAR, jobs=FAR, pending=FAR, time_ms=30 * DAY_MS)
    yield Tenant(name=TOP, quota=Quota(guaranteed=TEAMS * GUARANTEED, limits=limits))
    for number in range(1, TEAMS + 1):
        quota = Quota(guaranteed=GUARANTEED, limits=limits)
        yield Tenant(name=TenantName(f"team-{number}"), parent=TOP, quota=quota)


def share(url: str, admin: str = "", ca_file: str = "") -> str:
    """Make the tenants of a control plane that serves; the text of a user's token in the benchmark's own."""
    with Client(url, token=admin, ca_file=ca_file) as client:
        for tenant in tree():
            client.create_tenant(_body(tenant))
        return client.create_token(NewTokenBody(role=Role.USER, tenant=TEAM)).token


def make_alone(url: str, admin: str = "", ca_file: str = "") -> None:
    """No guarantees of the class pools either."""
    with Client(url, token=admin, ca_file=ca_file) as client:
        client.set_quota(QuotaBody(online_percent=0.0, batch_percent=0.0))


def _body(tenant: Tenant) -> NewTenantBody:
    limits = tenant.quota.limits
    return NewTenantBody(
        name=tenant.name,
        parent=tenant.parent or None,
        guaranteed_gpus=tenant.quota.guaranteed,
        max_gpus=limits.gpus,
        max_cpu_cores=limits.cpus,
        max_concurrent_jobs=limits.jobs,
        max_pending_jobs=limits.pending,
        max_runtime_minutes=30 * 24 * 60,
    )


def first_tokens(data_dir: Path) -> Access:
    """An admin's and an agent's, made in the folder of a control plane that never ran."""
    tokens = FolderTokens(data_dir)
    texts = [tokens.create_token(NewTokenBody(role=role)).token for role in (Role.ADMIN, Role.AGENT)]
    return Access(*texts)


def kept(folder: Path) -> Access | None:
    """What `keep` left, for a control plane that starts once more."""
    path = _path(folder)
    return Access(*path.read_text().split("\n")) if path.exists() else None


def keep(folder: Path, access: Access) -> None:
    with open(os.open(_path(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("\n".join(access))


def _path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.tokens")
