from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from gateway import ids
from gateway.admin.ledger import Ledger, SinkResume
from gateway.audit import COMMAND_LINE
from gateway.cli import terminal
from gateway.cli.command import Installation, Json, command
from gateway.cli.terminal import FAILED
from gateway.ledger.records import PAGE_LINES_MAX, Format, export
from gateway.telemetry.metrics import Metrics
from gateway.wiring.admin import ledger_of

if TYPE_CHECKING:
    from gateway.ledger.jobs import Differences

commands = typer.Typer(no_args_is_help=True)


@command(commands, "export")
async def export_(
    gateway: Installation,
    cursor: Annotated[
        str, typer.Option("--from", help="The next cursor of the export before. Default: all.")
    ] = "",
    csv: Annotated[bool, typer.Option("--csv", help="CSV instead of JSON lines.")] = False,
    lines_max: Annotated[
        int, typer.Option("--lines", min=1, help="Stop after so many lines.")
    ] = PAGE_LINES_MAX,
) -> None:
    """Print usage lines; the last line has the cursor of the next export."""
    form: Format = "csv" if csv else "jsonl"
    async for text in export(await gateway.database(), cursor, form, lines_max=lines_max):
        sys.stdout.buffer.write(text)
    sys.stdout.flush()


@command(commands, "reconcile")
async def reconcile(
    gateway: Installation,
    repair: Annotated[
        bool, typer.Option(help="Make sums that are wrong again from their lines.")
    ] = True,
    json_: Json = False,
) -> None:
    """Compare usage lines with responses and sums. Exit code 0: they agree."""
    ledger = await _ledger(gateway)
    differences = await ledger.reconcile(COMMAND_LINE, repairs=repair)
    if json_:
        terminal.show(json.dumps(asdict(differences), default=str))
    else:
        _show(differences, repaired=repair)
    if not differences.agrees:
        raise typer.Exit(FAILED)


@command(commands, "sinks")
async def sinks(gateway: Installation, json_: Json = False) -> None:
    """Show how far every sink is. Exit code 0: none is stopped."""
    ledger = await _ledger(gateway)
    states = await ledger.sinks()
    if json_:
        terminal.show(json.dumps([dict(one) for one in states], default=str))
    else:
        for one in states:
            text = f"{one.lines} lines in {one.batches} batches, last at {one.moved_at:%F %T %Z}"
            mark = terminal.BAD if one.stopped else terminal.OK
            terminal.step(mark, one.name, text if one.stopped is None else one.stopped)
        if not states:
            terminal.note("No sink was sent anything yet.")
    if any(one.stopped for one in states):
        raise typer.Exit(FAILED)


@command(commands, "resume")
async def resume(
    gateway: Installation,
    name: Annotated[str, typer.Argument(help="The sink.")],
    delivered: Annotated[
        bool,
        typer.Option("--delivered", help="It has the batch that was under way: do not send it."),
    ] = False,
) -> None:
    """Go on with a sink that is stopped. Without --delivered its last batch is sent again."""
    ledger = await _ledger(gateway)
    await ledger.resume(COMMAND_LINE, name, SinkResume(delivered=delivered))
    terminal.step(terminal.OK, name, "goes on")


async def _ledger(gateway: Installation) -> Ledger:
    database = await gateway.database()
    return ledger_of(gateway.settings, database, Metrics())


def _show(differences: Differences, *, repaired: bool) -> None:
    terminal.step(
        terminal.BAD if differences.unmetered else terminal.OK,
        "responses",
        f"{len(differences.unmetered)} have no usage line",
    )
    for _, response in differences.unmetered[:10]:
        terminal.show(f"      {ids.response_id(response)}")
    what = "made again" if repaired else "left as they are"
    terminal.step(
        terminal.BAD if differences.wrong_hours else terminal.OK,
        "sums",
        f"{len(differences.wrong_hours)} hours of tenants were wrong"
        + (f", and are {what}" if differences.wrong_hours else ""),
    )
    terminal.step(terminal.OK, "budgets", f"{len(differences.corrected)} were put right")
    terminal.step(terminal.OK, "failed", f"{differences.unbilled} responses failed without usage")
    terminal.step(terminal.OK, "behind", f"{differences.behind_s:.0f} s")
    for name in differences.stopped_sinks:
        terminal.step(terminal.BAD, name, "is stopped: harmony-gateway usage sinks")
