"""(o) What one PostgreSQL is asked for by durable streams."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tests.load import copying, loading
from tests.load.figures import Column
from tests.load.loading import Load
from tests.load.systems import BACKGROUND, SYSTEMS
from tests.load.workloads.streams import WARM_UP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from asyncpg import Connection, Record

    from tests.load.figures import Figures, Target
    from tests.load.processes import Child
    from tests.load.stack import Stack

LOADS: Final[Mapping[str, tuple[int, Load]]] = {
    "64 streams of 50/s": (1, Load(streams=64, requests=128, tokens=200, rate_per_s=50, ramp_s=2)),
    "the same, two replicas": (
        2,
        Load(streams=64, requests=128, tokens=200, rate_per_s=50, ramp_s=2),
    ),
    "1,000 streams of 20/s": (
        1,
        Load(streams=1000, requests=1000, tokens=200, rate_per_s=20, ramp_s=5),
    ),
    "64 streams, as fast as possible": (1, Load(streams=64, requests=320, tokens=1000)),
}
"""How many replicas, and what they are asked for together."""
_COUNTED: Final = """
SELECT (SELECT sum(xact_commit) FROM pg_stat_database) AS commits,
       (SELECT wal_bytes FROM pg_stat_wal) AS wal_bytes,
       pg_database_size(current_database()) AS kept_bytes,
       (SELECT sum(n_tup_ins) FROM pg_stat_all_tables) AS rows
"""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the server counted since it was made."""

    commits: float
    wal_bytes: float
    kept_bytes: float
    rows: float

    @classmethod
    def now(cls, stack: Stack) -> Counted:
        async def ask(connection: Connection[Record]) -> dict[str, Any]:
            await connection.execute("SELECT pg_stat_force_next_flush()")
            row = await connection.fetchrow(_COUNTED)
            assert row is not None
            return dict(row)

        found = copying.on_database(stack.database_url, ask)
        return cls(**{name: float(value or 0) for name, value in found.items()})

    def since(self, before: Counted) -> Counted:
        return Counted(
            self.commits - before.commits,
            self.wal_bytes - before.wal_bytes,
            self.kept_bytes - before.kept_bytes,
            self.rows - before.rows,
        )


class OnePostgres:
    """The counters are the server's own; what the gateways do besides, such as claims, is in."""

    letter = "o"
    title = "what durable streams ask of one PostgreSQL"
    is_quick = False
    columns = (
        Column("tokens/s", "tokens_per_s"),
        Column("PostgreSQL μs/token", "database_us", 2),
        Column("commits/s", "commits_per_s"),
        Column("tokens/commit", "tokens_per_commit", 1),
        Column("rows/s", "rows_per_s"),
        Column("WAL bytes/token", "wal_bytes_per_token", 1),
        Column("bytes kept/token", "kept_bytes_per_token", 1),
    )
    targets: Sequence[Target] = ()

    def rows(self, stack: Stack) -> Sequence[str]:
        return list(LOADS) if BACKGROUND in stack.offered else []

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        system = SYSTEMS[BACKGROUND]
        with ExitStack() as others:
            first = stack.child(system)
            loading.warm_up(stack, [BACKGROUND], WARM_UP)

            def measure(row: str) -> Figures:
                replicas, load = LOADS[row]
                if quick:
                    load = replace(load, requests=max(load.requests // 4, load.streams))
                children = [first, *_more(stack, others, replicas - 1)]
                before = Counted.now(stack)
                seen = loading.measure(stack, system, load, children=children)
                return {**seen, **_figures(Counted.now(stack).since(before), load, seen["seconds"])}

            yield measure


def _more(stack: Stack, until: ExitStack, count: int) -> Sequence[Child]:
    return [until.enter_context(stack.fresh("gateway")) for _ in range(count)]


def _figures(counted: Counted, load: Load, seconds: float) -> Figures:
    tokens = load.requests * load.tokens
    return {
        "commits_per_s": counted.commits / seconds,
        "tokens_per_commit": tokens / max(counted.commits, 1),
        "rows_per_s": counted.rows / seconds,
        "wal_bytes_per_token": counted.wal_bytes / tokens,
        "kept_bytes_per_token": counted.kept_bytes / tokens,
    }
