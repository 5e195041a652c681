"""`backends`: the inference servers that there are, and which of them get nothing new."""

from __future__ import annotations

import asyncio
import getpass
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.cli import terminal
from gateway.cli.options import Config, Json, run
from gateway.cli.provision import connected, provisioned
from gateway.errors import StartupError, UpstreamUnavailable
from gateway.settings import load_settings
from gateway.store import backend_reports
from gateway.upstreams.backend_sources import DRAIN_POLL_S, SETTINGS, SourceError, merged
from gateway.upstreams.http.client import KeepAlivePolicy, build_client
from gateway.upstreams.http.connection import ConnectionLimits
from gateway.upstreams.pool import HEALTH_TIMEOUT_S
from gateway.upstreams.probe import check, describe
from gateway.upstreams.routing.exchange import in_flight_of
from gateway.upstreams.routing.prefix_index import member_id
from gateway.wiring import foundation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence

    from gateway.settings import Settings
    from gateway.store.backend_reports import Drain
    from gateway.store.postgres.database import Database
    from gateway.upstreams.backend import Backend
    from gateway.upstreams.http.client import Client
    from gateway.upstreams.probe import Description

commands = typer.Typer(no_args_is_help=True)

LOAD_FRESH_S: Final = 10.0
"""Age of a report of a replica from which on it does not count."""
LOOK_AGAIN_S: Final = 0.5
NAMES_MAX: Final = 8
POLLS: Final = 3
"""Replicas of which nothing is known have heard of it after so many of their polls."""


@dataclass(frozen=True, slots=True)
class Row:
    """A backend as `list` shows it. `in_flight` is of all replicas; None: they do not tell."""

    name: str
    state: str
    models: tuple[str, ...]
    engine: str | None
    in_flight: int | None
    source: str
    url: str
    problem: str | None = None

    def body(self) -> dict[str, Any]:
        # The object that `backends list --json` prints.
        return {
            "name": self.name,
            "state": self.state,
            "models": list(self.models),
            "engine": self.engine,
            "in_flight": self.in_flight,
            "source": self.source,
            "url": self.url,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class Members:
    """All backends by name, and what sources could not say, in words."""

    backends: Mapping[str, Backend]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackendRecords:
    """Records of backends in the database: the drained ones, and the last loads of each replica."""

    drained: Mapping[str, Drain]
    at_drained: Mapping[str, Mapping[str, int]]
    """Requests in flight at each drained backend, by replica."""
    loads: Mapping[str, Mapping[int, int]]
    """Requests in flight of each replica, by member id."""

    def in_flight(self, name: str) -> int | None:
        """Return the requests in flight on all replicas that report; None if none does."""
        if name in self.drained:
            counts = self.at_drained.get(name)
            return None if counts is None else sum(counts.values())
        if not self.loads:
            return None
        return sum(load.get(member_id(name), 0) for load in self.loads.values())


@commands.command("list")
def list_backends(config: Config = None, json_: Json = False) -> None:
    """Every backend, asked now from here: what it serves, and whether it takes requests.

    What is in flight is what replicas tell each other, `-` where they do not. Exit code 1: a source
    could not say what there is.
    """
    rows, faults = run(_list(load_settings(config)))
    if json_:
        body = {"backends": [row.body() for row in rows], "faults": list(faults)}
        terminal.show(json.dumps(body))
    else:
        terminal.table(
            ("NAME", "STATE", "MODELS", "ENGINE", "IN FLIGHT", "SOURCE", "URL"),
            [
                (
                    row.name,
                    row.state,
                    ", ".join(row.models) or "-",
                    row.engine or "-",
                    "-" if row.in_flight is None else str(row.in_flight),
                    row.source,
                    row.url,
                )
                for row in rows
            ],
        )
        for row in rows:
            if row.problem is not None:
                terminal.note(f"{row.name}: {row.problem}")
        for fault in faults:
            terminal.note(fault)
    if faults:
        raise typer.Exit(terminal.FAILED)


@commands.command("drain")
def drain_backend(
    name: Annotated[str, typer.Argument(help="The backend, as `backends list` shows it.")],
    wait: Annotated[
        bool, typer.Option("--wait", help="Until nothing of it is in flight at any replica.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(min=0, help="With --wait: give up after so many seconds.")
    ] = 600.0,
    config: Config = None,
) -> None:
    """Send nothing new to a backend; what it has begun goes on. It stays so until `undrain`.

    All replicas follow within two seconds. Exit code 1: with --wait something is still
    in flight; it is drained all the same.
    """
    settings = load_settings(config)
    left = run(_drain(settings, name, timeout_s if wait else None))
    if left is None:
        terminal.step(terminal.OK, "draining", f"{name} gets nothing new")
    elif left:
        terminal.step(terminal.BAD, "draining", f"{name}: {left} after {timeout_s:g} s")
        raise typer.Exit(terminal.FAILED)
    else:
        terminal.step(terminal.OK, "drained", f"nothing of {name} is in flight")


@commands.command("undrain")
def undrain_backend(
    name: Annotated[str, typer.Argument(help="The backend, as `backends list` shows it.")],
    config: Config = None,
) -> None:
    """Send requests to a backend again. Exit code 1: it was not drained."""
    if not run(_on(load_settings(config), lambda one, _: backend_reports.undrain(one, name))):
        terminal.step(terminal.BAD, "not drained", name)
        raise typer.Exit(terminal.FAILED)
    terminal.step(terminal.OK, "in use", f"{name} gets requests again")


async def _on(
    settings: Settings, act: Callable[[Database, Settings], Coroutine[Any, Any, Any]]
) -> Any:
    async with provisioned(settings) as complete, connected(complete) as database:
        return await act(database, complete)


async def _list(settings: Settings) -> tuple[list[Row], tuple[str, ...]]:
    members = await found(settings)
    records: BackendRecords = await _on(settings, lambda database, _: _records(database))
    async with _client() as client:
        rows = await asyncio.gather(
            *(_row(client, one, records) for one in members.backends.values())
        )
    return list(rows), members.faults


async def found(settings: Settings) -> Members:
    """Return all backends that the settings and their sources name now."""
    said: dict[str, Sequence[Backend]] = {SETTINGS: foundation.backends(settings)}
    faults = []
    for source in foundation.sources(settings):
        try:
            said[source.name] = await source.fetch()
        except SourceError as error:
            faults.append(f"{source.name} does not say which backends there are: {error}")
    wanted = merged(said)
    return Members(wanted.backends, (*faults, *wanted.unused))


async def examine(settings: Settings) -> dict[str, tuple[bool, str]]:
    """Return for each source whether it lists its backends, and a description of the result."""
    records = {}
    for source in foundation.sources(settings):
        try:
            names = [one.name for one in await source.fetch()]
        except SourceError as error:
            records[source.name] = (False, str(error))
        else:
            listed = ", ".join(names[:NAMES_MAX]) + (", …" if len(names) > NAMES_MAX else "")
            records[source.name] = (True, f"{len(names)} backends: {listed}".removesuffix(": "))
    return records


@asynccontextmanager
async def _client() -> AsyncIterator[Client]:
    async with build_client(keep_alive=KeepAlivePolicy(), limits=ConnectionLimits()) as client:
        yield client


async def _records(database: Database) -> BackendRecords:
    at_drained: dict[str, dict[str, int]] = {}
    for report in await backend_reports.drain_reports(database):
        at_drained.setdefault(report.name, {})[report.replica] = report.in_flight
    loads = await backend_reports.loads(database, fresh_s=LOAD_FRESH_S)
    return BackendRecords(
        {one.name: one for one in await backend_reports.drains(database)},
        at_drained,
        {replica: in_flight_of(load) for replica, load in loads.items()},
    )


async def _row(client: Client, backend: Backend, records: BackendRecords) -> Row:
    name = backend.name
    said: Description | None = None
    unusable, problem = None, None
    try:
        said = await describe(client, backend, timeout_s=HEALTH_TIMEOUT_S)
        health = await check(
            client,
            backend,
            said.engine,
            timeout_s=HEALTH_TIMEOUT_S,
            working_s=HEALTH_TIMEOUT_S,
        )
        problem = health.cause
        if said.engine is not None and not backend.is_chat_only:
            unusable = said.engine.unusable
    except UpstreamUnavailable as error:
        problem = error.reason
    in_flight = records.in_flight(name)
    state = "unreachable" if problem is not None else "unusable" if unusable else "healthy"
    if name in records.drained:
        state = "drained" if in_flight == 0 else "draining"
    return Row(
        name=name,
        state=state,
        models=() if said is None else tuple(said.models),
        engine=None if said is None or said.engine is None else str(said.engine),
        in_flight=in_flight,
        source=backend.source,
        url=backend.base_url,
        problem=problem or (str(unusable) if unusable else None),
    )


async def _drain(settings: Settings, name: str, timeout_s: float | None) -> str | None:
    # Without a timeout returns None, else what is left after it; empty: nothing.
    members = await found(settings)
    if name not in members.backends and not members.faults:
        close = get_close_matches(name, members.backends, n=1)
        raise StartupError(
            f"there is no backend {name!r}",
            remedy=f"Did you mean {close[0]!r}?" if close else "See: harmony-gateway backends list",
        )

    async def act(database: Database, _: Settings) -> str | None:
        await backend_reports.drain(
            database, name, by=f"{getpass.getuser()}@{socket.gethostname()}"
        )
        if timeout_s is None:
            return None
        patience_s = POLLS * DRAIN_POLL_S
        return await wait_until_idle(database, name, timeout_s=timeout_s, patience_s=patience_s)

    left: str | None = await _on(settings, act)
    return left


async def wait_until_idle(
    database: Database, name: str, *, timeout_s: float, patience_s: float
) -> str:
    """Wait until all replicas report that nothing is in flight on a backend.

    Returns an empty text then, or what is left after `timeout_s`.

    All replicas are those that report their loads, or this drain. With a single backend they report
    no loads, and one may not have heard of the drain before `patience_s`.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        records = await _records(database)
        counts = records.at_drained.get(name, {})
        silent = records.loads.keys() - counts.keys()
        waited_s = loop.time() - began
        is_known = bool(records.loads) or waited_s >= patience_s
        if is_known and not silent and not any(counts.values()):
            return ""
        if waited_s >= timeout_s:
            if any(counts.values()):
                return f"{sum(counts.values())} in flight"
            return "not all replicas have said so"
        await asyncio.sleep(min(LOOK_AGAIN_S, timeout_s))
