"""Sessions of people inside running tasks: a program that was executed in one, or a task's own terminal.

What belongs here is the runner's side: the program's streams, its last output, its end, and the connections by which an
agent reaches them. Who may have a session is decided by the control plane, never here; only the supervisor and the loop
import this.
"""
