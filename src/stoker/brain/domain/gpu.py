"""GPUs, shares of them, and the match of their models with the model that a job asks for."""

import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Final, Literal

import msgspec

from stoker.brain.domain.errors import Refusal, StokerError, refuse
from stoker.brain.domain.ids import GpuUuid

GpuStatus = Literal["idle", "busy", "offline", "quarantined", "lost"]
"""`lost`: its node has had it and can't open or read it now. `offline`: its node takes no new work, or something that
is no job of this cluster holds it."""

WHOLE_GPU: Final = 1_000
"""Thousandths of a GPU that make one: amounts of GPUs are integers, so that sums are exact."""
GPU_SHARERS_MAX: Final = 16
"""Tasks that share one GPU, where the policy doesn't say otherwise: each keeps a context of a few hundred MiB there,
and MPS takes 48 to 60 of them."""

_WORD = re.compile(r"[a-z]+|[0-9]+")


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a node, named by UUID; `index` is its number in PCI order and only for people."""

    uuid: GpuUuid
    index: int
    model: str
    memory_mb: int
    simulated: bool = False


class SharedGpu(msgspec.Struct, frozen=True):
    """Rest of a GPU that tasks share."""

    gpu: Gpu
    left: int
    """Thousandths that no sharer holds."""
    memory_left_mb: int
    """MiB beyond the bounds of its sharers; below zero where the device has less memory than when they were placed."""
    sharers: int
    """At least one: a GPU without any is free whole."""

    def fits(self, share: int, memory_mb: int, sharers_max: int) -> bool:
        """Return whether one more sharer of that share and memory bound fits."""
        return share <= self.left and memory_mb <= self.memory_left_mb and self.sharers < sharers_max


def parse_gpu_share(text: str) -> int:
    """Return the thousandths that a share such as `0.25` is. Raises: StokerError `bad_gpu_share`."""
    try:
        milli = Decimal("NaN" if "_" in text else text) * WHOLE_GPU
    except InvalidOperation:
        milli = Decimal("NaN")
    if not milli.is_finite() or not 0 < milli <= WHOLE_GPU or milli != int(milli):
        raise StokerError(bad_gpu_share(text))
    return int(milli)


def bad_gpu_share(asked: str) -> Refusal:
    """Return the refusal of a share that is none, with what was asked for."""
    message = f"{asked[:40]!r} is no share of a GPU: it must be above 0 and at most 1, with three decimals at most"
    hint = "such as 0.25 for a quarter; several whole GPUs per task are asked for by their number (`--gpus 2`)"
    return refuse("bad_gpu_share", message, hint, field="gpu_share")


def gpus_number(milli: int) -> int | float:
    """Return thousandths of GPUs as the number that people read: 4, or 0.25."""
    return milli / WHOLE_GPU if milli % WHOLE_GPU else milli // WHOLE_GPU


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
