"""Detection of the GPUs of a node: NVML, nvidia-smi, or a script that simulates devices.

Each probe answers the same list of devices. Nothing here decides what a device is used for.
"""
