"""Writers and workers are killed, a transaction is slow: each line is in the sums once and
delivered once.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.store.postgres.statements import Statement
from gateway.store.tables.ledger import SUMS
from tests.conftest import new_tenant
from tests.fakes.ledger_process import SINK, jobs_of
from tests.fakes.serving import serving
from tests.fakes.usage_lines import line
from tests.fakes.usage_receivers import EventReceiver
from tests.integration.ledger.test_sums import slow_insert

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Sequence

    from gateway.store.postgres.database import Database

ROOT = Path(__file__).parents[3]
ROUNDS = 2
ROUNDS_MAX = 400


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[Process]:
    """One that works; killed at the end, if it is still there."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.ledger_process", *arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert started.stdout is not None
        assert await started.stdout.readline() == b"ready\n"
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def write(writers: Sequence[Process], *, batches: int) -> None:
    """Have each write so many batches more."""
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n" * batches)
        await writer.stdin.drain()


async def acknowledged(writer: Process, *, batches: int) -> set[str]:
    """The responses whose lines it said are committed, of its next batches; fewer if it ends."""
    assert writer.stdout is not None
    told = [await writer.stdout.readline() for _ in range(batches)]
    return {response for one in told for response in one.decode().split()}


@pytest.mark.slow
async def test_every_line_is_added_up_once_and_delivered_once(
    database: Database, database_url: str
) -> None:
    tenants = [await new_tenant(database) for _ in range(4)]
    receiver, slow = EventReceiver(statuses=[503, 202, 500, 202, 202, 503]), line()
    acked: set[str] = set()
    async with serving(receiver.app()) as url, AsyncExitStack() as stack:
        sink = f"{url}/events"
        adding, delivery, open_sink = jobs_of(database, sink)
        stack.push_async_callback(open_sink.close)
        await delivery.round()  # it is sent what is written from now on
        starting = (process("write", database_url, str(tenant)) for tenant in tenants)
        writers = [await stack.enter_async_context(one) for one in starting]

        async def one_round() -> None:
            """Both workers are killed at its end, wherever they are."""
            nonlocal acked
            async with process("work", database_url, sink), process("work", database_url, sink):
                await write(writers, batches=6)
                for writer in writers:
                    acked |= await acknowledged(writer, batches=6)
                await receiver.took.wait()

        for _ in range(ROUNDS):
            receiver.took.clear()
            await one_round()
        async with slow_insert(database_url, tenants[0], slow):
            await one_round()
        async with process("work", database_url, sink):
            await write(writers, batches=30)
            for writer in writers[:2]:
                acked |= await acknowledged(writer, batches=1)
                writer.kill()
            for writer in writers:
                acked |= await acknowledged(writer, batches=30)
        receiver.statuses.clear()
        lines, sums, cursor = await told(database)
        for _ in range(ROUNDS_MAX):
            if sums["requests"] == len(lines) == cursor:
                break
            await asyncio.sleep(0.05)  # transactions of the killed hold the horizon, others', too
            await adding.round()
            await delivery.round()
            lines, sums, cursor = await told(database)
    assert acked | {slow.response.hex} <= set(lines)
    assert sums == added(lines)
    delivered = {
        event["data"]["response_id"].removeprefix("resp_"): event["data"]
        for event in receiver.events.values()
    }
    assert set(delivered) == set(lines)
    for response, data in delivered.items():
        assert data["input_tokens"] == str(lines[response]["input_tokens"])
    assert cursor == len(lines)
    # It would be a test of nothing, had nothing been sent again and nobody been cut off.
    assert max(receiver.seen.values()) > 1
    assert len(lines) > 1_000


def added(lines: dict[str, dict[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for one in lines.values():
        sums += Counter(one)
    return sums


async def told(database: Database) -> tuple[dict[str, dict[str, int]], Counter[str], int]:
    """What each line has, what the sums by the hour say, and what the sink's cursor counts."""
    counted = ("input_tokens", "cached_tokens", "output_tokens", "voided_tokens", "web_searches")
    names = ", ".join(counted)
    async with database.runs_transaction() as connection:
        rows = await connection.execute(Statement(f"SELECT response_id, {names} FROM usage"))
        summed = ", ".join(f"CAST(sum({name}) AS bigint) AS {name}" for name in SUMS)
        hours = (await connection.execute(Statement(f"SELECT {summed} FROM usage_hours"))).one()
        cursor = await connection.scalar(
            Statement("SELECT lines FROM usage_cursors WHERE name = :name"),
            {"name": f"sink:{SINK}"},
        )
    lines = {
        row.response_id.hex: {"requests": 1, **{name: row[name] for name in counted}}
        for row in rows
    }
    sums = Counter({name: hours[name] for name in ("requests", *counted) if hours[name]})
    return lines, sums, cursor
