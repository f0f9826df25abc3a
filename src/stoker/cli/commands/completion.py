"""`stoker completion`: shell completion of commands, options, ids and names."""

import click

from stoker.cli.options import OnceCommand


@click.command(cls=OnceCommand)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which Tab completes words in a shell.

    It knows commands, options, ids of jobs and names of nodes. Ids and names are asked of the server that
    STOKER_SERVER or --server names, for at most a second.

    \b
    Examples:
      eval "$(stoker completion bash)"    # in ~/.bashrc
      eval "$(stoker completion zsh)"     # in ~/.zshrc
      stoker completion fish > ~/.config/fish/completions/stoker.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None, f"click knows {shell}"
    click.echo(made(ctx.find_root().command, {}, "stoker", "_STOKER_COMPLETE").source())
