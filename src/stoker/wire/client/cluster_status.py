"""Figures of another cluster, for pages and commands about several, or one line that says why there are none.

What answers there may be anybody's, so no more is taken of it than figures that can be true and short words.

Rules: C1  a cluster has STATUS_S for its answer, whatever is in the way; nothing is tried twice
       C2  an answer has ANSWER_BYTES_MAX bytes; one with figures beyond FIGURE_MAX or more than NAMES_MAX names is
           none
       C3  what it says is one line of SAID_MAX characters at most, without any token
"""

import asyncio
from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import structs

from stoker.brain.domain.errors import StokerError
from stoker.wire import endpoints
from stoker.wire.client.async_transport import AsyncTransport
from stoker.wire.client.calls import ask
from stoker.wire.client.trust import Credentials
from stoker.wire.rest.cluster import ClusterView
from stoker.wire.token import without_secrets

STATUS_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 << 10
FIGURE_MAX: Final = 10**12
NAMES_MAX: Final = 64
NAME_MAX: Final = 200
SAID_MAX: Final = 300


class ClusterAnswer(NamedTuple):
    """Answer of a cluster, or why there is none."""

    cluster: ClusterView | None
    unanswered: str = ""
    """Why it says nothing; empty = it does."""


async def ask_cluster(servers: str, credentials: Credentials) -> ClusterAnswer:
    """Ask a cluster how it is; `servers` has commas between several."""
    try:
        async with asyncio.timeout(STATUS_S):
            view = await _asked(servers, credentials)
    except StokerError as fault:
        return ClusterAnswer(None, _one_line(f"{fault.refusal.message} [{fault.refusal.code}]"))
    except TimeoutError:
        return ClusterAnswer(None, f"no answer within {STATUS_S:g} s")
    except (RecursionError, ValueError) as fault:  # of what no server of ours sends
        return ClusterAnswer(None, f"its answer can't be read: {type(fault).__name__}")
    if untrue := _untrue(view):
        return ClusterAnswer(None, f"its answer can't be true: {untrue}")
    return ClusterAnswer(view)


async def _asked(servers: str, credentials: Credentials) -> ClusterView:
    transport = AsyncTransport(servers, credentials=credentials)
    transport.answer_bytes_max = ANSWER_BYTES_MAX
    try:
        return await transport.run(ask(endpoints.STATUS))
    finally:
        await transport.close()


def _one_line(text: str) -> str:
    """Return what may be shown of a text that another machine may have written (C3)."""
    text = without_secrets(text)
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= SAID_MAX else line[: SAID_MAX - 3] + "..."


def _untrue(view: ClusterView) -> str:
    """Return what is impossible about figures (C2); empty = nothing."""
    names = (*view.jobs, *view.nodes, *(each.model for each in view.free_by_model), view.version, view.cluster_id)
    if max(len(view.jobs), len(view.nodes), len(view.free_by_model)) > NAMES_MAX or max(map(len, names)) > NAME_MAX:
        return "it has more or longer names than any cluster has"
    if not all(0 <= each <= FIGURE_MAX for each in _figures(view)):
        return f"a figure is below 0 or above {FIGURE_MAX:.0e}"
    return ""


def _figures(view: ClusterView) -> Iterator[float]:
    for value in structs.astuple(view):
        if isinstance(value, int | float):
            yield value
        elif isinstance(value, dict):
            yield from value.values()
    for each in view.free_by_model:
        yield from (each.free_gpus, each.most_on_node)
