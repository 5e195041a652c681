"""Spend alerts: each is told once an interval, to a real webhook and a real SMTP conversation."""

from __future__ import annotations

import asyncio
import base64
import hmac
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from openai import InvalidWebhookSignatureError, OpenAI
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from gateway import ids
from gateway.admin.limits import LimitOwner
from gateway.admin.spend_limits import SpendLimits
from gateway.errors import StoreError
from gateway.ledger.jobs import Reconciliation, forget_spending
from gateway.limits.money import NANO, begins, ends
from gateway.limits.rules import meter_of
from gateway.replication import alert_delivery
from gateway.replication.alert_delivery import AlertChannel, AlertDelivery, Mail
from gateway.settings.sections import Alerts, Smtp
from gateway.store.limits import alerts
from gateway.store.limits.alerts import DatedInterval
from gateway.store.limits.counters import SpendRow, SyncRequest, exchange
from gateway.store.postgres.statements import Statement
from gateway.telemetry.metrics import Metrics
from gateway.wiring.replica import alert_channels
from tests.fakes.logs import captured_logs
from tests.fakes.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from gateway.limits.rules import Interval
    from gateway.store.limits.alerts import Firing
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

SECRET = "secret-of-the-tests"


class Receiver:
    """Keeps what is posted to it; `statuses` are its next answers, then 204."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []

    async def take(self, request: Request) -> Response:
        self.heard.append((dict(request.headers), await request.body()))
        return Response(status_code=self.statuses.pop(0) if self.statuses else 204)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/hook", self.take, methods=["POST"])])


async def spend(
    database: Database,
    tenant: TenantId,
    amount: int,
    replica: str = "r",
    *,
    at: datetime | None = None,
    interval: Interval = "month",
) -> None:
    meter = meter_of("tenant", tenant, "usd", interval)
    row = SpendRow(tenant, meter, begins(interval, at or datetime.now(UTC)), amount)
    await exchange(database, replica, SyncRequest(spend=[row]), is_round=False)


@pytest.fixture
async def place(database: Database, tenant: TenantId) -> LimitOwner:
    return LimitOwner.of_tenant(tenant)


@pytest.mark.slow
async def test_an_alert_is_told_once_by_a_signed_webhook(
    database: Database, place: LimitOwner
) -> None:
    limits, receiver = SpendLimits(database), Receiver()
    await limits.add_alert(place, NANO, {"type": "operator", "percent": 50})
    receiver.statuses = [500]
    async with serving(receiver.app()) as url:
        channels = alert_channels(
            Alerts(webhook_url=f"{url}/hook", webhook_secret=SecretStr(SECRET))
        )
        delivery = AlertDelivery(database, channels, interval_s=1)
        await spend(database, place.tenant_id, NANO - 1)
        assert await delivery.round() == 0
        await spend(database, place.tenant_id, 1, "another")
        assert await delivery.round() == 0  # answered 500
        await again(database)
        assert await delivery.round() == 1
        assert await delivery.round() == 0
        await delivery.close()
    (_, _), (headers, content) = receiver.heard
    payload = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + content
    signature = base64.b64encode(hmac.digest(SECRET.encode(), payload, sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{signature}"
    told = orjson.loads(content)
    assert told["type"] == "spend_alert.reached"
    assert (told["data"]["threshold"], told["data"]["scope"]) == (NANO, "organization")
    assert receiver.heard[0][0]["webhook-id"] == headers["webhook-id"]


@pytest.mark.slow
async def test_an_alert_at_another_amount_is_told_in_the_same_interval(
    database: Database, place: LimitOwner
) -> None:
    limits, receiver = SpendLimits(database), Receiver()
    alert = await limits.add_alert(place, NANO, {"type": "email", "recipients": []})
    async with serving(receiver.app()) as url:
        settings = Alerts(webhook_url=f"{url}/hook", webhook_secret=SecretStr(SECRET))
        delivery = AlertDelivery(database, alert_channels(settings), interval_s=1)
        await spend(database, place.tenant_id, NANO)
        assert await delivery.round() == 1
        await limits.change_alert(place, ids.spend_alert_id(alert.id), 2 * NANO, alert.channel)
        assert await delivery.round() == 0
        await spend(database, place.tenant_id, 2 * NANO)
        assert await delivery.round() == 1
        other = {"type": "email", "recipients": ["a@example.com"]}
        await limits.change_alert(place, ids.spend_alert_id(alert.id), 2 * NANO, other)
        assert await delivery.round() == 0, "it was told of that already"
        await delivery.close()
    assert [orjson.loads(body)["data"]["threshold"] for _, body in receiver.heard] == [
        NANO, 2 * NANO,
    ]  # fmt: skip
    assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 2, "not taken for one"


@pytest.mark.slow
@pytest.mark.parametrize("secret", [SECRET, "whsec_dGhlIGtleSBvZiB0aGUgdGVzdHM="])
async def test_a_webhook_verifies_with_the_sdk(
    database: Database, place: LimitOwner, secret: str
) -> None:
    await SpendLimits(database).add_alert(place, NANO, {"type": "operator", "percent": 50})
    await spend(database, place.tenant_id, NANO)
    receiver = Receiver()
    async with serving(receiver.app()) as url:
        settings = Alerts(webhook_url=f"{url}/hook", webhook_secret=SecretStr(secret))
        delivery = AlertDelivery(database, alert_channels(settings), interval_s=1)
        assert await delivery.round() == 1
        await delivery.close()
    ((headers, content),) = receiver.heard
    webhooks = OpenAI(api_key="-").webhooks
    webhooks.verify_signature(content, headers, secret=secret)
    with pytest.raises(InvalidWebhookSignatureError):
        webhooks.verify_signature(content + b" ", headers, secret=secret)


async def test_who_an_alert_names_is_written_to(database: Database, place: LimitOwner) -> None:
    recipients = ["ops@example.com", "cfo@example.com"]
    channel: dict[str, object] = {
        "type": "email", "recipients": recipients, "subject_prefix": "[acme]"
    }  # fmt: skip
    await SpendLimits(database).add_alert(place, NANO, channel)
    await spend(database, place.tenant_id, 2 * NANO)
    async with smtp_server() as (port, said):
        server = Smtp(host="127.0.0.1", port=port, sender="gateway@example.com", starttls=False)
        assert await AlertDelivery(database, [Mail(server)], interval_s=1).round() == 1
    text = b"".join(said)
    assert b"to:<ops@example.com>" in text.lower()
    assert b"to:<cfo@example.com>" in text.lower()
    begin = text.index(b"\r\n", text.lower().index(b"\r\ndata") + 2) + 2
    subject = message_from_bytes(text[begin:], policy=default)["Subject"].strip()
    assert subject.startswith("[acme] ")
    assert subject.endswith("1.00 USD spent this month")


@pytest.mark.slow
async def test_a_tenant_has_a_number_of_mails_a_day(
    database: Database, place: LimitOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes alerts anew, or changes their thresholds, could write to anybody."""
    monkeypatch.setattr(alert_delivery, "MAILS_MAX", 2)
    told: list[Firing] = []
    limits, today = SpendLimits(database), datetime.now(UTC)
    channel: dict[str, object] = {"type": "email", "recipients": ["ann@example.com"]}
    await spend(database, place.tenant_id, NANO)
    async with smtp_server() as (port, said):
        server = Smtp(host="127.0.0.1", port=port, sender="gateway@example.com", starttls=False)
        channels: list[AlertChannel] = [Mail(server), Kept(told)]
        delivery = AlertDelivery(database, channels, now=lambda: today)
        with captured_logs(of=alert_delivery.__name__) as lines:
            for _ in range(2):
                alert = await limits.add_alert(place, NANO, channel)
                alert_id = ids.spend_alert_id(alert.id)
                await delivery.round()
                await limits.change_alert(place, alert_id, NANO - 1, channel)
                await delivery.round()
                await limits.remove_alert(place, alert_id)
                await forget_spending(database, today)
            await again(database)
            await delivery.round()
        assert len(told) == 4
        assert b"".join(said).lower().count(b"rcpt to") == 2
        assert [one["event"] for one in lines] == [
            "a tenant had all its mails of alerts for today, others are not sent"
        ]
        tomorrow = today + timedelta(days=1)
        await spend(database, place.tenant_id, NANO, at=tomorrow)
        await limits.add_alert(place, NANO, channel)
        await AlertDelivery(database, channels, now=lambda: tomorrow).round()
    assert b"".join(said).lower().count(b"rcpt to") == 3


async def test_what_was_spent_long_ago_is_removed_and_budgets_without_an_end_are_not(
    database: Database, place: LimitOwner
) -> None:
    now = datetime.now(UTC)
    meters = {
        meter_of("tenant", place.tenant_id, "usd", "month"): begins("month", now - timedelta(99)),
        meter_of("tenant", place.tenant_id, "usd", "day"): begins("day", now),
        meter_of("tenant", place.tenant_id, "usd", "none"): begins("none", now),
    }
    rows = [SpendRow(place.tenant_id, meter, at, 1) for meter, at in meters.items()]
    await exchange(database, "r", SyncRequest(spend=rows), is_round=False)
    await Reconciliation(database, metrics=Metrics()).forget()
    async with database.runs_transaction() as connection:
        left = await connection.execute(Statement("SELECT meter FROM spend"))
    assert {row.meter for row in left} == set(list(meters)[1:])


class Broken:
    """A channel with a defect."""

    name = "broken"

    def takes(self, firing: Firing) -> bool:
        del firing
        return True

    async def tell(self, firing: Firing) -> None:
        raise ValueError(f"{firing.tenant_name} cannot be told")

    async def close(self) -> None:
        """It has nothing open."""


@pytest.mark.slow
async def test_an_alert_that_cannot_be_told_keeps_nobody_else_waiting(
    database: Database, place: LimitOwner
) -> None:
    receiver = Receiver()
    await SpendLimits(database).add_alert(place, NANO, {"type": "operator", "percent": 50})
    await spend(database, place.tenant_id, NANO)
    async with serving(receiver.app()) as url:
        settings = Alerts(webhook_url=f"{url}/hook", webhook_secret=SecretStr(SECRET))
        delivery = AlertDelivery(database, [Broken(), *alert_channels(settings)], interval_s=1)
        assert await delivery.round() == 0
        assert len(receiver.heard) == 1
        await again(database)
        assert await delivery.round() == 0
        # The operator takes the broken channel away.
        mended = AlertDelivery(database, alert_channels(settings), interval_s=1)
        await again(database)
        assert await mended.round() == 1
        await again(database)
        assert await mended.round() == 0, "it is told to the end"
        for one in (delivery, mended):
            await one.close()
    assert len(receiver.heard) == 1, "what one way has told is told by the others alone"


async def test_an_alert_that_was_removed_keeps_no_other_waiting(
    database: Database, place: LimitOwner
) -> None:
    limits, now = SpendLimits(database), datetime.now(UTC)
    month = DatedInterval("month", begins("month", now), ends("month", now))
    removed = await limits.add_alert(place, NANO, {"type": "email", "recipients": []})
    await spend(database, place.tenant_id, NANO)
    await alerts.reached(database, [month])
    await limits.remove_alert(place, ids.spend_alert_id(removed.id))
    kept = await limits.add_alert(place, NANO // 2, {"type": "email", "recipients": []})
    await alerts.reached(database, [month])
    firing = await alerts.take(database)
    assert firing is not None
    assert firing.alert.id == kept.id


async def test_firings_of_removed_alerts_are_forgotten_whatever_their_interval(
    database: Database, place: LimitOwner
) -> None:
    limits, now = SpendLimits(database), datetime.now(UTC)
    channel = {"type": "email", "recipients": []}
    kept, removed = [await limits.add_alert(place, NANO, channel) for _ in range(2)]
    await change(database, "UPDATE spend_alerts SET span = 'none'")
    await spend(database, place.tenant_id, NANO, interval="none")
    await alerts.reached(database, [DatedInterval("none", begins("none", now), None)])
    await limits.remove_alert(place, ids.spend_alert_id(removed.id))
    await forget_spending(database, now)
    async with database.runs_transaction() as connection:
        rows = await connection.scalars(Statement("SELECT alert_id FROM alert_firings"))
    assert rows == [kept.id]


async def test_a_new_threshold_and_what_lets_it_fire_again_are_one_change(
    database: Database, place: LimitOwner
) -> None:
    limits, now = SpendLimits(database), datetime.now(UTC)
    channel = {"type": "email", "recipients": []}
    alert = await limits.add_alert(place, NANO, channel)
    await spend(database, place.tenant_id, NANO)
    month = DatedInterval("month", begins("month", now), ends("month", now))
    await alerts.reached(database, [month])
    await change(
        database,
        "CREATE TRIGGER fails BEFORE DELETE ON alert_firings EXECUTE FUNCTION keep_audit_log()",
    )
    alert_id = ids.spend_alert_id(alert.id)
    with pytest.raises(StoreError):
        await limits.change_alert(place, alert_id, 2 * NANO, channel)
    assert (await limits.alert(place, alert_id)).threshold == NANO


async def test_a_delivery_whose_turn_is_over_does_not_take_back_that_of_the_next(
    database: Database, place: LimitOwner
) -> None:
    limits, now = SpendLimits(database), datetime.now(UTC)
    await limits.add_alert(place, NANO, {"type": "email", "recipients": []})
    await spend(database, place.tenant_id, NANO)
    month = DatedInterval("month", begins("month", now), ends("month", now))
    await alerts.reached(database, [month])
    late = await alerts.take(database)
    await again(database)
    next_ = await alerts.take(database)
    assert late is not None
    assert next_ is not None
    await alerts.record_delivery(database, next_, {"mail", "webhook"}, is_sent=True)
    await alerts.record_delivery(database, late, {"mail"}, is_sent=False)
    await again(database)
    assert await alerts.take(database) is None


@pytest.mark.slow
async def test_a_late_attempt_is_signed_as_of_now(database: Database, place: LimitOwner) -> None:
    receiver = Receiver()
    receiver.statuses = [503]
    await SpendLimits(database).add_alert(place, NANO, {"type": "operator", "percent": 50})
    await spend(database, place.tenant_id, NANO)
    async with serving(receiver.app()) as url:
        settings = Alerts(webhook_url=f"{url}/hook", webhook_secret=SecretStr(SECRET))
        delivery = AlertDelivery(database, alert_channels(settings), interval_s=1)
        await delivery.round()
        await change(
            database, "UPDATE alert_firings SET fired_at = fired_at - interval '14 minutes'"
        )
        await again(database)
        begun = datetime.now(UTC).timestamp()
        assert await delivery.round() == 1
        await delivery.close()
    (first, _), (second, content) = receiver.heard
    assert second["webhook-id"] == first["webhook-id"]
    assert int(second["webhook-timestamp"]) >= int(begun), "libraries refuse what is 5 minutes old"
    assert orjson.loads(content)["created_at"] < begun - 800


async def test_what_was_reached_at_the_end_of_an_interval_is_told_after_it(
    database: Database, place: LimitOwner
) -> None:
    this_month = begins("month", datetime.now(UTC))
    last_month = begins("month", this_month - timedelta(days=1))
    await SpendLimits(database).add_alert(place, NANO, {"type": "operator", "percent": 50})
    await spend(database, place.tenant_id, NANO, at=last_month)
    told: list[Firing] = []
    delivery = AlertDelivery(
        database, [Kept(told)], interval_s=1, now=lambda: this_month + timedelta(seconds=30)
    )
    assert await delivery.round() == 0, "the alert was made after the month"
    await change(database, "UPDATE spend_alerts SET created_at = created_at - interval '40 days'")
    assert await delivery.round() == 1
    assert [one.starts_at for one in told] == [last_month]
    assert await delivery.round() == 0


class Kept:
    """A channel that remembers."""

    name = "kept"

    def __init__(self, told: list[Firing]) -> None:
        self._told = told

    def takes(self, firing: Firing) -> bool:
        del firing
        return True

    async def tell(self, firing: Firing) -> None:
        self._told.append(firing)

    async def close(self) -> None:
        """It has nothing open."""


async def change(database: Database, statement: str) -> None:
    async with database.owner_transaction() as connection:
        await connection.execute(Statement(statement))


async def again(database: Database) -> None:
    async with database.runs_transaction() as connection:
        await connection.execute(Statement("UPDATE alert_firings SET due_at = now()"), {})


@asynccontextmanager
async def smtp_server() -> AsyncIterator[tuple[int, list[bytes]]]:
    """Takes one mail after the other (RFC 5321), and keeps every line that it hears."""
    said: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        is_data = False
        while line := await reader.readline():
            said.append(line)
            if is_data:
                is_data = line != b".\r\n"
                answer = b"" if is_data else b"250 taken\r\n"
            elif line.upper().startswith(b"DATA"):
                is_data, answer = True, b"354 go on\r\n"
            elif line.upper().startswith(b"QUIT"):
                writer.write(b"221 bye\r\n")
                break
            else:
                answer = b"250 ok\r\n"
            writer.write(answer)
        await writer.drain()
        writer.close()

    server: Any = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], said
