"""Choice of the probe for real GPUs: NVML, `nvidia-smi`, or the first of both that can tell.

Another vendor's library becomes a probe of its own here, asked where NVML is missing.
"""

from typing import Final

from stoker.adapters.bounded_run import BoundedRunner, ProgramTimeout
from stoker.adapters.gpu_probe.devices import DriverMissing
from stoker.adapters.gpu_probe.nvidia_smi import SmiProbe
from stoker.adapters.gpu_probe.nvml import NvmlProbe
from stoker.ports import GpuFault, GpuProbe, ProbeResult

NVML: Final = "NVML"
SMI: Final = "nvidia-smi"


class AutoProbe:
    """The `GpuProbe` port for `detection: auto` without a script: what NVML finds, else nvidia-smi, else none.

    Simulated GPUs are never invented: a node whose driver is down would otherwise take jobs that need a real one.
    """

    def __init__(self, nvml: GpuProbe | None = None, smi: GpuProbe | None = None) -> None:
        runner = BoundedRunner()
        self._nvml = nvml or NvmlProbe(runner=runner)
        self._smi = smi or SmiProbe(runner=runner)
        self.passed_over = ""
        """Why NVML, although it is there, didn't answer the last look; empty = it did, or isn't there."""

    def probe(self) -> ProbeResult:
        """Never raises: a machine without a driver has no GPUs; one whose driver fails has a fault to show."""
        self.passed_over = ""
        try:
            return self._nvml.probe()
        except DriverMissing:
            pass
        except ProgramTimeout as fault:
            return _failed(NVML, fault)  # nvidia-smi would hang in the same driver
        except OSError as fault:
            self.passed_over = str(fault)
        try:
            return self._smi.probe()
        except DriverMissing:
            return _failed(NVML, self.passed_over) if self.passed_over else ProbeResult(gpus=())
        except OSError as fault:
            return _failed(NVML, self.passed_over) if self.passed_over else _failed(SMI, fault)


def device_probe(detection: str) -> GpuProbe:
    """Return the probe for a value of `gpu.detection` that reads no script."""
    if detection == "nvml":
        return NvmlProbe()
    return SmiProbe() if detection == "nvidia-smi" else AutoProbe()


def asked_by(detection: str) -> str:
    """Return what a fault says that was asked, where the probe of `gpu.detection` answers nothing at all."""
    return NVML if detection == "nvml" else SMI


def _failed(where: str, fault: object) -> ProbeResult:
    return ProbeResult(gpus=(), faults=(GpuFault(where=where, error=str(fault)),))
