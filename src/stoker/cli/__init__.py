"""The command line, for people at a terminal.

It is thin over `wire.client`. Daemons are imported inside the commands that start them, so that `stoker list` stays
quick. Nothing imports this package.
"""
