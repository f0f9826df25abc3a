"""What is promised of several control planes, beside what `oracle` promises of each cluster.

Promises: P1  in each epoch one life of one control plane acknowledges and instructs, and never do two hold at once
          P2  whoever acknowledges, instructs or answers a beat holds the lease at that moment
          P3  what was acknowledged stays: every later active has it at its place, byte for byte
          P4  what is acknowledged is on the disk of everyone who may take over, by the marker as it is at that moment
          P5  what came under one idempotency key is there once
          P6  once faults have ended both are in sync, with equal logs and equal states
          P7  no node carries out an instruction once it has carried out one of a newer epoch
          P8  nothing of an older epoch stands behind something of a newer one
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stoker.brain.domain.ids import Epoch, JobId
from stoker.brain.domain.instruction import Instruction
from stoker.brain.state.codec import snapshot_chunks
from stoker.control.committer import Committer
from stoker.control.feed import Entry
from stoker.live.streams import Message
from tests.rig.sim_disk import NO_EPOCH, SimDisk
from tests.rig.sim_network import Served

if TYPE_CHECKING:
    from tests.rig.pair_cluster import PairCluster
    from tests.rig.pair_control import PairControl


@dataclass(slots=True)
class Keyed:
    """A submit of somebody's."""

    count: int
    jobs: Sequence[JobId] = ()
    """Empty = it was never acknowledged."""


@dataclass(slots=True)
class PairOracle:
    cluster: "PairCluster"
    truth: list[bytes] = field(default_factory=list)
    """Every record that was acknowledged, or that an active's log had when it began to lead, from the first on."""
    keys: dict[str, Keyed] = field(default_factory=dict)
    leaders: dict[Epoch, tuple[str, int]] = field(default_factory=dict)
    leader: Committer | None = None
    """Whoever has acknowledged something under the newest epoch."""
    takeovers: int = 0
    newest: Epoch = NO_EPOCH
    """Of what is in `truth`."""
    obeyed: dict[str, Epoch] = field(default_factory=dict)
    """By node, the newest epoch of what it carried out."""

    def _say(self, fault: str) -> None:
        self.cluster.oracle.broken.append(fault)

    @property
    def leading(self) -> "PairControl | None":
        return self.cluster.whose(self.leader) if self.leader is not None else None

    # --- at each acknowledgement and each message -----------------------------------------------------------------

    def announced(self, committer: Committer, entries: Sequence[Entry], records: Sequence[bytes]) -> None:
        """`committer` is about to tell others that these are durable."""
        control = self.cluster.whose(committer)
        if control is None:
            self._say(f"P1 a life that is over acknowledges {len(records)} records in epoch {committer.state.epoch}")
            return
        epoch = committer.state.epoch
        self._must_speak(control, epoch, "acknowledges")
        if not records:
            return
        first = entries[0][0]
        if committer is not self.leader and epoch >= max(self.leaders):
            self._leads(control, committer, first, entries)
        for position, record in enumerate(records, start=first):
            if position == len(self.truth) + 1:
                self._know(record, epoch)
            elif position > len(self.truth) or self.truth[position - 1] != record:
                self._say(f"P3 {control.name} acknowledges another record {position} in epoch {epoch}")
        self._must_be_kept(control, first, records)

    def instructs(self, served: Served, message: Message) -> None:
        control = self.cluster.controls[served.address]
        if control.life is None or control.life.control.sessions is not served.sessions:
            self._say(f"P1 a life of {control.name} that is over sends {message}")
            return
        self._must_speak(control, message.epoch, f"sends {type(message).__name__}")

    def _must_speak(self, control: "PairControl", epoch: Epoch, does: str) -> None:
        """P1, P2."""
        life = control.life
        assert life is not None, "it speaks"
        owner = self.leaders.setdefault(epoch, (control.name, life.number))
        if owner != (control.name, life.number):
            self._say(f"P1 {control.name} {does} in epoch {epoch}, which {owner} has led")
        holding = [each.name for each in self.cluster.controls.values() if each.holds]
        if holding != [control.name]:
            self._say(f"P2 {control.name} {does} in epoch {epoch}, and those who hold the lease are {holding}")

    def carried_out(self, node: str, instruction: Instruction) -> None:
        """P7"""
        newest = self.obeyed.get(node, NO_EPOCH)
        self.obeyed[node] = max(newest, instruction.epoch)
        if instruction.epoch < newest:
            self._say(f"P7 {node} has obeyed epoch {newest}, and carries out {instruction}")

    def _know(self, record: bytes, epoch: Epoch) -> None:
        self.truth.append(record)
        if epoch < self.newest:
            self._say(f"P8 record {len(self.truth)} is of epoch {epoch}, and stands behind one of epoch {self.newest}")
        self.newest = max(self.newest, epoch)
        self.cluster.oracle.written((record,))

    def _leads(self, control: "PairControl", committer: Committer, first: int, entries: Sequence[Entry]) -> None:
        """P3. Its log up to `first` becomes the truth, and must hold what was the truth."""
        disk, truth = self.cluster.log_of(control), self.truth
        if first - 1 < len(truth):
            self._say(f"P3 {control.name} leads from record {first} on, and {len(truth)} were acknowledged")
            return
        for position in range(max(disk.first, 1), first):
            record = disk.records[position - disk.first]
            if position <= len(truth):
                if truth[position - 1] != record:
                    self._say(f"P3 {control.name} leads with another record {position}")
                    return
            else:
                self._know(record, disk.epochs[position - disk.first])
        self.leader, self.takeovers = committer, self.takeovers + 1
        self.cluster.oracle.killed()
        ahead = [fact for _, fact in (*entries, *committer._gathering.entries)]
        self.cluster.oracle.recovered(committer.state, ahead)

    def _must_be_kept(self, control: "PairControl", first: int, records: Sequence[bytes]) -> None:
        """P4. A member whose disk was lost since isn't looked at."""
        marker = self.cluster.place.newest
        members = marker.in_sync if marker is not None else ()
        for each in self.cluster.controls.values():
            log = self.cluster.log_of(each)
            may_take_over = each is control or any((m.name, m.uid) == (each.name, each.disk.uid) for m in members)
            if may_take_over and not _holds(log, first, records):
                self._say(f"P4 {control.name} acknowledges {first}, which {each.name} in sync doesn't have")

    # --- once the faults have ended -----------------------------------------------------------------------------

    def ended(self) -> None:
        """P5, P6"""
        controls = list(self.cluster.controls.values())
        states = []
        for control in controls:
            assert control.life is not None, "it runs"
            states.append(control.life.control.committer.state)
            self._must_be_whole(control, self.cluster.log_of(control))
        if any(list(snapshot_chunks(state)) != list(snapshot_chunks(states[0])) for state in states):
            self._say("P6 the states of the control planes differ")
        by_key: dict[str, list[JobId]] = {}
        for job in states[0].jobs.values():
            if not job.array_of:
                by_key.setdefault(job.spec.comment, []).append(job.id)
        for key, asked in self.keys.items():
            made = by_key.get(key, [])
            if list(asked.jobs) != made if asked.jobs else len(made) not in (0, asked.count):
                self._say(f"P5 the submit {key} of {asked.count} was answered with {asked.jobs} and made {made}")

    def _must_be_whole(self, control: "PairControl", disk: SimDisk) -> None:
        if disk.end < len(self.truth):
            self._say(f"P6 the log of {control.name} ends at {disk.end}, and {len(self.truth)} were acknowledged")
        elif not _holds(disk, 1, self.truth):
            self._say(f"P6 the log of {control.name} isn't what was acknowledged")


def _holds(disk: SimDisk, first: int, records: Sequence[bytes]) -> bool:
    """As far as it is kept."""
    if disk.end < first - 1 + len(records):
        return False
    skip = max(0, disk.first - first)
    at = first + skip - disk.first
    return disk.records[at : at + len(records) - skip] == list(records[skip:])
