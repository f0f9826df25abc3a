"""Port of the web pages: their routes, and which requests are theirs to answer where REST would answer a program.

`stoker.web` stands behind it; the application does without, as a test of REST alone does.
"""

from collections.abc import Sequence
from typing import Protocol

from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Scope

from stoker.api.http.responses import problem_response
from stoker.brain.domain.errors import Refusal


class Pages(Protocol):
    """The pages beside REST."""

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """Return the route of each page and asset."""
        ...

    def is_open(self, path: str) -> bool:
        """Return whether everybody may ask for this path: it shows nothing of the cluster."""
        ...

    def asks_itself(self, method: str, path: str) -> bool:
        """Return whether the page at this path checks by itself what its reader may do."""
        ...

    def refusal(self, scope: Scope, refusal: Refusal) -> Response | None:
        """Return the page that tells somebody of a refusal; None = the request is none of a person."""
        ...


def refusal_response(pages: Pages | None, scope: Scope, refusal: Refusal) -> Response:
    """Return the answer to a refused request: a page to somebody who looks at pages, else a problem document."""
    told = pages.refusal(scope, refusal) if pages is not None else None
    return problem_response(refusal) if told is None else told
