"""GPUs, and the match of their models with the model that a job asks for."""

import re
from functools import lru_cache
from typing import Literal

import msgspec

from stoker.brain.domain.ids import GpuUuid

GpuStatus = Literal["idle", "busy", "offline", "quarantined"]
"""`offline`: its node takes no new work, or something that is no job of this cluster holds it."""

_WORD = re.compile(r"[a-z]+|[0-9]+")


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a node, named by UUID; `index` is its number in PCI order and only for people."""

    uuid: GpuUuid
    index: int
    model: str
    memory_mb: int
    simulated: bool = False


# A cluster has few models and its users name few, and the engine asks for each pair of them in each pass.
@lru_cache(maxsize=4_096)
def model_matches(wanted: str, model: str) -> bool:
    """Return whether a GPU of the driver's name `model` may serve a job that asked for `wanted`.

    Rules: M1  an empty text matches every model
           M2  case, blanks and punctuation don't count: `v100-sxm2` is found in `Tesla V100-SXM2-32GB`
           M3  whole words only: `V100` isn't found in `V1000`, nor `A10` in `A100`
           M4  a text with no letter or digit in it, such as `*`, matches nothing
    """
    if not wanted:
        return True
    needle, hay = _WORD.findall(wanted.lower()), _WORD.findall(model.lower())
    if not needle:
        return False
    return any(hay[i : i + len(needle)] == needle for i in range(len(hay) - len(needle) + 1))
