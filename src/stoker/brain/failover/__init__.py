"""Who may be active, and when must it stop? A machine that is driven by ticks, and does no I/O.

It is told what was read, heard and written (`inputs`), and answers what to do next (`deeds`); `live.failover` feeds it
and carries its deeds out, in the rig as on machines. It holds no clock: each input comes with its time.
"""
