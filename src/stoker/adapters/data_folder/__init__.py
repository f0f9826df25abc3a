"""The data folder of a control plane: its lock, its identity, and how a log in it is replaced as a whole.

What the files contain belongs to `adapters.sqlite`. Nothing here reads an event.
"""
