"""Commands that come into a running job: `stoker exec` runs a program there, `stoker attach` is its own terminal."""

import os

import click

from stoker.cli.completion import OPEN_JOB
from stoker.cli.options import OnceCommand
from stoker.cli.server import server_option

SECTION = "Jobs"


@click.command("exec", cls=OnceCommand, context_settings={"allow_interspersed_args": False})
@click.option("-i", "--interactive", is_flag=True, help="Send standard input to the program.")
@click.option("-t", "--tty", is_flag=True, help="Give it a terminal, of the size of this one.")
@server_option
@click.argument("job_id", metavar="ID[.RANK]", type=OPEN_JOB)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.pass_context
def execute(ctx: click.Context, job_id: str, command: tuple[str, ...], *, interactive: bool, tty: bool) -> None:
    """Run a program inside a running job: a shell, a debugger, nvidia-smi.

    It has the job's account, environment, working directory, limits and GPUs, on the node of its rank 0 or RANK. It is
    never the job's own end, and ends with the job. Its exit status is that of this command; 127 where there is no such
    program. With -it every key goes to it; after Enter, `~.` hangs up and `~?` says what else there is.

    \b
    Examples:
      stoker exec -it 7 -- bash
      stoker exec 7 -- nvidia-smi
      stoker exec -i 7.1 -- tar x < data.tar
    """
    from stoker.cli.session_command import run_session, split_rank
    from stoker.wire.rest.exec_session import ExecQuery

    if tty:
        from stoker.cli.session_terminal import needs_terminal

        needs_terminal()
    import msgspec

    if command == ("--",):
        raise click.UsageError("no command is given: `stoker exec 7 -- nvidia-smi`")
    job, rank = split_rank(job_id)
    words = [os.fsencode(word).decode("utf-8", "replace") for word in (command[1:] if command[0] == "--" else command)]
    term = os.environ.get("TERM", "") if tty else ""
    query = ExecQuery(command=msgspec.json.encode(words).decode(), rank=rank, tty=tty, term=term)

    ended = run_session(ctx, job, query, sends_input=interactive)
    if ended.error:
        click.echo(f"stoker: {ended.error}", err=True)
    ctx.exit(ended.status)


@click.command(cls=OnceCommand)
@server_option
@click.argument("job_id", metavar="ID[.RANK]", type=OPEN_JOB)
@click.pass_context
def attach(ctx: click.Context, job_id: str) -> None:
    """Have the terminal of a job that was submitted with one (`stoker submit -it`), from wherever one is.

    What it wrote last is shown first. Another client that has it is left. After Enter, `~d` detaches and the job goes
    on, `~.` hangs it up, `~?` says what else there is.

    \b
    Examples:
      stoker attach 7
    """
    from stoker.cli.session_command import run_session, split_rank
    from stoker.cli.session_terminal import needs_terminal
    from stoker.wire.rest.exec_session import AttachQuery

    needs_terminal(f"`stoker logs {job_id}` shows what it writes")
    job, rank = split_rank(job_id)
    ended = run_session(ctx, job, AttachQuery(rank=rank), sends_input=True)
    if ended.detached:
        click.echo(f"job {job} goes on; `stoker attach {job_id}` comes back", err=True)
    ctx.exit(ended.status)
