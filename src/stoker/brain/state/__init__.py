"""State of the cluster, and the events that change it.

Commands go in, `admit` answers with events or a refusal, `apply` turns events into state. Nothing here decides where
a job runs; that is the engine's. Runtimes import `cycle`, `admit`, `apply`, `codec` and the record types.
"""
