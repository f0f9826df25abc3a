"""The brain: what should happen next, as pure functions over a history of facts.

No clock, dice, threads, disk, network or log lives here: `now`, `seed` and ids are arguments. Any body may import
it; it imports nothing of Stoker's outside itself, and nothing from outside but msgspec.
"""
