"""Spend alerts, by webhook and e-mail.

An alert fires once per interval. Webhooks follow Standard Webhooks 1.0
(https://www.standardwebhooks.com), so that receivers can use a library.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import smtplib
import ssl
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol, get_args

import orjson

from gateway import ids
from gateway.limits.money import begins, dollars, ends
from gateway.limits.rules import Interval
from gateway.store.limits import alerts
from gateway.store.limits.alerts import DatedInterval
from gateway.store.periodic import run_periodically
from gateway.telemetry.logs import EventLog
from gateway.tools.egress.network_policy import EgressRefused
from gateway.tools.egress.transport import EGRESS_ERRORS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.settings.sections import Smtp
    from gateway.store.limits.alerts import Firing
    from gateway.store.postgres.database import Database
    from gateway.tools.egress.transport import EgressClient

INTERVAL_S: Final = 30.0
OK_BELOW: Final = 300
LATE_S: Final = 600.0
"""An ended interval is still checked for so long: replicas report spending late."""
SMTP_TIMEOUT_S: Final = 20.0
MAILS_MAX: Final = 100
"""Mails for a tenant on a day (UTC), however often its administrators make alerts anew."""

_log = EventLog(__name__)


class NotDelivered(Exception):
    """Failed delivery; the message is for operators."""


class AlertChannel(Protocol):
    @property
    def name(self) -> str: ...

    def takes(self, firing: Firing) -> bool:
        """Return True if the channel delivers this alert."""
        ...

    async def tell(self, firing: Firing) -> None:
        """Deliver once; `NotDelivered` leads to a later retry."""
        ...

    async def close(self) -> None: ...


class Webhook:
    """The operator's webhook, for every alert."""

    name = "webhook"

    def __init__(
        self,
        url: str,
        secret: bytes,
        client: EgressClient,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._url = url
        self._secret = secret
        self._client = client
        self._now = now

    def takes(self, firing: Firing) -> bool:
        del firing
        return True

    async def tell(self, firing: Firing) -> None:
        """Sign with the time of this attempt: receivers refuse old ones."""
        content = orjson.dumps(described(firing))
        headers = signed(content, delivery_id(firing), self._now(), self._secret)
        try:
            answer = await self._client.post(self._url, content=content, headers=headers)
        except (*EGRESS_ERRORS, EgressRefused) as error:
            raise NotDelivered(f"the webhook cannot be reached: {error}") from error
        if answer.status_code >= OK_BELOW:
            raise NotDelivered(f"the webhook answered {answer.status_code}")

    async def close(self) -> None:
        await self._client.aclose()


class Mail:
    name = "mail"

    def __init__(self, server: Smtp) -> None:
        self._server = server

    def takes(self, firing: Firing) -> bool:
        return bool(self._recipients(firing))

    async def tell(self, firing: Firing) -> None:
        # smtplib blocks.
        try:
            await asyncio.to_thread(self._send, written(firing, self._recipients(firing)))
        except (OSError, smtplib.SMTPException) as error:
            raise NotDelivered(f"mail cannot be sent: {type(error).__name__}") from error

    async def close(self) -> None:
        # Each mail has a connection of its own.
        pass

    def _recipients(self, firing: Firing) -> Sequence[str]:
        return firing.alert.channel.get("recipients") or self._server.recipients

    def _send(self, message: EmailMessage) -> None:
        server = self._server
        message["From"] = server.sender
        with smtplib.SMTP(server.host, server.port, timeout=SMTP_TIMEOUT_S) as connection:
            if server.starttls:
                connection.starttls(context=ssl.create_default_context())
            if server.user:
                password = server.password.get_secret_value() if server.password else ""
                connection.login(server.user, password)
            connection.send_message(message)


class AlertDelivery:
    def __init__(
        self,
        database: Database,
        channels: Sequence[AlertChannel],
        *,
        interval_s: float = INTERVAL_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._channels = channels
        self._interval_s = interval_s
        self._now = now

    async def run(self) -> None:
        failure = "alerts were not looked at, will be tried again"
        try:
            await run_periodically(self.round, self._interval_s, _log.warning, failure)
        finally:
            await self.close()

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

    async def round(self) -> int:
        """Deliver due firings; return how many have reached all their channels."""
        await alerts.reached(self._database, spans(self._now()))
        delivered = 0
        while (firing := await alerts.take(self._database)) is not None:
            delivered += await self._tell(firing)
        return delivered

    async def _tell(self, firing: Firing) -> bool:
        # Use the channels that have not delivered it yet. True: all have now.
        wanted = {one.name: one for one in self._channels if one.takes(firing)}
        delivered = set(firing.delivered)
        if Mail.name in wanted and firing.attempts == 1 and not await self._may_mail(firing):
            delivered.add(Mail.name)
        for name in wanted.keys() - delivered:
            if await _deliver(wanted[name], firing):
                delivered.add(name)
        is_sent = bool(delivered) and delivered >= wanted.keys()
        if is_sent or delivered > firing.delivered:
            await alerts.record_delivery(self._database, firing, delivered, is_sent=is_sent)
        return is_sent

    async def _may_mail(self, firing: Firing) -> bool:
        day = begins("day", self._now())
        number = await alerts.count_mail(self._database, firing, day)
        if number == MAILS_MAX + 1:
            _log.warning(
                "a tenant had all its mails of alerts for today, others are not sent",
                tenant=str(firing.tenant_id),
                count=MAILS_MAX,
            )
        return number <= MAILS_MAX


async def _deliver(channel: AlertChannel, firing: Firing) -> bool:
    try:
        await channel.tell(firing)
    except NotDelivered as error:
        _log.warning("an alert was not delivered", reason=str(error), count=firing.attempts)
    except Exception as error:  # noqa: BLE001 - one alert must not stop those of others
        _log.error("an alert cannot be delivered", error=error, count=firing.attempts)
    else:
        return True
    return False


def spans(now: datetime) -> set[DatedInterval]:
    moments = (now, now - timedelta(seconds=LATE_S))
    return {
        DatedInterval(one, begins(one, at), ends(one, at))
        for one in get_args(Interval)
        for at in moments
    }


def delivery_id(firing: Firing) -> str:
    """Return the same id for all attempts, so that receivers can drop repeats."""
    alert = firing.alert
    return f"{ids.spend_alert_id(alert.id)}_{int(firing.starts_at.timestamp())}_{alert.threshold}"


def described(firing: Firing) -> dict[str, Any]:
    """Return the webhook's body, with amounts in nano-dollars or tokens."""
    alert = firing.alert
    scope = alert.scope if alert.scope in {"project", "key"} else "organization"
    return {
        "type": "spend_alert.reached",
        "id": delivery_id(firing),
        "created_at": int(firing.fired_at.timestamp()),
        "data": {
            "alert_id": ids.spend_alert_id(alert.id),
            "tenant_id": str(firing.tenant_id),
            "tenant": firing.tenant_name,
            "scope": scope,
            "project_id": ids.project_id(alert.scope_id) if scope == "project" else None,
            "api_key_id": ids.api_key_id(alert.scope_id) if scope == "key" else None,
            "unit": alert.unit,
            "interval": alert.interval,
            "interval_start": int(firing.starts_at.timestamp()),
            "threshold": alert.threshold,
            "notification_channel": alert.channel,
        },
    }


def signed(content: bytes, id_: str, at: datetime, secret: bytes) -> dict[str, str]:
    timestamp = str(int(at.timestamp()))
    payload = b".".join((id_.encode(), timestamp.encode(), content))
    signature = base64.b64encode(hmac.digest(secret, payload, sha256)).decode()
    return {
        "content-type": "application/json",
        "webhook-id": id_,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{signature}",
    }


def written(firing: Firing, recipients: Sequence[str]) -> EmailMessage:
    alert = firing.alert
    amount = (
        f"{dollars(alert.threshold)} USD" if alert.unit == "usd" else f"{alert.threshold} tokens"
    )
    owner = firing.tenant_name
    if alert.scope == "project":
        owner = f"project {ids.project_id(alert.scope_id)} of {owner}"
    elif alert.scope == "key":
        owner = f"key {ids.api_key_id(alert.scope_id)} of {owner}"
    span = {"day": "today", "month": "this month", "none": "in all"}[alert.interval]
    prefix = alert.channel.get("subject_prefix")
    message = EmailMessage()
    message["To"] = ", ".join(recipients)
    message["Subject"] = f"{f'{prefix} ' if prefix else ''}{owner}: {amount} spent {span}"
    message["Message-ID"] = f"<{delivery_id(firing)}@harmony-gateway>"
    message.set_content(
        f"The spend of {owner} has reached {amount} {span}, which a spend alert was set for "
        f"({ids.spend_alert_id(alert.id)}).\n\n"
        "Nothing was stopped because of it. Spend limits stop requests; see "
        "/v1/organization/spend_limit and /v1/organization/projects/{id}/spend_limit.\n"
    )
    return message
