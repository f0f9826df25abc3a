"""The list of devices that every probe of real GPUs makes of what a driver says.

Rules: V1  GPUs that CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES keep from this process are somebody else's, and left
           alone; where that leaves none, the result says which variable it is
       V2  what is broken is our fault only where one of ours is missing
       V3  a GPU with MIG switched on is a fault, never offered and never hidden: this version offers whole GPUs only,
           and a job given such a GPU by its UUID would silently see one slice of it, or nothing
Source: the CUDA C++ programming guide, "CUDA environment variables", for what the variables may hold.
"""

import re
from collections.abc import Mapping
from typing import Final

from stoker.brain.domain.units import counted
from stoker.ports import GpuFault, ProbedGpu, ProbeResult

TEXT_MAX: Final = 200
GPUS_MAX: Final = 256
FAULTS_MAX: Final = 256
VARIABLES: Final = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
DEVICE_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z._/-]{1,80}")
PCI_ADDRESS: Final = re.compile(r"([0-9A-Fa-f]{1,8}):([0-9A-Fa-f]{1,2}):([0-9A-Fa-f]{1,2})\.([0-9A-Fa-f]{1,2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SHOWN_MAX: Final = 80
"""Letters of a variable that a note repeats."""
_Gpus = tuple[ProbedGpu, ...]
_Faults = tuple[GpuFault, ...]


class DriverMissing(OSError):
    """There is nothing that could be asked for GPUs: most likely a machine without any."""


def offered(gpus: _Gpus, faults: _Faults, migs: Mapping[str, int], environ: Mapping[str, str]) -> ProbeResult:
    """Return the result of a probe that found these GPUs and faults.

    `migs`: number of MIG instances of each GPU with MIG switched on.
    """
    ours, faults = _ours(gpus, faults, environ)
    cut = tuple(
        GpuFault(
            where=gpu.uuid,
            error=f"MIG is on, with {migs[gpu.uuid]} MIG instances, which this version can't offer; switch MIG off "
            "to use it as a whole GPU",
        )
        for gpu in ours
        if gpu.uuid in migs
    )
    whole = tuple(gpu for gpu in ours if gpu.uuid not in migs)
    return ProbeResult(gpus=whole, faults=faults + cut, hidden=_hidden(len(gpus), environ) if gpus and not ours else "")


def parse_visible(text: str | None) -> tuple[int | str, ...] | None:
    """Read CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES; None = not restricted.

    They hold indexes, and UUIDs of GPUs and MIG instances or unique beginnings of them.

    As in CUDA, what follows `-1` or the first thing that can't be read is invisible; so is all of an empty text.
    """
    if text is None or text.strip() == "all":
        return None
    visible: list[int | str] = []
    for word in text.split(","):
        token = word.strip()
        if token.isascii() and token.isdigit() and len(token) <= 4:
            visible.append(int(token))
        elif DEVICE_UUID.fullmatch(token):
            visible.append(token)
        else:
            break
    return tuple(visible)


def cleaned(text: str) -> str:
    """Return a text of the driver's without what a terminal or a log would take for more than text."""
    return _CONTROL.sub(" ", text).strip()


def pci_order(address: str, index: int) -> tuple[int, ...]:
    """Return the key to sort by. A GPU whose address isn't told comes after those whose is, by its index."""
    found = PCI_ADDRESS.fullmatch(address)
    return (0, *(int(part, 16) for part in found.groups())) if found else (1, index)


def _ours(gpus: _Gpus, faults: _Faults, environ: Mapping[str, str]) -> tuple[_Gpus, _Faults]:
    """Leave out what the environment keeps from this process (V1, V2)."""
    for variable in VARIABLES:
        words = parse_visible(environ.get(variable))
        if words is None or (variable.startswith("NVIDIA") and len(gpus) <= len(words)):
            continue  # the container runtime has hidden the others already, and numbered ours anew
        gpus = tuple(gpu for gpu in gpus if any(_is_named(gpu, word) for word in words))
        if len(gpus) >= len(words):
            faults = ()  # all of ours are there: what is broken is somebody else's
    return gpus, faults


def _is_named(gpu: ProbedGpu, word: int | str) -> bool:
    """Return whether a word of `parse_visible` names this GPU: by its index, or by a beginning of its UUID."""
    return gpu.index == word if isinstance(word, int) else gpu.uuid.startswith(word)


def _hidden(count: int, environ: Mapping[str, str]) -> str:
    """Say which variables of the agent's environment keep every GPU from it."""
    given = [f"{name}={environ[name][:_SHOWN_MAX]!r}" for name in VARIABLES if name in environ]
    return f"{' and '.join(given)} in the agent's environment: of {counted(count, 'GPU')} there none is offered"
