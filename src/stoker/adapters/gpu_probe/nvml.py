"""GPU detection by NVML, the library of NVIDIA's driver, through nvidia-ml-py.

Whatever asks the driver may hang in it or crash, so each look is a process of its own (`nvml_reader.py`), bounded in
time as `nvidia-smi` is. The agent itself never loads nvidia-ml-py or the library, so it stays small, and after an
upgrade of the driver the next look is by the new library.
"""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from stoker.adapters.bounded_run import BoundedRunner, ProgramOutput, ProgramTimeout
from stoker.adapters.gpu_probe.devices import TEXT_MAX, DriverMissing, cleaned, offered
from stoker.adapters.gpu_probe.nvml_answers import read_answer
from stoker.adapters.gpu_probe.nvml_reader import MISSING
from stoker.ports import ProbeResult

TIMEOUT_S: Final = 10.0
READER: Final = Path(__file__).with_name("nvml_reader.py")
_OVER_S: Final = 5
"""By then the reader has been killed, if the agent lives; it ends by itself if not."""
_BINDING: Final = "pynvml"


class NvmlProbe:
    """The `GpuProbe` port on NVML."""

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        *,
        environ: Mapping[str, str] | None = None,
        runner: BoundedRunner | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._environ = os.environ if environ is None else environ
        self._runner = runner or BoundedRunner()
        self._late: list[int] = []
        # GPUs at which looks ended, the newest last: asked after all others, so that they hide none of these.

    def probe(self) -> ProbeResult:
        """Raises: DriverMissing without the library; ProgramTimeout, or another OSError in NVML's words."""
        options = (str(int(self._timeout_s) + _OVER_S), folder_of_binding(), *map(str, self._late))
        argv = [sys.executable, "-I", "-S", str(READER), *options]
        try:
            said = self._runner.run(argv, self._timeout_s, "NVML")
            if said.status == MISSING:
                raise DriverMissing(_last_line(said.err))
            reading = read_answer(said.out, _ending(said))
        except ProgramTimeout as fault:
            if not fault.out:
                raise
            reading = read_answer(fault.out, f"no answer within {self._timeout_s:g} s")
        self._late = [index for index in self._late if index in reading.unread and index != reading.asked]
        if reading.asked is not None:
            self._late.append(reading.asked)
        return offered(reading.gpus, reading.faults, reading.divided, self._environ, reading.links)


def folder_of_binding() -> str:
    """Return the folder of nvidia-ml-py. Raises: DriverMissing."""
    found = find_spec(_BINDING)
    if found is None or found.origin is None:
        raise DriverMissing("nvidia-ml-py isn't installed beside Stoker")
    return str(Path(found.origin).parent)


def _ending(said: ProgramOutput) -> str:
    """Return in words how the reader ended, where it ended too early."""
    if said.status < 0:
        return f"NVML crashed (signal {-said.status})"
    last = _last_line(said.err)
    return f"the answer of NVML ends too early (exit {said.status}){f': {last}' if last else ''}"


def _last_line(text: str) -> str:
    return cleaned(text.strip().rpartition("\n")[2])[:TEXT_MAX]
