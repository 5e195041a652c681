"""The ways in which spend alerts are told, from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.replication.alert_delivery import Mail, SmtpServer, Webhook
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.egress.transport import EgressLimits, client

if TYPE_CHECKING:
    from gateway.replication.alert_delivery import AlertChannel
    from gateway.settings.rate_limits import Alerts

ANSWER_BYTES_MAX = 64 * 1024


def alert_channels(settings: Alerts) -> list[AlertChannel]:
    """Return the channels; empty if none is configured. The operator's URL may lead anywhere."""
    channels: list[AlertChannel] = []
    if settings.webhook_url and settings.webhook_secret is not None:
        parts = urlsplit(settings.webhook_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        trusted = frozenset({((parts.hostname or "").lower(), port)})
        policy = NetworkPolicy(hosts=trusted, plain_http=True)
        http = client(policy, EgressLimits(body_bytes_max=ANSWER_BYTES_MAX, connections_max=4))
        channels.append(Webhook(settings.webhook_url, settings.signing_key, http))
    smtp = settings.smtp
    if smtp.host:
        password = "" if smtp.password is None else smtp.password.get_secret_value()
        channels.append(Mail(smtp.fill(SmtpServer, password=password)))
    return channels
