"""A library in the place of NVIDIA's (`nvml_stub.c`), compiled once for each process of tests, and the GPUs in it."""

import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.programs import skip_without

SOURCE = Path(__file__).with_name("nvml_stub.c")
LIBRARY = "libnvidia-ml.so.1"
MODEL = "NVIDIA H100 80GB HBM3"


class NvmlStub:
    """The state of some GPUs, which whoever has `environ` sees at each call."""

    def __init__(self, folder: Path, count: int = 4) -> None:
        """Skips the test where no C compiler is."""
        skip_without("cc")
        if not _has_headers():
            pytest.skip("cc here finds no stdio.h (tools/setup.sh programs, or libc6-dev)")
        self.path = folder / "nvml.state"
        self.environ = {"LD_LIBRARY_PATH": str(library(folder)), "NVML_STUB_STATE": str(self.path)}
        self.values = {"driver": "570.00.00", "count": str(count)}
        for gpu in range(count):
            self.values |= {
                f"{gpu}.uuid": uuid(gpu),
                f"{gpu}.name": MODEL,
                f"{gpu}.bus": f"00000000:{0x10 + gpu:02X}:00.0",
                f"{gpu}.memory": "81559",
            }
        self.tell()

    def divide(self, gpu: int, *slots: int, profile: str = "1g.10gb", memory_mb: int = 9_728) -> None:
        """Switch MIG on, with instances in these slots; a slot's GPU instance is 7 more than it."""
        self.values |= {f"{gpu}.mig": "1", f"{gpu}.migs": ",".join(map(str, slots)) or "-1"}
        for slot in slots:
            self.values |= {
                f"{gpu}.mig.{slot}.uuid": mig_uuid(gpu, slot),
                f"{gpu}.mig.{slot}.name": f"{MODEL} MIG {profile}",
                f"{gpu}.mig.{slot}.memory": str(memory_mb),
                f"{gpu}.mig.{slot}.gi": str(slot + 7),
                f"{gpu}.mig.{slot}.ci": "0",
            }
        self.tell()

    def tell(self, *gone: str, **changed: str | bytes) -> None:
        """Change some values, `gpu_2_name` for `2.name`, and take out keys that are `gone`."""
        for key, value in changed.items():
            parts = key.removeprefix("gpu_").split("_", 1)
            name = f"{parts[0]}.{parts[1]}" if key.startswith("gpu_") else key
            self.values[name] = value.decode("latin-1") if isinstance(value, bytes) else value
        for key in gone:
            self.values.pop(key, None)
        lines = (f"{key} {value}\n" for key, value in self.values.items())
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(lines), encoding="latin-1")
        fresh.replace(self.path)  # nobody reads half of it


def uuid(gpu: int) -> str:
    return f"GPU-{gpu}aaaaaaa-0000-0000-0000-000000000000"


def mig_uuid(gpu: int, slot: int) -> str:
    return f"MIG-{gpu}{slot}bbbbbb-0000-0000-0000-000000000000"


def uuids(gpus: Iterable[int]) -> list[str]:
    return [uuid(gpu) for gpu in gpus]


def library(folder: Path) -> Path:
    """A folder with a library of that name, for LD_LIBRARY_PATH."""
    own = folder / "lib"
    own.mkdir(exist_ok=True)
    if not (own / LIBRARY).exists():
        (own / LIBRARY).write_bytes(_compiled())
    return own


@cache
def _has_headers() -> bool:
    words = ["cc", "-E", "-x", "c", "-"]
    return subprocess.run(words, input=b"#include <stdio.h>\n", capture_output=True, timeout=60).returncode == 0


@cache
def _compiled() -> bytes:
    made = Path(mkdtemp(prefix="nvml-stub-"))
    try:
        flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
        subprocess.run(["cc", *flags, "-o", str(made / LIBRARY), str(SOURCE)], check=True, timeout=60)
        return (made / LIBRARY).read_bytes()
    finally:
        shutil.rmtree(made)
