"""Figures of GPUs by `nvidia-smi`, where NVML can't be asked.

Two calls a look: one for the values of all GPUs, one for the processes on them; and now and then one for failing rows
of memory. What it doesn't tell: error reports of the driver (XIDs), energy, NVLink, and figures of MIG instances.

Rules: F1  a GPU that can't be read is a sample with a fault, or none at all; the others are unaffected
       F2  fields that an old driver doesn't know aren't asked for again
       F4  remapped rows change once in months, and each call is dear: only each `ROWS_EVERY`th look asks for them, and
           none where the program once said that it doesn't know them
       F3  where processes can't be listed, nothing is known of them, and the values stay
"""

import os
import shutil
from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from stoker.adapters.bounded_run import BoundedRunner, ProgramOutput, ProgramTimeout
from stoker.adapters.gpu_probe.devices import DriverMissing
from stoker.adapters.gpu_probe.nvidia_smi import TIMEOUT_S, is_empty_list
from stoker.adapters.gpu_probe.nvidia_smi_text import (
    FIGURES,
    PROCESS_FIELDS,
    ROW_FIELDS,
    parse_figures,
    parse_processes,
    parse_rows,
)
from stoker.brain.domain.gpu_telemetry import GpuLook, RemappedRows
from stoker.brain.domain.ids import GpuUuid

_UNKNOWN_OPTION: Final = 2
"""Exit status. Source: nvidia-smi(1), "return value"."""
_UNKNOWN_FIELD: Final = "is not a valid field"
ROWS_EVERY: Final = 60
_FORMAT: Final = "--format=csv,noheader,nounits"


class SmiSampler:
    """Sampler of the GPUs that nvidia-smi lists. Its calls block: one at a time, in a thread."""

    def __init__(self, binary: str = "nvidia-smi", timeout_s: float = TIMEOUT_S) -> None:
        self._binary = binary
        self._timeout_s = timeout_s
        self._runner = BoundedRunner()
        self._fields = [*FIGURES]
        # The first is asked for.
        self._looks = 0
        self._rows: dict[str, RemappedRows] | None = {}
        # By UUID, as told last. None = it knows none.
        self._uuids: dict[int, GpuUuid] = {}
        # By index: one that falls off the bus can't tell its name any more.

    def __call__(self, indexes: Sequence[int] | None = None, held: Collection[GpuUuid] = ()) -> GpuLook:
        """Look at these GPUs; None = at all. Which of them tasks hold is nothing to a driver.

        Raises: DriverMissing where there is no such program; OSError, with what it said.
        """
        said = self._ask(f"--query-gpu={','.join(self._fields[0])}")
        while len(self._fields) > 1 and _UNKNOWN_FIELD in f"{said.out}{said.err}":  # F2
            del self._fields[0]
            said = self._ask(f"--query-gpu={','.join(self._fields[0])}")
        found = parse_figures(said.out, self._uuids)
        if not found.samples and not found.divided and not is_empty_list(said):
            words = " / ".join(f"{said.out}\n{said.err}".split("\n")[:2]).strip(" /")
            raise OSError(f"{self._binary} failed (exit {said.status}): {words[:200] or 'it said nothing'}")
        self._uuids |= {sample.index: sample.uuid for sample in found.samples if sample.uuid}
        rows = self._rows_now()
        samples = [
            replace(sample, rows=rows.get(sample.uuid)) for sample in parse_processes(self._processes(), found.samples)
        ]
        return GpuLook(
            samples=tuple(each for each in samples if indexes is None or each.index in indexes), divided=found.divided
        )

    def close(self) -> None:
        """Nothing is open."""

    def _rows_now(self) -> dict[str, RemappedRows]:
        """Remapped rows of each GPU, by its UUID (F4). Raises: ProgramTimeout."""
        asks, self._looks = self._looks % ROWS_EVERY == 0, self._looks + 1
        if self._rows is not None and asks:
            try:
                said = self._ask(f"--query-remapped-rows={','.join(ROW_FIELDS)}")
            except ProgramTimeout:
                raise
            except OSError:
                return self._rows
            if said.status == os.EX_OK:
                self._rows = parse_rows(said.out)
            elif said.status == _UNKNOWN_OPTION:
                self._rows = None
        return self._rows or {}

    def _processes(self) -> str | None:
        """Return the table of processes; None = it can't be had (F3). Raises: ProgramTimeout."""
        try:
            said = self._ask(f"--query-compute-apps={','.join(PROCESS_FIELDS)}")
        except ProgramTimeout:
            raise
        except OSError:
            return None
        return said.out if said.status == os.EX_OK else None

    def _ask(self, query: str) -> ProgramOutput:
        path = shutil.which(self._binary)
        if path is None:
            raise DriverMissing(f"there is no program {self._binary} on PATH")
        try:
            return self._runner.run([path, query, _FORMAT], self._timeout_s, self._binary)
        except ProgramTimeout:
            raise
        except OSError as fault:
            raise OSError(f"can't ask {self._binary}: {fault.strerror or fault}") from fault
