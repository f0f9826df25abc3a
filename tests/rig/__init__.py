"""The whole system in one process on one virtual clock.

Real control plane, real agents' logic; simulated links, disks, runners and processes behind the ports. Nothing here
is imported by the package. A seed and a commit reproduce a run.
"""
