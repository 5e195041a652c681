"""How long the usage reports take over millions of lines: `python -m tests.load.usage_ledger`.

Lines are made in SQL: 50 tenants, 500 keys, 30 days. All but a hundredth are added up: that stands
behind the cursor, as after some hours without a rollup. Each question is asked `TIMES`; the median
and the worst are printed, in milliseconds, with how many rows there were. The month is asked for
once more when hours that are older than `--hours-days` have become days.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg

from gateway.admin.usage import REPORTS
from gateway.retention.sweep import remove_expired
from gateway.settings.sections import Ledger
from gateway.store.ledger import rollup
from gateway.store.ledger.rollup import LineSpan, Question
from gateway.store.migration.migrate import upgrade
from gateway.store.postgres.database import Database
from gateway.tenancy import TenantId
from tests.fakes.postgres import PostgresServer, embedded, reachable_folder

TIMES: Final = 7
END: Final = datetime(2026, 11, 23, tzinfo=UTC)
TENANTS: Final = """
INSERT INTO tenants (id, name, created_at)
SELECT lpad(to_hex(t), 32, '0')::uuid, 'tenant ' || t, now() FROM generate_series(1, 50) AS t
"""
LINES: Final = """
INSERT INTO usage (tenant_id, response_id, key_id, model, at, input_tokens, cached_tokens,
    output_tokens, reasoning_tokens, status, service_tier, background, attempts)
SELECT lpad(to_hex(1 + n % 50), 32, '0')::uuid, gen_random_uuid(),
    lpad(to_hex(1000 + n % 500), 32, '0')::uuid,
    (ARRAY['gpt-oss-20b', 'gpt-oss-120b', 'adapter'])[1 + n % 500 % 3],
    $2::timestamptz - make_interval(secs => 2592000.0 * (n - $3) / ($4 - $3)),
    800, 300, 200, 90, 'completed', (ARRAY['default', 'priority'])[1 + n % 500 % 2], n % 7 = 0, 1
FROM generate_series($3::bigint, $3::bigint + $1 - 1) AS n
"""


UNPRICED: Final = "SET session_replication_role = replica"
"""Without the trigger that looks for prices: there are none."""


async def fill(url: str, lines: int) -> None:
    """Lines in transactions of 100,000."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(TENANTS)
        await connection.execute(UNPRICED)
        for begin in range(0, lines, 100_000):
            count = min(100_000, lines - begin)
            spread = timedelta(days=30) * begin / lines
            await connection.execute(LINES, count, END - spread, begin, begin + lines)
    finally:
        await connection.close()


async def asked(database: Database, tenant: TenantId | None, question: Question) -> str:
    took, rows = [], 0
    for _ in range(TIMES):
        begun = time.perf_counter()
        rows = len(await rollup.read_usage(database, tenant, question, rows_max=1_000_000))
        took.append((time.perf_counter() - begun) * 1000)
    return f"{statistics.median(took):8.0f} ms, worst {max(took):.0f} ms, {rows} rows"


def of_days(days: int) -> LineSpan:
    start = END - timedelta(days=days)
    return LineSpan(start=start, end=END, inner_start=start, inner_end=END)


async def fold(database: Database, days: int) -> None:
    """Hours older than so many days become days, as of `END`."""
    kept_s = int((datetime.now(UTC) - END).total_seconds()) + days * 86_400
    long_s = 2 * 400 * 86_400
    keep = Ledger.model_construct(
        lines_s=long_s, minutes_s=long_s, hours_s=kept_s, days_s=long_s, end_user_days_s=long_s
    )
    begun = time.perf_counter()
    moved = await remove_expired(database, keep, rows_max=20_000)
    print(f"to days: {moved} hours in {time.perf_counter() - begun:.1f} s", flush=True)


async def measure(url: str, lines: int, hours_days: int) -> None:
    await upgrade(url)
    database = Database(url, pool_size_max=2, command_timeout_s=300, connect_timeout_s=30)
    await fill(url, lines * 99 // 100)
    begun = time.perf_counter()
    added = 0
    while (done := await rollup.advance(database, lines_max=300_000)) is not None:
        added += done.lines
        if done.is_done:
            break
    print(f"added up: {added} lines in {time.perf_counter() - begun:.1f} s", flush=True)
    await fill_rest(url, lines - lines * 99 // 100)
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM ANALYZE usage")
    await connection.execute("VACUUM ANALYZE usage_hours")
    sizes = await connection.fetchrow(
        "SELECT (SELECT count(*) FROM usage), (SELECT count(*) FROM usage_hours),"
        " pg_total_relation_size('usage') / 1e6, pg_total_relation_size('usage_hours') / 1e6"
    )
    await connection.close()
    print("lines, hours, MB of each:", *sizes, flush=True)
    sums = REPORTS["completions"].sums
    week = Question(span=of_days(7), unit="day", dimensions=("model", "key_id"), sums=sums)
    month = Question(span=of_days(30), unit="day", dimensions=("model",), sums=sums)
    one = TenantId(UUID(int=7))
    print("one tenant, week by day, model, key:", await asked(database, one, week))
    print("all tenants, month by day, model:   ", await asked(database, None, month), flush=True)
    await fold(database, hours_days)
    connection = await asyncpg.connect(url)
    await connection.execute("VACUUM ANALYZE usage_hours")
    await connection.execute("VACUUM ANALYZE usage_days")
    await connection.close()
    print("all tenants, month, with days:      ", await asked(database, None, month))
    await database.close()


async def fill_rest(url: str, lines: int) -> None:
    """Those behind the cursor, of the last three days."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(UNPRICED)
        await connection.execute(LINES, lines, END, 0, 100 * lines)
    finally:
        await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=3_000_000)
    parser.add_argument("--hours-days", type=int, default=10)
    given = parser.parse_args()
    with reachable_folder() as folder, embedded(folder / "data") as server:
        postgres = PostgresServer(server.url)
        name = asyncio.run(postgres.create())
        asyncio.run(measure(postgres.database_url(name), given.lines, given.hours_days))


if __name__ == "__main__":
    main()
