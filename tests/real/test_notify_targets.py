"""Mails and webhooks sent to real servers on this machine, which take them, refuse them, answer 500 or hang."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email import message_from_bytes, policy

import pytest

from stoker.adapters.notify_mail import MailServer, mail
from stoker.adapters.notify_targets import Targets, is_below
from stoker.adapters.notify_webhook import post
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.notify import DeliveryResult, Message, NoticeState, NotifyEvent

MESSAGE = Message(
    id="uid-7:fail:1",
    event=NotifyEvent.FAIL,
    text="job 7 train <b> & co failed after 3h: rank 2 on gpu-4 exited with code 1",
    hint="stoker logs 7",
    job_id="7",
    name="train",
    tenant="vision",
    user="ada",
    state=JobState.FAILED,
    exit_code=1,
    at="2026-11-28T02:37:13.042Z",
    cluster_id="c",
)
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(talk: Talk) -> AsyncIterator[int]:
    """A server on a free port that talks so with whoever comes."""

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(met, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def answering(answer: bytes, heard: list[bytes] | None = None) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        if heard is not None:
            heard.extend((head, body))
        writer.write(answer)
        await writer.drain()

    return talk


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def told(talk: Talk, *, slack: bool = False) -> DeliveryResult:
    async def tell() -> DeliveryResult:
        async with serving(talk) as port:
            return await post(f"http://127.0.0.1:{port}/hook?x=1", MESSAGE, slack=slack, within_s=1.0)

    return asyncio.run(tell())


def test_a_webhook_gets_the_message_as_json_and_one_id_for_every_try() -> None:
    heard: list[bytes] = []
    assert told(answering(b"HTTP/1.1 204 No Content\r\n\r\n", heard)) == DeliveryResult(NoticeState.SENT)
    head, body = heard
    assert head.startswith(b"POST /hook?x=1 HTTP/1.1\r\n")
    assert b"\r\nIdempotency-Key: uid-7:fail:1\r\n" in head
    said = json.loads(body)
    assert (said["event"], said["job_id"], said["state"], said["exit_code"]) == ("fail", "7", "failed", 1)


def test_slack_gets_its_shape_with_its_three_letters_escaped() -> None:
    heard: list[bytes] = []
    assert told(answering(b"HTTP/1.1 200 OK\r\n\r\n", heard), slack=True).outcome is NoticeState.SENT
    assert json.loads(heard[1]) == {"text": f"{MESSAGE.text}\nstoker logs 7".replace("<b> &", "&lt;b&gt; &amp;")}


@pytest.mark.parametrize(
    ("answer", "outcome", "error"),
    [
        (b"HTTP/1.1 500 Oops\r\n\r\n", NoticeState.RETRYING, "it answered 500"),
        (b"HTTP/1.1 429 Slow\r\n\r\n", NoticeState.RETRYING, "it answered 429"),
        (b"HTTP/1.1 404 No\r\n\r\n", NoticeState.FAILED, "it answered 404"),
        (b"HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1/\r\n\r\n", NoticeState.FAILED, "a redirect"),
        (b"", NoticeState.UNKNOWN, "without an answer"),
        (b"SSH-2.0-x\r\n", NoticeState.UNKNOWN, "doesn't speak HTTP"),
        (b"x" * 100_000, NoticeState.UNKNOWN, ""),
    ],
    ids=["500", "429", "404", "redirect", "closes", "no_http", "endless_line"],
)
def test_an_answer_of_a_webhook_says_whether_it_is_tried_again(answer: bytes, outcome: NoticeState, error: str) -> None:
    found = told(answering(answer))
    assert found.outcome is outcome
    assert error in found.error


def test_w2_a_webhook_that_hangs_is_given_up_and_never_told_twice() -> None:
    assert told(hang) == DeliveryResult(NoticeState.UNKNOWN, "no answer within 1 s")


def test_w3_a_webhook_that_nobody_serves_may_be_tried_again() -> None:
    assert asyncio.run(post("http://127.0.0.1:1/", MESSAGE, slack=False)).outcome is NoticeState.RETRYING


def test_w1_a_server_without_a_certificate_is_told_nothing() -> None:
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(5))

    async def tell() -> DeliveryResult:
        async with serving(listen) as port:
            return await post(f"https://127.0.0.1:{port}/", MESSAGE, slack=False, within_s=2.0)

    assert asyncio.run(tell()).outcome is NoticeState.RETRYING
    assert b"POST" not in heard[0]


class Mailbox:
    """A small SMTP server: what it was told, and what it answers at each step."""

    def __init__(self, **answers: str) -> None:
        self.answers = {"EHLO": "250-here\r\n250 AUTH PLAIN LOGIN", "DATA": "354 go on", ".": "250 taken", **answers}
        self.lines: list[str] = []
        self.mail = b""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := (await reader.readline()).decode().strip():
            self.lines.append(line)
            word = line.split()[0].upper()
            await self.answer(writer, word, "235 yes" if word == "AUTH" else "250 yes")
            if word == "DATA":
                text = await reader.readuntil(b"\r\n.\r\n")
                self.mail = text.removesuffix(b".\r\n").replace(b"\r\n..", b"\r\n.")
                await self.answer(writer, ".", "")

    async def answer(self, writer: asyncio.StreamWriter, word: str, otherwise: str) -> None:
        said = self.answers.get(word, otherwise)
        if said == "hang":
            await asyncio.Event().wait()
        writer.write(f"{said}\r\n".encode())
        await writer.drain()


def mailed(box: Mailbox, **fields: object) -> DeliveryResult:
    async def send() -> DeliveryResult:
        async with serving(box.talk) as port:
            given = {"starttls": False, "user": "", "password": lambda: "", "sender": "stoker@example.org", **fields}
            server = MailServer(host="127.0.0.1", port=port, **given)  # type: ignore[arg-type]  # given by name
            return await mail(server, "ada@example.org", MESSAGE, within_s=1.0)

    return asyncio.run(send())


def test_a_mail_says_what_happened_and_is_marked_as_made_by_a_program() -> None:
    box = Mailbox()
    assert mailed(box) == DeliveryResult(NoticeState.SENT)
    assert box.lines[1:3] == ["MAIL FROM:<stoker@example.org>", "RCPT TO:<ada@example.org>"]
    found = message_from_bytes(box.mail, policy=policy.default)
    assert found["Subject"] == f"[stoker] {MESSAGE.text}"
    assert (found["To"], found["From"], found["Auto-Submitted"]) == (
        *("ada@example.org", "stoker@example.org"),
        "auto-generated",
    )
    assert found["Message-ID"].endswith("@example.org>")
    assert "stoker logs 7" in found.get_content()


def test_a_mail_server_that_wants_a_password_gets_it() -> None:
    box = Mailbox()
    assert mailed(box, user="ada", password=lambda: "pw").outcome is NoticeState.SENT
    (line,) = (line for line in box.lines if line.startswith("AUTH"))
    assert b64decode(line.split()[-1]) == b"\0ada\0pw"


def test_s1_a_password_is_not_sent_where_the_server_refuses_to_encrypt() -> None:
    box = Mailbox(STARTTLS="502 no")
    assert mailed(box, starttls=True, user="ada", password=lambda: "pw").outcome is NoticeState.FAILED
    assert not any(line.startswith("AUTH") for line in box.lines)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ({"RCPT": "550 unknown"}, NoticeState.FAILED),
        ({"RCPT": "451 later"}, NoticeState.RETRYING),
        ({"EHLO": "hang"}, NoticeState.RETRYING),
        ({".": "452 full"}, NoticeState.RETRYING),
        ({".": "hang"}, NoticeState.UNKNOWN),
    ],
    ids=["refused", "grey_listed", "hangs_before_the_text", "full", "hangs_after_the_text"],
)
def test_s3_an_answer_of_a_mail_server_says_whether_it_is_tried_again(
    answers: dict[str, str], outcome: NoticeState
) -> None:
    assert mailed(Mailbox(**answers)).outcome is outcome


TARGETS = Targets(
    server=None,
    domains=["example.org"],
    webhooks={"team": "slack:https://hooks.slack.com/services/T"},
    prefixes=["https://ci.example.org/hooks"],
)


@pytest.mark.parametrize(
    "target",
    [
        *("mail:ada@example.org", "webhook:other", "https://169.254.169.254/latest", "http://ci.example.org/hooks/a"),
        *(
            "https://ci.example.org/hooksel",
            "https://ci.example.org.evil.net/hooks/a",
            "https://ci.example.org:8443/hooks",
        ),
        *("slack:https://hooks.slack.com/services/T", "https://ci.example.org/hooks/%2e%2e/admin"),
    ],
)
def test_what_an_operator_has_not_allowed_is_refused_with_a_hint(target: str) -> None:
    refusal = TARGETS.fault(target)
    assert refusal is not None
    assert (refusal.code, bool(refusal.hint)) == ("notify_not_allowed", True)


def test_what_an_operator_has_allowed_is_taken() -> None:
    for target in ("webhook:team", "https://ci.example.org/hooks", "slack:https://ci.example.org:443/hooks/a?b=c"):
        assert TARGETS.fault(target) is None
    assert is_below("https://h/a/b", "https://h/a/")
    assert not is_below("https://h/ab", "https://h/a")


def test_a2_mail_goes_to_the_domains_that_are_listed() -> None:
    server = MailServer(host="h", port=25, starttls=False, user="", password=str, sender="s@example.org")
    targets = Targets(server=server, domains=["example.org"], webhooks={}, prefixes=[])
    assert targets.fault("mail:ada@example.org") is None
    assert targets.fault("mail:ada@lab.example.org") is None
    assert targets.fault("mail:ada@notexample.org") is not None
