"""Device filter of a version 2 cgroup: a small BPF program that refuses character devices by their numbers.

Version 1 has a controller for that (`devices.deny`); version 2 asks the programs that are attached to a cgroup at each
open and mknod of a device inside it, and every one of them must agree. The kernel forgets the program with the cgroup.
What isn't named stays as the machine has it: a node's other devices (InfiniBand, fuse) are kept by their modes alone.

Source: Documentation/admin-guide/cgroup-v2.rst, "Device controller"; bpf(2); BPF_PROG_TYPE_CGROUP_DEVICE, Linux 4.15.
"""

from __future__ import annotations

import ctypes
import os
import struct

from stoker.agent.runner.files import opened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

_SYS_BPF_BY_MACHINE: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_SYS_BPF: Final = _SYS_BPF_BY_MACHINE.get(os.uname().machine)
_PROG_LOAD: Final = 5
_PROG_ATTACH: Final = 8
_PROG_TYPE_CGROUP_DEVICE: Final = 15
_ATTACH_CGROUP_DEVICE: Final = 6
_ALLOW_MULTI: Final = 2
"""Beside those that systemd or a container runtime has attached above us."""
_CHARACTER: Final = 2
_INSTRUCTION: Final = struct.Struct("=BBhi")
"""Operation, registers (source in the upper half), offset of a jump or of memory, constant."""
_ATTR_BYTES: Final = 128

# Operations: a 32-bit word from memory; "and", "move" and comparisons with a constant; the end.
_LOAD_WORD: Final = 0x61
_AND: Final = 0x57
_MOVE: Final = 0xB7
_JUMP_UNLESS: Final = 0x55
_EXIT: Final = 0x95

_libc: Final = ctypes.PyDLL(None, use_errno=True)


def program(denied: Iterable[tuple[int, int]]) -> bytes:
    """Return the program that refuses these character devices, by major and minor number, and no other.

    It is given the kind of device (lower half of a word), its major and its minor number, a word each, and answers 1
    for yes and 0 for no.
    """
    steps = []
    for major, minor in denied:
        steps += [(_JUMP_UNLESS, 3, 3, major), (_JUMP_UNLESS, 4, 2, minor), (_MOVE, 0, 0, 0), (_EXIT, 0, 0, 0)]
    begin = [
        (_LOAD_WORD, 2 | 1 << 4, 0, 0),
        (_AND, 2, 0, 0xFFFF),
        (_LOAD_WORD, 3 | 1 << 4, 4, 0),
        (_LOAD_WORD, 4 | 1 << 4, 8, 0),
        (_JUMP_UNLESS, 2, len(steps), _CHARACTER),
    ]
    return b"".join(_INSTRUCTION.pack(*step) for step in (*begin, *steps, (_MOVE, 0, 0, 1), (_EXIT, 0, 0, 0)))


def deny_devices(folder: str, denied: Iterable[tuple[int, int]]) -> None:
    """Refuse these character devices to whatever runs in the version 2 cgroup `folder`.

    Raises OSError: without CAP_BPF or CAP_SYS_ADMIN, and where the kernel lacks it.
    """
    words = program(denied)
    code, terms = ctypes.create_string_buffer(words, len(words)), ctypes.create_string_buffer(b"GPL")
    load = struct.pack(
        "=IIQQ",
        _PROG_TYPE_CGROUP_DEVICE,
        len(words) // _INSTRUCTION.size,
        ctypes.addressof(code),
        ctypes.addressof(terms),
    )
    loaded = _bpf(_PROG_LOAD, load)
    try:
        with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as target:
            _bpf(_PROG_ATTACH, struct.pack("=IIII", target, loaded, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI))
    finally:
        os.close(loaded)


def _bpf(command: int, fields: bytes) -> int:
    """Raises OSError."""
    if _SYS_BPF is None:
        raise OSError(f"bpf(2) has no number that is known here on {os.uname().machine}")
    attributes = ctypes.create_string_buffer(fields, _ATTR_BYTES)
    answer: int = _libc.syscall(_SYS_BPF, ctypes.c_int(command), attributes, ctypes.c_uint(_ATTR_BYTES))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "bpf")
    return answer
