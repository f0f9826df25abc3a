"""The composition roots of the command line: commands that need adapters on this machine get them here.

An embedded cluster, backup and restore of files, and tokens of a stopped server are put together in this package. Other
commands only talk to a server.
"""
