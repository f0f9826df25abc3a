"""Failover of several control planes: which one is active, and how standbys keep copies of its log.

`driver` feeds the machine of `brain.failover` and carries its effects out, in one `tenure` after another. Where each
has a log of its own, `replication` is the active's side, with a `sender` for each follower, and `follower` is the
standby's; `backend` lets that and a log which all reach look alike. `links` says in nouns what passes between two of
them, so that the test rig can simulate it.
"""
