"""The core of a control plane: the single writer, the scheduling loop, snapshots, history, audit and queries.

Every runtime uses this package as it is and brings its own log, its own connection to nodes and its own main. It knows
no transport and no adapter: `api` and the runtimes import it, it imports `ports`, `wire` shapes and the brain.
"""
