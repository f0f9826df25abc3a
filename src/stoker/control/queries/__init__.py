"""Read-only questions that people ask of a control plane: jobs, queue, usage, quota and history.

Nothing here changes the state or waits for the writer. `api` turns the answers into REST and gRPC messages.
"""
