"""The event log, snapshots and the lease record in a PostgreSQL database.

Only this package talks to `psycopg`. It is imported when `store.url` names a database, and not before.
"""
