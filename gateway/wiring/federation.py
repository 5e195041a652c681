"""Build the federation of identities from the settings."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING

from gateway.services.federation.federation import Federation, FederationPolicy
from gateway.services.federation.fetching import KEYS_BYTES_MAX, KeyFetcher
from gateway.services.federation.key_sets import KeySetPolicy, KeySets
from gateway.settings.web import host_and_port
from gateway.tools.egress.network_policy import NetworkPolicy
from gateway.tools.egress.transport import EgressLimits, client

if TYPE_CHECKING:
    from gateway.sealing import Sealer
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from gateway.telemetry.metrics import Metrics


def federation(
    settings: Settings, database: Database, sealer: Sealer, metrics: Metrics
) -> Federation:
    chosen = settings.federation
    policy = NetworkPolicy(
        networks=tuple(map(ip_network, chosen.allowed_networks)),
        hosts=frozenset(map(host_and_port, chosen.allowed_hosts)),
        public=chosen.public,
        plain_http=chosen.plain_http,
    )
    fetcher = KeyFetcher(
        client(policy, EgressLimits(body_bytes_max=KEYS_BYTES_MAX)),
        policy,
        metrics=metrics,
    )
    key_sets = KeySets(
        fetcher,
        KeySetPolicy(fresh_s=chosen.keys_fresh_s, stale_s=chosen.keys_stale_s),
    )
    return Federation(
        database,
        key_sets,
        sealer,
        FederationPolicy(token_lifetime_s=chosen.exchanged_token_s),
        defaults=settings.tenant_policy,
    )
