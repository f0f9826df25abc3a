"""Settings of the control plane daemon: one frozen class per section of `control.yaml`.

Classes here hold values and check relations between them. How a file becomes such a value is in `adapters.settings`.
"""
