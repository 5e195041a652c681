"""`db`: the schema of the database, and room in it."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from gateway.cli import terminal
from gateway.cli.command import Config, Installation, Json, command, run
from gateway.cli.provision import connected, embedded_database
from gateway.retention.sweep import Housekeeping
from gateway.settings import load_settings
from gateway.store.schema import REVISION

if TYPE_CHECKING:
    from gateway.retention.sweep import RetentionReport
    from gateway.settings import Settings
    from gateway.store.migration.verification import Repaired

commands = typer.Typer(no_args_is_help=True)


@commands.command("upgrade")
def upgrade_schema(config: Config = None) -> None:
    """Bring the database to the schema of this release, and see that it can be served from.

    Roles, grants and policies that a restored dump came without are made again. Exit code 1: it
    cannot be served from, and what is missing is told.

    Safe to run from several places at once, and while the previous release is serving.
    """
    repaired = run(_upgrade(load_settings(config)))
    terminal.step(terminal.OK, "schema", f"at {REVISION}")
    for fact in repaired.mended:
        terminal.step(terminal.OK, "mended", fact)
    for fact in repaired.lacking:
        terminal.step(terminal.BAD, "missing", fact)


async def _upgrade(settings: Settings) -> Repaired:
    from gateway.store.migration.migrate import upgrade

    if settings.database.url is None:
        with embedded_database(settings.data_dir) as url:
            return await upgrade(url)
    return await upgrade(settings.database_url)


@commands.command()
def current(config: Config = None) -> None:
    """Show the database's revision and the one this release needs. Exit code 1: they differ."""
    found, needed = run(_revision(load_settings(config))), REVISION
    terminal.show(f"database {found or 'never migrated'}, needed {needed}")
    if found != needed:
        raise typer.Exit(1)


async def _revision(settings: Settings) -> str | None:
    async with AsyncExitStack() as stack:
        if settings.database.url is None:
            url = stack.enter_context(embedded_database(settings.data_dir))
            settings = settings.with_database_url(url)
        database = await stack.enter_async_context(connected(settings))
        return await database.revision()


@command(commands, "maintain")
async def maintain(gateway: Installation, json_: Json = False) -> None:
    """Do one round of what a gateway does every 15 minutes.

    It makes the log's partitions of the next days and removes what has expired. Safe while
    gateways are serving: the work is done by one process at a time. Gateways that do not connect
    as the owner of the tables leave days to it: then run it daily, as the owner. Exit code 1: it
    could not be done.
    """
    database = await gateway.database()
    report = await Housekeeping(database, gateway.settings.retention).round()
    if json_:
        terminal.show(json.dumps(asdict(report)))
        return
    terminal.step(terminal.OK, "logs", f"{_days(report)}, {report.log_rows} rows deleted")
    terminal.step(terminal.OK, "responses", f"{report.responses} deleted")
    terminal.step(terminal.OK, "keys", f"{report.idempotency_keys} idempotency keys deleted")
    terminal.step(terminal.OK, "traces", f"{report.traces} traces and spans deleted")
    terminal.step(terminal.OK, "calls", f"{report.tool_calls} audited calls of tools deleted")
    terminal.step(terminal.OK, "pages", f"{report.pages} pages of browsers deleted")
    terminal.step(terminal.OK, "approvals", f"{report.approvals} requests for approval deleted")
    terminal.step(terminal.OK, "files", f"{report.files} files deleted")
    terminal.step(terminal.OK, "containers", f"{report.containers} containers deleted")


def _days(report: RetentionReport) -> str:
    if not report.days_owned:
        return "days left to the owner of the tables, which this role is not"
    busy = f", {report.days_busy} in use: later" if report.days_busy else ""
    return f"{report.days_made} days made, {report.days_dropped} dropped{busy}"
