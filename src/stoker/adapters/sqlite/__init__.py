"""The event log, snapshots and history in SQLite files of the data folder.

Only this package talks to `sqlite3`. Each connection belongs to one thread, and asyncio callers wait for it.
"""
