#!/bin/sh
# Checks on a machine with a real NVIDIA GPU: inventory, figures, attribution, the gate and lost processes, within eight
# minutes. Exit 77 where there is no GPU. PYTHON names an interpreter that has Stoker's dependencies (.venv/bin/python).
cd "$(dirname "$0")/../.." || exit 1
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
    echo "tests/device/run.sh: no NVIDIA GPU here (nvidia-smi lists none); nothing was checked"
    exit 77
fi
PYTHON=${PYTHON:-.venv/bin/python}
command -v "$PYTHON" >/dev/null || PYTHON=python3
nvidia-smi -L
PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" exec timeout -k 10 460 "$PYTHON" -m tests.device.check
