"""What the tests of the audit trail ask of a stage."""

from contextlib import suppress

from stoker.brain.domain.access import Role, Token, TokenId
from stoker.brain.domain.audit import AuditQuery, AuditRow
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import DEFAULT_TENANT, TenantName
from stoker.brain.state.commands import Command
from tests.control.stage import Stage

EVERY = AuditQuery()


async def rows_of(s: Stage, query: AuditQuery = EVERY) -> list[AuditRow]:
    """The oldest first."""
    return (await s.control.history.audit(query, 0, 10_000))[::-1]


def written(s: Stage) -> list[AuditRow]:
    """Those in the store, the oldest first."""
    return [s.disk.archive.audit[key] for key in sorted(s.disk.archive.audit)]


async def told(s: Stage, command: Command) -> list[AuditRow]:
    """The rows that a command leaves, however it ends."""
    before = {row.key for row in await rows_of(s)}
    with suppress(StokerError):
        await s.committer.ask(command)
    return [row for row in await rows_of(s) if row.key not in before]


def token(name: str = "k3j5h7x2", *, tenant: TenantName = DEFAULT_TENANT, digest: str = "") -> Token:
    return Token(id=TokenId(name), digest=digest or f"digest-of-{name}", role=Role.USER, tenant=tenant)
