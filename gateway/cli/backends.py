"""`backends` and `adapters`."""

from __future__ import annotations

import asyncio
import json
import socket
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gateway.cli import terminal
from gateway.cli.command import Installation, Json, command, user_name
from gateway.errors import StartupError, UpstreamUnavailable
from gateway.store import backend_reports
from gateway.upstreams.backend_sources import DRAIN_POLL_S, SETTINGS, SourceError, merged
from gateway.upstreams.http.client import build_client
from gateway.upstreams.lora_adapters import Adapter, AdapterOutcome, Adapters
from gateway.upstreams.pool import DESCRIBE_TIMEOUT_S, HEALTH_TIMEOUT_S
from gateway.upstreams.probe import check, describe
from gateway.upstreams.routing.exchange import in_flight_of
from gateway.upstreams.routing.prefix_index import member_id
from gateway.wiring import membership

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.settings import Settings
    from gateway.store.backend_reports import Drain
    from gateway.store.postgres.database import Database
    from gateway.upstreams.backend import Backend
    from gateway.upstreams.http.client import Client
    from gateway.upstreams.probe import Description

backends = typer.Typer(no_args_is_help=True)
adapters = typer.Typer(no_args_is_help=True)

LOAD_FRESH_S: Final = 10.0
"""Older reports of replicas do not count."""
LOOK_AGAIN_S: Final = 0.5
NAMES_MAX: Final = 8
LOAD_TIMEOUT_S: Final = 300.0
DISCOVERY: Final = "discovery"
"""Instead of a backend's name, for a source that cannot list its backends."""
POLLS: Final = 3
"""Polls of a replica after which it has seen a drain, though it reports nothing."""

AdapterName = Annotated[str, typer.Argument(help="What requests call it.")]
Base = Annotated[
    str | None,
    typer.Option("--model", help="Only backends of this model, which it is an adapter of."),
]


@dataclass(frozen=True, slots=True)
class Members:
    """Backends by name, and why sources could not be read."""

    backends: Mapping[str, Backend]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BackendRecords:
    drained: Mapping[str, Drain]
    at_drained: Mapping[str, Mapping[str, int]]
    """Requests in flight, by backend and replica."""
    loads: Mapping[str, Mapping[int, int]]
    """Requests in flight, by replica and member id."""

    def in_flight(self, name: str) -> int | None:
        """Return the sum over all replicas that report; None if none does."""
        if name in self.drained:
            counts = self.at_drained.get(name)
            return None if counts is None else sum(counts.values())
        if not self.loads:
            return None
        return sum(load.get(member_id(name), 0) for load in self.loads.values())


@command(backends, "list")
async def list_backends(gateway: Installation, json_: Json = False) -> None:
    """Every backend, asked now from here: what it serves, and whether it takes requests.

    The counts in flight are those that replicas report, `-` without reports. Exit code 1: a source
    could not be read.
    """
    members = await current_members(gateway.settings)
    records = await _records(await gateway.database())
    async with build_client() as client:
        rows = await asyncio.gather(
            *(_row(client, one, records) for one in members.backends.values())
        )
    if json_:
        terminal.show(json.dumps({"backends": rows, "faults": members.faults}))
    else:
        terminal.listing(
            rows,
            {
                "NAME": "name",
                "STATE": "state",
                "MODELS": lambda row: ", ".join(row["models"]) or "-",
                "ENGINE": lambda row: row["engine"] or "-",
                "IN FLIGHT": lambda row: "-" if row["in_flight"] is None else str(row["in_flight"]),
                "SOURCE": "source",
                "URL": "url",
            },
            as_json=False,
        )
        for row in rows:
            if row["problem"] is not None:
                terminal.note(f"{row['name']}: {row['problem']}")
        for fault in members.faults:
            terminal.note(fault)
    if members.faults:
        raise typer.Exit(terminal.FAILED)


@command(backends, "drain")
async def drain_backend(
    gateway: Installation,
    name: Annotated[str, typer.Argument(help="The backend, as `backends list` shows it.")],
    wait: Annotated[
        bool, typer.Option("--wait", help="Until nothing of it is in flight at any replica.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(min=0, help="With --wait: give up after so many seconds.")
    ] = 600.0,
) -> None:
    """Send nothing new to a backend; what it has begun goes on. It stays so until `undrain`.

    All replicas follow within two seconds. Exit code 1: with --wait something is still
    in flight; it is drained all the same.
    """
    members = await current_members(gateway.settings)
    if name not in members.backends and not members.faults:
        close = get_close_matches(name, members.backends, n=1)
        raise StartupError(
            f"there is no backend {name!r}",
            remedy=f"Did you mean {close[0]!r}?" if close else "See: harmony-gateway backends list",
        )
    database = await gateway.database()
    await backend_reports.drain(database, name, by=f"{user_name()}@{socket.gethostname()}")
    if not wait:
        terminal.step(terminal.OK, "draining", f"{name} gets nothing new")
        return
    patience_s = POLLS * DRAIN_POLL_S
    left = await wait_until_idle(database, name, timeout_s=timeout_s, patience_s=patience_s)
    if left:
        terminal.step(terminal.BAD, "draining", f"{name}: {left} after {timeout_s:g} s")
        raise typer.Exit(terminal.FAILED)
    terminal.step(terminal.OK, "drained", f"nothing of {name} is in flight")


@command(backends, "undrain")
async def undrain_backend(
    gateway: Installation,
    name: Annotated[str, typer.Argument(help="The backend, as `backends list` shows it.")],
) -> None:
    """Send requests to a backend again. Exit code 1: it was not drained."""
    if not await backend_reports.undrain(await gateway.database(), name):
        terminal.step(terminal.BAD, "not drained", name)
        raise typer.Exit(terminal.FAILED)
    terminal.step(terminal.OK, "in use", f"{name} gets requests again")


async def current_members(settings: Settings) -> Members:
    by_source: dict[str, Sequence[Backend]] = {SETTINGS: membership.backends(settings)}
    faults = []
    for source in membership.sources(settings):
        try:
            by_source[source.name] = await source.fetch()
        except SourceError as error:
            faults.append(f"{source.name} does not say which backends there are: {error}")
    wanted = merged(by_source)
    return Members(wanted.backends, (*faults, *wanted.unused))


async def examine(settings: Settings) -> dict[str, tuple[bool, str]]:
    """Return by name whether a source answers, with its backends or the error."""
    records = {}
    for source in membership.sources(settings):
        try:
            names = [one.name for one in await source.fetch()]
        except SourceError as error:
            records[source.name] = (False, str(error))
        else:
            listed = ", ".join(names[:NAMES_MAX]) + (", …" if len(names) > NAMES_MAX else "")
            records[source.name] = (True, f"{len(names)} backends: {listed}".removesuffix(": "))
    return records


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


async def _row(client: Client, backend: Backend, records: BackendRecords) -> dict[str, Any]:
    name = backend.name
    description: Description | None = None
    unusable, problem = None, None
    try:
        description = await describe(client, backend, timeout_s=HEALTH_TIMEOUT_S)
        health = await check(
            client,
            backend,
            description.engine,
            timeout_s=HEALTH_TIMEOUT_S,
            working_s=HEALTH_TIMEOUT_S,
        )
        problem = health.cause
        if description.engine is not None and not backend.is_chat_only:
            unusable = description.engine.unusable
    except UpstreamUnavailable as error:
        problem = error.reason
    in_flight = records.in_flight(name)
    state = "unreachable" if problem is not None else "unusable" if unusable else "healthy"
    if name in records.drained:
        state = "drained" if in_flight == 0 else "draining"
    return {
        "name": name,
        "state": state,
        "models": [] if description is None else list(description.models),
        "engine": None
        if description is None or description.engine is None
        else str(description.engine),
        "in_flight": in_flight,
        "source": backend.source,
        "url": backend.base_url,
        "problem": problem or (str(unusable) if unusable else None),
    }


async def wait_until_idle(
    database: Database, name: str, *, timeout_s: float, patience_s: float
) -> str:
    """Return an empty text once nothing is in flight, or what is left after `timeout_s`.

    Replicas that report loads, or this drain, have to answer. With a single backend none reports
    loads, and one may not have seen the drain before `patience_s`.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        records = await _records(database)
        counts = records.at_drained.get(name, {})
        silent = records.loads.keys() - counts.keys()
        waited_s = loop.time() - began
        has_reports = bool(records.loads) or waited_s >= patience_s
        if has_reports and not silent and not any(counts.values()):
            return ""
        if waited_s >= timeout_s:
            if any(counts.values()):
                return f"{sum(counts.values())} in flight"
            return "not all replicas have said so"
        await asyncio.sleep(min(LOOK_AGAIN_S, timeout_s))


@command(adapters, "list")
async def list_adapters(gateway: Installation, json_: Json = False) -> None:
    """Every adapter, where it is, and what it was loaded from."""
    members = await current_members(gateway.settings)
    async with build_client() as client:
        rows = [*await _adapters(members, client).listed(), *_unknown(members)]
    _show(rows, as_json=json_)
    if any(isinstance(one, AdapterOutcome) for one in rows):
        raise typer.Exit(terminal.FAILED)


@command(adapters, "load")
async def load_adapter(
    gateway: Installation,
    name: AdapterName,
    path: Annotated[str, typer.Argument(help="Its folder, as the backends see it.")],
    model: Base = None,
    json_: Json = False,
) -> None:
    """Load an adapter wherever it is not. Exit code 0: every backend has it."""
    members = await current_members(gateway.settings)
    async with build_client() as client:
        outcomes = await _adapters(members, client).load(name, path, base=model)
    _conclude([*outcomes, *_unknown(members)], as_json=json_)


@command(adapters, "unload")
async def unload_adapter(
    gateway: Installation, name: AdapterName, model: Base = None, json_: Json = False
) -> None:
    """Unload an adapter wherever it is. Exit code 0: no backend has it."""
    members = await current_members(gateway.settings)
    async with build_client() as client:
        outcomes = await _adapters(members, client).unload(name, base=model)
    _conclude([*outcomes, *_unknown(members)], as_json=json_)


def _adapters(members: Members, client: Client) -> Adapters:
    every = tuple(members.backends.values())
    return Adapters(every, client, ask_s=DESCRIBE_TIMEOUT_S, load_s=LOAD_TIMEOUT_S)


def _unknown(members: Members) -> list[AdapterOutcome]:
    # A source that does not list its backends.
    return [AdapterOutcome(DISCOVERY, ok=False, detail=why) for why in members.faults]


def _conclude(outcomes: Sequence[AdapterOutcome], *, as_json: bool) -> None:
    _show(outcomes, as_json=as_json)
    if not outcomes:
        terminal.note("No backend serves that model.")
    if not outcomes or not all(one.ok for one in outcomes):
        raise typer.Exit(terminal.FAILED)


def _show(rows: Sequence[Adapter | AdapterOutcome], *, as_json: bool) -> None:
    if as_json:
        terminal.show(json.dumps([asdict(one) for one in rows]))
        return
    for one in rows:
        if isinstance(one, Adapter):
            detail = f"{one.name}, of {one.parent}" + (f", from {one.path}" if one.path else "")
            terminal.step(terminal.OK, one.backend, detail)
            continue
        terminal.step(terminal.OK if one.ok else terminal.BAD, one.backend, one.detail)
        if one.remedy:
            terminal.show(f"      {one.remedy}")
