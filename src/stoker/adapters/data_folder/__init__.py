"""The data folder of a control plane: its lock, its identity, and the replacement of what it holds as a whole.

What the files contain belongs to `adapters.sqlite`. Nothing here reads an event.
"""
