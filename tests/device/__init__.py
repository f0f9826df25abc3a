"""Checks that need a real GPU. They are no tests of the suite: `run.sh` runs them, and ends with 77 without one.

What they compare with is nvidia-smi, and programs of their own on the device through libcuda. Nothing here is imported
by the suite.
"""
