"""HTML from templates. Every value is escaped: no template marks text as safe, and a test says so.

The policy of its answers lets a page run no script, show no style and ask nothing but what this server serves as a
file, so that text which got into a page by mistake stays text.

Source: the W3C's Content Security Policy Level 3.
"""

from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stoker.web.formatting import FILTERS

TEMPLATES: Final = Path(__file__).parent / "templates"
_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
    "report-uri": "/csp-report",
}
HEADERS: Final = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": "Cookie, HX-Request",
}
LIVE: Final = "live"
"""The block of a template that is rendered alone where only what changed is asked for."""


class Templates:
    """The templates, each compiled once."""

    def __init__(self, **known: object) -> None:
        """`known`: names that every template knows."""
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(FILTERS)
        self._environment.globals.update(known)
        # A block that is rendered alone runs nothing outside it, so macros are names that every template knows.
        parts = self._environment.get_template("parts.html").module
        self._environment.globals.update({name: getattr(parts, name) for name in ("bar", "copy", "state", "time")})

    def page(self, name: str, context: dict[str, Any]) -> bytes:
        """Return a whole page."""
        return self._environment.get_template(name).render(context).encode()

    def live_part(self, name: str, context: dict[str, Any]) -> bytes:
        """Return the part of a page that changes while somebody looks at it."""
        template = self._environment.get_template(name)
        return "".join(template.blocks[LIVE](template.new_context(context))).encode()
