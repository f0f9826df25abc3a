"""How do several control planes agree on who is active, and keep copies of one log?

`driver` feeds the machine of `brain.failover` and carries its effects out. Where each has a log of its own,
`replication` is the active's side, with a `sender` and a `standby` for each follower, and `follower` is the standby's;
`backend` lets that and a log which all reach look alike. `links` says in nouns what passes between two of them, so that
the rig can simulate it.
"""
