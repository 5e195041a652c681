"""Options that several commands share, and the way from them to settings and a running loop."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import uvloop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from gateway.settings import Settings
    from gateway.store.postgres.database import Database

Result = TypeVar("Result")

PORT_MAX = 65_535

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="Configuration file. Default: GATEWAY_CONFIG, then ./gateway.yaml if there is one.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on uvloop.

    SIGTERM before the server listens ends it cleanly, like Ctrl-C.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
    finally:
        signal.signal(signal.SIGTERM, before)


def with_database(
    config: Path | None, question: Callable[[Settings, Database], Awaitable[Result]]
) -> Result:
    """Run `question` with the database of the configuration, which is made ready first."""
    # Not every command that shares options needs a database.
    from gateway.cli.provision import connected, provisioned
    from gateway.settings import load_settings

    async def answer() -> Result:
        async with (
            provisioned(load_settings(config)) as settings,
            connected(settings) as database,
        ):
            return await question(settings, database)

    return run(answer())
