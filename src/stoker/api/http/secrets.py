"""REST routes for secrets: set, list, delete. No answer has a value, and none is taken from whom others may hear."""

from typing import Final

from starlette.requests import Request

from stoker.api.http.connections import came_by_socket
from stoker.api.http.responses import caller_of, carry_out, query_of, read_body
from stoker.api.http.routing import BODY, CHANGE, QUERY, Routes
from stoker.brain.domain.access import Caller
from stoker.brain.domain.errors import refusal_error
from stoker.brain.domain.ids import Principal, TenantName
from stoker.brain.domain.secret import SHARED, SecretId, SecretName
from stoker.brain.state.commands import DeleteSecret, SetSecret
from stoker.control.control_plane import ControlPlane
from stoker.control.job_secrets import check_keeper, sealed_secret, visible_secrets
from stoker.control.settings import is_loopback
from stoker.wire import endpoints
from stoker.wire.rest.secret import (
    SecretBody,
    SecretListQuery,
    SecretListView,
    SecretQuery,
    SecretView,
    secret_view,
)

_SET: Final = (
    *("bad_secret", "unknown_tenant", "text_too_long", "too_many_secrets", "secret_key_unusable", "secret_in_clear"),
    *("not_supported_here", *BODY, *CHANGE),
)


def routes(control: ControlPlane) -> Routes:
    router = Routes()
    state = control.committer.state

    @router.serve(endpoints.SECRETS, *QUERY)
    async def list_secrets(request: Request) -> SecretListView:
        """List the caller's own secrets and those that are shared with them, without values; leads
        and admins see all."""
        tenant = TenantName(query_of(request, SecretListQuery).tenant)
        found = sorted(visible_secrets(state, caller_of(request), tenant), key=lambda secret: secret.id)
        return SecretListView(secrets=[secret_view(each) for each in found], total=len(found))

    @router.serve(endpoints.SET_SECRET, *_SET)
    async def set_secret(request: Request) -> SecretView:
        """Set a secret, or give it another value: jobs that start from now on get that."""
        caller, body = caller_of(request), await read_body(request, SecretBody)
        _check_private(request)
        if control.vault is None:
            hint = "keep the value in a file that only the job's account can read"
            raise refusal_error("not_supported_here", "this kind of cluster keeps no secrets", hint)
        secret = _secret_at(request, caller, body.tenant or "", SHARED if body.shared else caller.principal)
        check_keeper(state, caller, secret)
        record = sealed_secret(state, control.vault, secret, body.value)
        await carry_out(control, request, SetSecret(by=caller.principal, secret=record))
        return secret_view(state.secrets[secret])

    @router.serve(endpoints.DELETE_SECRET, *QUERY, "secret_unknown", *CHANGE)
    async def delete_secret(request: Request) -> SecretView:
        """Delete a secret. What runs goes on; jobs that name it and haven't started wait until it is set again."""
        caller, query = caller_of(request), query_of(request, SecretQuery)
        owner = SHARED if query.shared else Principal(query.owner) or caller.principal
        secret = _secret_at(request, caller, query.tenant, owner)
        check_keeper(state, caller, secret)
        known = state.secrets.get(secret)
        await carry_out(control, request, DeleteSecret(by=caller.principal, secret=secret))
        assert known is not None, "the writer would have refused"
        return secret_view(known)

    return router


def _secret_at(request: Request, caller: Caller, tenant: str, owner: Principal) -> SecretId:
    return SecretId(TenantName(tenant or caller.home), owner, SecretName(request.path_params["name"]))


def _check_private(request: Request) -> None:
    """Refuse a value that came where others could read it. Raises: StokerError `secret_in_clear`."""
    client = request.client
    if request.url.scheme == "https" or came_by_socket(request.scope) or (client and is_loopback(client.host)):
        return
    raise refusal_error(
        "secret_in_clear",
        "the value came over plain HTTP from another machine, where others could read it; it was not kept",
        "let the control plane speak TLS (`tls.mode: on`), and choose another value: this one has been on the network",
    )
