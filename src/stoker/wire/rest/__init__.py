"""Request and response shapes of REST, one file per noun.

They turn text into the brain's nouns and back; whether a command is allowed is not decided here.
"""
