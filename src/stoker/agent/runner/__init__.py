"""The runner: a small process per node that starts jobs and outlives the agent.

It uses the standard library only, no asyncio and no thread, and imports nothing of Stoker's outside this folder, so
that it stays under 15 MiB and can't be taken down by a bug elsewhere. The daemon imports `protocol` and `spool`.
"""
