"""How do several control planes agree on who is active, and keep copies of one log?

`driver` feeds the machine of `brain.failover` and carries its effects out; `replication` is the active's side,
`follower` the standby's; `links` says in nouns what passes between two of them, so that the rig can simulate it.
"""
