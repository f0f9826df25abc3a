"""Commands become events or a refusal; exhaustive over the union of commands.

Reads the state, never changes it. One file per noun; no noun imports another noun's rules.
"""
