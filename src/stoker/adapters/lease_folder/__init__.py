"""The lease record in a folder of shared storage, which settings call the marker.

Each version of the record is a file made by link(2), so that two control planes can't both write the next one. Nothing
here decides who may become active: `brain.failover` does.
"""
