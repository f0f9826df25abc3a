"""GPU detection by `nvidia-smi`.

Three calls: one for the values, one for the listing, which alone shows MIG instances, and one for the MIG mode, which
older drivers don't know. A GPU with MIG switched on is reported as a fault: this version offers whole GPUs only, and a
job given such a GPU by its UUID would silently see one slice of it, or nothing.

GPUs that CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES keep from this process are somebody else's, and left alone.
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from stoker.adapters.bounded_run import ProgramOutput, run_bounded
from stoker.adapters.gpu_probe.nvidia_smi_text import (
    FIELDS,
    count_migs,
    is_named,
    mig_enabled,
    parse_query,
    parse_visible,
)
from stoker.brain.domain.units import counted
from stoker.ports import GpuFault, ProbedGpu, ProbeResult

TIMEOUT_S: Final = 10.0
_WHOLE: Final = (0, 14)
"""Exit statuses after a whole list; 14 warns of a corrupted infoROM. Source: nvidia-smi(1), "return value"."""
_NONE_FOUND: Final = "no devices were found"
_Gpus = tuple[ProbedGpu, ...]
_Faults = tuple[GpuFault, ...]
_VARIABLES: Final = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_SHOWN_MAX: Final = 80
"""Letters of a variable that a note repeats."""


class SmiMissing(OSError):
    """There is no such program: most likely a machine without GPUs."""


class SmiProbe:
    """The `GpuProbe` port on `nvidia-smi`."""

    def __init__(
        self, binary: str = "nvidia-smi", timeout_s: float = TIMEOUT_S, *, environ: Mapping[str, str] | None = None
    ) -> None:
        self._binary = binary
        self._timeout_s = timeout_s
        self._environ = os.environ if environ is None else environ

    def probe(self) -> ProbeResult:
        """Raises: OSError, with what the program or the operating system said."""
        said = self._ask(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
        reading = parse_query(f"{said.out}\n{said.err}")
        if not reading.gpus and not reading.faults:
            told = " / ".join(reading.messages)
            if _NONE_FOUND not in told.lower() and (said.status != 0 or told):
                raise OSError(f"{self._binary} failed (exit {said.status}): {told or 'it said nothing'}")
        gpus, faults = self._ours(reading.gpus, reading.faults or self._cut_short(reading.gpus, said.status))
        whole, cut = self._without_mig(gpus)
        hidden = "" if gpus or not reading.gpus else self._hidden(len(reading.gpus))
        return ProbeResult(gpus=whole, faults=faults + cut, hidden=hidden)

    def _hidden(self, count: int) -> str:
        """Say which variables of the agent's environment keep every GPU from it."""
        given = [f"{name}={self._environ[name][:_SHOWN_MAX]!r}" for name in _VARIABLES if name in self._environ]
        return f"{' and '.join(given)} in the agent's environment: of {counted(count, 'GPU')} there none is offered"

    def _cut_short(self, gpus: _Gpus, status: int) -> _Faults:
        """Return the fault of a list that may lack GPUs, since the program that printed it failed (S6)."""
        if not gpus or status in _WHOLE:
            return ()
        error = (
            f"{self._binary} failed (exit {status}) in the middle of its list, and named no GPU that it couldn't read"
        )
        return (GpuFault(where="nvidia-smi", error=error),)

    def _ours(self, gpus: _Gpus, faults: _Faults) -> tuple[_Gpus, _Faults]:
        """Leave out what the environment keeps from this process."""
        for variable in _VARIABLES:
            words = parse_visible(self._environ.get(variable))
            if words is None or (variable.startswith("NVIDIA") and len(gpus) <= len(words)):
                continue  # the container runtime has hidden the others already, and numbered ours anew
            gpus = tuple(gpu for gpu in gpus if any(is_named(gpu, word) for word in words))
            if len(gpus) >= len(words):
                faults = ()  # all of ours are there: what is broken is somebody else's
        return gpus, faults

    def _without_mig(self, gpus: _Gpus) -> tuple[_Gpus, _Faults]:
        if not gpus:
            return (), ()
        migs: dict[str, int] = {}
        # The values are there; what fails after them isn't worth losing every GPU.
        with suppress(OSError):
            modes = self._ask("--query-gpu=uuid,mig.mode.current", "--format=csv,noheader").out
            migs |= dict.fromkeys(mig_enabled(modes), 0)
        with suppress(OSError):
            migs |= {uuid: count for uuid, count in count_migs(self._ask("-L").out).items() if count}
        faults = tuple(
            GpuFault(
                where=gpu.uuid,
                error=f"MIG is on, with {migs[gpu.uuid]} MIG instances, which this version can't offer; switch MIG off "
                "to use it as a whole GPU",
            )
            for gpu in gpus
            if gpu.uuid in migs
        )
        return tuple(gpu for gpu in gpus if gpu.uuid not in migs), faults

    def _ask(self, *arguments: str) -> ProgramOutput:
        path = shutil.which(self._binary)
        if path is None:
            raise SmiMissing(f"there is no program {self._binary} on PATH")
        try:
            return run_bounded([path, *arguments], self._timeout_s)
        except OSError as fault:
            raise OSError(f"can't ask {self._binary}: {fault.strerror or fault}") from fault


class AutoProbe:
    """The `GpuProbe` port for `detection: auto` without a script: what nvidia-smi finds, else none.

    Simulated GPUs are never invented: a node whose driver is down would otherwise take jobs that need a real one.
    """

    def __init__(self, smi: SmiProbe | None = None) -> None:
        self._smi = smi or SmiProbe()

    def probe(self) -> ProbeResult:
        """Never raises: a machine without nvidia-smi has no GPUs; one whose nvidia-smi fails has a fault to show."""
        try:
            return self._smi.probe()
        except SmiMissing:
            return ProbeResult(gpus=())
        except OSError as fault:
            return ProbeResult(gpus=(), faults=(GpuFault(where="nvidia-smi", error=str(fault)),))
