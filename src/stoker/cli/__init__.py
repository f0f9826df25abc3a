"""The command line: the face for people at a terminal.

Thin over `wire.client`; bodies are imported inside the commands that start them, so that `stoker list` stays quick.
"""
