"""Agent: the daemon of one GPU node, which carries out instructions and reports what became of them.

It decides nothing about who runs where. The daemon's logic sits between two ports, Link and Runner; the runner
process, which outlives it, uses the standard library only. Only composition roots import this package.
"""
