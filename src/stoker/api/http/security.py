"""What does the OpenAPI document say of tokens?

The rules are in `guard` and `roles`; here they are written into each operation of the document.
"""

from typing import Any, Final

from stoker.api.http.roles import OPEN, role_for

_SCHEME: Final = "token"
_ABOUT: Final = (
    "A token of `stoker token create`. Its role is viewer, user or admin; its tenant says whose jobs are seen in full. "
    "The jobs of other tenants are shown reduced, and can't be told anything."
)
_METHODS: Final = frozenset({"get", "put", "post", "delete", "patch"})


def secured(document: dict[str, Any], *, open_to_owner: bool) -> dict[str, Any]:
    """The document, with what each operation wants. `open_to_owner`: whoever sends no token is the owner."""
    document["components"]["securitySchemes"] = {
        _SCHEME: {"type": "http", "scheme": "bearer", "description": _ABOUT},
    }
    wanted: list[dict[str, list[str]]] = [{_SCHEME: []}, *([{}] if open_to_owner else [])]
    for path, item in document["paths"].items():
        for method in _METHODS & item.keys():
            operation = item[method]
            if path in OPEN:
                operation["security"] = []
                continue
            operation["security"] = wanted
            said = operation.get("description", "")
            operation["description"] = f"{said}\n\nLeast role: {role_for(method.upper(), path)}.".lstrip()
    return document
