"""Who is this control plane, and among whom? It never changes in a life."""

import msgspec

from stoker.brain.domain.lease_record import Member


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """One of several control planes."""

    me: Member
    peers: int
    """How many others there are."""
    shared_log: bool = False
    """All of them reach one log; else each has one of its own."""
    sync: bool = True
    """Is acknowledged only what everybody in sync has on disk?"""
