"""The REST server with an application that writes down who asked it, over TLS or plain, in a thread of its own."""

import asyncio
import threading

from starlette.types import Receive, Scope, Send

from stoker.api.http.server import serve_http
from stoker.api.http.tls import load_credentials, server_context
from stoker.api.listen import bind
from stoker.control.supervisor import Duties
from tests.certificates import Certified


class TlsServed:
    """A server that answers the same to whatever it is asked."""

    def __init__(self, credentials: Certified | None, host: str = "127.0.0.1") -> None:
        self.body = b"{}"
        self.asked: list[tuple[str, str]] = []
        """Path and `Authorization` of each request."""
        self._context = None if credentials is None else server_context(*credentials)
        self._listener = bind(host, 0, "http")
        self.port: int = self._listener.getsockname()[1]
        self.label = f"127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._stop, self._ready = asyncio.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "TlsServed":
        self._thread.start()
        assert self._ready.wait(30), "it didn't come up"
        return self

    def __exit__(self, *ended: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self._listener.close()

    def renew(self, credentials: Certified) -> None:
        """Serve with other credentials from now on."""
        done = threading.Event()

        def load() -> None:
            assert self._context is not None
            load_credentials(self._context, *credentials)
            done.set()

        self._loop.call_soon_threadsafe(load)
        assert done.wait(10)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with Duties() as duties, serve_http(self, [self._listener], duties, context=self._context):
            self._ready.set()
            await self._stop.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        self.asked.append((scope["path"], headers.get(b"authorization", b"").decode()))
        head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": self.body})
