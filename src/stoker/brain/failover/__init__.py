"""State machine that decides which control plane is active and when it must stop, driven by inputs and without I/O.

It is told what was read, heard and written (`inputs`) and answers what to do next (`effects`). `live.failover` feeds it
and carries its effects out, in the test rig as in production. It holds no clock: each input comes with its time.
"""
