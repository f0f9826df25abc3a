"""Checks and look-ups of the state that the admission rules of several nouns share.

Each answers with what was looked for, or with a refusal. Nothing here yields an event, and nothing in `state` beneath
`admit` imports it.
"""
