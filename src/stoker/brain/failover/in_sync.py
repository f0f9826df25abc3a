"""For whom do acknowledgements wait, and whom should the marker name?

Rules: S1  acknowledgements wait for all that any marker of ours may name: a member is waited for before it is put in,
           and until it is known that a marker without it is there
       S2  a member that is asked in and falls behind before anything was put needn't be waited for any more
"""

from typing import Final

from stoker.brain.domain.lease_record import LeaseRecord, Member

MEMBERS_MAX: Final = 32
"""Of more, the marker names none: nobody asks in so many."""


class InSync:
    """The set of one epoch. It begins with the active alone."""

    def __init__(self, me: Member) -> None:
        self._me = me
        self.wanted: tuple[Member, ...] = (me,)
        """Whom the marker should name."""
        self._named: tuple[Member, ...] = (me,)

    @property
    def as_wanted(self) -> bool:
        """Does the marker, as far as we know, name whom it should?"""
        return self.wanted == self._named

    def waits_for(self, put: LeaseRecord | None) -> tuple[Member, ...]:
        """S1. `put`: a marker that may or may not be there."""
        return tuple(sorted({*self._named, *self.wanted, *(put.in_sync if put else ())}))

    def caught_up(self, member: Member) -> None:
        wanted = tuple(sorted({*self.wanted, member}))
        if len(wanted) <= MEMBERS_MAX:
            self.wanted = wanted

    def fell_behind(self, member: Member) -> None:
        """S2"""
        if member != self._me:
            self.wanted = tuple(each for each in self.wanted if each != member)

    def named(self, marker: LeaseRecord) -> bool:
        """This marker is there. Did it change anything?"""
        changed = marker.in_sync != self._named
        self._named = marker.in_sync
        return changed
