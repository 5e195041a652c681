"""Sinks over HTTP: what they have taken they are not billed for twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from gateway import ids
from gateway.errors import SinkFailed
from gateway.generation import TokenUsage
from gateway.ledger.sinks import CloudEventsSink, Delivery
from gateway.metering import Metering
from gateway.settings.sections import Sink
from gateway.store import usage_lines
from gateway.store.ledger import cursors
from gateway.store.ledger.cursors import LineBatch
from gateway.store.postgres.statements import Statement
from gateway.store.usage_lines import Metered
from gateway.telemetry.metrics import Metrics
from tests.fakes.serving import serving
from tests.fakes.trickling import PAUSE_S, create_trickling
from tests.fakes.usage_lines import line
from tests.fakes.usage_receivers import EventReceiver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId


def delivery_to(database: Database, sink: CloudEventsSink, *, lines_max: int = 4) -> Delivery:
    """Of a process of its own: a lease of nothing is lapsed when the next one looks."""
    return Delivery(
        database, sink, holder=ids.new_replica_id(), lines_max=lines_max, interval_s=1, lease_s=0,
        metrics=Metrics(),
    )  # fmt: skip


@pytest.fixture
async def receiver(database: Database, tenant: TenantId) -> AsyncIterator[EventReceiver]:
    receiver = EventReceiver()
    async with serving(receiver.app()) as url:
        receiver.url = f"{url}/events"
        yield receiver


def events_sink(receiver: EventReceiver, **options: Any) -> CloudEventsSink:
    return CloudEventsSink(Sink(name="events", url=receiver.url, **options), source="here")


@pytest.mark.slow
async def test_each_line_is_kept_once_though_the_receiver_fails_and_processes_die(
    database: Database, tenant: TenantId, receiver: EventReceiver
) -> None:
    sink = events_sink(receiver)
    now = datetime.now(UTC)
    lines = [line(now - timedelta(minutes=40 * number)) for number in range(11)]
    await delivery_to(database, sink).round()
    await usage_lines.record_all(database, [(tenant, one) for one in lines])
    receiver.statuses = [500, 503]  # it has the events, and says that it failed
    for _ in range(5):
        await delivery_to(database, sink).round()
    # A process that dies behind a batch: the next one sends all of it again.
    await usage_lines.record_all(database, [(tenant, line(now)) for _ in range(3)])
    batch = await cursors.next_batch(database, "events", "dead", lease_s=0, lines_max=2)
    assert batch is not None
    await sink.send(batch)
    await delivery_to(database, sink).round()
    await sink.close()
    assert len(receiver.events) == 14
    assert sum(receiver.seen.values()) - len(receiver.seen) > 2
    (state,) = await cursors.sink_states(database)
    assert (state.lines, state.stopped, state.is_under_way) == (14, None, False)


@pytest.mark.slow
async def test_a_receiver_that_refuses_stops_the_sink_until_an_operator_has_looked(
    database: Database, tenant: TenantId, receiver: EventReceiver
) -> None:
    sink = events_sink(receiver)
    await delivery_to(database, sink).round()
    receiver.statuses = [422]
    for _ in range(2):
        await usage_lines.record_all(database, [(tenant, line(datetime.now(UTC)))])
        await delivery_to(database, sink).round()
    assert len(receiver.events) == 1
    (state,) = await cursors.sink_states(database)
    assert state.stopped is not None
    assert "422" in state.stopped
    assert await cursors.resume_sink(database, "events", is_delivered=True)
    assert not await cursors.resume_sink(database, "another", is_delivered=True)
    assert not await cursors.resume_sink(database, "events", is_delivered=True), "it is not stopped"
    await delivery_to(database, sink).round()
    await sink.close()
    assert (len(receiver.events), set(receiver.seen.values())) == (2, {1})


@pytest.mark.slow
async def test_a_secret_that_is_refused_can_be_mended(
    database: Database, tenant: TenantId, receiver: EventReceiver
) -> None:
    receiver.secret = "s3cret"
    sink = events_sink(receiver, secret="wrong")
    await delivery_to(database, sink).round()
    await usage_lines.record_all(database, [(tenant, line(datetime.now(UTC)))])
    await delivery_to(database, sink).round()
    await sink.close()
    (state,) = await cursors.sink_states(database)
    assert (state.stopped, state.is_under_way) == (None, True)
    sink = events_sink(receiver, secret="s3cret")
    await delivery_to(database, sink).round()
    await sink.close()
    assert len(receiver.events) == 1


async def test_a_sink_that_answers_byte_by_byte_fails() -> None:
    async with serving(create_trickling(b"thank you very much")) as url:
        target = Sink(name="events", url=url)
        sink = CloudEventsSink(target, source="here", timeout_s=10 * PAUSE_S)
        with pytest.raises(SinkFailed, match="TimeoutError"):
            await sink.send(LineBatch(0, []))
        await sink.close()


async def test_a_sink_with_the_place_of_another_cluster_is_stopped(
    database: Database, tenant: TenantId
) -> None:
    receiver = EventReceiver()
    async with serving(receiver.app()) as url:
        sink = CloudEventsSink(Sink(name="events", url=f"{url}/events"), source="here")
        await delivery_to(database, sink).round()
        async with database.runs_transaction() as connection:
            ahead = "UPDATE usage_cursors SET tx = CAST('99999999999' AS xid8)"
            await connection.execute(Statement(ahead))
        await usage_lines.record_all(database, [(tenant, line())])
        await delivery_to(database, sink).round()
        await sink.close()
    (state,) = await cursors.sink_states(database)
    assert state.stopped is not None
    assert "another cluster" in state.stopped


async def test_a_cloud_event_says_what_the_line_says(database: Database, tenant: TenantId) -> None:
    receiver = EventReceiver()
    said = line(
        status="incomplete",
        background=True,
        tokens=TokenUsage(input_tokens=12, output_tokens=3),
        metered=Metered(
            service_tier="priority",
            who=Metering(b"\x01\x02", {"team": "red"}),
            tools={"web_search": 2},
        ),
    )
    async with serving(receiver.app()) as url:
        target = Sink(
            name="events",
            url=f"{url}/events",
            secret="s3cret",
            customers={ids.tenant_id(tenant): "customer-7"},
        )
        sink = CloudEventsSink(target, source="here")
        await delivery_to(database, sink).round()
        await usage_lines.record_all(database, [(tenant, said)])
        await delivery_to(database, sink).round()
        await sink.close()
    (event,) = receiver.events.values()
    assert event["id"] == f"{ids.response_id(said.response)}-0"
    assert (event["type"], event["subject"]) == ("harmony.response.completed", "customer-7")
    assert (event["source"], event["time"]) == ("here", said.at.isoformat())
    assert (
        event["data"].items()
        >= {
            "tenant_id": ids.tenant_id(tenant),
            "project_id": ids.project_id(tenant),
            "status": "incomplete",
            "background": "true",
            "service_tier": "priority",
            "input_tokens": "12",
            "end_user": "0102",
            "tag_team": "red",
            "tool_web_search": "2",
        }.items()
    )
    assert receiver.headers[0]["authorization"] == "Bearer s3cret"
