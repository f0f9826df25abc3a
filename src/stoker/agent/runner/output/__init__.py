"""Output of tasks: bounded spools, copies into files of users, and the removal of what is no longer kept.

Standard library only, as everywhere in the runner. Nothing here starts or stops a task.
"""
