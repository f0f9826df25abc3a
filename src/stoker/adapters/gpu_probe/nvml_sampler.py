"""Figures of GPUs by NVML, from one reader that stays (`nvml_reader.py`).

NVML takes a tenth of a second to begin, and gathers the driver's error reports (XIDs) only while a process waits for
them, so the process is kept from one look to the next. It may hang in the driver, crash, or be killed: then it's ended,
the look fails, and the next one begins another.

Rules: T1  a look ends within the time that it was given, whatever the driver does
       T2  while a reader that was killed doesn't end, since the driver holds it, no other is begun
       T4  a GPU at which NVML hangs, and which answered before, hides no other: a new reader asks it last, and it is a
           sample of which nothing is known
       T3  a GPU that can't be opened or read is a sample with a fault; the others are unaffected
       T5  a GPU with MIG switched on is a sample for each of its instances, with an index of their own (`mig_index`).
           What is wrong with it is wrong with each of them; an error that the driver gives to one GPU instance is that
           one's alone
Limits: `OUTPUT_MAX` bytes an answer.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from stoker.adapters.bounded_run import ProgramTimeout
from stoker.adapters.clock import SystemClock
from stoker.adapters.gpu_probe.devices import GPU_UUID, MIG_UUID, TEXT_MAX, DriverMissing, cleaned
from stoker.adapters.gpu_probe.nvml import READER, folder_of_binding
from stoker.adapters.gpu_probe.nvml_answers import NEVER_TOLD
from stoker.adapters.gpu_probe.nvml_reader import MISSING
from stoker.brain.domain.gpu import index_parts, mig_index
from stoker.brain.domain.gpu_telemetry import GpuLook, GpuProcess, GpuSample, RemappedRows
from stoker.brain.domain.ids import GpuUuid

TIMEOUT_S: Final = 10.0
OUTPUT_MAX: Final = 1 << 20
XIDS_MAX: Final = 64
"""Of one GPU that wait to be asked for; beyond it the oldest are dropped."""
_OVER_S: Final = 5
_MIB: Final = 1 << 20
_LAST_WAIT_S: Final = 1.0
_GONE: Final = (15, 16)
"""NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED."""
_OF_GPU: Final = ("temperature", "power", "ecc", "sm_clock", "memory_clock", "energy", "clock_events", "rows")
"""Figures that the driver tells of a GPU, and of none of its MIG instances."""
_PAIR: Final = 2
_ROWS: Final = 4
"""Numbers that are told of remapped rows."""
_NO: Final = (0, "")


class NvmlSampler:
    """Sampler of the GPUs that NVML lists. Its calls block: one at a time, in a thread."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._stuck: subprocess.Popen[bytes] | None = None
        self._uuids: dict[int, GpuUuid] = {}
        # By index: one that falls off the bus can't tell its name any more.
        self._instances: dict[int, dict[int, tuple[GpuUuid, int]]] = {}
        # By the index of a GPU with MIG switched on: the UUID and the GPU instance of each MIG instance by its index.
        self._xids: dict[int, list[int]] = {}
        # By index, of GPUs that weren't asked about since they were told.
        self._hung: dict[int, str] = {}
        # Why, by the index of GPUs at which the newest look hung: they are asked last (T4).

    def __call__(self, indexes: Sequence[int] | None = None, held: Collection[GpuUuid] = ()) -> GpuLook:
        """Look at these GPUs; None = at all. Which of them tasks hold is nothing to a driver.

        Raises: DriverMissing where there is no library; ProgramTimeout, or another OSError in NVML's words.
        """
        lines: list[dict[str, Any]] = []
        gpus = _gpus_of(indexes)
        try:
            process = self._running()
            late = [index for index in self._hung if gpus is None or index in gpus]
            order = ["all", *late] if gpus is None else [*(i for i in gpus if i not in late), *late]
            assert process.stdin is not None
            try:
                process.stdin.write(" ".join(map(str, order)).encode() + b"\n")
                process.stdin.flush()
                lines.extend(self._lines(process))
            except BrokenPipeError:
                raise OSError(_ending(process)) from None
        except ProgramTimeout as fault:
            self.close()
            return self._without_hung(lines, str(fault), indexes, held)
        except BaseException:
            self.close()
            raise
        for line in lines:
            self._hung.pop(line.get("index", -1), None)
        return self._look(lines, indexes)

    def _without_hung(
        self, lines: Sequence[dict[str, Any]], fault: str, indexes: Sequence[int] | None, held: Collection[GpuUuid]
    ) -> GpuLook:
        """Return what is known of the others where one GPU hangs (T4). Raises: ProgramTimeout if none answered."""
        at = lines[-1].get("asked") if lines else None
        if at is None or at not in self._uuids:
            raise ProgramTimeout(fault)
        if at not in self._hung:
            self._hung[at] = fault
            return self(indexes, held)  # by a new reader, which asks it last
        answered = {line["index"] for line in lines if "index" in line}
        if not answered:
            raise ProgramTimeout(fault)
        gpus = _gpus_of(indexes)
        asked = sorted(self._uuids) if gpus is None else gpus
        unknown = [each for index in asked if index not in answered for each in self._of(index, unanswered=fault)]
        look = self._look(lines, indexes)
        unknown = [each for each in unknown if indexes is None or each.index in indexes]
        return replace(look, samples=_by_index((*look.samples, *unknown)))

    def _of(self, index: int, *, fault: str = "", unanswered: str = "") -> list[GpuSample]:
        """Return the samples of a GPU of which nothing else is known: itself, or each of its MIG instances."""
        parent, instances = self._uuids.get(index, GpuUuid("")), self._instances.get(index, {})
        if not instances:
            return [GpuSample(uuid=parent, index=index, fault=fault, unanswered=unanswered)]
        return [
            GpuSample(uuid=uuid, index=number, parent=parent, fault=fault, unanswered=unanswered)
            for number, (uuid, _) in instances.items()
        ]

    def close(self) -> None:
        """End the reader."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(_LAST_WAIT_S)
        except subprocess.TimeoutExpired:
            self._stuck = process
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _running(self) -> "subprocess.Popen[bytes]":
        """The reader, begun unless it lives (T2). Raises: OSError."""
        if self._stuck is not None and self._stuck.poll() is None:
            words = f"NVML isn't asked: process {self._stuck.pid}, which asked before, was killed and doesn't end"
            raise ProgramTimeout(f"{words}, so the driver holds it")
        self._stuck = None
        if self._process is None:
            options = (str(int(self._timeout_s) + _OVER_S), folder_of_binding(), "stay")
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(READER), *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
                start_new_session=True,
            )
        return self._process

    def _lines(self, process: "subprocess.Popen[bytes]") -> Iterator[dict[str, Any]]:
        """Yield the lines of one answer (T1). Raises: OSError."""
        assert process.stdout is not None
        clock, rest, taken = SystemClock(), b"", 0
        deadline = clock.mono() + self._timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, deadline - clock.mono())):
                    raise ProgramTimeout(f"NVML didn't answer within {self._timeout_s:g} s")
                data = os.read(process.stdout.fileno(), 65_536)
                if not data:
                    raise _ended(process)
                taken += len(data)
                if taken > OUTPUT_MAX:
                    raise OSError(f"more than {OUTPUT_MAX} bytes of answer")
                *whole, rest = (rest + data).split(b"\n")
                for text in whole:
                    line = msgspec.json.decode(text, type=dict[str, Any])
                    if "failed" in line:
                        raise OSError(cleaned(str(line["failed"][1]))[:TEXT_MAX])
                    yield line
                    if "done" in line:
                        return

    def _look(self, lines: Sequence[dict[str, Any]], indexes: Sequence[int] | None) -> GpuLook:
        told = [line for line in lines if "index" in line]
        for line in told:
            self._learn(line)
        for index, code, gpu_instance in lines[-1].get("xids", ()):
            for number in self._hit(index, gpu_instance):
                self._xids.setdefault(number, []).append(code)
                del self._xids[number][:-XIDS_MAX]
        divided = tuple(self._uuids[line["index"]] for line in told if "instances" in line)
        samples = [each for line in told for each in self._samples(line, indexes)]
        return GpuLook(samples=_by_index(samples), divided=divided)

    def _learn(self, line: dict[str, Any]) -> None:
        """Take in what a line says of names."""
        index, (uuid, why) = int(line["index"]), line.get("uuid", (0, "unknown"))
        if why or not GPU_UUID.fullmatch(str(uuid)):
            return
        self._uuids[index] = GpuUuid(str(uuid))
        if "instances" not in line:
            if not line.get("mig", (0, "unknown"))[1]:
                self._instances.pop(index, None)
            return
        known, here = self._instances.get(index, {}), dict[int, tuple[GpuUuid, int]]()
        for each in line["instances"]:
            number, (own, why) = mig_index(index, each["slot"]), each["uuid"]
            if not why and MIG_UUID.fullmatch(str(own)):
                here[number] = GpuUuid(str(own)), _number(each, "gpu_instance") or 0
            elif why and number in known:
                here[number] = known[number]  # one that can't be opened keeps its name
        self._instances[index] = here

    def _hit(self, index: int, gpu_instance: int) -> list[int]:
        """Return the indexes of the devices that an error is about (T5)."""
        instances = self._instances.get(index)
        if not instances:
            return [index]
        hit = [number for number, (_, own) in instances.items() if own == gpu_instance]
        return hit or list(instances)

    def _samples(self, line: dict[str, Any], indexes: Sequence[int] | None) -> list[GpuSample]:
        """Return the samples of those devices of a line that were asked for: of the others XIDs stay untold."""
        index = int(line["index"])
        fault = _why_unusable(line)
        if fault and index in self._instances:
            return [each for each in self._of(index, fault=_words(fault)) if indexes is None or each.index in indexes]
        mode, why = line.get("mig", _NO)
        if why and mode not in NEVER_TOLD and self._instances.get(index):
            unknown = self._of(index, unanswered=f"its GPU doesn't tell its MIG instances: {_words(why)}")
            return [each for each in unknown if indexes is None or each.index in indexes]
        if "instances" not in line:
            return [self._sample(line, index, fault)] if indexes is None or index in indexes else []
        of_gpu = {name: line.get(name, (0, "unknown")) for name in _OF_GPU}
        shown = {mig_index(index, each["slot"]): {**of_gpu, **each} for each in line["instances"]}
        return [
            self._sample(shown[number], number, _why_unusable(shown[number]), parent=self._uuids[index])
            for number in self._instances[index]
            if indexes is None or number in indexes
        ]

    def _sample(self, line: dict[str, Any], index: int, fault: str, parent: str = "") -> GpuSample:
        used = _number(line, "used")
        gpu, _ = index_parts(index)
        return GpuSample(
            uuid=self._instances[gpu][index][0] if parent else self._uuids.get(index, GpuUuid("")),
            index=index,
            parent=GpuUuid(parent),
            utilization_percent=_number(line, "utilization", most=100),
            memory_used_mb=None if used is None else used // _MIB,
            temperature_c=_number(line, "temperature", most=1_000),
            power_mw=_number(line, "power"),
            ecc_errors=_number(line, "ecc"),
            sm_clock_mhz=_number(line, "sm_clock", most=1_000_000),
            memory_clock_mhz=_number(line, "memory_clock", most=1_000_000),
            energy_mj=_number(line, "energy"),
            clock_events=_number(line, "clock_events"),
            rows=_rows(line.get("rows", (0, "unknown"))),
            xids=tuple(self._xids.pop(index, ())),
            processes=_processes(line.get("processes", (0, "unknown"))),
            fault=_words(fault),
        )


def _gpus_of(indexes: Sequence[int] | None) -> Sequence[int] | None:
    """Return the indexes of the GPUs that these are, or of which they are MIG instances; None = all."""
    return None if indexes is None else tuple(dict.fromkeys(index_parts(index)[0] for index in indexes))


def _is_error(pair: Sequence[Any]) -> bool:
    return len(pair) == _PAIR and isinstance(pair[1], str) and bool(pair[1])


def _gone(line: dict[str, Any]) -> Iterator[str]:
    """Yield what says that a device is lost, in the driver's words."""
    for pair in line.values():
        if isinstance(pair, list) and _is_error(pair) and pair[0] in _GONE:
            yield pair[1]


def _why_unusable(line: dict[str, Any]) -> str:
    """Return why a device can't be used at all, in the driver's words; empty = it can (T3)."""
    if lost := next(_gone(line), ""):
        return lost
    return next((str(words) for _, words in (line.get("handle", _NO), line.get("uuid", _NO)) if words), "")


def _words(text: object) -> str:
    return cleaned(str(text))[:TEXT_MAX].rstrip(".")


def _by_index(samples: Iterable[GpuSample]) -> tuple[GpuSample, ...]:
    return tuple(sorted(samples, key=lambda sample: sample.index))


def _number(line: dict[str, Any], name: str, most: int = 1 << 62) -> int | None:
    """The value, unless it is an error or nonsense."""
    value, why = line.get(name, (0, "unknown"))
    return value if not why and isinstance(value, int) and 0 <= value <= most else None


def _rows(said: Any) -> RemappedRows | None:  # noqa: ANN401  # as NVML told it
    found, why = said
    if why or not isinstance(found, list) or len(found) != _ROWS:
        return None
    correctable, uncorrectable, pending, failed = found
    return RemappedRows(int(correctable), int(uncorrectable), bool(pending), bool(failed))


def _processes(said: Any) -> tuple[GpuProcess, ...] | None:  # noqa: ANN401  # as NVML told it
    found, why = said
    if why or not isinstance(found, list):
        return None
    return tuple(GpuProcess(int(pid), None if used is None else int(used) // _MIB) for pid, used in found)


def _ended(process: "subprocess.Popen[bytes]") -> OSError:
    """Why the reader ended by itself."""
    words = _ending(process)
    return DriverMissing(words) if process.returncode == MISSING else OSError(words)


def _ending(process: "subprocess.Popen[bytes]") -> str:
    try:
        status = process.wait(_LAST_WAIT_S)
    except subprocess.TimeoutExpired:
        return "the reader of NVML closed its output"
    if status == MISSING:
        return "there is no libnvidia-ml.so.1"
    return f"NVML crashed (signal {-status})" if status < 0 else f"the reader of NVML ended (exit {status})"
