"""Placement: the engine decides where each waiting job runs, or gives the reason why it can't.

It reads a View and returns a Plan; it can't reach the machinery of the state. Only `brain.cycle` imports it.
"""
