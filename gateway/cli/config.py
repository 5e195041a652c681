from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import typer

from gateway.cli import command, terminal
from gateway.errors import ConfigError, StartupError
from gateway.settings import load_settings
from gateway.settings.reference import example, rows
from gateway.store.postgres.driver import driver_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.settings import Settings

_ANYWHERE: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared only
"""Hosts that stand for all addresses."""

commands = typer.Typer(no_args_is_help=True)


@commands.command()
def check(config: command.Config = None, json_: command.Json = False) -> None:
    """Read the configuration file and the environment as `serve` would.

    Every mistake is listed with its file and line, or its variable, and so is what is missing.
    Exit code 0: `serve` would start with it.
    """
    settings = load_settings(config)
    require_complete(settings)
    command.run(_require_buildable(settings))
    configured = {
        "models": [model.id for model in settings.models],
        "backends": [backend.name for backend in settings.backends],
        "discovery": [source.name for source in settings.discovery],
        "database": "external" if settings.database.url else "embedded",
    }
    if json_:
        terminal.show(json.dumps({"ok": True, **configured}))
        return
    terminal.step(terminal.OK, "valid", "the configuration has no mistakes")
    for name, value in configured.items():
        shown = value if isinstance(value, str) else ", ".join(value) or "none"
        terminal.step(terminal.OK, name, shown)


@commands.command()
def env(json_: command.Json = False) -> None:
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


def require_complete(settings: Settings) -> None:
    gaps = list(_gaps(settings))
    if not gaps:
        return
    first, *others = gaps
    raise ConfigError(
        "\n".join([str(first).removeprefix(f"{first.where}: "), *map(str, others)]),
        where=first.where,
        remedy="\n  ".join(one.remedy for one in gaps),
    )


def _gaps(settings: Settings) -> Iterator[ConfigError]:
    if not settings.backends and not settings.discovery:
        yield ConfigError(
            "no backend is configured",
            where="backends",
            remedy="Name one in gateway.yaml (see gateway.example.yaml), or a source of some in "
            "discovery, or run: harmony-gateway demo",
        )
    if _meet(settings):
        yield ConfigError(
            f"the admin API would listen where clients do, at port {settings.admin.port}",
            where="admin.port",
            remedy="Give it another port: it has a listener of its own.",
        )
    database, encryption = settings.database, settings.encryption
    if database.url is not None:
        try:
            _ = settings.pepper
        except ConfigError as error:
            yield error
    urls = {
        "database.url": database.url,
        "database.listen_url": database.listen_url,
        "encryption.keys_url": encryption.keys_url if encryption.is_on else None,
    }
    for where, url in urls.items():
        try:
            if url is not None:
                driver_url(url.get_secret_value())
        except StartupError as error:
            yield ConfigError(str(error), where=where, remedy=error.remedy)


async def _require_buildable(settings: Settings) -> None:
    # `serve` builds these, too, before it connects to anything.
    from gateway.app import AdminGateway, create_app

    if settings.database.url is None:
        settings = settings.with_database_url("postgresql:///").with_pepper("of the data folder")
    process = create_app(settings).process
    if settings.admin.port is not None:
        AdminGateway(process)
    await process.foundation.close()


def _meet(settings: Settings) -> bool:
    # The two listeners would have the same port of the same address.
    server, admin = settings.server, settings.admin
    if not admin.port or admin.port != server.port:
        return False
    return admin.host == server.host or not _ANYWHERE.isdisjoint((admin.host, server.host))
