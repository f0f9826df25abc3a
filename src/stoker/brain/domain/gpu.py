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
_INSTANCE = re.compile(r"(.*) MIG (\S+)")
_PROFILE = re.compile(r"(?<![a-z0-9.])(?:[0-9]c\.)?[0-9]g\.[0-9]+gb\S*$")
_MIG = re.compile(r"(?<![a-z0-9])mig[^a-z0-9]*$")
MIG_SLOTS: Final = 1_000
"""Numbers of the instances of one GPU; real ones have seven at most."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a node, or a MIG instance of one, named by UUID; `index` is its number and only for people.

    The number of an instance is that of its GPU and its own in one (`mig_index`), and its model ends in ` MIG PROFILE`,
    as the driver has it: `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
    """

    uuid: GpuUuid
    index: int
    model: str
    memory_mb: int
    simulated: bool = False
    parent: GpuUuid = GpuUuid("")
    """UUID of the GPU of which this is a MIG instance. Empty = it is a GPU of its own."""
    suspect: bool = False
    """Whether something odd is seen of it, such as little headroom to the temperature from which on it gets no work: it
    goes to a job where no other does as well."""
    numa_node: int = -1
    """-1 = it isn't told."""
    bus: str = ""
    """PCI address, as the driver writes it. Empty = it has none."""


class GpuLink(msgspec.Struct, frozen=True):
    """NVLinks between two GPUs of a node, or from each of them to the switches between them.

    Placement doesn't ask for them yet.
    """

    first: int
    second: int
    """Indexes, the lower one first."""
    lanes: int = 1
    """How many; where a switch is between them those of the GPU that has fewer."""


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


def mig_index(gpu: int, slot: int) -> int:
    """Return the number of the MIG instance that is the `slot`-th of the GPU of that index. Both count from 0."""
    assert 0 <= slot < MIG_SLOTS, f"instance {slot} of GPU {gpu}"
    return (gpu + 1) * MIG_SLOTS + slot


def index_parts(index: int) -> tuple[int, int | None]:
    """Return the index of the GPU in an index, and the number of the MIG instance there; None = it is none."""
    gpu, slot = divmod(index, MIG_SLOTS)
    return (gpu - 1, slot) if gpu else (slot, None)


def index_text(index: int) -> str:
    """Return the index as people write it: `3`, or `0:3` for a MIG instance, as NVIDIA's container toolkit has it."""
    gpu, slot = index_parts(index)
    return f"{gpu}" if slot is None else f"{gpu}:{slot}"


@lru_cache(maxsize=4_096)
def mig_profile(model: str) -> str:
    """Return the profile of a MIG instance of that model, such as `1g.10gb`; empty = it is a whole GPU."""
    found = _INSTANCE.fullmatch(model)
    return found[2] if found else ""


@lru_cache(maxsize=4_096)
def asks_for_mig(wanted: str) -> bool:
    """Return whether a text that asks for a model asks for a MIG instance: by the word `mig`, a profile, or both."""
    return _mig_wanted(wanted) is not None


def _mig_wanted(wanted: str) -> tuple[str, str] | None:
    """Model of the GPU and profile that are asked for, both in lower case, empty = any; None = a whole GPU is."""
    text = wanted.strip().lower()
    profile = _PROFILE.search(text)
    before = text[: profile.start()] if profile else text
    word = _MIG.search(before)
    if profile is None and word is None:
        return None
    return before[: word.start()] if word else before, profile[0] if profile else ""


# A cluster has few models and its users name few, and the engine asks for each pair of them in each pass.
@lru_cache(maxsize=4_096)
def model_matches(wanted: str, model: str) -> bool:
    """Return whether a GPU of the driver's name `model` may serve a job that asked for `wanted`.

    Rules: M1  an empty text matches every model of a whole GPU
           M2  case, blanks and punctuation don't count: `v100-sxm2` is found in `Tesla V100-SXM2-32GB`
           M3  whole words only: `V100` isn't found in `V1000`, nor `A10` in `A100`
           M4  a text with no letter or digit in it, such as `*`, matches nothing
           M5  a MIG instance serves only who asks for one: by `mig`, by its profile to the letter (`1g.10gb`), or by
               these behind what its GPU's model matches (`H100 1g.10gb`). A whole GPU never serves who asks for one
    """
    instance, asked = _INSTANCE.fullmatch(model), _mig_wanted(wanted)
    if instance is None or asked is None:
        return instance is None and asked is None and (not wanted or _finds(wanted, model))
    whole, profile = asked
    return profile in ("", instance[2].lower()) and (not _WORD.search(whole) or _finds(whole, instance[1]))


def _finds(wanted: str, model: str) -> bool:
    needle, hay = _WORD.findall(wanted.lower()), _WORD.findall(model.lower())
    if not needle:
        return False
    return any(hay[i : i + len(needle)] == needle for i in range(len(hay) - len(needle) + 1))
