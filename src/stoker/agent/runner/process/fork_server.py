"""Fork server: a program of its own, which forks the first processes of plain tasks for the runner (`launcher`).

It is run by its path, in isolation and without `site`, imports next to nothing, and has one loop with few objects. For
a fork costs what the forking process holds: its mappings and page tables are copied and torn down again, and each page
that parent or child writes to afterwards is copied; in Python that is each object that is looked at.

It reads one order after the other, and never waits for anything else: what may hang, an exec or a folder on a network
file system, hangs in the child. That is a child of the runner (CLONE_PARENT), and has only system calls to make.

An order: descriptors (standard input, output and error, the pipe for the answer, files by which version 1 cgroups are
entered, the folder of a version 2 cgroup), integers (see `FIXED`), and what these point at, in the memory where the
server takes orders: a child has that as it was when it was forked. The answer is an errno; the pid is in memory that
the runner reads too, where the kernel puts it before the child runs.

A child that fails says in which step and with which errno (`Launch.fault`).

Source: clone(2), CLONE_PARENT, CLONE_PARENT_SETTID, CLONE_INTO_CGROUP; execve(2); unix(7), SCM_RIGHTS.
"""

import _socket  # `socket` makes a megabyte of enumerations
import ctypes
import os
import sys

LINE = 3
FIRST = 4
"""Descriptors that come with an order begin here: what is open before is the server's own."""
PROCESS_NAME = b"stoker-launch"
ORDER_BYTES_MAX = 96 * 1024
"""A socket takes some 200 KiB by default."""
NOTE_BYTES = 4096
"""A page, whose first bytes are the pid."""
DESCRIPTORS_MAX = 16
CGROUP, LIMITS, CHECKPOINTS, FOLDER, PROGRAM = "cgroup", "limits", "checkpoints", "folder", "program"
"""Steps of a child, as it names them."""
SAYS_STEP = "\1"
INSIDE, FIXED = 7, 9
"""Of the integers of an order, of which the first is their number: the addresses of the lists of arguments and
environment, of the folder, of that for checkpoints (0 = none) and of the set of CPUs, and the bytes of that; the umask;
whether there is a version 2 cgroup; the number of limits. Then the limits, the addresses of their values, and those of
the paths to try."""
_REPLY = FIRST + 3
_DOORS = FIRST + 4
_SYS_CLONE3 = 435
_CLONE_PARENT, _CLONE_PARENT_SETTID, _CLONE_INTO_CGROUP = 0x8000, 0x100000, 0x200000000
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_CAPABILITIES = ctypes.c_char_p((0x20080522).to_bytes(4, sys.byteorder) + bytes(4))
_SIGKILL = 9
_DEFAULT_SIGNALS = (1, 2, 13, 15, 17, 25)
"""SIGHUP, SIGINT, SIGPIPE, SIGTERM, SIGCHLD, SIGXFSZ: Python has handlers for some, and ignores others."""
_GO_ON = (2, 13, 20)
"""ENOENT, EACCES, ENOTDIR: the program may be in the next folder of the PATH."""
_EIO = 5
_FILE_KIND, _FOLDER = 0o170000, 0o040000
_READ_WRITE, _SHARED = 3, 1

_libc = ctypes.PyDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_syscall, _prctl, _setrlimit = _libc.syscall, _libc.prctl, _libc.setrlimit
_setaffinity, _mkdir, _chdir, _execve = _libc.sched_setaffinity, _libc.mkdir, _libc.chdir, _libc.execve
_mkdir.argtypes = (ctypes.c_void_p, ctypes.c_uint)
_chdir.argtypes = (ctypes.c_void_p,)
_setrlimit.argtypes = (ctypes.c_int, ctypes.c_void_p)
_setaffinity.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p)
_execve.argtypes = (ctypes.c_void_p,) * 3


def serve(runner: int) -> None:
    """Take orders until the runner is gone."""
    os.set_inheritable(LINE, False)
    os.closerange(FIRST, 1 << 20)
    line = _socket.socket(fileno=LINE)
    memory = ctypes.create_string_buffer(ORDER_BYTES_MAX)
    space, flags = _socket.CMSG_LEN(4 * DESCRIPTORS_MAX), _socket.MSG_CMSG_CLOEXEC
    line.recvmsg_into([memory], space, flags)
    note = _libc.mmap(None, NOTE_BYTES, _READ_WRITE, _SHARED, FIRST, 0)
    os.close(FIRST)
    line.send(ctypes.addressof(memory).to_bytes(8, sys.byteorder))
    integers = memoryview(memory).cast("B").cast("Q")
    arguments = (ctypes.c_uint64 * 11)()
    arguments[3] = note
    where = ctypes.addressof(arguments)
    while True:
        received, control, _, _ = line.recvmsg_into([memory], space, flags)
        if not received:
            return
        order, last = integers[1 : integers[0]].tolist(), FIRST + len(control[0][2]) // 4
        inside = order[INSIDE]
        arguments[0] = _CLONE_PARENT | _CLONE_PARENT_SETTID | (_CLONE_INTO_CGROUP if inside else 0)
        arguments[10] = last - 1 if inside else 0
        pid = _syscall(_SYS_CLONE3, ctypes.c_void_p(where), 88)
        if pid == 0:
            try:
                become(order, last - inside, runner)
            finally:
                os._exit(127)
        error = ctypes.get_errno() if pid < 0 else 0
        os.closerange(FIRST, last)
        line.send(error.to_bytes(4, sys.byteorder))


def become(order: list[int], doors_end: int, runner: int) -> None:
    """Become the program of an order, in the child. It returns when that can't be, and has said why."""
    argv, env, folder, checkpoints, cpus, cpus_bytes, umask, _, count = order[:FIXED]
    step = CGROUP
    try:
        os.setsid()
        os.dup2(FIRST, 0)
        os.dup2(FIRST + 1, 1)
        os.dup2(FIRST + 2, 2)
        for door in range(_DOORS, doors_end):
            os.write(door, b"0")
        if cpus_bytes:
            _setaffinity(0, cpus_bytes, cpus)  # of a CPU that went offline meanwhile: it runs on all
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        if os.getppid() != runner:  # it had died before
            os.kill(os.getpid(), _SIGKILL)
        step = CHECKPOINTS
        if checkpoints:
            make_folder(checkpoints)
        step = LIMITS
        for at in range(FIXED, FIXED + count):
            succeed(_setrlimit(order[at], order[at + count]))
        step = FOLDER
        succeed(_chdir(folder))
        os.umask(umask)
    except OSError as error:
        say(step, [_EIO if error.errno is None else error.errno])
        return
    errors: list[int] = []
    for path in order[FIXED + 2 * count :]:
        _execve(path, argv, env)
        errors.append(ctypes.get_errno())
        if errors[-1] not in _GO_ON:
            break
    say(PROGRAM, errors)


def make_folder(address: int) -> None:
    """Make a folder, with those above it. Raises OSError, with errno 0 if it is there and not ours."""
    if _mkdir(address, 0o700) == 0:
        return
    path = ctypes.string_at(address)
    os.makedirs(path, 0o700, exist_ok=True)
    seen = os.lstat(path)
    if seen.st_mode & _FILE_KIND != _FOLDER or seen.st_uid != os.getuid():
        raise OSError(0, "")
    try:
        os.utime(path)  # whoever removes old ones sees that it is used
    except OSError:
        return


def succeed(status: int) -> None:
    """Raises OSError."""
    if status != 0:
        raise OSError(ctypes.get_errno(), "")


def say(step: str, errors: list[int]) -> None:
    """Answer that a step failed."""
    os.write(_REPLY, (SAYS_STEP + " ".join((step, *map(str, errors)))).encode())


if __name__ == "__main__":
    if os.geteuid() != 0:
        _libc.capset(_CAPABILITIES, ctypes.c_char_p(bytes(24)))  # as each child of such a runner does
    for number in _DEFAULT_SIGNALS:
        _libc.signal(number, None)
    _prctl(_PR_SET_NAME, ctypes.c_char_p(PROCESS_NAME), 0, 0, 0)
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    serve(int(sys.argv[1]))
