"""GPU detection by `nvidia-smi`.

Two calls: one for the values, one for the listing, which alone shows MIG instances. A GPU that is cut into MIG
instances is reported as a fault: this version offers whole GPUs only, and a job given such a GPU by its UUID would
silently see one slice of it.
"""

import shutil
from typing import Final

from stoker.adapters.bounded_run import ProgramOutput, run_bounded
from stoker.adapters.gpu_probe.nvidia_smi_text import FIELDS, count_migs, parse_query
from stoker.ports import GpuFault, ProbedGpu, ProbeResult

TIMEOUT_S: Final = 10.0
_NONE_FOUND: Final = "no devices were found"


class SmiMissing(OSError):
    """There is no such program: most likely a machine without GPUs."""


class SmiProbe:
    """The `GpuProbe` port on `nvidia-smi`."""

    def __init__(self, binary: str = "nvidia-smi", timeout_s: float = TIMEOUT_S) -> None:
        self._binary = binary
        self._timeout_s = timeout_s

    def probe(self) -> ProbeResult:
        """Raises: OSError, with what the program or the operating system said."""
        said = self._ask(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
        reading = parse_query(f"{said.out}\n{said.err}")
        if not reading.gpus and not reading.faults:
            told = " / ".join(reading.messages)
            if _NONE_FOUND not in told.lower() and (said.status != 0 or told):
                raise OSError(f"{self._binary} failed (exit {said.status}): {told or 'it said nothing'}")
        whole, cut = self._without_mig(reading.gpus)
        return ProbeResult(gpus=whole, faults=reading.faults + cut)

    def _without_mig(self, gpus: tuple[ProbedGpu, ...]) -> tuple[tuple[ProbedGpu, ...], tuple[GpuFault, ...]]:
        if not gpus:
            return (), ()
        try:
            migs = count_migs(self._ask("-L").out)
        except OSError:
            # The values are there; a listing that fails after them isn't worth losing every GPU.
            return gpus, ()
        faults = tuple(
            GpuFault(
                where=gpu.uuid,
                error=f"cut into {migs[gpu.uuid]} MIG instances, which this version can't offer; "
                "switch MIG off to use it as a whole GPU",
            )
            for gpu in gpus
            if migs.get(gpu.uuid)
        )
        return tuple(gpu for gpu in gpus if not migs.get(gpu.uuid)), faults

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
