"""`tuff completion`: what a shell needs to complete the command."""

import click
from click.shell_completion import get_completion_class, shell_complete

VARIABLE = "_TUFF_COMPLETE"  # a shell asks by it what fits: click's protocol


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: eval "$(tuff completion bash)"        in ~/.bashrc
    zsh:  eval "$(tuff completion zsh)"         in ~/.zshrc
    fish: tuff completion fish | source         in ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows each of them"
    click.echo(found(context.find_root().command, {}, "tuff", VARIABLE).source())


def complete(program: click.Command, instruction: str) -> int:
    """Answer a shell that asks what fits; the exit code."""
    return shell_complete(program, {}, "tuff", VARIABLE, instruction)
