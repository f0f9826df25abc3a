"""Events become the next state; exhaustive over the union of events.

Deterministic and without judgement: what an event means was decided when it was made.
"""
