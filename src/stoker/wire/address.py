"""Check of addresses that settings name.

Rules: A1  an address of a listener has a host and a port and nothing else; one of IPv6 stands in brackets, as in a URL
       A2  the address of a machine has no port; one of IPv6 may stand as it is
Source: RFC 3986, 3.2.2, for the brackets.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Final

_HOST_PORT: Final = re.compile(r"(?:\[([^\]]+)\]|([^\s:/\[\],@]{1,253})):([0-9]{1,5})", re.ASCII)
_SHOWN_MAX: Final = 80


def address_faults(texts: Iterable[str]) -> list[str]:
    """Return what is wrong with addresses of listeners, each to be named once (A1), in a sentence for each."""
    known = list(texts)
    shown = [text[:_SHOWN_MAX] for text in known if not _is_address(text)]
    found = [f"{text!r} isn't HOST:PORT{_hint(text)}" for text in shown]
    return found + [f"{text[:_SHOWN_MAX]!r} is named twice" for text in dict.fromkeys(known) if known.count(text) > 1]


def is_machine(text: str) -> bool:
    """Whether it is the name or IP address of a machine (A2)."""
    return _is_ipv6(text) or _is_address(f"{text}:1")


def _is_address(text: str) -> bool:
    parts = _HOST_PORT.fullmatch(text)
    return (
        parts is not None and 0 < int(parts[3]) <= 65_535 and (_is_ipv6(parts[1]) if parts[1] else _is_host(parts[2]))
    )


def _is_host(text: str) -> bool:
    """Whether it is a name or an IPv4 address; what has digits and dots alone is no name (RFC 3696, 2)."""
    labels = text.rstrip(".").split(".")
    if labels[-1].isdigit():
        try:
            return bool(IPv4Address(text))
        except ValueError:
            return False
    return not any(label.startswith("-") or label.endswith("-") for label in labels)


def _is_ipv6(text: str) -> bool:
    try:
        return bool(IPv6Address(text))
    except ValueError:
        return False


def _hint(text: str) -> str:
    if "," in text:
        return "; name each on its own, as in ['a:9090', 'b:9090']"
    bare = re.sub(r"^[a-z]+://", "", text.strip()).rstrip("/")
    host, _, port = bare.rpartition(":")
    near = f"[{host}]:{port}" if _is_ipv6(host) else bare if host else f"127.0.0.1{bare}"
    return f" (nearest: {near!r})" if _is_address(near) else ", such as 'control.example.org:9090' or '[fd00::1]:9090'"
