"""Unix account that a job runs as, and how a child of the runner becomes that user.

A runner that is root starts each job as the account that its start names; any other starts all of them as itself. The
name is looked up by the child, never by the runner: a directory of accounts (LDAP, SSSD) that hangs then holds up one
start and nobody else, and that start fails after `LOOKUP_S`.

Rules: U1  root is refused, by whatever name, unless the node allows it; so is a job that names nobody
       U2  a name that this node doesn't know is a failure to start, never another account
       U3  nothing of the runner's is left to the job: ids, groups, capabilities, keys. That is checked, not assumed
       U4  no program that a job runs gives it more (no_new_privs): not one that is setuid, not one with capabilities
       U5  HOME, USER, LOGNAME and SHELL are the account's, as after a login, whatever the start says

Source: credentials(7), capabilities(7), session-keyring(7), PR_SET_NO_NEW_PRIVS in prctl(2).
"""

from __future__ import annotations

import errno
import os
import pwd
import signal
import stat
from contextlib import suppress

from stoker.agent.runner.files import opened
from stoker.agent.runner.process.kernel import close_to_tracers, drop_capabilities, leave_keyring

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

LOOKUP_S: Final = 10.0
"""Above what SSSD takes to give up on a server that is down. The kernel ends the child then, whatever it waits for."""
VOID: Final = b"\0"
"""Says that what was said before it no longer holds."""
_PTY_MAJORS: Final = range(136, 144)
"""Of pseudo-terminals. Source: Documentation/admin-guide/devices.txt."""
NOBODY: Final = -1
"""Instead of a uid."""


class CannotStart(Exception):
    """A task that can't be started here. The message says why, with names; `cause` is that of its end."""

    def __init__(self, message: str, cause: str = "start_failed") -> None:
        super().__init__(message)
        self.cause = cause


class Actor:
    """Account that a child of the runner takes on, and what is made that account's on the way."""

    def __init__(self, name: str, node: str, *, allow_root: bool) -> None:
        """`name` empty = as the runner itself."""
        self.name = name
        self._node = node
        self._allow_root = allow_root
        self._folders: list[str] = []
        self._streams: tuple[int, ...] = ()

    def owns(self, folder: str) -> None:
        """Have the folder made where it is missing, and made this account's, closed to all others."""
        if self.name:
            self._folders.append(folder)

    def writes_to(self, *streams: int) -> None:
        """Let it open these descriptors of its own by name too: `> /dev/stderr` opens the pipe anew."""
        self._streams = streams

    @property
    def words(self) -> str:
        """The account in words, to be put behind what it can't do."""
        return f" as user {self.name!r}" if self.name else ""

    # --- in the child -------------------------------------------------------------------------------------------

    def take_on(self, say: Callable[[bytes], object]) -> dict[bytes, bytes]:
        """Become that account for ever, and return the environment variables that it sets.

        `say` is told what to believe if this process is never heard of again. Raises CannotStart.
        """
        if not self.name:
            if os.geteuid() != 0:
                drop_capabilities()
            return {}
        say(self._lost_words())
        signal.setitimer(signal.ITIMER_REAL, LOOKUP_S)
        account = self._looked_up()
        try:
            groups = os.getgrouplist(account.pw_name, account.pw_gid)
        except OSError as error:
            raise CannotStart(f"the groups of user {self.name!r} can't be read on {self._node}: {error}") from error
        signal.setitimer(signal.ITIMER_REAL, 0)
        say(b"%b%d%b" % (VOID, account.pw_uid, VOID))
        for folder in self._folders:
            _hand_over(folder, account)
        for stream in self._streams:
            _hand_over_pipe(stream, account)
        try:
            _become(account, groups)
        except OSError as error:
            raise CannotStart(self._refused(f"uid {account.pw_uid}: {error.strerror}")) from error
        if not _is(account, groups):
            raise CannotStart(self._refused(f"the kernel left it {os.getresuid()}, {os.getresgid()}"))
        return _variables(account)

    def _looked_up(self) -> pwd.struct_passwd:
        """Return the account of a user; root and a nameless user are refused (U1, U2)."""
        try:
            account = pwd.getpwnam(self.name)
        except (KeyError, ValueError) as error:
            raise CannotStart(
                f"there is no user {self.name!r} on node {self._node}: `getent passwd {self.name}` finds none there; "
                f"add the account, or keep the job away with --exclude {self._node}"
            ) from error
        if account.pw_uid == 0 and not self._allow_root:
            raise CannotStart(_no_root(f"user {self.name!r} is root (uid 0)", self._node))
        return account

    def _lost_words(self) -> bytes:
        return (
            f"user {self.name!r} could not be looked up on node {self._node} within {LOOKUP_S:.0f} s; is its directory "
            f"of accounts reachable? `getent passwd {self.name}` there should answer at once"
        ).encode("utf-8", "replace")

    def _refused(self, why: str) -> str:
        return (
            f"can't become user {self.name!r} on node {self._node}, {why}; the agent there must be root, with "
            "CAP_SETUID and CAP_SETGID"
        )


def actor(user: str, node: str, *, allow_root: bool) -> Actor:
    """Return the account that runs a job of this user here. Raises CannotStart."""
    if os.geteuid() != 0:
        return Actor("", node, allow_root=False)
    if not user and not allow_root:
        raise CannotStart(_no_root("the job names no user, and the agent is root", node))
    return Actor(user, node, allow_root=allow_root)


def plain(words: bytes) -> bytes:
    """Return the words such that nothing in them is taken for VOID."""
    return words.replace(VOID, b"\\0")


def child_error_text(said: bytes) -> str:
    """Return the part that still holds of what a child said."""
    return said.rpartition(VOID)[2].decode("utf-8", "replace")


def uid_said(said: bytes) -> int:
    """Return the uid that a child acts as, from what it said. NOBODY = it never got so far."""
    uid = said.rpartition(VOID)[0].rpartition(VOID)[2]
    return int(uid) if uid.isdigit() else NOBODY


def error_text(error: OSError) -> str:
    """Return the error as a child reports it, such as `Permission denied (EACCES)`."""
    return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"


def fault_text(error: OSError) -> str:
    """Return the error of a system call of this process in words, with the file it is about."""
    place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return place + error_text(error) if error.strerror else str(error)


def is_of(folder: str, uid: int) -> bool:
    """Return True for a real folder of that account. Raises OSError."""
    seen = os.lstat(folder)
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == uid


def _no_root(what: str, node: str) -> str:
    return (
        f"{what}: node {node} runs no job as root; submit with a token that names a user (`stoker token create --user "
        "NAME`), or set executor.allow_root in that node's agent.yaml"
    )


def _hand_over(folder: str, account: pwd.struct_passwd) -> None:
    """Only what belongs to the runner is given away, and no link is followed. Raises CannotStart."""
    try:
        _make(folder)
        with opened(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as held:
            owner = os.fstat(held).st_uid
            if owner == os.geteuid() != account.pw_uid:
                os.fchown(held, account.pw_uid, account.pw_gid)
            elif owner != account.pw_uid:
                raise CannotStart(f"the folder {folder} belongs to another account (uid {owner})")
    except PermissionError:
        return  # on some network storage root is nobody: the account tries for itself
    except OSError as error:
        raise CannotStart(f"the folder {folder} can't be made: {error.strerror}") from error


def _hand_over_pipe(stream: int, account: pwd.struct_passwd) -> None:
    """Never a device, which is everybody's, but for a terminal that was made for this program."""
    with suppress(OSError):
        seen = os.fstat(stream)
        if stat.S_ISFIFO(seen.st_mode) or os.major(seen.st_rdev) in _PTY_MAJORS:
            os.fchown(stream, account.pw_uid, account.pw_gid)


def _make(folder: str) -> None:
    """Raises OSError."""
    with suppress(FileExistsError):
        try:
            os.mkdir(folder, 0o700)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(folder), 0o711, exist_ok=True)
            os.mkdir(folder, 0o700)


def _become(account: pwd.struct_passwd, groups: list[int]) -> None:
    """Become the account, with nothing of the runner's left (U3). Raises: OSError."""
    uid, gid = account.pw_uid, account.pw_gid
    leave_keyring()
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if uid != 0:
        drop_capabilities()
    # This process still holds the runner's memory, with what other jobs were given.
    close_to_tracers()


def _is(account: pwd.struct_passwd, groups: list[int]) -> bool:
    """U3. An id of -1 means `as it was` to the kernel; and a process that can become root again has not left it."""
    uid, gid = account.pw_uid, account.pw_gid
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (gid, gid, gid) or set(os.getgroups()) != set(groups):
        return False
    if uid == 0:
        return True
    try:
        os.setresuid(0, 0, 0)
    except PermissionError:
        return True
    return False


def _variables(account: pwd.struct_passwd) -> dict[bytes, bytes]:
    """Return HOME, USER, LOGNAME and SHELL of the account (U5)."""
    name = os.fsencode(account.pw_name)
    home, shell = os.fsencode(account.pw_dir), os.fsencode(account.pw_shell)
    return {b"HOME": home or b"/", b"USER": name, b"LOGNAME": name, b"SHELL": shell or b"/bin/sh"}
