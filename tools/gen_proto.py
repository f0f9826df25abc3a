"""Generate the protobuf code of `wire/gen` from `proto/`, or check that the committed code is what it would be.

The folder `proto/stoker/v1` is mapped onto `stoker/wire/gen`, so that the generated modules import each other as
`stoker.wire.gen.X_pb2`; plain `-Iproto` would generate `from stoker.v1 import ...`, which our own package shadows.
The protobuf package stays `stoker.v1`: that is what other languages see.

Usage: python tools/gen_proto.py [--check]
"""

import sys
import tempfile
from pathlib import Path

from grpc_tools import _proto as well_known  # type: ignore[import-untyped]  # grpcio-tools ships no types
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto" / "stoker" / "v1"
GEN = ROOT / "src" / "stoker" / "wire" / "gen"
PACKAGE = "stoker/wire/gen"


def generate(into: Path) -> dict[str, str]:
    """Run protoc over every file of `proto/stoker/v1`; answer what it wrote, by file name.

    Raises: SystemExit with protoc's status when it refuses.
    """
    plugins = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"-I{PACKAGE}={PROTO}",
        f"-I{Path(next(iter(well_known.__path__)))}",
        f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
        f"--python_out={into}",
        f"--grpc_python_out={into}",
        f"--mypy_out=quiet:{into}",
        f"--mypy_grpc_out=quiet,only_async:{into}",
        *(f"{PACKAGE}/{source.name}" for source in sorted(PROTO.glob("*.proto"))),
    ]
    status = protoc.main(arguments)
    if status:
        raise SystemExit(status)
    written = sorted((into / PACKAGE).iterdir())
    return {path.name: path.read_text() for path in written if path.is_file()}


def committed() -> dict[str, str]:
    """The generated files that lie in the tree."""
    return {path.name: path.read_text() for path in sorted(GEN.glob("*_pb2*.py*")) if path.suffix in (".py", ".pyi")}


def differences(fresh: dict[str, str], present: dict[str, str]) -> list[str]:
    """The names of files that are missing, left over or different."""
    return sorted(name for name in fresh.keys() | present.keys() if fresh.get(name) != present.get(name))


def main(arguments: list[str]) -> int:
    """Write the generated files, or with `--check` only say whether they are current."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
    stale = differences(fresh, committed())
    if arguments == ["--check"]:
        for name in stale:
            print(f"{GEN / name} isn't what proto/ generates; run `make proto`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        if name in fresh:
            (GEN / name).write_text(fresh[name])
        else:
            (GEN / name).unlink()
        print(f"wrote {name}" if name in fresh else f"removed {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
