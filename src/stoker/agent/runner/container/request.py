"""Request for a container: what the engine is asked to make of a start. Pure.

Command and entry point are as with `docker run`: the command of a job is what the image's entry point gets, and takes
the place of the image's own command; without one the image runs what its maker chose.

Rules: Q1  a container gains nothing: not privileged, no new privileges, no capability unless it runs as root, and then
           only those that change owners and modes of its own files
       Q2  it is never restarted by the engine, and leaves no log in the engine: what it writes goes to the client
       Q3  what names it is in its labels, and its task's mark in its environment too
       Q4  texts are UTF-8: other bytes can't be said to an engine
       Q5  it has the device nodes of a fabric that its account may use
"""

from __future__ import annotations

from stoker.agent.runner.container.names import DETACH_KEYS, EXEC_MARK, KEY_LABEL, LABEL, OWNER_LABEL, TASK_LABEL
from stoker.agent.runner.process.account import CannotStart
from stoker.agent.runner.process.procfs import MARK_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Final, TypedDict

    from stoker.agent.runner.protocol import ContainerFields, MountFields, StartInstruction

    class ContainerUser(TypedDict):
        """As whom a container runs."""

        uid: int
        gid: int
        groups: list[int]
        devices: list[str]
        """Device nodes of a fabric that it may use."""


_MIB: Final = 1 << 20
_CPU_SHARES: Final = 1024
"""Of one CPU, as the engine's own default has it."""
_AS_ROOT: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP")


def container_name(key: str, mark: str) -> str:
    """Return the name of a task's container, for people who look with `docker ps`."""
    return f"stoker-{key}-{mark.rpartition('.')[2]}"


def create_request(
    start: StartInstruction,
    fields: ContainerFields,
    who: ContainerUser,
    mounts: Sequence[MountFields],
    mark: str,
    group_path: str,
) -> dict[str, Any]:
    """Return the body of a `create`. `group_path`: cgroup for it; empty = the engine's choice. Raises CannotStart."""
    command: dict[str, Any] = {}
    if start["shell"]:
        command["Cmd"] = ["/bin/sh", "-c", start["shell"]]
    elif start["argv"]:
        command["Cmd"] = list(start["argv"])
    if fields["entrypoint"] is not None:
        command["Entrypoint"] = [fields["entrypoint"]] if fields["entrypoint"] else []
    body = {
        "Image": fields["image"],
        **command,
        "Env": [f"{name}={value}" for name, value in ({**start["env"], MARK_NAME: mark}).items()],
        "User": f"{who['uid']}:{who['gid']}",
        "WorkingDir": start["workdir"],
        "Labels": _labels(start["key"], fields, mark),
        "AttachStdin": start["tty"],
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": start["tty"],
        "Tty": start["tty"],
        "HostConfig": _host(start, fields, who, mounts, group_path),
    }
    _check_texts(body, "its container")
    return body


def exec_request(argv: list[str], mark: str, *, tty: bool, term: str) -> dict[str, Any]:
    """Return the body of an `exec`: as the container's user, in its folder, with its environment and privileges.

    Raises CannotStart.
    """
    if not argv or not argv[0]:
        raise CannotStart("the command is empty")
    body = {
        "Cmd": argv,
        "Env": [f"{EXEC_MARK}={mark}", *([f"TERM={term or 'xterm'}"] if tty else ())],
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": tty,
        "DetachKeys": DETACH_KEYS,
        "Privileged": False,
    }
    _check_texts(body, "the command")
    return body


def _labels(key: str, fields: ContainerFields, mark: str) -> dict[str, str]:
    job, attempt, rank = key.split(".")
    return {
        TASK_LABEL: mark,
        KEY_LABEL: key,
        OWNER_LABEL: fields["owner"],
        f"{LABEL}cluster": fields["cluster"],
        f"{LABEL}job": job,
        f"{LABEL}attempt": attempt,
        f"{LABEL}rank": rank,
        f"{LABEL}epoch": str(fields["epoch"]),
    }


def _host(
    start: StartInstruction,
    fields: ContainerFields,
    who: ContainerUser,
    mounts: Sequence[MountFields],
    group_path: str,
) -> dict[str, Any]:
    memory = start["memory_mb"] * _MIB
    host: dict[str, Any] = {
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges"],
        "CapDrop": ["ALL"],
        "CapAdd": list(_AS_ROOT) if who["uid"] == 0 else [],
        "GroupAdd": [str(group) for group in who["groups"] if group != who["gid"]],
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "LogConfig": {"Type": "none", "Config": {}},
        "NetworkMode": fields["network"],
        "Init": fields["init"],
        "ShmSize": fields["shm_mb"] * _MIB,
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": start["pids_max"],
        "CpuShares": max(2, fields["cpus"] * _CPU_SHARES),
        "Ulimits": [
            {"Name": name, "Soft": soft, "Hard": hard} for name, (soft, hard) in sorted(start["limits"].items())
        ],
        "DeviceRequests": fields["devices"],
        "Devices": [
            {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"} for path in who["devices"]
        ],
        "Mounts": [
            {
                "Type": "bind",
                "Source": mount["source"],
                "Target": mount["target"],
                "ReadOnly": mount["read_only"],
                "BindOptions": {"Propagation": "rprivate"},
            }
            for mount in mounts
        ],
    }
    if group_path:
        host["CgroupParent"] = group_path
    return host


def _check_texts(value: object, where: str) -> None:
    """Raises CannotStart for a text that isn't Unicode, or holds a NUL (Q4)."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise CannotStart(
                f"{where} is given bytes that aren't UTF-8, which an engine can't be told: {value[:80]!a}"
            ) from error
        if "\0" in value:
            raise CannotStart(f"{where} is given a NUL character, which Linux can't pass to a program")
    elif isinstance(value, dict):
        for name, each in value.items():
            _check_texts(name, where)
            _check_texts(each, where)
    elif isinstance(value, list | tuple):
        for each in value:
            _check_texts(each, where)


def variables(given: Mapping[str, str], account: str, home: str, mounts: Sequence[MountFields]) -> dict[str, str]:
    """Return the environment of a container: the job's, and its account's name; HOME only where it is mounted."""
    own = {"USER": account, "LOGNAME": account} if account else {}
    if home and any(home == each["target"] or home.startswith(f"{each['target']}/") for each in mounts):
        own["HOME"] = home
    return {**own, **given} if not account else {**given, **own}
