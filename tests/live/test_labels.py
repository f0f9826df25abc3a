"""What people say about nodes and partitions is acted on at once, and operators read about it."""

from stoker.brain.domain.ids import NodeName, PartitionName
from stoker.brain.domain.label import parse_taint
from stoker.brain.domain.partition import Partition
from stoker.brain.domain.where import make_where
from stoker.brain.state.commands import Command, DeletePartition, LabelNode, PutPartition, TaintNode
from tests.control.stage import ANNA, Stage, stage, virtual

N1 = NodeName("n1")


async def passes_after(s: Stage, command: Command) -> int:
    """Passes within a tenth of a second."""
    await s.pause(1)
    before = s.control.loop.passes
    await s.committer.ask(command)
    await s.pause(0.1)
    return s.control.loop.passes - before


@virtual
async def test_a_changed_label_taint_or_partition_is_looked_at_at_once() -> None:
    async with stage() as s:
        await s.join("n1")
        long = Partition(name=PartitionName("long"))
        assert await passes_after(s, LabelNode(by=ANNA, node=N1, labels={"zone": "a"})) == 1
        assert await passes_after(s, TaintNode(by=ANNA, node=N1, taints=(parse_taint("a:NoSchedule"),))) == 1
        assert await passes_after(s, PutPartition(by=ANNA, partition=long, create=True)) == 1
        assert await passes_after(s, DeletePartition(by=ANNA, name=PartitionName("long"))) == 0


@virtual
async def test_operators_read_what_was_set_and_by_whom() -> None:
    async with stage() as s:
        await s.join("n1")
        long = Partition(name=PartitionName("long"), where=make_where("zone=a"))
        await s.committer.ask(LabelNode(by=ANNA, node=N1, labels={"zone": "a", "disk": ""}))
        await s.committer.ask(TaintNode(by=ANNA, node=N1, taints=(parse_taint("gpu=old:NoSchedule"),)))
        await s.committer.ask(PutPartition(by=ANNA, partition=long, create=True))
        await s.committer.ask(DeletePartition(by=ANNA, name=PartitionName("long")))
        await s.pause()
        lines = "\n".join(s.notes.lines)
        assert "agent_labelled agent_id=n1 labels=disk=,zone=a by=user:anna" in lines
        assert "agent_tainted agent_id=n1 taints=gpu=old:NoSchedule by=user:anna" in lines
        assert "partition_defined partition=long where=zone=a by=user:anna" in lines
        assert "partition_deleted partition=long by=user:anna" in lines
