"""Styles, scripts and other files that pages load, held in memory under one digest of them all.

A page names them with the digest, so that a browser keeps them for ever, and one that was loaded before an upgrade asks
for files that are gone instead of mixing old and new ones.
"""

import gzip
from functools import cached_property
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

STATIC: Final = Path(__file__).parent / "static"
PREFIX: Final = "/static"
_DIGEST_CHARS: Final = 16
_SENT_COMPRESSED: Final = 1_400
"""Shorter ones fit into one packet anyway."""
_FOREVER: Final = "public, max-age=31536000, immutable"
_TEXTS: Final = (".txt", ".LICENSE")


class Assets:
    """The files below `static`."""

    def __init__(self, folder: Path = STATIC) -> None:
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        self._files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        self._compressed: dict[str, bytes] = {}

    @cached_property
    def digest(self) -> str:
        """Return the digest of all names and contents."""
        whole = sha256()
        for name, content in self._files.items():
            whole.update(f"{name}\0{len(content)}\0".encode() + content)
        return whole.hexdigest()[:_DIGEST_CHARS]

    def url(self, name: str) -> str:
        """Return the address of a file, which must be there."""
        assert name in self._files, f"no asset is called {name}"
        return f"{PREFIX}/{self.digest}/{name}"

    async def serve(self, request: Request) -> Response:
        """Answer a request for a file; one that is not of this version is not there."""
        name = request.path_params["name"]
        content = self._files.get(name) if request.path_params["digest"] == self.digest else None
        if content is None:
            return Response("not of this version\n", 404, {"Cache-Control": "no-store"}, "text/plain")
        kind = "text/plain" if name.endswith(_TEXTS) else guess_type(name)[0] or "application/octet-stream"
        headers = {"Cache-Control": _FOREVER, "X-Content-Type-Options": "nosniff", "Vary": "Accept-Encoding"}
        if len(content) >= _SENT_COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
            if name not in self._compressed:
                self._compressed[name] = gzip.compress(content, 6, mtime=0)
            content = self._compressed[name]
            headers["Content-Encoding"] = "gzip"
        return Response(content, headers=headers, media_type=kind)
