"""The settings of a control plane on a cluster of its own: one frozen class per section of `control.yaml`.

Classes here hold values and check relations between them. How a file becomes such a value is in `adapters.settings`.
"""
