"""The command line: every command and what it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway import __version__
from gateway.cli import access, configuration, database, launch, terminal
from gateway.cli.demo import demo
from gateway.cli.doctor import doctor
from gateway.cli.serve import serve, simulate
from gateway.cli.suggestions import Suggesting

commands = typer.Typer(
    cls=Suggesting,
    help="The OpenAI Responses API in front of gpt-oss servers. Try: harmony-gateway demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
commands.command()(demo)
commands.command()(serve)
commands.command()(doctor)
commands.command()(simulate)
commands.add_typer(launch.commands, name="launch")
commands.add_typer(configuration.commands, name="config")
commands.add_typer(database.commands, name="db")
commands.add_typer(access.tenants, name="tenants")
commands.add_typer(access.keys, name="keys")


def _show_version(asked: bool) -> None:
    if asked:
        terminal.show(f"harmony-gateway {__version__}")
        raise typer.Exit


@commands.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options before any command."""
