"""A search that misses nobody, although processes come and go while it looks."""

import os

import pytest

from stoker.agent.runner.process import procfs
from stoker.agent.runner.process.procfs import Proc

ME = os.getpid()


class Relay:
    """Each process hands on to the next just before it is looked at, `handovers` times; the last one stays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, handovers: int) -> None:
        self._handovers = handovers
        self._alive = 100
        monkeypatch.setattr(procfs, "_children_listed", lambda: [self._alive])
        monkeypatch.setattr(procfs, "_all_listed", lambda: [self._alive])
        monkeypatch.setattr(procfs, "read_proc", self._read)

    def _read(self, pid: int) -> Proc | None:
        if pid == self._alive and self._handovers:
            self._handovers -= 1
            self._alive += 1
        return Proc(pid, ME, ME, 1) if pid == self._alive else None


@pytest.mark.parametrize("handovers", [0, 1, 5])
def test_a_child_that_a_dying_one_leaves_us_while_we_look_is_found(
    monkeypatch: pytest.MonkeyPatch, handovers: int
) -> None:
    """Else a tree that forks and dies by turns is taken for gone, and its GPUs are given away."""
    Relay(monkeypatch, handovers)
    assert [proc.pid for proc in procfs.living_children(but=())] == [100 + handovers]


@pytest.mark.parametrize("handovers", [0, 1, 5])
def test_a_process_that_appears_while_all_are_looked_at_is_found(
    monkeypatch: pytest.MonkeyPatch, handovers: int
) -> None:
    Relay(monkeypatch, handovers)
    assert list(procfs.every_proc()) == [100 + handovers]


def test_a_machine_where_processes_never_cease_to_appear_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    Relay(monkeypatch, 1_000_000)
    procfs.living_children(but=())
    procfs.every_proc()
