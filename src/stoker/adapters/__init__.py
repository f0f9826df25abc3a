"""The real world behind the ports: store, clock, chance, GPU probes, settings, metrics and logs.

One library per module. Only composition roots import this room; nothing here knows a body or the wire.
"""
