"""The command line: every command and what it is called."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

from gateway import __version__
from gateway.cli import (
    adapters,
    backends,
    configuration,
    containers,
    database,
    launch,
    mcp,
    pages,
    terminal,
)
from gateway.cli.demo import demo
from gateway.cli.doctor import doctor
from gateway.cli.governance import audit, data, encryption
from gateway.cli.serve import serve, simulate
from gateway.cli.tenancy import (
    access,
    issuers,
    limits,
    operator_issuers,
    operators,
    projects,
    usage,
)

_NONE_OF: Final = re.compile(
    r"(?:Value error, )?(?P<said>'(?P<given>.*)' is not one of (?P<known>.*)\.)"
)
_OF_TYPES: Final = re.compile(r"^Input should be (?:a valid )?")
_QUOTED: Final = re.compile(r"'([^']*)'")


class Suggesting(TyperGroup):
    """Commands whose values are compared with those there are, as typer does with commands."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = with_suggestion(error.message)
            raise


def with_suggestion(message: str) -> str:
    """The same message, in plain words; of what it lists, the likeliest is named."""
    found = _NONE_OF.fullmatch(message)
    if found is None:
        return _OF_TYPES.sub("expected ", message.removeprefix("Value error, "))
    close = get_close_matches(found["given"].lower(), _QUOTED.findall(found["known"]), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return found["said"] + hint


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
commands.add_typer(adapters.commands, name="adapters")
commands.add_typer(audit.commands, name="audit")
commands.add_typer(launch.commands, name="launch")
commands.add_typer(backends.commands, name="backends")
commands.add_typer(configuration.commands, name="config")
commands.add_typer(containers.commands, name="containers")
commands.add_typer(database.commands, name="db")
commands.add_typer(data.commands, name="data")
commands.add_typer(encryption.commands, name="encryption")
commands.add_typer(pages.commands, name="pages")
commands.add_typer(access.tenants, name="tenants")
commands.add_typer(access.keys, name="keys")
commands.add_typer(limits.limits, name="limits")
commands.add_typer(limits.budgets, name="budgets")
commands.add_typer(limits.prices, name="prices")
commands.add_typer(projects.commands, name="projects")
commands.add_typer(issuers.commands, name="issuers")
commands.add_typer(operators.commands, name="operators")
commands.add_typer(operator_issuers.commands, name="operator-issuers")
commands.add_typer(mcp.commands, name="mcp")
commands.add_typer(usage.commands, name="usage")


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
