"""Processes of tasks as Linux sees them: accounts, cgroups, process trees, and the system calls that Python lacks.

Standard library only, as everywhere in the runner. Nothing here knows what a job is.
"""
