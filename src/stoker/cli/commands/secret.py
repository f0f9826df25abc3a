"""Commands `stoker secret ...`: values for jobs that nobody can read back.

Rules: Q1  a value is never on the command line, where every account of the machine could read it
       Q2  a value goes to a server that has proved itself, and over plain HTTP to no other machine
"""

import sys
from typing import TYPE_CHECKING, Final

import click

from stoker.cli.completion import tenants
from stoker.cli.display.output import show_lines, show_rows
from stoker.cli.display.table import Column, fields
from stoker.cli.options import OnceGroup
from stoker.cli.server import answer_options, connect, table_answer_options

if TYPE_CHECKING:
    from typing import BinaryIO

    from stoker.wire.rest.secret import SecretView

_BYTES_MAX: Final = 1 << 20
"""Read at most; what the control plane takes is less."""
_tenant_option: Final = click.option(
    "--tenant", metavar="T", shell_complete=tenants, help="Whose jobs may use it. [default: the token's]"
)
_shared_option: Final = click.option("--shared", is_flag=True, help="For all jobs of the tenant, not only one's own.")


def _columns() -> "list[Column[SecretView]]":
    return [
        *fields("NAME", "TENANT"),
        Column("OWNER", lambda secret: secret.owner or "shared"),
        Column("SET", lambda secret: secret.set_at, instant=True),
        *fields("SET BY", wide=True),
    ]


@click.group(cls=OnceGroup)
def secret() -> None:
    """Set, list and delete secrets, which jobs get as variables.

    A value can be replaced and deleted, and shown to nobody. `stoker submit --secret NAME` gives it to a job.

    \b
    Examples:
      stoker secret set WANDB_API_KEY
      stoker submit --secret WANDB_API_KEY -- python train.py
      stoker secret list
    """


@secret.command("set")
@click.argument("name")
@_tenant_option
@_shared_option
@click.option("--from-file", metavar="F", type=click.File("rb"), help="Take the value from a file, as it stands.")
@answer_options
def set_secret(name: str, tenant: str | None, shared: bool, from_file: "BinaryIO | None", form: str) -> None:
    """Keep a value under a name, encrypted; one that is there is replaced.

    The value is asked for; where standard input is no terminal it is read from there, without the newline at its end.
    It is for the jobs that the same person submits to the tenant. With --shared it is for all jobs of the tenant,
    whoever submits them: then whoever may submit there can read it, by a job that prints it.

    \b
    Examples:
      stoker secret set WANDB_API_KEY
      pass show hf | stoker secret set HF_TOKEN --tenant vision --shared
      stoker secret set CLOUD_KEY --from-file key.json
    """
    from stoker.wire.client import SecretBody

    value = _text(from_file.read(_BYTES_MAX) if from_file is not None else _said())
    kept = connect(private=True).set_secret(name, SecretBody(value=value, tenant=tenant, shared=shared))
    show_lines(form, [f"secret {kept.name} is set{_whose(kept)}"], kept)


@secret.command("list")
@_tenant_option
@table_answer_options
def list_secrets(tenant: str | None, form: str) -> None:
    """Show one's own secrets and those that are shared, without their values.

    Leads of a tenant and admins see everybody's.

    \b
    Examples:
      stoker secret list
      stoker secret list --tenant vision -o wide
    """
    from stoker.wire.client import SecretListQuery

    found = connect().secrets(SecretListQuery(tenant=tenant or ""))
    show_rows(form, _columns(), found.secrets, found)


@secret.command()
@click.argument("name")
@_tenant_option
@_shared_option
@click.option(
    "--owner", metavar="P", help="For leads and admins: whose secret it is, as `stoker secret list` shows it."
)
@answer_options
def delete(name: str, tenant: str | None, shared: bool, owner: str | None, form: str) -> None:
    """Delete a secret. Jobs that run keep it; jobs that name it and haven't started wait until it is set again.

    \b
    Examples:
      stoker secret delete WANDB_API_KEY
      stoker secret delete HF_TOKEN --tenant vision --shared
      stoker secret delete WANDB_API_KEY --owner user:ada
    """
    from stoker.wire.client import SecretQuery

    if shared and owner:
        raise click.UsageError("--shared and --owner name two secrets: give one of them")
    gone = connect().delete_secret(name, SecretQuery(tenant=tenant or "", shared=shared, owner=owner or ""))
    show_lines(form, [f"secret {gone.name} is deleted{_whose(gone)}"], gone)


def _whose(secret: "SecretView") -> str:
    return f" for all jobs of tenant {secret.tenant}" if secret.owner is None else f" in tenant {secret.tenant}"


def _said() -> bytes:
    """Return the value from standard input: typed without being shown, or all that comes (Q1)."""
    if sys.stdin.isatty():
        typed: str = click.prompt("Value", hide_input=True, err=True)
        return typed.encode(errors="surrogateescape")
    content = sys.stdin.buffer.read(_BYTES_MAX)
    return content.removesuffix(b"\n").removesuffix(b"\r")


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise click.UsageError(
            "the value is not UTF-8; encode it, such as by base64, and let the job decode it"
        ) from None
