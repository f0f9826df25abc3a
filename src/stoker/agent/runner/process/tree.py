"""Process trees of tasks: which processes belong to a task, and whether they are gone.

While the runner lives it is the subreaper: whatever a task leaves behind becomes its child. So once the leader is
reaped, a task's tree is gone when its cgroup is empty and none of our children is an orphan of that task. Where no
cgroup can be made, orphans are all there is to go by; they are attributed once, when first seen, by mark, session,
cgroup or output pipe.

A task that an earlier runner left has no leader here: its processes are searched by cgroup, mark, pid and birth,
session, and descent from any of these.

Rules: K1  a signal goes only to a process whose pid and birth are those that were seen (`procfs.send`)
       K2  an orphan that can't be attributed (own session, scrubbed environment, other output) belongs to the last
           task to end of those that lived at its birth and may act as its account: no job outlives its end behind
           another user's, or holds that one up
"""

from __future__ import annotations

import os
import signal

from stoker.agent.runner import clock
from stoker.agent.runner.process import procfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from stoker.agent.runner.process.cgroup import TaskCgroup
    from stoker.agent.runner.process.procfs import Proc

_KILL_ROUNDS_MAX: Final = 8
"""Rounds of search and kill in one go, against trees that fork meanwhile; the next check goes on."""
_SPARING: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""Mean only what a program takes them for; one that doesn't know them dies."""
_ROOT: Final = 0
DRAIN_S: Final = 3.0
"""The client of a container takes some hundredths of a second; an engine that is busy holds it up."""
_ORPHANS_MAX: Final = 65_536
"""Attributions kept; at the bound all are found anew."""


class Tree:
    """The processes of one task."""

    __slots__ = (
        "birth", "born_s", "drains", "group", "inherited", "key", "leading", "mark", "marked", "pid", "pipe",
        "spared_until_s", "uid",
    )  # fmt: skip

    def __init__(self, key: str, mark: str, group: TaskCgroup) -> None:
        self.key = key
        self.mark = mark
        self.group = group
        self.pid = 0
        """The leader, also the session. 0 = it isn't known."""
        self.birth = 0
        self.born_s = 0.0
        """Seconds since boot, at or before the leader's birth."""
        self.pipe = 0
        """Inode of the output pipe."""
        self.leading = False
        """The leader is our child and not reaped."""
        self.inherited = False
        """Started by an earlier runner."""
        self.marked = False
        """Some of its processes descend from none of ours, and are found by their mark: those of a container that has
        no cgroup of ours."""
        self.drains = False
        """Its leader is the client of a container that runs, and copies what that has written."""
        self.spared_until_s = 0.0
        """Until then a kill spares the leader."""
        self.uid: int | None = None
        """As whom its processes act; -1 = none of them is a program yet, which could leave any. None = it can't be
        told."""

    def spare_client(self, now_s: float) -> None:
        """Leave the client of a container some time to copy what that has written, if it is to be killed now."""
        if self.drains:
            self.drains, self.spared_until_s = False, now_s + DRAIN_S

    @property
    def sparing(self) -> bool:
        """Whether a kill now spares the leader."""
        return self.leading and clock.boot_s() < self.spared_until_s

    def may_act_as(self, uid: int | None) -> bool:
        """Return True if a process of this tree may act as that account.

        Root may become any account, and no other may change (U3 and U4 of `account`).
        """
        return self.uid in (None, _ROOT, uid)


class Trees:
    """Process trees that aren't proved gone."""

    def __init__(self) -> None:
        self._trees: dict[str, Tree] = {}
        self._leaders: dict[int, Tree | None] = {}
        """Our children that aren't orphans; None = it serves us, and belongs to no tree."""
        self._owners: dict[tuple[int, int], str] = {}
        self._scanned: dict[int, Proc] | None = None
        self._marks: dict[int, str] = {}

    def look_again(self) -> None:
        """Forget what was seen of /proc. Once per turn of the loop, so that many ends share one scan."""
        self._scanned = None
        self._marks.clear()

    def add(self, tree: Tree) -> None:
        """Follow a tree."""
        self._trees[tree.key] = tree

    def led(self, tree: Tree, pid: int) -> None:
        """Note the leader of a tree, which exists now."""
        tree.pid, tree.leading = pid, True
        proc = procfs.read_proc(pid)
        tree.birth = proc.birth if proc else 0
        self._leaders[pid] = tree

    def helped(self, pid: int) -> None:
        """Note a child that serves the runner, and belongs to no task."""
        self._leaders[pid] = None

    def joined(self, tree: Tree, pid: int) -> None:
        """Note a child that belongs to a tree without leading it; it can't be told by itself before it is a program."""
        proc = procfs.read_proc(pid)
        if proc is not None:
            self._owners[proc.pid, proc.birth] = tree.key

    def reaped(self, pid: int) -> Tree | None:
        """Return the tree whose leader was reaped. None = it was an orphan, or one that served the runner."""
        tree = self._leaders.pop(pid, None)
        if tree is not None:
            tree.leading = False
        return tree

    def drop(self, tree: Tree) -> None:
        """Follow a tree no longer."""
        self._trees.pop(tree.key, None)

    def gone(self, tree: Tree) -> bool:
        """Return True when no process of a tree is left; its cgroup is removed then."""
        if tree.leading or not tree.group.remove():
            return False
        if tree.marked and self._searched(tree):
            return False
        return not (self._searched(tree) if tree.inherited else self._orphans(tree))

    def members(self, tree: Tree) -> list[Proc]:
        """Return all living processes of a tree. Costs a scan of /proc unless its cgroup holds everything."""
        roots = {orphan.pid for orphan in self._orphans(tree)}
        grouped = set(tree.group.pids())
        if not (tree.inherited or tree.marked) and roots <= grouped and (grouped or not tree.leading):
            return [proc for proc in map(procfs.read_proc, grouped) if proc is not None]
        roots |= grouped
        procs = self._scan()
        if tree.leading:
            roots.add(tree.pid)
            roots.update(_in_session(tree, procs))
        if tree.inherited or tree.marked:
            roots.update(proc.pid for proc in self._searched(tree))
        return procfs.with_descendants(roots, procs)

    def signal(self, tree: Tree, *numbers: int) -> None:
        """Send these signals, in this order, to every process of a tree."""
        for proc in self._hearing(tree):
            for number in numbers:
                procfs.send(proc, number)

    def forward(self, tree: Tree, number: int) -> None:
        """Send a person's signal to every process of a tree, but for shells that would only die of it."""
        for proc in self._hearing(tree):
            spared = number in _SPARING and procfs.is_shell(proc.pid) and not procfs.catches(proc.pid, number)
            if not spared:
                procfs.send(proc, number)

    def _hearing(self, tree: Tree) -> list[Proc]:
        """Return the processes of a tree that a signal is meant for: not the init process of a container, which hands
        on what it gets to one that gets it as well, nor its client, unless that is all that can be seen of it."""
        found = [proc for proc in self.members(tree) if not procfs.is_container_init(proc.pid)]
        contained = [proc for proc in found if proc.pid != tree.pid] if tree.drains else []
        return contained or found

    def kill(self, tree: Tree) -> None:
        """Kill a tree until nothing new turns up; inherited trees, maybe thousands, share a turn's scan."""
        spared = tree.pid if tree.sparing else 0
        tree.group.kill(sparing=spared > 0)
        self._kill_found(
            lambda: [proc for proc in self.members(tree) if proc.pid != spared],
            1 if tree.inherited else _KILL_ROUNDS_MAX,
        )

    def kill_together(self, trees: list[Tree]) -> None:
        """Kill all that surely belongs to these trees, with a few looks at /proc for all of them.

        Hundreds of leases end at once, and one by one they would take longer than they may.
        """
        if not trees:
            return
        for tree in trees:
            tree.group.kill(sparing=tree.sparing)
        spared = {tree.pid for tree in trees if tree.sparing}
        marked = {tree.mark for tree in trees if tree.marked}
        leading = {tree.pid: tree for tree in trees if tree.leading and tree.pid not in spared}
        keys = {tree.key for tree in trees}

        def theirs() -> list[Proc]:
            self.look_again()
            procs = self._scan()
            roots = {proc.pid for proc in procs.values() if _leads(leading.get(proc.session), proc)}
            roots |= {orphan.pid for orphan in procfs.living_children(but=self._leaders) if self._owner(orphan) in keys}
            if marked:
                roots |= {proc.pid for proc in procs.values() if self._mark(proc) in marked} - spared
            return procfs.with_descendants(roots | leading.keys(), procs)

        self._kill_found(theirs, _KILL_ROUNDS_MAX)

    def _kill_found(self, find: Callable[[], list[Proc]], rounds: int) -> None:
        """SIGKILL to what is found, until a round finds nothing new."""
        seen: set[tuple[int, int]] = set()
        for _ in range(rounds):
            fresh = [proc for proc in find() if (proc.pid, proc.birth) not in seen]
            if not fresh:
                return
            for proc in fresh:
                seen.add((proc.pid, proc.birth))
                procfs.send(proc, signal.SIGKILL)
            self._scanned = None

    # --- search -------------------------------------------------------------------------------------------------

    def _orphans(self, tree: Tree) -> list[Proc]:
        """Our children that a task left behind and that are counted to this one."""
        procs = procfs.living_children(but=self._leaders)
        return [proc for proc in procs if self._owner(proc) == tree.key or self._falls_to(tree, proc)]

    def _owner(self, proc: Proc) -> str:
        """The key of the task that the orphan belongs to. Empty = it can't be told."""
        known = self._owners.get((proc.pid, proc.birth))
        if known is None:
            if len(self._owners) >= _ORPHANS_MAX:
                self._owners.clear()
            known = self._owners[proc.pid, proc.birth] = self._attribute(proc)
        return known

    def _attribute(self, proc: Proc) -> str:
        trees = self._trees.values()
        mark = procfs.mark_of(proc.pid)
        for tree in trees:
            if mark == tree.mark:
                return tree.key
        for tree in trees:
            if tree.pid == proc.session or procfs.writes_to_pipe(proc.pid, tree.pipe):
                return tree.key
        return next((tree.key for tree in trees if proc.pid in tree.group.pids()), "")

    def _falls_to(self, tree: Tree, proc: Proc) -> bool:
        """Return the task to which an orphan that can't be attributed belongs (K2)."""
        if self._owner(proc) in self._trees or proc.birth_s < tree.born_s - 1:
            return False
        uid = procfs.uid_of(proc.pid)
        if not tree.may_act_as(uid):
            return False
        others = (other for other in self._trees.values() if other is not tree and not other.inherited)
        return not any(other.born_s <= proc.birth_s and other.may_act_as(uid) for other in others)

    def _searched(self, tree: Tree) -> list[Proc]:
        """Processes of an inherited tree that can be told by themselves."""
        procs = self._scan()
        leader = procs.get(tree.pid)
        found = [leader] if leader is not None and tree.birth and leader.birth == tree.birth else []
        sessions = set(_in_session(tree, procs))
        return found + [proc for proc in procs.values() if proc.pid in sessions or self._mark(proc) == tree.mark]

    def _scan(self) -> dict[int, Proc]:
        """All processes but this one, as seen this turn."""
        if self._scanned is None:
            self._scanned = procfs.every_proc()
            self._scanned.pop(os.getpid(), None)
        return self._scanned

    def _mark(self, proc: Proc) -> str:
        mark = self._marks.get(proc.pid)
        if mark is None:
            mark = self._marks[proc.pid] = procfs.mark_of(proc.pid)
        return mark


def _leads(tree: Tree | None, proc: Proc) -> bool:
    """Is the process in the session of this tree's leader?"""
    return tree is not None and proc.birth >= tree.birth


def _in_session(tree: Tree, procs: dict[int, Proc]) -> list[int]:
    """Pids in the session that the leader made. Its number isn't given to another process while one of them lives: when
    the pid belongs to somebody born at another time, the session is over."""
    holder = procs.get(tree.pid)
    if not tree.birth or (holder is not None and holder.birth != tree.birth):
        return []
    return [proc.pid for proc in procs.values() if proc.session == tree.pid and proc.birth >= tree.birth]
