"""GPU detection by `nvidia-smi`.

Three calls: one for the values, one for the listing, which alone shows MIG instances, and one for the MIG mode, which
older drivers don't know. What is then offered is the same as by NVML: `devices.py`.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from stoker.adapters.bounded_run import BoundedRunner, ProgramOutput
from stoker.adapters.gpu_probe.devices import DriverMissing, offered
from stoker.adapters.gpu_probe.nvidia_smi_text import (
    FIELDS,
    count_migs,
    mig_enabled,
    parse_query,
)
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.units import counted
from stoker.ports import GpuFault, ProbedGpu, ProbeResult

TIMEOUT_S: Final = 10.0
_WHOLE: Final = (0, 14)
"""Exit statuses after a whole list; 14 warns of a corrupted infoROM. Source: nvidia-smi(1), "return value"."""
_NONE_FOUND: Final = "no devices were found"


class SmiProbe:
    """The `GpuProbe` port on `nvidia-smi`."""

    def __init__(
        self,
        binary: str = "nvidia-smi",
        timeout_s: float = TIMEOUT_S,
        *,
        environ: Mapping[str, str] | None = None,
        runner: BoundedRunner | None = None,
    ) -> None:
        self._binary = binary
        self._timeout_s = timeout_s
        self._environ = os.environ if environ is None else environ
        self._runner = runner or BoundedRunner()

    def probe(self) -> ProbeResult:
        """Raises: OSError, with what the program or the operating system said."""
        said = self._ask(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
        reading = parse_query(f"{said.out}\n{said.err}")
        if not reading.gpus and not reading.faults:
            told = " / ".join(reading.messages)
            if not is_empty_list(said, told):
                raise OSError(f"{self._binary} failed (exit {said.status}): {told or 'it said nothing'}")
        faults = reading.faults or self._cut_short(reading.gpus, said.status)
        migs = self._migs() if reading.gpus else {}
        return offered(
            reading.gpus, faults, {GpuUuid(uuid): _mig_fault(count) for uuid, count in migs.items()}, self._environ
        )

    def _cut_short(self, gpus: Sequence[ProbedGpu], status: int) -> tuple[GpuFault, ...]:
        """Return the fault of a list that may lack GPUs, since the program that printed it failed (S6)."""
        if not gpus or status in _WHOLE:
            return ()
        error = (
            f"{self._binary} failed (exit {status}) in the middle of its list, and named no GPU that it couldn't read"
        )
        return (GpuFault(where="nvidia-smi", error=error),)

    def _migs(self) -> dict[str, int]:
        """MIG instances of each GPU with MIG switched on, by its UUID."""
        migs: dict[str, int] = {}
        # The values are there; what fails after them isn't worth losing every GPU.
        with suppress(OSError):
            modes = self._ask("--query-gpu=uuid,mig.mode.current", "--format=csv,noheader").out
            migs |= dict.fromkeys(mig_enabled(modes), 0)
        with suppress(OSError):
            migs |= {uuid: count for uuid, count in count_migs(self._ask("-L").out).items() if count}
        return migs

    def _ask(self, *arguments: str) -> ProgramOutput:
        path = shutil.which(self._binary)
        if path is None:
            raise DriverMissing(f"there is no program {self._binary} on PATH")
        try:
            return self._runner.run([path, *arguments], self._timeout_s)
        except OSError as fault:
            raise OSError(f"can't ask {self._binary}: {fault.strerror or fault}") from fault


def is_empty_list(said: ProgramOutput, told: str | None = None) -> bool:
    """Return whether an output without any GPU says that there is none. `told`: its text, if that was read already."""
    text = f"{said.out}{said.err}".strip() if told is None else told
    return _NONE_FOUND in text.lower() or (said.status == 0 and not text)


def _mig_fault(count: int) -> str:
    """Why a GPU with MIG switched on isn't offered: no option of the program tells the memory of each instance."""
    return (
        f"MIG is on, with {counted(count, 'MIG instance')}, which are offered only where NVML can be asked "
        "(`gpu.detection: nvml`)"
    )
