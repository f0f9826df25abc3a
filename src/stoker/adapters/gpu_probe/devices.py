"""The list of devices that every probe of real GPUs makes of what a driver says.

Rules: V1  GPUs that CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES keep from this process are somebody else's, and left
           alone; where that leaves none, the result says which variable it is
       V2  what is broken is our fault only where one of ours is missing
       V3  a GPU with MIG switched on isn't offered, its instances are: a job given such a GPU by its UUID would
           silently see one instance of it. One without instances is a fault, until there are some: Stoker makes none
       V4  whoever is shown a GPU is shown its MIG instances
Source: the CUDA C++ programming guide, "CUDA environment variables", for what the variables may hold; NVIDIA's
        container toolkit, "Environment variables", for `GPU:INSTANCE`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from stoker.brain.domain.gpu import GpuLink, index_text
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.units import counted
from stoker.ports import GpuFault, ProbedGpu, ProbeResult

TEXT_MAX: Final = 200
GPUS_MAX: Final = 256
FAULTS_MAX: Final = 256
VARIABLES: Final = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
GPU_UUID: Final = re.compile(r"GPU-[0-9A-Za-z._/-]{1,80}")
MIG_UUID: Final = re.compile(r"MIG-[0-9A-Za-z._/-]{1,80}")
PCI_ADDRESS: Final = re.compile(r"([0-9A-Fa-f]{1,8}):([0-9A-Fa-f]{1,2}):([0-9A-Fa-f]{1,2})\.([0-9A-Fa-f]{1,2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_PAIR: Final = re.compile(r"[0-9]{1,4}:[0-9]{1,2}")
NO_INSTANCES: Final = (
    "MIG is on, and it has no MIG instance to offer: make some (`nvidia-smi mig -cgi PROFILE -C`), or switch MIG off "
    "to use it as a whole GPU"
)
_SHOWN_MAX: Final = 80
"""Letters of a variable that a note repeats."""
_Gpus = tuple[ProbedGpu, ...]
_Faults = tuple[GpuFault, ...]


class DriverMissing(OSError):
    """There is nothing that could be asked for GPUs: most likely a machine without any."""


def offered(
    gpus: _Gpus,
    faults: _Faults,
    divided: Mapping[GpuUuid, str],
    environ: Mapping[str, str],
    links: Sequence[GpuLink] = (),
) -> ProbeResult:
    """Return the result of a probe that found these GPUs, MIG instances and faults.

    `divided`: GPUs with MIG switched on, and of each in words why there is nothing to offer if it has no instance;
    empty = other faults say it.
    """
    ours, faults = _ours(gpus, faults, environ)
    with_some = {gpu.parent for gpu in gpus if gpu.parent}
    empty = tuple(
        GpuFault(where=gpu.uuid, error=divided[gpu.uuid])
        for gpu in ours
        if divided.get(gpu.uuid) and gpu.uuid not in with_some
    )
    whole = tuple(gpu for gpu in ours if gpu.uuid not in divided)
    hidden = _hidden(len([gpu for gpu in gpus if not gpu.parent]), environ) if gpus and not ours else ""
    here = {gpu.index for gpu in whole}
    joined = tuple(link for link in links if link.first in here and link.second in here)
    return ProbeResult(gpus=whole, faults=faults + empty, hidden=hidden, links=joined)


def parse_visible(text: str | None, *, pairs: bool = False) -> tuple[int | str, ...] | None:
    """Read CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES; None = not restricted.

    They hold indexes, and UUIDs of GPUs and MIG instances or unique beginnings of them; with `pairs` also `0:3`, the
    fourth MIG instance of the first GPU.

    As in CUDA, what follows `-1` or the first thing that can't be read is invisible; so is all of an empty text.
    """
    if text is None or text.strip() == "all":
        return None
    visible: list[int | str] = []
    for word in text.split(","):
        token = word.strip()
        if token.isascii() and token.isdigit() and len(token) <= 4:
            visible.append(int(token))
        elif (pairs and _PAIR.fullmatch(token)) or GPU_UUID.fullmatch(token) or MIG_UUID.fullmatch(token):
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
        is_nvidia = variable.startswith("NVIDIA")
        words = parse_visible(environ.get(variable), pairs=is_nvidia)
        if words is None or (is_nvidia and _is_hidden_already(gpus, words)):
            continue
        parents = {gpu.uuid: gpu for gpu in gpus}
        named = {
            word: [gpu for gpu in gpus if any(_is_named(each, word) for each in (gpu, parents.get(gpu.parent)) if each)]
            for word in words
        }
        shown = {gpu.uuid for found in named.values() for gpu in found}
        gpus = tuple(gpu for gpu in gpus if gpu.uuid in shown)
        if all(named.values()):
            faults = ()  # all of ours are there: what is broken is somebody else's
    return gpus, faults


def _is_hidden_already(gpus: _Gpus, words: Sequence[int | str]) -> bool:
    """Return whether the container runtime has hidden what isn't named, and numbered anew what is.

    Where instances are named, it leaves their GPU beside them.
    """
    instances = [gpu for gpu in gpus if gpu.parent]
    if any(isinstance(word, str) and (word.startswith("MIG-") or ":" in word) for word in words):
        divided = {gpu.parent for gpu in instances}
        return len([gpu for gpu in gpus if gpu.uuid not in divided]) <= len(words)
    return len(gpus) - len(instances) <= len(words)


def _is_named(gpu: ProbedGpu, word: int | str) -> bool:
    """Return whether a word of `parse_visible` names this device: by its index, or by a beginning of its UUID."""
    if isinstance(word, int):
        return gpu.index == word and not gpu.parent
    return gpu.uuid.startswith(word) or (":" in word and index_text(gpu.index) == word)


def _hidden(count: int, environ: Mapping[str, str]) -> str:
    """Say which variables of the agent's environment keep every GPU from it."""
    given = [f"{name}={environ[name][:_SHOWN_MAX]!r}" for name in VARIABLES if name in environ]
    return f"{' and '.join(given)} in the agent's environment: of {counted(count, 'GPU')} there none is offered"
