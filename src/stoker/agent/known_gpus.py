"""File `gpus.json` in the agent's data folder: the GPUs that this machine is known to have, also after a restart.

Rules: K1  a file that can't be read, is damaged or too large is passed over with a warning: the node joins all the same
       K2  what was known under other CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES isn't known: those GPUs were given
           to somebody else, not lost
       K3  it is written only when what it says changes, and a disk that doesn't take it stops nothing
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from stoker.agent.runner.files import replace_file
from stoker.ports import ProbedGpu, Telemetry

NAME: Final = "gpus.json"
GPUS_MAX: Final = 256
_BYTES_MAX: Final = 1 << 18
_VARIABLES: Final = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


class _KnownThere(msgspec.Struct, frozen=True, kw_only=True):
    visible: tuple[str | None, ...]
    """Values of `_VARIABLES`."""
    gpus: Annotated[tuple[ProbedGpu, ...], msgspec.Meta(max_length=GPUS_MAX)] = ()


class KnownGpus:
    """The known GPUs of a data folder that this process holds."""

    def __init__(self, data_dir: Path, telemetry: Telemetry, environ: Mapping[str, str] = os.environ) -> None:
        self._path = data_dir / NAME
        self._telemetry = telemetry
        self._visible = tuple(environ.get(name) for name in _VARIABLES)
        self._kept: _KnownThere | None = None
        self._told = ""

    def read(self) -> tuple[ProbedGpu, ...]:
        """Return what is known (K1, K2)."""
        try:
            with self._path.open("rb") as file:
                content = file.read(_BYTES_MAX + 1)
            if len(content) > _BYTES_MAX:
                raise ValueError(f"it has more than {_BYTES_MAX} bytes")
            self._kept = msgspec.json.decode(content, type=_KnownThere)
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as fault:  # a fault of decoding is a ValueError
            self._telemetry.warn("known_gpus_unusable", error=f"{self._path} is passed over: {fault}")
            return ()
        return self._kept.gpus if self._kept.visible == self._visible else ()

    def keep(self, gpus: Iterable[ProbedGpu]) -> None:
        """Write down what is known from now on, at most `GPUS_MAX` of them (K3)."""
        known = _KnownThere(visible=self._visible, gpus=tuple(gpus)[:GPUS_MAX])
        if known == self._kept or (self._kept is None and not known.gpus):
            return
        try:
            replace_file(str(self._path), msgspec.json.encode(known))
            self._kept = known
        except OSError as fault:
            if str(fault) != self._told:
                self._telemetry.warn("known_gpus_not_kept", error=str(fault))
            self._told = str(fault)
