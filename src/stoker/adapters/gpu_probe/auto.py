"""GPU detection by whichever probe finds devices, where the settings name none.

What nvidia-smi finds, else none. Simulated GPUs are never invented: a node whose driver is down would otherwise take
jobs that need a real one.
"""

from stoker.adapters.gpu_probe.nvidia_smi import SmiMissing, SmiProbe
from stoker.ports import GpuFault, ProbeResult


class AutoProbe:
    """The `GpuProbe` port for `detection: auto` without a script."""

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
