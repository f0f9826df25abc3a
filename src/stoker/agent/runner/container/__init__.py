"""Containers as tasks of the runner: a task whose leader is a small client of a container engine.

Here lives all that the runner knows of containers: the request for one, the checks of what it may see of the node, its
cgroup, the client itself, and the proof that it is gone. It never waits for the engine: whatever asks that is a process
of its own. Only the runner imports it, when the first container is started. Standard library only.
"""
