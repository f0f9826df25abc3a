"""The scheduler's decisions and the cluster state, as pure functions over an event log.

No clock, randomness, threads, disk, network or logging: `now`, `seed` and ids are arguments. Every runtime may import
it; it imports no other package of Stoker, and of third-party libraries only msgspec.
"""
