"""Where `stoker ca` looks for the authority."""

from pathlib import Path

import pytest

from stoker.cli.wiring.authority import authority_dir


def test_variables_of_an_agent_on_the_same_machine_are_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER__NODE__NAME", "n1")
    assert authority_dir(None, tmp_path) == tmp_path / "ca"
