"""Log lines from telemetry calls, as JSON or text on standard output.

Rules: T1  one call, one line: control characters are escaped, those that JSON leaves as they are too, so nothing from
           outside can forge a line, nor act on the terminal of who reads it
       T2  a field is cut at FIELD_CHARS_MAX and a line can't fail for what a field holds
       T3  a broken output (the reader of a pipe went away) is noted once in a metric and never stops the process
       T4  what a library says again and again is written once in REPEAT_S, with how often it was said since
       T5  while its disk is full lines are lost; once there is space again, lines are written again
Shapes: json: {"at":"2026-11-28T02:11:00.123Z","level":"info","event":"task_submitted","task_id":"1"}
        text: 2026-11-28T02:11:00.123Z info task_submitted task_id=1
"""

import errno
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import msgspec

from stoker.brain.domain.units import Instant
from stoker.ports import Clock

if TYPE_CHECKING:  # the agent has no metrics of its own and needn't load the library
    from stoker.adapters.metrics import Metrics

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["json", "text"]

FIELD_CHARS_MAX: Final = 4_096
REPEAT_S: Final = 60.0
PLACES_MAX: Final = 256
_CUT: Final = "...[cut]"
_RANK: Final[Mapping[str, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_PLAIN: Final = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_UNSAFE: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]")
"""In UTF-8 what JSON leaves as it is and terminals act on: control characters, line ends of Unicode, and marks that
turn the direction of what follows."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class StructuredTelemetry:
    """The `Telemetry` port on a byte stream (standard output by default) and, if given, on metrics."""

    def __init__(
        self,
        clock: Clock,
        *,
        metrics: "Metrics | None" = None,
        level: Level = "info",
        format: Format = "json",
        stream: BinaryIO | None = None,
    ) -> None:
        self._clock = clock
        self._metrics = metrics
        self._rank_min = _RANK[level]
        self._line = _json_line if format == "json" else _text_line
        self._stream = stream if stream is not None else sys.stdout.buffer
        self._broken = False

    def event(self, name: str, **fields: object) -> None:
        self._write("info", name, fields)

    def warn(self, name: str, **fields: object) -> None:
        self._write("warning", name, fields)

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        if self._metrics is not None:
            self._metrics.count(name, by, labels)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        if self._metrics is not None:
            self._metrics.gauge(name, value, labels)

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        if self._metrics is not None:
            self._metrics.observe(name, seconds, labels)

    def render(self) -> bytes:
        """The metrics as Prometheus text; nothing when there are none."""
        return b"" if self._metrics is None else self._metrics.render()

    def _write(self, level: Level, name: str, fields: Mapping[str, object]) -> None:
        if _RANK[level] < self._rank_min or self._broken:
            return
        line = safe_json(self._line(_timestamp(self._clock.now()), level, name, fields))
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError) as fault:  # ValueError: the stream was closed
            self._broken = not isinstance(fault, OSError) or fault.errno not in _FULL
            self.count("log_output_broken")


class LibraryLogs(logging.Handler):
    """Puts warnings of libraries (uvicorn, grpc, asyncio) into the same stream and the same form (T4)."""

    def __init__(self, telemetry: StructuredTelemetry) -> None:
        super().__init__(logging.WARNING)
        self._telemetry = telemetry
        self._said: dict[tuple[object, ...], tuple[float, int]] = {}
        """When each place in a library was last written, and how often it spoke since; the oldest first."""

    def emit(self, record: logging.LogRecord) -> None:
        place = record.name, str(record.msg)[:200], *_raised_at(record)
        at, unsaid = self._said.pop(place, (float("-inf"), 0))
        if abs(record.created - at) < REPEAT_S:
            self._said[place] = at, unsaid + 1
            return
        self._said[place] = record.created, 0
        if len(self._said) > PLACES_MAX:
            del self._said[next(iter(self._said))]
        repeated = {"repeated": unsaid} if unsaid else {}
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        self._telemetry.warn("library_warned", library=record.name, message=text, **repeated)


def _raised_at(record: logging.LogRecord) -> tuple[object, ...]:
    """Which exception it tells of, and the line that raised it; nothing where it tells of none."""
    if not record.exc_info or record.exc_info[0] is None:
        return ()
    lines = [line for _, line in traceback.walk_tb(record.exc_info[2])]
    return record.exc_info[0], lines[-1] if lines else 0


@contextmanager
def library_logs(telemetry: StructuredTelemetry) -> Iterator[None]:
    """Route the standard library's root logger here until the block ends."""
    handler = LibraryLogs(telemetry)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        handler.close()
        logging.getLogger().removeHandler(handler)


def safe_json(text: bytes) -> bytes:
    """Return JSON that means the same, with nothing in it that acts on a terminal."""
    return text if text.isascii() else _UNSAFE.sub(lambda found: b"\\u%04x" % ord(found[0].decode()), text)


def _timestamp(at: Instant) -> str:
    return (_EPOCH + timedelta(milliseconds=at)).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at % 1_000:03d}Z"


def _json_line(at: str, level: Level, name: str, fields: Mapping[str, object]) -> bytes:
    line: dict[str, object] = {"at": at, "level": level, "event": name}
    for key, value in fields.items():
        line[f"{key}_" if key in line else key] = _readable(value)
    return msgspec.json.encode(line) + b"\n"


def _text_line(at: str, level: Level, name: str, fields: Mapping[str, object]) -> bytes:
    words = [at, level, name]
    for key, value in fields.items():
        shown = _readable(value)
        text = shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
        words.append(f"{key}={text if _PLAIN.fullmatch(text) else msgspec.json.encode(text).decode()}")
    return " ".join(words).encode() + b"\n"


def _readable(value: object) -> object:
    """The value as JSON can hold it, bounded. Anything that JSON has no form for becomes its text."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, list | tuple) and len(value) <= FIELD_CHARS_MAX // 16:
        return [_readable(part) for part in value]
    text = value if isinstance(value, str) else str(value)
    if len(text) > FIELD_CHARS_MAX:
        text = text[: FIELD_CHARS_MAX - len(_CUT)] + _CUT
    # A lone surrogate (an undecodable byte in a file name) has no UTF-8 form.
    return text.encode("utf-8", "backslashreplace").decode()
