"""`config`: is the configuration right, what can be set, an example to start from."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from gateway.cli import options, terminal
from gateway.cli.requirements import require_complete
from gateway.settings import load_settings
from gateway.settings.reference import example, rows

commands = typer.Typer(help="Check the configuration, list every setting.", no_args_is_help=True)


@commands.command()
def check(config: options.Config = None, json_: options.Json = False) -> None:
    """Read the configuration file and the environment as `serve` would.

    Every mistake is listed with its file and line, or its variable, and so is what is missing.
    Exit code 0: `serve` would start with it.
    """
    settings = load_settings(config)
    require_complete(settings)
    found = {
        "models": [model.id for model in settings.models],
        "backends": [backend.name for backend in settings.backends],
        "database": "external" if settings.database.url else "embedded",
    }
    if json_:
        terminal.show(json.dumps({"ok": True, **found}))
        return
    terminal.step(terminal.OK, "valid", "the configuration has no mistakes")
    for name, value in found.items():
        shown = value if isinstance(value, str) else ", ".join(value) or "none"
        terminal.step(terminal.OK, name, shown)


@commands.command()
def env(json_: options.Json = False) -> None:
    """List every environment variable with its default and meaning."""
    if json_:
        terminal.show(json.dumps([asdict(row) for row in rows()]))
        return
    for row in rows():
        terminal.show(f"# {row.description}\n{row.name}={row.default}\n")


@commands.command("example")
def print_example() -> None:
    """Print an annotated configuration file: `harmony-gateway config example > gateway.yaml`."""
    terminal.show(example(), end="")
