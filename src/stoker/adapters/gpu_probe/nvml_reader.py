"""Program that asks NVML for the GPUs of this machine, or for their figures, and prints what it says as lines of JSON.

It is a process of its own, since NVML may hang inside the driver, crash, or be of another version than the driver is by
now, and nothing in one process ends any of that. What its values mean is judged by `nvml_answers.py`.

Usage:  python -I -S nvml_reader.py SECONDS FOLDER [INDEX...]
        It ends within SECONDS; FOLDER holds nvidia-ml-py; GPUs of these indexes are asked last
        nvml_reader.py SECONDS FOLDER stay
        Each line of standard input, `all` or indexes, is answered within SECONDS by the figures of these GPUs
Output: {"failed": [CODE, WORDS]} | {"count": N}, then for each GPU {"asked": INDEX} and {"index": INDEX, ...}, last
        {"done": true}. A value of a GPU is [value, ""], or [code, words] of an error. Each answer of one that stays:
        {"index": INDEX, ...} for each GPU, last {"done": true, "xids": [[INDEX, XID, GPU INSTANCE], ...]}.
        Where MIG is on, a GPU also has "instances": [{"slot": N, ...}, ...], each with values of its own.
        "links" are [PCI ADDRESS, KIND] of what each of its NVLinks leads to
Exit:   MISSING without the library, with its words on standard error
Rules:  R1  hardly anything is imported for a library that isn't there: a node without GPUs looks every half minute
        R2  each line leaves before the next GPU is asked, so that one that hangs or crashes hides none before it
        R3  no value is asked that isn't read: on a sick GPU each call is one more that may hang
        R4  one that stays ends with its standard input, with an answer that takes too long, and with a driver that no
            longer knows it: whoever started it starts another
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False  # typing's own costs more than all the rest of a look that finds no library (R1)
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Final, TextIO

    _Said = tuple[Any, str]  # (value, "") or (code of an error, its words)

LIBRARY: Final = "libnvidia-ml.so.1"
MISSING: Final = 3
GPUS_MAX: Final = 256
NO_INSTANCE: Final = 0xFFFF_FFFF
_MIGS_MAX: Final = 64
PROCESSES_MAX: Final = 64
"""Of one GPU."""
_XIDS_MAX: Final = 64
"""In one answer; more are told in the next."""


def loading_fault() -> str:
    """Return why the library can't be loaded; empty = it can. Ends the program if there is none (R1)."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as fault:
        words = str(fault)
        if LIBRARY in words and "No such file" in words:
            sys.stderr.write(f"{words}\n")
            sys.exit(MISSING)
        return words
    return ""


def main(arguments: Sequence[str], out: TextIO) -> None:
    """Answer all that is asked, line by line."""
    unusable = loading_fault()
    import json
    import signal

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(arguments[0]))  # nobody else ends it where the agent was killed while it hung

    def tell(**line: object) -> None:
        out.write(f"{json.dumps(line)}\n")
        out.flush()

    if unusable:
        return tell(failed=(0, unusable))
    sys.path.append(arguments[1])
    import pynvml

    reader = _Reader(pynvml)
    count, why = reader.count()
    if why:
        return tell(failed=(count, why))
    tell(count=count)
    if arguments[2:] == ["stay"]:
        return _answer_lines(reader, int(arguments[0]), sys.stdin, tell)
    late = [int(word) for word in arguments[2:]]
    order = range(count if count <= GPUS_MAX else 0)
    for index in [*(i for i in order if i not in late), *(i for i in late if i in order)]:
        tell(asked=index)
        tell(index=index, **reader.gpu(index))
    return tell(done=True)


def _answer_lines(reader: _Reader, seconds: int, lines: TextIO, tell: Callable[..., None]) -> None:
    """Answer each line of standard input, until it ends (R4)."""
    import signal

    signal.alarm(0)
    while line := lines.readline():
        signal.alarm(seconds)
        count, why = reader.count()
        if why:
            return tell(failed=(count, why))
        here = range(min(count, GPUS_MAX))
        words = line.split()
        asked = [int(word) for word in words if word != "all"]
        order = [*(i for i in here if i not in asked), *asked] if "all" in words else asked
        for index in [i for i in order if i in here]:
            tell(asked=index)
            tell(index=index, **reader.figures(index))
        tell(done=True, count=count, xids=reader.xids())
        signal.alarm(0)
    return None


class _Reader:
    """NVML by way of nvidia-ml-py."""

    def __init__(self, nvml: Any) -> None:  # noqa: ANN401  # a module without types
        self._nvml = nvml
        self._begun: _Said | None = None
        self._events: Any = None
        # The set in which XIDs are gathered.
        self._watched: dict[str, int] = {}
        # Index of each GPU, by its UUID, whose XIDs come to that set.

    def count(self) -> _Said:
        if self._begun is None:
            self._begun = self._ask(self._nvml.nvmlInit)
        return self._begun if self._begun[1] else self._ask(self._nvml.nvmlDeviceGetCount)

    def gpu(self, index: int) -> dict[str, _Said]:
        """Return what is told of one GPU; of one that can't be opened only why."""
        nvml = self._nvml
        handle, why = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
        if why:
            return {"handle": (handle, why)}
        return {
            "uuid": self._ask(_bytes_of(nvml.nvmlDeviceGetUUID), handle),
            "name": self._ask(_bytes_of(nvml.nvmlDeviceGetName), handle),
            "bus": self._ask(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId),
            "memory": self._memory(handle),
            "links": self._links(handle),
            **self._migs(handle, self._instance),
        }

    def _links(self, handle: object) -> list[tuple[str, int]]:
        """Return what is at the other end of each NVLink that is up: its PCI address, and what kind it is of.

        A GPU without NVLink says so at the first one, and one that is sick is asked no more.
        """
        nvml, found = self._nvml, list[tuple[str, int]]()
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            state, why = self._ask(nvml.nvmlDeviceGetNvLinkState, handle, link)
            if why:
                break
            if state != nvml.NVML_FEATURE_ENABLED:
                continue
            kind, untold = self._ask(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            bus, why = self._ask(lambda at: nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, at).busId, link)
            found.append(("" if why else bus, -1 if untold else kind))
        return found

    def _instance(self, handle: object) -> dict[str, _Said]:
        """Return what is told of a MIG instance."""
        nvml = self._nvml
        return {
            "uuid": self._ask(_bytes_of(nvml.nvmlDeviceGetUUID), handle),
            "name": self._ask(_bytes_of(nvml.nvmlDeviceGetName), handle),
            "memory": self._memory(handle),
            "gpu_instance": self._ask(nvml.nvmlDeviceGetGpuInstanceId, handle),
            "compute_instance": self._ask(nvml.nvmlDeviceGetComputeInstanceId, handle),
            "slices": self._ask(self._slices, handle),
        }

    def _slices(self, handle: object) -> tuple[int, int, int]:
        """Slices of the compute instance and of the GPU instance, and MiB, of which the name of a profile is made."""
        told = self._nvml.nvmlDeviceGetAttributes_v2(handle)
        return told.computeInstanceSliceCount, told.gpuInstanceSliceCount, told.memorySizeMB

    def figures(self, index: int) -> dict[str, _Said]:
        """Return what changes from moment to moment of one GPU; of one that can't be opened only why."""
        nvml = self._nvml
        handle, why = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
        if why:
            return {"handle": (handle, why)}
        uuid = self._ask(_bytes_of(nvml.nvmlDeviceGetUUID), handle)
        if not uuid[1]:
            self._watch(str(uuid[0]), index, handle)
        uncorrected, volatile = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        migs = self._migs(handle, self._instance_figures)
        of_all = {} if "instances" in migs else self._figures_of_whole(handle)
        return {
            "uuid": uuid,
            **migs,
            **of_all,
            "temperature": self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
            "power": self._ask(nvml.nvmlDeviceGetPowerUsage, handle),
            "ecc": self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, volatile),
            "sm_clock": self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "memory_clock": self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            "energy": self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle),
            "clock_events": self._clock_events(handle),
            "rows": self._ask(nvml.nvmlDeviceGetRemappedRows, handle),
        }

    def _clock_events(self, handle: object) -> _Said:
        """What bounds its clocks, by the name that drivers before 535 had for it where they know no other."""
        nvml = self._nvml
        told = self._ask(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        is_old = bool(told[1]) and told[0] == nvml.NVML_ERROR_FUNCTION_NOT_FOUND
        return self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) if is_old else told

    def _figures_of_whole(self, handle: object) -> dict[str, _Said]:
        """Return what the driver tells of a GPU only where MIG is off."""
        utilization = self._ask(lambda: self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        return {**self._use(handle), "utilization": utilization}

    def _use(self, handle: object) -> dict[str, _Said]:
        return {"used": self._memory(handle, "used"), "processes": self._ask(self._processes, handle)}

    def _instance_figures(self, handle: object) -> dict[str, _Said]:
        """Return what is told of a MIG instance; its utilisation, temperature and power aren't."""
        uuid = self._ask(_bytes_of(self._nvml.nvmlDeviceGetUUID), handle)
        gpu_instance = self._ask(self._nvml.nvmlDeviceGetGpuInstanceId, handle)
        return {"uuid": uuid, "gpu_instance": gpu_instance, **self._use(handle)}

    def xids(self) -> list[tuple[int, int, int]]:
        """Return (index, XID, GPU instance) of what the driver has told since it was asked last.

        The GPU instance is `NO_INSTANCE` where the error is one of the whole GPU.
        """
        told: list[tuple[int, int, int]] = []
        while self._events is not None and len(told) < _XIDS_MAX:
            event, why = self._ask(self._nvml.nvmlEventSetWait_v2, self._events, 0)
            if why:
                break
            uuid, why = self._ask(_bytes_of(self._nvml.nvmlDeviceGetUUID), event.device)
            index = -1 if why else self._watched.get(str(uuid), -1)
            told.append((index, int(event.eventData), int(event.gpuInstanceId)))
        return told

    def _watch(self, uuid: str, index: int, handle: object) -> None:
        """Have the XIDs of a GPU told, each of them once; a driver that tells none is left alone."""
        if uuid in self._watched:
            self._watched[uuid] = index
            return
        if self._events is None:
            self._events, why = self._ask(self._nvml.nvmlEventSetCreate)
            if why:
                self._events = None
        if self._events is not None:
            self._watched[uuid] = index
            self._ask(
                self._nvml.nvmlDeviceRegisterEvents, handle, self._nvml.nvmlEventTypeXidCriticalError, self._events
            )

    def _processes(self, handle: object) -> list[tuple[int, int | None]]:
        """Return (pid, bytes) of each process that computes there; None = the driver doesn't say how much."""
        found = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return [(each.pid, each.usedGpuMemory) for each in found[:PROCESSES_MAX]]

    def _memory(self, handle: object, what: str = "total") -> _Said:
        """Bytes, by version 2 first: GPUs that share the machine's memory refuse 1, old drivers know no 2."""
        nvml = self._nvml
        told = self._ask(lambda: getattr(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2), what))
        if not told[1] or told[0] in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
            return told
        older = self._ask(lambda: getattr(nvml.nvmlDeviceGetMemoryInfo(handle), what))
        unknown = (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        return older if not older[1] or told[0] in unknown else told

    def _migs(self, handle: object, tell: Callable[[object], dict[str, _Said]]) -> dict[str, Any]:
        """Return the MIG instances of a GPU, if MIG is on, and of each what `tell` returns."""
        nvml = self._nvml
        mode, why = self._ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        if why or mode != nvml.NVML_DEVICE_MIG_ENABLE:
            return {"mig": (mode, why)}
        slots, why = self._ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle)
        if why:
            return {"mig": (slots, why)}
        empty = (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT)
        instances: list[dict[str, Any]] = []
        for slot in range(min(slots, _MIGS_MAX)):
            instance, why = self._ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, slot)
            if why and instance in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
                return {"mig": (instance, why)}
            if why and instance not in empty:
                instances.append({"slot": slot, "uuid": (instance, why)})
            elif not why:
                instances.append({"slot": slot, **tell(instance)})
        return {"mig": (mode, ""), "instances": instances}

    def _ask(self, call: Callable[..., Any], *arguments: object) -> _Said:
        try:
            value = call(*arguments)
        except self._nvml.NVMLError as fault:
            return fault.value, str(fault) or "an error without words"
        return value.decode(errors="replace") if isinstance(value, bytes) else value, ""


def _bytes_of(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call without nvidia-ml-py's decoding, which raises for a name that isn't UTF-8."""
    return getattr(call, "__wrapped__", call)


if __name__ == "__main__":
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the driver's library prints is no part of the answer
    main(sys.argv[1:], answer)
