"""`stoker up`: messages and checks around the cluster that it runs."""

import asyncio
import os
import pwd
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from stoker.adapters.data_folder.marks import ELSEWHERE_NAME, STORE_NAME
from stoker.adapters.data_folder.ownership import hold_folder
from stoker.adapters.gpu_probe.auto import AutoProbe
from stoker.agent.machine import die_with_parent
from stoker.brain.domain.errors import StokerError, refuse
from stoker.cli.foreground import run_until_signal
from stoker.cli.wiring.embedded import EmbeddedCluster, EmbeddedSpec, kill_descendants
from stoker.control.settings import is_loopback
from stoker.wire.client import DEFAULT_SERVER

NAMED_MAX: Final = 5
"""Nodes that are named while they are waited for."""


def run_up(
    simulated: Mapping[str, Any], where: Mapping[str, Any], *, must_simulate: bool, ends_with_parent: bool
) -> None:
    """Run until a signal. `where` holds the options that are the same for both kinds of GPUs.

    Raises: StokerError when it can't start, or when a part of it ended.
    """
    insecure = where["insecure"]
    if not (insecure or is_loopback(where["host"])):
        raise _open_to_others(where["host"])
    if ends_with_parent:
        die_with_parent()
    real = {} if must_simulate else _real_gpus()
    cluster_of = {"nodes": 1, "gpus_per_node": 0, "gpu_model": ""} if real else simulated
    with _folder(where["data_dir"]) as data_dir:
        shape = EmbeddedSpec(
            data_dir=data_dir,
            **cluster_of,
            **{key: where[key] for key in ("host", "http_port", "grpc_port", "node_prefix")},
            stop_grace_s=where["stop_grace"],
            insecure=insecure,
        )
        cluster = EmbeddedCluster(shape)

        async def body(stop: asyncio.Event) -> None:
            stopping = asyncio.create_task(_say_goodbye(stop))
            await cluster.run(
                stop,
                lambda: _welcome(shape, real, temporary=where["data_dir"] is None),
                lambda missing: _say_waits(shape, missing),
            )
            stopping.cancel()

        with _flags_in_hints(shape):
            run_until_signal(body, again=kill_descendants)


def _open_to_others(host: str) -> click.BadParameter:
    return click.BadParameter(
        f"{host!r} is not a loopback address: `stoker up` wants no token, so whoever reaches it could run programs as "
        f"{_account()}.\nUse an SSH tunnel to 127.0.0.1, or `stoker control`, which wants tokens; or say --insecure, "
        "if everybody may.",
        param_hint="--host",
    )


@contextmanager
def _flags_in_hints(shape: EmbeddedSpec) -> Iterator[None]:
    """A control plane's hints name settings; whoever typed `stoker up` has flags."""
    try:
        yield
    except StokerError as fault:
        port = fault.refusal.facts.get("port")
        flag = {shape.http_port: "--http-port", shape.grpc_port: "--grpc-port"}.get(port if type(port) is int else 0)
        if flag is None:
            raise
        hint = f"stop that program, or give another port with {flag}"
        raise StokerError(msgspec.structs.replace(fault.refusal, hint=hint)) from fault


def _real_gpus() -> dict[str, int]:
    """How many of each model the driver lists."""
    return Counter(gpu.model for gpu in AutoProbe().probe().gpus)


@contextmanager
def _folder(wanted: Path | None) -> Iterator[Path]:
    if wanted is not None:
        with _held(wanted.absolute()):
            yield wanted.absolute()
        return
    # Whatever a job was still writing must not turn the end into a failure.
    with tempfile.TemporaryDirectory(prefix="stoker-up-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The folder for us alone, also against a control plane or an agent that has it as its own data folder.

    Raises: StokerError `data_dir_unusable` or `data_dir_held`.
    """
    try:
        held = hold_folder(folder)
    except StokerError as fault:
        hint = "name a folder with --data-dir that this account may write to and that nobody else uses"
        raise StokerError(msgspec.structs.replace(fault.refusal, hint=hint)) from fault
    try:
        if any((folder / name).exists() for name in (STORE_NAME, ELSEWHERE_NAME)):
            message = f"{folder} is the data folder of a `stoker control`, whose queue `stoker up` would not see"
            hint = "name another folder with --data-dir, or serve this one with `stoker control`"
            raise StokerError(refuse("data_dir_unusable", message, hint))
        yield
    finally:
        held.release()


def _welcome(shape: EmbeddedSpec, real: Mapping[str, int], *, temporary: bool) -> None:
    address = f"[{shape.host}]" if ":" in shape.host else shape.host
    url = f"http://{address}:{shape.http_port}"
    server = "" if url == DEFAULT_SERVER else f"--server {url} "
    kept = "removed at the end; --data-dir keeps it" if temporary else "kept"
    say = click.echo
    say(f"Stoker is up at {url} (agents join at {address}:{shape.grpc_port})")
    say(f"  page    {url}/ shows the queue, the GPUs and each job's story in a browser")
    say(f"  nodes   {_nodes(shape, real)}")
    say(f"  data    {shlex.quote(str(shape.data_dir))} ({kept})")
    say(f"  jobs    run as {_account()}, on this machine, and end with this command")
    say(f"  try     stoker submit {server}--gpus 1 -- sh -c 'echo I see $CUDA_VISIBLE_DEVICES'")
    say(f"          stoker list {server}".rstrip())
    if not is_loopback(shape.host):
        warning = f"WARNING: whoever reaches {address} can run programs here as {_account()}: no token is wanted."
        click.secho(warning, fg="red", bold=True, err=True)
    say("Ctrl-C ends it.")


def _say_waits(shape: EmbeddedSpec, missing: list[str]) -> None:
    """Name nodes that haven't joined yet, and where to look for why."""
    named = ", ".join(missing[:NAMED_MAX]) + (
        f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
    )
    logs = shape.data_dir / "nodes" / missing[0] / "agent.log"
    click.echo(f"waiting for {named} to join; {shlex.quote(str(logs))} may say why it takes long", err=True)


def _nodes(shape: EmbeddedSpec, real: Mapping[str, int]) -> str:
    names = shape.node_names
    label = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    if real:
        return f"{label}: " + ", ".join(f"{count} x {model}" for model, count in real.items())
    return f"{label}: {shape.gpus_per_node} x {shape.gpu_model} each, simulated"


def _account() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


async def _say_goodbye(stop: asyncio.Event) -> None:
    await stop.wait()
    click.echo("\nending jobs and nodes; Ctrl-C again kills them at once", err=True)
