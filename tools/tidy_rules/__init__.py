"""Our taste, executable: one module per family of rules of the house.

A rule is a function from one file, or from all of them, to its faults. Each fault says what to write instead, and
each rule has tests in `tests/tidy` that show one offence caught and one clean file passing.
"""
