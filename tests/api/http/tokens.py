"""People with tokens, for a control plane without sockets."""

from stoker.brain.domain.access import Role, Token
from stoker.brain.domain.ids import Principal, TenantName
from stoker.brain.state.commands import CreateToken
from stoker.wire.token import bearer, digest_of, fresh_token, id_of
from tests.api.http.plane import Plane


async def token_of(plane: Plane, role: Role, tenant: str = "") -> dict[str, str]:
    """Headers of somebody with a token."""
    text = fresh_token(plane.control.entropy)
    token = Token(id=id_of(text), digest=digest_of(text), role=role, tenant=TenantName(tenant))
    await plane.control.committer.ask(CreateToken(by=Principal("user:root"), token=token))
    return {"authorization": bearer(text)}
