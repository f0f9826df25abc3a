"""Stoker keeps every GPU of a cluster fed: one brain that decides, and runtimes that carry decisions out.

This file imports nothing, so that the runner, which lives on every node beside people's jobs, stays small.
Read `ARCHITECTURE.md` for the packages and the arrows between them.
"""

__version__ = "0.2.0"
