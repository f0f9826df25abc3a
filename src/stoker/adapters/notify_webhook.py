"""Webhooks: one POST of a message to a URL, as JSON of our own or in the shape that Slack reads.

Rules: W1  a redirect isn't followed, certificates are checked, and no more of an answer is read than its status
       W2  within CALL_S it is answered or given up
       W3  what wasn't sent yet has failed and may be tried again, and so has what the server says it can't take now;
           what was sent and not answered is unknown
Source: RFC 9110, RFC 9112; Slack's incoming webhooks: https://api.slack.com/messaging/webhooks
"""

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

import msgspec

from stoker.brain.domain.notify import DeliveryResult, Message, NoticeState

CALL_S: Final = 5.0
_ANSWER_MAX: Final = 8 << 10
"""Bytes of a status line; a longer one is no answer."""
_AGAIN: Final = frozenset({408, 425, 429})
"""Refusals that pass by themselves, beside all from 500 on."""


async def post(url: str, message: Message, *, slack: bool, within_s: float = CALL_S) -> DeliveryResult:
    """Tell a webhook a message."""
    body = _slack(message) if slack else msgspec.json.encode(message)
    sent = False
    try:
        async with asyncio.timeout(within_s):
            reader, writer = await _connected(url)
            try:
                sent = True
                writer.write(_request(url, message, body))
                await writer.drain()
                return _outcome(await reader.readline())
            finally:
                writer.close()
    except TimeoutError:
        return _broken(sent, f"no answer within {within_s:g} s")
    except (OSError, ssl.SSLError, ValueError, asyncio.LimitOverrunError) as fault:
        return _broken(sent, str(fault) or type(fault).__name__)


def _broken(sent: bool, error: str) -> DeliveryResult:
    return DeliveryResult(NoticeState.UNKNOWN if sent else NoticeState.RETRYING, error)


async def _connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    context = ssl.create_default_context() if secure else None
    port = parts.port or (443 if secure else 80)
    return await asyncio.open_connection(parts.hostname, port, ssl=context, limit=_ANSWER_MAX)


def _request(url: str, message: Message, body: bytes) -> bytes:
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = (
        f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: stoker\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nIdempotency-Key: {message.id}\r\n\r\n"
    )
    return head.encode("ascii") + body


def _outcome(line: bytes) -> DeliveryResult:
    """Return what the status line of an answer means."""
    words = line.decode("latin-1").split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        return DeliveryResult(
            NoticeState.UNKNOWN, "it closed the connection without an answer" if not line else "it doesn't speak HTTP"
        )
    status = int(words[1])
    if 200 <= status < 300:
        return DeliveryResult(NoticeState.SENT)
    said = f"it answered {status}"
    if 300 <= status < 400:
        return DeliveryResult(NoticeState.FAILED, f"{said}, a redirect, which isn't followed")
    return DeliveryResult(NoticeState.RETRYING if status >= 500 or status in _AGAIN else NoticeState.FAILED, said)


def _slack(message: Message) -> bytes:
    text = f"{message.text}\n{message.hint}"
    for letter, written in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(letter, written)
    return msgspec.json.encode({"text": text})
