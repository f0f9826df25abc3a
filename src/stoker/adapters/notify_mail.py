"""Mail by SMTP: one message to one recipient through the server of the site.

Rules: S1  with STARTTLS, or TLS from the start on port 465, the server's certificate is checked; a password is never
           sent without
       S2  within CALL_S the mail is taken or given up
       S3  what failed before the end of the text has failed; what wasn't answered after it is unknown; what the server
           refuses with 5xx is refused for good
Source: RFC 5321, RFC 3207, RFC 4954, RFC 5322.
"""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, make_msgid
from typing import Final

from stoker.brain.domain.notify import DeliveryResult, Message, NoticeState

CALL_S: Final = 10.0
_LINE_MAX: Final = 8 << 10
_LINES_MAX: Final = 100
_TLS_PORT: Final = 465


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """The SMTP server of the site, and as whom mails are sent."""

    host: str
    port: int
    starttls: bool
    user: str
    password: Callable[[], str]
    """Reads the password when it is needed. Raises: OSError."""
    sender: str


class _MailRefused(Exception):
    """The server said no. The message is what it said."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"it answered {code} {text}")
        self.code = code


@dataclass(slots=True)
class _MailConnection:
    """A conversation with a server, of whose text nothing was sent yet."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ended: bool = False
    """The whole text was sent."""

    async def ask(self, line: str, *wanted: int) -> list[str]:
        """Send a line, and return the lines of the reply. Raises: _MailRefused."""
        self.writer.write(f"{line}\r\n".encode("ascii"))
        await self.writer.drain()
        return await self.reply(*wanted)

    async def reply(self, *wanted: int) -> list[str]:
        lines: list[str] = []
        for _ in range(_LINES_MAX):
            line = (await self.reader.readline()).decode("latin-1").rstrip("\r\n")
            if not line[:3].isdigit():
                raise ConnectionError("it closed the connection" if not line else "it doesn't speak SMTP")
            lines.append(line[4:])
            if line[3:4] != "-":
                if int(line[:3]) not in wanted:
                    raise _MailRefused(int(line[:3]), line[4:])
                return lines
        raise ConnectionError("its reply has no end")


async def mail(server: MailServer, recipient: str, message: Message, *, within_s: float = CALL_S) -> DeliveryResult:
    """Send a message to one address."""
    connection: _MailConnection | None = None
    try:
        async with asyncio.timeout(within_s):
            implicit = server.port == _TLS_PORT
            reader, writer = await asyncio.open_connection(
                server.host, server.port, ssl=ssl.create_default_context() if implicit else None, limit=_LINE_MAX
            )
            try:
                connection = _MailConnection(reader, writer)
                await _send(connection, server, recipient, message)
                return DeliveryResult(NoticeState.SENT)
            finally:
                writer.close()
    except _MailRefused as fault:
        return DeliveryResult(NoticeState.FAILED if fault.code >= 500 else NoticeState.RETRYING, str(fault))
    except TimeoutError:
        return _broken(connection, f"no answer within {within_s:g} s")
    except (OSError, ValueError, asyncio.LimitOverrunError) as fault:
        return _broken(connection, str(fault) or type(fault).__name__)


def _broken(connection: _MailConnection | None, error: str) -> DeliveryResult:
    unknown = connection is not None and connection.ended
    return DeliveryResult(NoticeState.UNKNOWN if unknown else NoticeState.RETRYING, error)


async def _send(connection: _MailConnection, server: MailServer, recipient: str, message: Message) -> None:
    await connection.reply(220)
    offered = await connection.ask("EHLO stoker", 250)
    if server.starttls and server.port != _TLS_PORT:
        await connection.ask("STARTTLS", 220)
        await connection.writer.start_tls(ssl.create_default_context(), server_hostname=server.host)
        offered = await connection.ask("EHLO stoker", 250)
    if server.user:
        await _log_in(connection, server, offered)
    await connection.ask(f"MAIL FROM:<{server.sender}>", 250)
    await connection.ask(f"RCPT TO:<{recipient}>", 250, 251)
    await connection.ask("DATA", 354)
    text = _text(server, recipient, message)
    connection.writer.write(text.replace(b"\r\n.", b"\r\n..") + b"\r\n.\r\n")
    connection.ended = True
    await connection.writer.drain()
    await connection.reply(250)


async def _log_in(connection: _MailConnection, server: MailServer, offered: list[str]) -> None:
    password = server.password()
    ways = {word.upper() for line in offered if line.upper().startswith("AUTH") for word in line.split()[1:]}
    if "PLAIN" in ways or not ways:
        await connection.ask(f"AUTH PLAIN {_base64(f'{chr(0)}{server.user}{chr(0)}{password}')}", 235)
        return
    await connection.ask("AUTH LOGIN", 334)
    await connection.ask(_base64(server.user), 334)
    await connection.ask(_base64(password), 235)


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode("ascii")


def _text(server: MailServer, recipient: str, message: Message) -> bytes:
    made = EmailMessage(policy=SMTP)
    made["From"], made["To"] = server.sender, recipient
    made["Subject"] = f"[stoker] {message.text}"[:200]
    made["Date"] = format_datetime(datetime.fromisoformat(message.at))
    made["Message-ID"] = make_msgid(message.id.replace(":", "."), domain=server.sender.partition("@")[2])
    made["Auto-Submitted"] = "auto-generated"
    made.set_content(
        f"{message.text}\n\n    {message.hint}\n\njob {message.job_id} of {message.user}, tenant {message.tenant}, "
        f"is {message.state}\n"
    )
    return made.as_bytes().rstrip(b"\r\n")
