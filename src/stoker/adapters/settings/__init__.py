"""Settings from a YAML file, the environment and flags, as one typed value that knows where each part came from.

The settings classes themselves belong to the programs that use them. Only this package talks to PyYAML.
"""
