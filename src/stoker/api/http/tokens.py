"""REST routes for tokens: make, list, revoke, for admins only, as the table of roles says; and one that shows who asks.

The text of a token is in one answer, that to the request that made it, which no cache may keep.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from stoker.api.http.responses import caller_of, carry_out, json_response, read_body
from stoker.api.http.routing import BODY, CHANGE, Routes
from stoker.brain.domain.access import TokenId
from stoker.brain.state.commands import CreateToken, RevokeToken
from stoker.control.control_plane import ControlPlane
from stoker.wire import endpoints
from stoker.wire.rest.token import (
    CallerView,
    NewTokenBody,
    TokenListView,
    TokenView,
    caller_view,
    listed,
    new_token_view,
    token_of,
    token_view,
)
from stoker.wire.token import fresh_token, with_fingerprint

_MADE: Final = ("bad_token", "bad_user", "unknown_tenant", "text_too_long", "too_many_tokens", *BODY, *CHANGE)
_UNKEPT: Final = {"Cache-Control": "no-store"}


def routes(control: ControlPlane) -> Routes:
    router = Routes()
    tokens = control.committer.state.tokens

    @router.serve(endpoints.TOKENS)
    async def list_tokens(request: Request) -> TokenListView:
        """List every token that holds, the oldest first, without their texts."""
        return listed(tokens, control.committer.now())

    @router.serve(endpoints.CREATE_TOKEN, *_MADE)
    async def create_token(request: Request) -> Response:
        """Make a token. The answer has its text, which isn't shown again."""
        body = await read_body(request, NewTokenBody)
        text = fresh_token(control.entropy, tokens)
        token = token_of(body, text, control.committer.now())
        await carry_out(control, request, CreateToken(by=caller_of(request).principal, token=token))
        whole = with_fingerprint(text, control.access.fingerprint())
        return json_response(new_token_view(tokens[token.id], whole), 201, _UNKEPT)

    @router.serve(endpoints.WHOAMI)
    async def whoami(request: Request) -> CallerView:
        """Show who asks: the principal, and what the token allows."""
        return caller_view(caller_of(request))

    @router.serve(endpoints.REVOKE_TOKEN, "token_not_found", *CHANGE)
    async def revoke_token(request: Request) -> TokenView:
        """Revoke a token. Whoever uses it is refused from now on, also on streams that are open."""
        name = TokenId(request.path_params["id"])
        known = tokens.get(name)
        await carry_out(control, request, RevokeToken(by=caller_of(request).principal, id=name))
        assert known is not None, "the writer would have refused"
        return token_view(known)

    return router
