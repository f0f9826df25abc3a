"""The committed protobuf code is what `proto/` generates."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

TOOL = Path(__file__).resolve().parents[2] / "tools" / "gen_proto.py"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_proto", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    tool = load_tool()
    stale = tool.differences(tool.generate(tmp_path), tool.committed())
    assert stale == [], "run `make proto` and commit what changes"


def test_a_changed_a_missing_and_a_left_over_file_are_each_noticed() -> None:
    differences = load_tool().differences({"a": "1", "b": "2"}, {"a": "1!", "c": "3"})
    assert differences == ["a", "b", "c"]


def test_generated_modules_live_in_our_own_package() -> None:
    import stoker.wire.gen.agent_pb2_grpc as generated

    assert generated.__name__ in sys.modules
    assert "stoker.v1" not in sys.modules
