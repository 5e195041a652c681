"""`adapters`: the LoRA adapters of all backends, loaded and unloaded at each of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from gateway.cli import terminal
from gateway.cli.backends import found
from gateway.cli.options import Config, Json, run
from gateway.cli.terminal import FAILED
from gateway.settings import load_settings
from gateway.upstreams.http.client import KeepAlivePolicy, build_client
from gateway.upstreams.http.connection import ConnectionLimits
from gateway.upstreams.lora_adapters import Adapter, AdapterOutcome, Adapters
from gateway.upstreams.pool import DESCRIBE_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

commands = typer.Typer(no_args_is_help=True)

LOAD_TIMEOUT_S: Final = 300.0
DISCOVERY: Final = "discovery"
"""In the place of a backend's name, where a source does not say which there are."""

Name = Annotated[str, typer.Argument(help="What requests call it.")]
Base = Annotated[
    str | None,
    typer.Option("--model", help="Only backends of this model, which it is an adapter of."),
]

T = TypeVar("T")


@commands.command("list")
def list_(config: Config = None, json_: Json = False) -> None:
    """Every adapter, where it is, and what it was loaded from."""
    told = _ask(config, Adapters.listed)
    if json_:
        terminal.show(json.dumps([asdict(one) for one in told]))
    else:
        for one in told:
            _show(one)
    if any(isinstance(one, AdapterOutcome) for one in told):
        raise typer.Exit(FAILED)


@commands.command()
def load(
    name: Name,
    path: Annotated[str, typer.Argument(help="Its folder, as the backends see it.")],
    model: Base = None,
    config: Config = None,
    json_: Json = False,
) -> None:
    """Load an adapter wherever it is not. Exit code 0: every backend has it."""
    _tell(_ask(config, lambda adapters: adapters.load(name, path, base=model)), json_=json_)


@commands.command()
def unload(name: Name, model: Base = None, config: Config = None, json_: Json = False) -> None:
    """Unload an adapter wherever it is. Exit code 0: no backend has it."""
    _tell(_ask(config, lambda adapters: adapters.unload(name, base=model)), json_=json_)


def _ask(
    config: Path | None, question: Callable[[Adapters], Awaitable[list[T]]]
) -> list[T | AdapterOutcome]:
    # A source that does not list its backends gives an outcome, too.
    async def answer() -> list[T | AdapterOutcome]:
        settings = load_settings(config)
        members = await found(settings)
        async with build_client(keep_alive=KeepAlivePolicy(), limits=ConnectionLimits()) as client:
            backends = tuple(members.backends.values())
            adapters = Adapters(backends, client, ask_s=DESCRIBE_TIMEOUT_S, load_s=LOAD_TIMEOUT_S)
            unknown = [AdapterOutcome(DISCOVERY, ok=False, detail=why) for why in members.faults]
            return [*await question(adapters), *unknown]

    return run(answer())


def _tell(outcomes: Sequence[AdapterOutcome], *, json_: bool) -> None:
    if json_:
        terminal.show(json.dumps([asdict(one) for one in outcomes]))
    else:
        for one in outcomes:
            _show(one)
    if not outcomes:
        terminal.note("No backend serves that model.")
    if not outcomes or not all(one.ok for one in outcomes):
        raise typer.Exit(FAILED)


def _show(one: Adapter | AdapterOutcome) -> None:
    if isinstance(one, Adapter):
        detail = f"{one.name}, of {one.parent}" + (f", from {one.path}" if one.path else "")
        terminal.step(terminal.OK, one.backend, detail)
        return
    terminal.step(terminal.OK if one.ok else terminal.BAD, one.backend, one.detail)
    if one.remedy:
        terminal.show(f"      {one.remedy}")
