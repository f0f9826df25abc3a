"""Start of a control plane that was one of several and is to go on alone.

With `failover.enabled: false` it reads no lease record any more and waits for nobody. If another one went on as well,
one job's id would mean two jobs, and agents would obey both.

Rules: A1  only the one that the lease record calls active may, or one that was in sync when the last gave its lease
           back; and only if its log reaches as far as the record says
       A2  first it takes one more version of the record, in whose set it is alone: no other one takes over by itself
           from then on
       A3  where that can't be done it is refused; a person who knows better removes the mark of the folder by hand
"""

from pathlib import Path

from msgspec.structs import replace

from stoker.brain.domain.errors import StokerError, refuse
from stoker.brain.domain.ids import Position
from stoker.brain.domain.lease_record import LeaseRecord, Member
from stoker.ports import Lease, LeaseUnreachable


async def leave_the_others(lease: Lease, uid: str, end: Position, mark: str) -> str:
    """Take the lease for good; return why that can't be, in words, empty = it is done.

    `uid`: of our data folder. `end`: of its log. `mark`: unique text, of this very write.
    """
    try:
        known = await lease.read()
        if known is None:
            return "the marker says nothing, so nobody knows whose log reaches furthest"
        me = _member(known, uid)
        if me is None:
            return f"{_who(known)}, while this one isn't in sync"
        if known.holder is not None and known.holder != me:
            return _who(known)
        if known.lossy:
            return "it has taken over by force, and not yet left out the job ids that were lost"
        if end < known.position:
            return f"its log ends at {end}, before the marker's {known.position}"
        alone = replace(known, version=known.version + 1, holder=me, in_sync=(me,), position=end, mark=mark)
        return "" if await lease.put(alone) else "another one has taken over just now"
    except LeaseUnreachable as fault:
        return f"the marker can't be reached: {fault}"
    except StokerError as fault:
        return f"the marker can't be used: {fault.refusal.message}"


def not_alone(folder: Path, name: str, why: str, by_hand: Path) -> StokerError:
    """Return the refusal of such a start (A3). `by_hand`: the file that marks the folder."""
    return StokerError(
        refuse(
            "one_of_several",
            f"{folder} is the data folder of {name}, one of several control planes, and can't go on alone: {why}",
            "start it with failover.enabled: true, or the one that was active with false and failover.marker as before;"
            f" if no other one will ever go on, and what this one lacks may be lost, remove {by_hand}",
        )
    )


def _member(known: LeaseRecord, uid: str) -> Member | None:
    return next((one for one in known.in_sync if one.uid == uid), None)


def _who(known: LeaseRecord) -> str:
    return f"{known.holder.name} was active last" if known.holder else "the lease was given back"
