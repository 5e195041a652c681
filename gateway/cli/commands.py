"""The command line.

A command is imported when it is used: the list of all, and `--version`, need none.
"""

from __future__ import annotations

import gc
import re
import signal
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group
from typing_extensions import override

from gateway import __version__
from gateway.cli import terminal

_NONE_OF: Final = re.compile(
    r"(?:Value error, )?(?P<text>'(?P<value>.*)' is not one of (?P<choices>.*)\.)"
)
_OF_TYPES: Final = re.compile(r"^Input should be (?:a valid )?")
_QUOTED: Final = re.compile(r"'([^']*)'")


class Entry(NamedTuple):
    module: str
    attribute: str
    help: str


PANELS: Final = {
    "Run": {
        "demo": Entry(
            "demo",
            "demo",
            "Try it: PostgreSQL, a scripted backend and the gateway, in one command, "
            "without a GPU.",
        ),
        "serve": Entry("serve", "serve", "Run the gateway in front of the configured backends."),
        "doctor": Entry(
            "doctor",
            "doctor",
            "Look at configuration, vocabulary, database, clocks, backends, and with --through a "
            "proxy.",
        ),
        "plan": Entry(
            "plan",
            "plan",
            "Say what a load takes: replicas, PostgreSQL, connections, and the settings to paste.",
        ),
        "support": Entry(
            "support",
            "commands",
            "Pack what somebody needs who is to help, without secrets and content.",
        ),
        "launch": Entry(
            "launch",
            "commands",
            "Run a coding agent on a gateway; it is set up in a file of its own.",
        ),
        "simulate": Entry(
            "serve", "simulate", "Run a scripted server that speaks vLLM's token API, or SGLang's."
        ),
    },
    "Configuration, database and backends": {
        "config": Entry("config", "commands", "Check the configuration, list every setting."),
        "db": Entry(
            "db", "commands", "Migrate the database, show where it is, remove what has expired."
        ),
        "backends": Entry(
            "backends", "backends", "List the inference servers, take them out of use and back."
        ),
        "adapters": Entry(
            "backends", "adapters", "List, load and unload LoRA adapters at all backends."
        ),
    },
    "Tenants": {
        "tenants": Entry("tenants", "tenants", "Create, list, set up and disable tenants."),
        "keys": Entry("tenants", "keys", "Create, list and disable API keys."),
        "projects": Entry("tenants", "projects", "Create, list and archive projects, and keys."),
        "issuers": Entry(
            "issuers",
            "commands",
            "Trust issuers of tokens (OIDC), and say what their tokens may do.",
        ),
        "limits": Entry("limits", "limits", "Set and list rate limits."),
        "budgets": Entry("limits", "budgets", "Set and list budgets of money or tokens."),
        "prices": Entry("limits", "prices", "Set and list what models cost."),
        "usage": Entry("usage", "commands", "Export, check and deliver usage."),
    },
    "Hosted tools": {
        "mcp": Entry("mcp_registry", "commands", "Register, list, remove and try MCP servers."),
        "pages": Entry(
            "page_index",
            "commands",
            "Add, list and remove the pages of the local index of web search.",
        ),
        "containers": Entry(
            "containers", "commands", "Containers that run Python, for gateways elsewhere."
        ),
    },
    "Operators and stored data": {
        "operators": Entry("operators", "commands", "Create, list and disable keys of operators."),
        "console": Entry("operators", "console", "Sign in to the pages for operators."),
        "operator-issuers": Entry(
            "issuers",
            "operator_commands",
            "Trust issuers whose tokens name the tenant they are for.",
        ),
        "audit": Entry("audit_log", "commands", "Read and verify the audit log."),
        "data": Entry(
            "stored_data",
            "data",
            "What is kept of tenants: retention, erasure, deletion, archives.",
        ),
        "encryption": Entry("stored_data", "encryption", "Encryption at rest: keys of tenants."),
    },
}
ENTRIES: Final = {name: entry for panel in PANELS.values() for name, entry in panel.items()}


def loaded(name: str) -> Any:
    entry = ENTRIES[name]
    # A collection would free nothing. Those during the import are a tenth of its time, and the
    # first one after it, which freezing spares, as much again.
    gc.disable()
    try:
        attribute = getattr(import_module(f"gateway.cli.{entry.module}"), entry.attribute)
    finally:
        gc.freeze()
        gc.enable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    holder = typer.Typer(callback=root)
    if isinstance(attribute, typer.Typer):
        holder.add_typer(attribute, name=name, help=entry.help)
    else:
        holder.command(name)(attribute)
    return get_group(holder).commands[name]


class Commands(TyperGroup):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=entry.help, rich_help_panel=panel)
            for panel, entries in PANELS.items()
            for name, entry in entries.items()
        }

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command and loaded(command.name or ""), rest

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = with_suggestion(error.message)
            raise


def with_suggestion(message: str) -> str:
    """Return a message of pydantic in plain words, with the closest of the values it lists."""
    match = _NONE_OF.fullmatch(message)
    if match is None:
        return _OF_TYPES.sub("expected ", message.removeprefix("Value error, "))
    close = get_close_matches(match["value"].lower(), _QUOTED.findall(match["choices"]), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return match["text"] + hint


commands = typer.Typer(
    cls=Commands,
    help="The OpenAI Responses API in front of gpt-oss servers. Try: harmony-gateway demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
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
