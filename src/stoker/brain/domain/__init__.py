"""The nouns: frozen values and small total functions on them.

Nothing here knows the history, the engine or a body. Everyone may import it.
"""
