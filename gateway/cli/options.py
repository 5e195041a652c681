"""Options that several commands share, and the way from them to settings and a running loop."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import uvloop

if TYPE_CHECKING:
    from collections.abc import Coroutine

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
