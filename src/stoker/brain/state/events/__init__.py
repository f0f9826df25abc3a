"""The closed union of facts that the log may hold.

An event says what happened and carries every id and time it needs, so that applying it needs no judgement. Its shape
is a promise to the future: add fields with defaults, never change a meaning; `codec` holds the version.
"""
