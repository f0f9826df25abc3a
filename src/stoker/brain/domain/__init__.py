"""Domain types of Stoker: frozen records such as jobs, nodes and tenants, and small pure functions on them.

Nothing here knows the event log, the engine or a runtime. Every package may import it.
"""
