"""Tables of the history, the statements that read and write them, and what both stores of it do alike.

One text for SQLite and for PostgreSQL: `migrations/` has the tables, and what PostgreSQL says in other words is changed
where it is sent there. No driver is imported here; `adapters.sqlite` and `adapters.postgres` bring one each.
"""
