"""Named clusters of a person as they are shown, and how each of them is.

Rules: C2  no view has a token; its id is no secret
       C3  clusters are asked all at once, each for a few seconds; one that doesn't answer is a row like the others
"""

import asyncio

import msgspec

from stoker.brain.domain.errors import StokerError
from stoker.cli.contexts import context_names, present_context, unknown
from stoker.cli.credentials import is_insecure, settings_of
from stoker.cli.wiring.settings import UserSettings
from stoker.wire.client import DEFAULT_SERVER
from stoker.wire.client.cluster_status import ask_cluster
from stoker.wire.client.trust import Credentials
from stoker.wire.rest.cluster import ClusterView
from stoker.wire.token import id_of, is_token


class ContextView(msgspec.Struct, frozen=True, kw_only=True):
    """A context, without its token (C2)."""

    name: str
    present: bool
    server: str
    """Commas between several. Empty = the default."""
    token_id: str
    """Empty = it has no token."""
    ca: str
    insecure: bool
    fault: str = ""
    """Why its file can't be used; empty = it can."""


class ContextStatusView(ContextView, frozen=True, kw_only=True):
    """A context, and how its cluster is."""

    cluster: ClusterView | None = None
    unanswered: str = ""
    """Why its cluster says nothing; empty = it does."""


def context_view(name: str) -> ContextView:
    """Return a context as it may be shown. Raises: StokerError `context_unknown`."""
    if name not in context_names():
        raise unknown(name)
    return _view(name, present_context())


def _view(name: str, present: str) -> ContextView:
    kept, fault = UserSettings(), ""
    try:
        kept = settings_of(name) or kept
    except StokerError as refused:
        fault = refused.refusal.message
    return ContextView(
        name=name,
        present=name == present,
        server=kept.server,
        token_id=id_of(kept.token) if is_token(kept.token) else "malformed" if kept.token else "",
        ca=kept.ca,
        insecure=kept.insecure,
        fault=fault,
    )


def every_context() -> list[ContextView]:
    """Return all contexts as they may be shown, `default` first."""
    present = present_context()
    return [_view(name, present) for name in context_names()]


def context_statuses(views: list[ContextView]) -> list[ContextStatusView]:
    """Return how the clusters of these contexts are (C3)."""

    async def ask_all() -> list[ContextStatusView]:
        return await asyncio.gather(*map(_status, views))

    return asyncio.run(ask_all())


async def _status(view: ContextView) -> ContextStatusView:
    cluster, unanswered = None, view.fault
    if not unanswered:
        kept = settings_of(view.name) or UserSettings()
        cluster, unanswered = await ask_cluster(
            kept.server or DEFAULT_SERVER, Credentials(kept.token, kept.ca, is_insecure(kept))
        )
    return ContextStatusView(**msgspec.structs.asdict(view), cluster=cluster, unanswered=unanswered)
