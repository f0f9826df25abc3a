"""REST: parse, hand a command to the writer, answer.

No rules of its own live here; shapes are in `wire.rest`, refusals come from the brain.
"""
