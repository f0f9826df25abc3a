"""Traces of jobs: the neutral form, and the readers of public formats.

Rules: T1  a fault is one error with file, line, field and a hint; nothing of a faulty file is run
       T2  times count from the first submission, in milliseconds; jobs are in order of submission, equal ones in that
           of the file
       T3  a file is unpacked when its first bytes are those of gzip, whatever its name
       T4  a log in the Standard Workload Format may lack the run time or the processors of a job (-1, or 0 of
           them); such jobs never ran, are left out, and are counted
Limits: TIME_S_MAX seconds, COUNT_MAX of anything counted: beyond them a value is a fault of the file.
Source: Standard Workload Format 2.2 (Parallel Workloads Archive); the other formats in `benchmarks/traces/README.md`.
"""

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Final, NoReturn

import msgspec

from stoker.brain.domain.errors import StokerError, refusal_error
from stoker.brain.domain.units import SECOND_MS, counted

TIME_S_MAX: Final = 10**11
"""Three thousand years."""
COUNT_MAX: Final = 10**9
_GZIP: Final = b"\x1f\x8b"


class TraceJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a trace. Units: milliseconds from the trace's first submission, whole GPUs and CPUs, MiB."""

    id: str
    line: int
    """Where its file has it."""
    submit_ms: int
    duration_ms: int
    """How long it runs if nothing stops it."""
    gpus: int
    """Of each task."""
    tasks: int = 1
    knows_tasks: bool = False
    """Its tasks are as they were submitted; else it may be divided where no node holds it whole."""
    cpus: int = 1
    """Of each task."""
    memory_mb: int = 0
    """Of each task; 0 = no reservation."""
    priority: int | None = None
    """None = as the cluster has it."""
    tenant: str = ""
    """Empty = the default tenant."""

    @property
    def total_gpus(self) -> int:
        """GPUs of all its tasks."""
        return self.gpus * self.tasks


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in order of submission, and the file that they are from."""

    path: str
    jobs: tuple[TraceJob, ...]
    left_out: int = 0
    """Jobs of the file that never ran (T4)."""

    def fault(self, job: TraceJob, field: str, message: str, hint: str) -> StokerError:
        """Return the error about a field of a job that a run can't take."""
        return trace_fault(self.path, job.line, field, message, hint)


def read_trace(path: Path, form: str) -> Trace:
    """Return the jobs of a file in one of the FORMATS.

    Raises: StokerError `bad_trace` (T1).
    """
    reader = FORMATS[form]
    jobs: list[TraceJob] = []
    seen: dict[str, int] = {}
    left_out = 0
    for record in records(path, reader.columns, has_header=reader.has_header):
        job = reader.job(record)
        if job is None:
            left_out += 1
            continue
        if job.id in seen:
            field = reader.columns[0]
            record.fail(field, f"job {job.id!r} is already on line {seen[job.id]}", "give each job an id of its own")
        seen[job.id] = job.line
        jobs.append(job)
    if not jobs:
        raise trace_fault(str(path), 0, "", "it has no job that ran", f"is it a file of the format {form}?")
    return trace_of(str(path), jobs, left_out=left_out)


def trace_of(path: str, jobs: Sequence[TraceJob], *, left_out: int) -> Trace:
    """Return a trace of jobs whose submissions count from any moment (T2). Raises: StokerError `bad_trace`."""
    if not jobs:
        raise trace_fault(path, 0, "gpus", "it has no job that ran to its end on whole GPUs", "name another log")
    first = min(job.submit_ms for job in jobs)
    moved = [msgspec.structs.replace(job, submit_ms=job.submit_ms - first) for job in jobs]
    return Trace(path=path, jobs=tuple(sorted(moved, key=lambda job: job.submit_ms)), left_out=left_out)


class Record:
    """One line of a trace, as texts by field."""

    def __init__(self, path: str, line: int, cells: Mapping[str, str]) -> None:
        self._path = path
        self.line = line
        self._cells = cells

    def fail(self, field: str, message: str, hint: str) -> NoReturn:
        raise trace_fault(self._path, self.line, field, message, hint)

    def text(self, field: str) -> str:
        return self._cells.get(field, "").strip()

    def count(self, field: str, least: int = 0, default: int | None = None) -> int:
        """A whole number."""
        text = self.text(field)
        if default is not None and not text:
            return default
        number = self._number(field)
        if not number.is_integer() or not least <= number <= COUNT_MAX:
            self.fail(field, f"{text!r} isn't a whole number from {least} to {COUNT_MAX}", "correct the line")
        return int(number)

    def ms(self, field: str, unit_ms: int) -> int:
        """A time that isn't negative; `unit_ms` = milliseconds in what the file counts in."""
        number = self._number(field)
        if number < 0:
            self.fail(field, f"{self.text(field)} is negative", "times and durations are 0 or more: correct the line")
        if number * unit_ms > TIME_S_MAX * SECOND_MS:
            self.fail(field, f"{self.text(field)} is longer than any run", "is the format the right one?")
        return round(number * unit_ms)

    def instant_ms(self, field: str) -> int:
        """A date and time without zone, in milliseconds since 1970."""
        text = self.text(field)
        try:
            at = datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError:
            self.fail(field, f"{text!r} isn't a date and time", "write it as 2017-10-09 07:01:55")
        return round(at.timestamp() * SECOND_MS)

    def _number(self, field: str) -> float:
        text = self.text(field)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or "_" in text:
            self.fail(field, f"{text!r} isn't a number", "correct the line; is the format the right one?")
        return number


class _TraceFormat(msgspec.Struct, frozen=True):
    """Reader of a format: the columns that must be there, and what makes a job of a line."""

    columns: tuple[str, ...]
    job: Callable[[Record], TraceJob | None]
    has_header: bool = True


def _philly(record: Record) -> TraceJob:
    return TraceJob(
        id=f"line-{record.line}",
        line=record.line,
        submit_ms=record.instant_ms("timestamp"),
        duration_ms=record.ms("duration", SECOND_MS),
        gpus=record.count("num_gpus", 1),
        tenant=record.text("cluster"),
    )


def _muri(record: Record) -> TraceJob:
    return TraceJob(
        id=record.text("job_id"),
        line=record.line,
        submit_ms=record.ms("submit_time", 1),
        duration_ms=record.ms("duration", 1),
        gpus=record.count("num_gpu", 1),
    )


def _swf(record: Record) -> TraceJob | None:
    if record.text("run time") == "-1" or record.text("processors") in ("-1", "0"):
        return None
    return TraceJob(
        id=record.text("job"),
        line=record.line,
        submit_ms=record.ms("submit", SECOND_MS),
        duration_ms=record.ms("run time", SECOND_MS),
        gpus=record.count("processors", 1),
    )


def _neutral(record: Record) -> TraceJob:
    return TraceJob(
        id=record.text("id") or record.fail("id", "it is empty", "give each job an id of its own"),
        line=record.line,
        submit_ms=record.ms("submit_s", SECOND_MS),
        duration_ms=record.ms("duration_s", SECOND_MS),
        gpus=record.count("gpus", 1),
        tasks=record.count("tasks", 1, default=1),
        knows_tasks=bool(record.text("tasks")),
        cpus=record.count("cpus", 1, default=1),
        memory_mb=record.count("memory_mb", default=0),
        priority=record.count("priority", -COUNT_MAX) if record.text("priority") else None,
        tenant=record.text("tenant"),
    )


_SWF_FIELDS: Final = ("job", "submit", "wait", "run time", "processors")
"""The first of its 18."""
FORMATS: Final = {
    "csv": _TraceFormat(("id", "submit_s", "duration_s", "gpus"), _neutral),
    "philly": _TraceFormat(("timestamp", "duration", "num_gpus"), _philly),
    "muri": _TraceFormat(("job_id", "num_gpu", "submit_time", "duration"), _muri),
    "swf": _TraceFormat(_SWF_FIELDS, _swf, has_header=False),
}
"""By the name that `--format` has. `csv` is the neutral form, of which `tasks`, `cpus`, `memory_mb`, `priority` and
`tenant` may be left out or left empty."""


def records(path: Path, columns: Sequence[str], *, has_header: bool = True) -> Iterator[Record]:
    """Yield the lines of a file that may be gzip, each with its cells by column.

    Raises: StokerError `bad_trace` (T1).
    """
    rows = _rows if has_header else _plain_rows
    line = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            source: IO[bytes] = gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[assignment]  # reads alike
            with TextIOWrapper(source, encoding="utf-8-sig", newline="") as text:
                for line, cells in rows(str(path), text, columns):
                    yield Record(str(path), line, cells)
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        where = "after this line" if line else "before its first whole line"
        message = f"the gzip data breaks off or is damaged {where} ({fault})"
        raise trace_fault(str(path), line, "", message, "fetch the file again") from fault
    except UnicodeDecodeError as fault:
        raise trace_fault(str(path), line, "", "what follows isn't UTF-8 text", "is it a trace?") from fault
    except csv.Error as fault:
        raise trace_fault(str(path), line, "", f"what follows isn't CSV: {fault}", "is it a trace?") from fault
    except OSError as fault:
        raise trace_fault(str(path), 0, "", f"it can't be read: {fault.strerror or fault}", "name a file") from fault


def _rows(path: str, text: TextIOWrapper, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(text)
    header = [name.strip() for name in next(reader, [])]
    for name in columns:
        if name not in header:
            there = f"it has {', '.join(header)[:200]}" if any(header) else "the file is empty"
            raise trace_fault(path, 1, name, f"there is no such column; {there}", _columns_hint(columns))
    for place, name in enumerate(header):
        if name in header[:place]:
            raise trace_fault(path, 1, name, "two columns have this name", "name each column once")
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            message = f"it has {counted(len(cells), 'cell')}, and the first line names {len(header)}"
            raise trace_fault(
                path, reader.line_num, header[min(len(cells), len(header) - 1)], message, "correct the line"
            )
        yield reader.line_num, dict(zip(header, cells, strict=True))


def _columns_hint(columns: Sequence[str]) -> str:
    return f"the first line of this format names at least {', '.join(columns)}; is --format the right one?"


def _plain_rows(path: str, text: TextIOWrapper, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines with blanks between their fields, comments after `;`."""
    for line, each in enumerate(text, 1):
        cells = each.partition(";")[0].split()
        if not cells:
            continue
        if len(cells) < len(columns):
            message = f"it has {counted(len(cells), 'field')}, and at least {len(columns)} are wanted"
            hint = "a job's line has 18 fields; is --format the right one?"
            raise trace_fault(path, line, columns[len(cells)], message, hint)
        yield line, dict(zip(columns, cells, strict=False))


def trace_fault(path: str, line: int, field: str, message: str, hint: str) -> StokerError:
    """Return the error `bad_trace` about a field on a line of a file; line 0 = the file as a whole."""
    where = path + (f", line {line}" if line else "") + (f", {field}" if field else "")
    return refusal_error("bad_trace", f"{where}: {message}", hint, file=path, line=line, field=field)
