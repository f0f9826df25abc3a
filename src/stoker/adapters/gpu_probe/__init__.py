"""Detection of the GPUs of a node: nvidia-smi, a script that simulates devices, or whichever is there.

Each probe answers the same list of devices. Nothing here decides what a device is used for.
"""
