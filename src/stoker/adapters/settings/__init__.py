"""Settings from a YAML file, the environment and flags, as one typed value with the origin of each part.

The settings types themselves belong to the programs that use them. Only this package imports PyYAML.
"""
