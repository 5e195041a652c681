from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gateway.cli import terminal
from gateway.cli.command import Config, Installation, Json, command, run
from gateway.cli.findings import Finding, show
from gateway.cli.provision import connected, embedded_database
from gateway.retention.sweep import DAYS_AHEAD, REMOVED, Housekeeping, partition_days
from gateway.settings import load_settings
from gateway.store import tenants
from gateway.store.integrity import CHECKS, Scope
from gateway.store.migration.verification import missing, summary
from gateway.store.schema import REVISION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.retention.sweep import RetentionReport
    from gateway.settings import Settings
    from gateway.store.integrity import Violation
    from gateway.store.migration.verification import Repaired
    from gateway.store.postgres.database import Database

commands = typer.Typer(no_args_is_help=True)

SHOWN_MAX: Final = 5
"""Rows of one invariant; --json has all."""


@commands.command("upgrade")
def upgrade_schema(config: Config = None) -> None:
    """Bring the database to the schema of this release, and see that it can be served from.

    Roles, grants and policies that a restored dump came without are made again. Exit code 1: it
    cannot be served from; the output names what is missing.

    Safe to run from several places at once, and while the previous release is serving.
    """
    with terminal.progress("migrations") as on_step:
        repaired = run(_upgrade(load_settings(config), on_step))
    terminal.step(terminal.OK, "schema", f"at {REVISION}")
    for fact in repaired.mended:
        terminal.step(terminal.OK, "mended", fact)
    for fact in repaired.lacking:
        terminal.step(terminal.BAD, "missing", fact)


async def _upgrade(settings: Settings, on_step: Callable[[int], None]) -> Repaired:
    from gateway.store.migration.migrate import upgrade

    if settings.database.url is None:
        with embedded_database(settings.data_dir) as url:
            return await upgrade(url, on_step=on_step)
    return await upgrade(settings.database_url, on_step=on_step)


@commands.command()
def current(config: Config = None) -> None:
    """Show the database's revision and the one this release needs. Exit code 1: they differ."""
    revision, needed = run(_revision(load_settings(config))), REVISION
    terminal.show(f"database {revision or 'never migrated'}, needed {needed}")
    if revision != needed:
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
        days = asdict(report)
        terminal.show(json.dumps(days | days.pop("removed")))
        return
    terminal.step(terminal.OK, "logs", _days(report))
    for name, count in report.removed.items():
        terminal.step(terminal.OK, REMOVED[name], f"{count} deleted")


@command(commands, "check")
async def check_data(
    gateway: Installation,
    tenant: Annotated[
        str | None, typer.Option(help="Only this tenant. Default: all.", show_default=False)
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(help="Only responses created since then (UTC).")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Rows of each table and tenant, at most.")
    ] = 100_000,
    json_: Json = False,
) -> None:
    """Look whether what is stored is whole, as after a restore or a crash. Nothing is changed.

    The schema, partitions, claims, chains, logs, usage lines, and whether the keys at hand open
    what is sealed. Safe while gateways serve. Exit code 1: something is not as it must be.
    """
    database = await gateway.database()
    scope = Scope(
        since=since.replace(tzinfo=UTC) if since else datetime.min.replace(tzinfo=UTC),
        rows_max=limit,
        log_s=gateway.settings.retention.log_s,
        lines_s=gateway.settings.ledger.lines_s,
    )
    selected = [await tenants.tenant_named(database, tenant, is_purged=True)] if tenant else None
    findings = [await _schema(database), await _partitions(database)]
    violations = []
    counts = dict.fromkeys(CHECKS, 0)
    with terminal.progress("rows looked at") as advance:
        for one in selected or await tenants.all_tenants(database):
            for name, check in CHECKS.items():
                async for page in check(database, one.id, scope):
                    advance(page.rows)
                    counts[name] += page.rows
                    violations += page.violations
    ok = all(one.ok for one in findings) and not any(one.is_certain for one in violations)
    if json_:
        shown = [asdict(one) | {"tenant_id": str(one.tenant_id)} for one in violations]
        body = {"ok": ok, "findings": [one.json for one in findings], "rows": counts}
        terminal.show(json.dumps(body | {"violations": shown}))
    else:
        _show_check(findings, counts, violations)
    if not ok:
        raise typer.Exit(terminal.FAILED)


def _show_check(
    findings: Sequence[Finding], counts: Mapping[str, int], violations: Sequence[Violation]
) -> None:
    show(findings)
    for name, rows in counts.items():
        terminal.step(terminal.OK, name, f"{rows} rows looked at")
    by_invariant: dict[str, list[Violation]] = {}
    for violation in violations:
        by_invariant.setdefault(violation.invariant, []).append(violation)
    for name, broken in by_invariant.items():
        mark = terminal.BAD if broken[0].is_certain else terminal.WARNING
        terminal.step(mark, name, f"{len(broken)} rows, such as:")
        for row in broken[:SHOWN_MAX]:
            terminal.show(f"      {row.row} of tenant {row.tenant_id}: {row.detail}")
        terminal.show(f"      {broken[0].remedy}")


async def _schema(database: Database) -> Finding:
    lacking = await missing(database)
    if not lacking:
        revision = await database.revision()
        return Finding("schema", ok=True, detail=f"at {revision}, nothing is missing")
    remedy = "Run: harmony-gateway db upgrade"
    return Finding("schema", False, f"it lacks: {summary(lacking)}", remedy)


async def _partitions(database: Database) -> Finding:
    async with database.owner_transaction() as connection:
        days = await partition_days(connection)
    today = datetime.now(UTC).date()
    wanted = [today + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)]
    if absent := [str(day) for day in wanted if day not in days]:
        detail = f"of the log there is none for {', '.join(absent)}"
        return Finding("partitions", False, detail, "Run: harmony-gateway db maintain")
    return Finding("partitions", ok=True, detail=f"of the log are there until {wanted[-1]}")


def _days(report: RetentionReport) -> str:
    if not report.days_owned:
        return "days left to the owner of the tables, which this role is not"
    busy = f", {report.days_busy} in use: later" if report.days_busy else ""
    return f"{report.days_made} days made, {report.days_dropped} dropped{busy}"
