"""The cookie of a session of the web pages, and the CSRF header that must come with it where something is changed.

A session is a record of the cluster's log (`OpenSession`), so it holds on every control plane of the cluster, through
restarts and take-overs, and ends on all of them at once. The cookie has its text, which no script of a page can read.

Rules: C1  the cookie's name holds the cluster's id: cookies are shared by all ports of a host, and two clusters on one
           machine don't sign each other's people out
       C2  over TLS its name begins with `__Host-`: no other host of the domain sets it, and it is never sent in clear
       C3  the CSRF token is a digest of the session's text: it needs no record, and tells nothing of the text
Source: RFC 6265bis, sections 4.1.3 (prefixes) and 5.2 (same-site requests); OWASP's sheet on request forgery.
"""

from hashlib import sha256
from hmac import compare_digest
from typing import Final

CSRF_HEADER: Final = "Stoker-CSRF"
_CSRF_CHARS: Final = 32


def cookie_name(cluster_id: str, *, secure: bool) -> str:
    """Return the name of the cookie (C1, C2)."""
    return f"{'__Host-' if secure else ''}stoker-{cluster_id[-12:]}"


def session_in(cookies: str, cluster_id: str, *, secure: bool) -> str:
    """Return the text of the session in a `Cookie` header; empty = there is none, or more than one."""
    name = cookie_name(cluster_id, secure=secure)
    # Other programs of the host may have set cookies that a strict parser stops at.
    pairs = (each.strip().partition("=") for each in cookies.split(";"))
    found = [value for key, _, value in pairs if key == name]
    return found[0] if len(found) == 1 else ""


def set_cookie(cluster_id: str, text: str, max_age_s: int, *, secure: bool) -> str:
    """Return the `Set-Cookie` header of a session; with an empty text the one that takes it back."""
    age = max_age_s if text else 0
    flags = "; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")
    return f"{cookie_name(cluster_id, secure=secure)}={text}; Path=/; Max-Age={age}{flags}"


def csrf_of(text: str) -> str:
    """Return the CSRF token of a session (C3)."""
    return sha256(b"stoker csrf\0" + text.encode()).hexdigest()[:_CSRF_CHARS]


def is_csrf_of(given: str, text: str) -> bool:
    """Return whether this is the CSRF token of a session."""
    return compare_digest(given.encode(), csrf_of(text).encode())
