"""Who may be active, and when must it stop? A state machine that is driven by ticks, and does no I/O.

It is told what was read, heard and written (`inputs`), and answers what to do next (`effects`); `live.failover` feeds
it and carries its effects out, in the rig as in production. It holds no clock: each input comes with its time.
"""
