"""Each figure names its measurement.

docs/sizing.md has a table of them, which a test compares with this module.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer
import yaml

from gateway.cli import command, terminal
from gateway.cli.deployment_checks import CONNECTIONS_SPARE
from gateway.settings import Settings
from gateway.tenancy.policy import DAY_S
from gateway.wiring.databases import CONNECTIONS_BESIDE_POOL

if TYPE_CHECKING:
    from typing import Any


_TURNS: Final = "300 turns of 2,100 and 640 tokens of English: "


class Figure(NamedTuple):
    """Figure to plan with; `source` is a measurement of `make bench`, by its letter."""

    what: str
    value: float
    unit: str
    source: str


TOKEN: Final = Figure("CPU of a token", 60, "μs", "(c): 55")
DURABLE_TOKEN: Final = Figure("CPU of a durable token", 100, "μs", "(c): 76; few streams (b): 97")
REQUEST: Final = Figure("CPU of a request", 1_500, "μs", "(j), without a stream: 800")
DATABASE_TOKEN: Final = Figure("PostgreSQL's CPU of a durable token", 25, "μs", "(b): 23; (c): 14")
DATABASE_REQUEST: Final = Figure("PostgreSQL's CPU of a stored response", 100, "μs", "(j)")
PROCESS: Final = Figure("memory of an idle process", 142, "MiB", "(e)")
STREAM: Final = Figure("memory of a stream", 44, "KiB", "(e)")
STREAMS: Final = Figure("streams of a process", 2_000, "", "(c) has 1,000")
BUSY: Final = Figure("share of a core to plan with", 0.6, "", "above it first tokens come later")
ROW: Final = Figure(
    "a stored response beside its items", 7_000, "bytes", _TURNS + "3.8 KB, 7.0 in background"
)
ITEM_TOKEN: Final = Figure("items of a stored response, a token", 5, "bytes", _TURNS + "4.4")
LINE: Final = Figure("a usage line with its indexes", 520, "bytes", _TURNS + "490 to 520")
LOG_TOKEN: Final = Figure(
    "log of a durable token", 25, "bytes", "4 as fast as they come, paced 10 to 25"
)
WAL_STORED: Final = Figure(
    "WAL of what is stored, in shares of it", 1.1, "", "the same turns: 1.0 to 1.1"
)
WAL_LOG: Final = Figure("WAL of logs, in shares of them", 2.5, "", "paced")
FIGURES: Final = (
    *(TOKEN, DURABLE_TOKEN, REQUEST, DATABASE_TOKEN, DATABASE_REQUEST, PROCESS, STREAM, STREAMS),
    *(BUSY, ROW, ITEM_TOKEN, LINE, LOG_TOKEN, WAL_STORED, WAL_LOG),
)

_US: Final = 1e6
_GIB: Final = 1024**3
_FREE: Final = 1.3
"""Room for dead rows, indexes that have grown, and sorting."""
PENDING_LOG_MIB: Final = 32
BODIES_MIB: Final = 64
"""For bodies that are read, and their prompts."""
RESERVE: Final = 1.5
"""For uneven load, and when another process has ended."""

RATE_MAX: Final = 10**9
"""Streams, tokens, and tokens a second, at most."""
DAYS_MAX: Final = 36_500


@dataclass(frozen=True, slots=True)
class Load:
    """Load; `durable` is the share in background."""

    streams: int
    tokens_per_s: float
    retention_days: float
    log_days: float
    durable: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Needs of a load; `cores` of all replicas together."""

    replicas: int
    cores: float
    replica_memory_mib: int
    requests_per_s: float
    postgres_cores: int
    postgres_disk_gib: int
    postgres_wal_gib_a_day: int
    max_connections: int
    settings: dict[str, Any]


def planned(load: Load) -> Plan:
    requests_per_s = load.tokens_per_s / load.output_tokens
    durable_per_s = load.tokens_per_s * load.durable
    cores = (
        (load.tokens_per_s - durable_per_s) * TOKEN.value
        + durable_per_s * DURABLE_TOKEN.value
        + requests_per_s * REQUEST.value
    ) / _US
    serving = max(math.ceil(cores / BUSY.value), math.ceil(load.streams / STREAMS.value), 2)
    of_one = math.ceil(load.streams / serving * RESERVE)
    memory = PROCESS.value + PENDING_LOG_MIB + BODIES_MIB + of_one * STREAM.value / 1024
    database = durable_per_s * DATABASE_TOKEN.value + requests_per_s * DATABASE_REQUEST.value
    defaults = Settings(data_dir=".")
    pool = defaults.database.pool_size_max
    replicas = serving + 1
    stored, logged, lines = _bytes_a_day(load, requests_per_s, durable_per_s)
    lines_days = defaults.ledger.lines_s / DAY_S
    wal = (stored + lines) * WAL_STORED.value + logged * WAL_LOG.value
    disk = stored * load.retention_days + logged * load.log_days + lines * lines_days
    return Plan(
        replicas=replicas,
        cores=round(cores, 2),
        replica_memory_mib=math.ceil(memory / 64) * 64,
        requests_per_s=round(requests_per_s, 1),
        postgres_cores=max(2, math.ceil(database / _US / BUSY.value)),
        postgres_disk_gib=math.ceil(disk * _FREE / _GIB),
        postgres_wal_gib_a_day=math.ceil(wal / _GIB),
        max_connections=replicas * (pool + CONNECTIONS_BESIDE_POOL) + CONNECTIONS_SPARE,
        settings=_settings(load, of_one, pool),
    )


def _bytes_a_day(load: Load, requests_per_s: float, durable_per_s: float) -> tuple[float, ...]:
    # Return the bytes of responses with their items, of logs, and of usage lines.
    tokens = load.prompt_tokens + load.output_tokens
    stored = requests_per_s * (ROW.value + tokens * ITEM_TOKEN.value)
    return (
        stored * DAY_S,
        durable_per_s * LOG_TOKEN.value * DAY_S,
        requests_per_s * LINE.value * DAY_S,
    )


def _settings(load: Load, of_one: int, pool: int) -> dict[str, Any]:
    # Return the settings that depend on the load, or that the estimate assumes.
    log_s = math.ceil(load.log_days * DAY_S)
    return {
        "server": {"connections_max": max(4_096, 2 * of_one)},
        "database": {"pool_size_max": pool},
        "limits": {"responses_in_flight_max": max(1_000, of_one)},
        "background": {"running_max": max(256, math.ceil(of_one * load.durable))},
        "retention": {
            "log_s": log_s,
            "response_s": max(log_s, math.ceil(load.retention_days * DAY_S)),
        },
    }


def plan(  # noqa: PLR0913 - each is an option
    streams: Annotated[
        int, typer.Option(min=1, max=RATE_MAX, help="Streams that are open at once.")
    ],
    tokens_per_s: Annotated[
        float,
        typer.Option(
            min=0.1, max=RATE_MAX, help="Generated tokens a second, of all streams together."
        ),
    ],
    retention_days: Annotated[
        float, typer.Option(min=0.01, max=DAYS_MAX, help="Days that stored responses are kept.")
    ] = 30,
    log_days: Annotated[
        float,
        typer.Option(
            min=0.01, max=DAYS_MAX, help="Days that logs of background responses are kept."
        ),
    ] = 1,
    durable: Annotated[
        float, typer.Option(min=0, max=1, help="Share of responses in background.")
    ] = 0.5,
    prompt_tokens: Annotated[
        int,
        typer.Option(
            min=1, max=RATE_MAX, help="New tokens of a prompt: those that no earlier turn has."
        ),
    ] = 2_000,
    output_tokens: Annotated[
        int, typer.Option(min=1, max=RATE_MAX, help="Tokens of an answer.")
    ] = 500,
    json_: command.Json = False,
) -> None:
    """Say what a load takes: replicas, PostgreSQL, connections, and the settings to paste.

    By measured figures and formulas: docs/sizing.md has both.
    """
    load = Load(
        streams, tokens_per_s, retention_days, log_days, durable, prompt_tokens, output_tokens
    )
    sizing = planned(load)
    if json_:
        terminal.show(json.dumps(asdict(sizing)))
        return
    memory = f"{sizing.replica_memory_mib} MiB each"
    rows = {
        "replicas": f"{sizing.replicas}, one core and {memory}; one may be away",
        "cores": f"{sizing.cores} for {sizing.requests_per_s} requests/s and their tokens",
        "postgres": f"{sizing.postgres_cores} cores, {sizing.postgres_disk_gib} GiB of disk, "
        f"{sizing.postgres_wal_gib_a_day} GiB of WAL a day",
        "connections": f"max_connections {sizing.max_connections} or more",
    }
    for name, text in rows.items():
        terminal.step(terminal.OK, name, text)
    terminal.show("\n# gateway.yaml")
    terminal.show(yaml.safe_dump(sizing.settings, sort_keys=False), end="")
