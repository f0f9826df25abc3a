"""The verbs: where should each waiting job run, or why can it not?

It reads a View and returns a Plan; it can't reach the machinery of the state. Only `brain.cycle` imports it.
"""
