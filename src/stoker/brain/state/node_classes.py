"""Index of nodes by class: nodes that are equal to every selection and demand.

Derived from the records of nodes, follows them one by one, and is the same whatever their history was.

Naive: ask every node, for each selection and in each pass, whether it is admitted. But clusters have few makes of
machine and people put few different labels on them. So nodes that have the same GPUs, CPUs, memory, labels and taints
are kept together and asked once; only their names tell them apart. What a selection admits is remembered until some
node changes.

Limits: costs about 10 us per node that registers or is labelled, and nothing per heartbeat, placement or pass.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from stoker.brain.domain.ids import NodeName
from stoker.brain.domain.label import HOSTNAME, JOBS_AS, USERS, Taint, labels_of, taints_of
from stoker.brain.domain.node import Node
from stoker.brain.domain.where import ANYWHERE, Operator, Requirement, Where, admits
from stoker.brain.state.view import GpuKinds, NodeClass, SelectedNodes

REMEMBERED_MAX: Final = 1 << 20
"""Names and groups in all selections remembered; with more all are forgotten, and found anew when they are asked
for."""


class _NodeClassKey(NamedTuple):
    """All that may be asked about a node but for its name and what is free on it."""

    gpus: tuple[tuple[str, int], ...]
    """Model and memory of each, in PCI order."""
    unread: tuple[tuple[str, int], ...]
    hides_unknown: bool
    cpus: int
    memory_mb: int
    labels: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]


class Strict(NamedTuple):
    """Whether any, or all, of the nodes ever registered enforce limits strictly."""

    any: bool
    all: bool


class _ClassGroup:
    """The nodes of one class, before any selection by name."""

    __slots__ = ("key", "labels", "names", "node_class")

    def __init__(self, key: _NodeClassKey, node: Node, kinds: GpuKinds) -> None:
        self.key = key
        self.labels = dict(key.labels)
        self.names: list[NodeName] = []
        self.node_class = NodeClass(kinds, node.inventory, self.names)


class NodeClasses:
    """Index of all nodes ever registered by class."""

    def __init__(self) -> None:
        self._groups: dict[_NodeClassKey, _ClassGroup] = {}
        self._group_of: dict[NodeName, _ClassGroup] = {}
        self._kinds: dict[GpuKinds, GpuKinds] = {}
        """Equal ones are one object, which saves their readers to compare them; as many as there ever were kinds."""
        self._admitted: dict[Where, SelectedNodes] = {}
        self._remembered = 0
        self._strict: Strict | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeClasses) and self._names() == other._names()

    __hash__ = None  # type: ignore[assignment]  # mutable, so it has no hash

    def _names(self) -> dict[_NodeClassKey, list[NodeName]]:
        return {key: group.names for key, group in self._groups.items()}

    def node_changed(self, old: Node | None, new: Node) -> None:
        """Follow one node record being made or replaced."""
        if old is not None and _nothing_new(old, new):
            return
        key = _node_class_key(new)
        group = self._group_of.get(new.name)
        if group is not None and group.key == key:
            return
        self.node_dropped(new.name)
        group = self._groups.get(key)
        if group is None:
            kinds = kinds_of(new)
            group = self._groups[key] = _ClassGroup(key, new, self._kinds.setdefault(kinds, kinds))
        self._group_of[new.name] = group
        insort(group.names, new.name)

    @property
    def strict(self) -> "Strict":
        """Return how many nodes run only jobs that name a user."""
        if self._strict is None:
            some = [group.labels.get(JOBS_AS) == USERS for group in self._groups.values()]
            self._strict = Strict(any(some), bool(some) and all(some))
        return self._strict

    def node_dropped(self, name: NodeName) -> None:
        """Follow one node that is no longer known at all."""
        self._forget()
        self._strict = None
        group = self._group_of.pop(name, None)
        if group is not None:
            del group.names[bisect_left(group.names, name)]
            if not group.names:
                del self._groups[group.key]

    def admitted(self, where: Where) -> SelectedNodes:
        """The nodes on which a job that selects `where` may run. Good until the next change."""
        found = self._admitted.get(where)
        if found is None:
            if self._remembered > REMEMBERED_MAX:
                self._forget()
            found = self._admitted[where] = self._select(where)
        return found

    def _forget(self) -> None:
        self._admitted.clear()
        self._remembered = 0

    def _select(self, where: Where) -> SelectedNodes:
        by_name = Where(require=tuple(filter(_of_name, where.require)), exclude=where.exclude)
        by_group = Where(require=tuple(each for each in where.require if not _of_name(each)), tolerate=where.tolerate)
        classes = []
        for group, names in self._named(by_name.require):
            if admits(by_group, NodeName(""), group.labels, group.key.taints):
                if by_name != ANYWHERE:
                    names = _admitted_by_name(by_name, names)
                if len(names) == len(group.names):
                    classes.append(group.node_class)
                elif names:
                    classes.append(NodeClass(group.node_class.kinds, group.node_class.inventory, names))
                    self._remembered += len(names)
        self._remembered += 1 + len(classes)
        everywhere = sum(len(each.names) for each in classes) == len(self._group_of)
        return SelectedNodes(sorted(classes, key=_first_name), everywhere=everywhere)

    def _named(self, requirements: Iterable[Requirement]) -> Iterable[tuple[_ClassGroup, Sequence[NodeName]]]:
        """The groups with those of their nodes that are worth a look. Who selects one node pays for one."""
        wanted = next((each.values for each in requirements if each.operator is Operator.IN), None)
        if wanted is None:
            return [(group, group.names) for group in self._groups.values()]
        found: dict[_ClassGroup, list[NodeName]] = {}
        for name in map(NodeName, wanted):  # sorted, as the values of every requirement are
            group = self._group_of.get(name)
            if group is not None:
                found.setdefault(group, []).append(name)
        return found.items()


def kinds_of(node: Node) -> GpuKinds:
    return tuple(sorted({(gpu.model, gpu.memory_mb) for gpu in node.inventory.gpus}))


def _admitted_by_name(where: Where, names: Sequence[NodeName]) -> Sequence[NodeName]:
    if not where.require:
        excluded = dict.fromkeys(where.exclude)
        return [name for name in names if name not in excluded]
    return [name for name in names if admits(where, name, {HOSTNAME: name}, ())]


def _of_name(requirement: Requirement) -> bool:
    return requirement.key == HOSTNAME


def _first_name(node_class: NodeClass) -> NodeName:
    return node_class.names[0]


def _nothing_new(old: Node, new: Node) -> bool:
    """Do the records differ only in what makes no difference here?"""
    return (
        old.inventory is new.inventory
        and old.labels is new.labels
        and old.taints is new.taints
        and old.taints_off is new.taints_off
    )


def _node_class_key(node: Node) -> _NodeClassKey:
    inventory, labels = node.inventory, labels_of(node)
    del labels[HOSTNAME]
    gpus, unread = (tuple([(gpu.model, gpu.memory_mb) for gpu in each]) for each in (inventory.gpus, node.unread))
    key = gpus, unread, node.hides_unknown, inventory.cpus, inventory.memory_mb
    return _NodeClassKey(*key, tuple(sorted(labels.items())), taints_of(node))
