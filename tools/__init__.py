"""The house's own tools: what is generated, and what is checked beyond types and lint.

Nothing in the package imports this folder. Every tool runs as `python -m tools.NAME` from the root of the tree.
"""
