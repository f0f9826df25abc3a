"""Checks of `stoker doctor`: the settings, this machine, and a control plane that serves.

Each module answers for one kind of thing and only looks: nothing here changes a machine, a folder or a cluster. What a
check found is said as findings, each with what to do about it; how they are printed is not known here.
"""
