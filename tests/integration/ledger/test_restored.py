"""A ledger that was restored into another cluster, which counts transactions from the beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway import ids
from gateway.ledger.sinks import CloudEventsSink, Delivery
from gateway.settings.sections import Sink
from gateway.store import usage_lines
from gateway.store.ledger import cursors, rollup
from gateway.store.ledger.cursors import LinePosition
from gateway.store.migration.functions import create_ledger_tx
from gateway.store.migration.migrate import CONTINUED, upgrade
from gateway.store.postgres.statements import Statement
from gateway.telemetry.metrics import Metrics
from tests.fakes.serving import serving
from tests.fakes.usage_lines import line
from tests.fakes.usage_receivers import EventReceiver

if TYPE_CHECKING:
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


async def be_as_old_as(database: Database, transactions: int) -> None:
    """Count transactions as a cluster does that had so many more."""
    async with database.owner_transaction() as connection:
        await connection.execute(Statement(create_ledger_tx(transactions)))


async def rolled(database: Database) -> int:
    done = await rollup.advance(database)
    assert done is not None
    assert not done.is_foreign
    return done.lines


def delivery(database: Database, sink: CloudEventsSink) -> Delivery:
    """Of a process of its own: a lease of nothing is lapsed when the next one looks."""
    return Delivery(
        database, sink, holder=ids.new_replica_id(), lines_max=4, interval_s=1, lease_s=0,
        metrics=Metrics(),
    )  # fmt: skip


@pytest.mark.slow
async def test_every_reader_of_a_restored_ledger_goes_on_where_it_was(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    receiver = EventReceiver()
    async with serving(receiver.app()) as url:
        sink = CloudEventsSink(Sink(name="events", url=f"{url}/events"), source="here")
        await be_as_old_as(database, 99_999_999_999)
        await delivery(database, sink).round()
        read, unread, new = line(), line(), line()
        await usage_lines.record_all(database, [(tenant, read)])
        assert await rolled(database) == 1
        await delivery(database, sink).round()
        _, place = await cursors.read_lines(database, LinePosition(), lines_max=9)
        await usage_lines.record_all(database, [(tenant, unread)])

        await be_as_old_as(database, 0)
        repaired = await upgrade(database_url)
        assert CONTINUED in repaired.mended
        await usage_lines.record_all(database, [(tenant, new)])
        assert await rolled(database) == 2
        await delivery(database, sink).round()
        await sink.close()
    lines, _ = await cursors.read_lines(database, place, lines_max=9)
    assert [one.response_id for one in lines] == [unread.response, new.response]
    written = {f"{ids.response_id(one.response)}-0" for one in (read, unread, new)}
    assert {event["id"] for event in receiver.events.values()} == written
    assert set(receiver.seen.values()) == {1}


@pytest.mark.slow
async def test_a_ledger_in_its_own_cluster_keeps_its_ids(
    database: Database, database_url: str, tenant: TenantId
) -> None:
    await usage_lines.record_all(database, [(tenant, line())])
    await rolled(database)
    repaired = await upgrade(database_url)
    assert repaired.mended == ()
