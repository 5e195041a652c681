"""Define the tables by which replicas tell each other what they do."""

from __future__ import annotations

from typing import Final

from gateway.store.tables.columns import (
    EVERYTHING,
    OF_NO_TENANT,
    Access,
    Kept,
    Lifetime,
    bigint,
    bytea,
    double,
    integer,
    table,
    tenant_id,
    text,
    time,
)

# What replicas tell each other of where they sent prompts (`upstreams.routing.exchange`): rows
# of all tenants, under the nil one, without content. UNLOGGED: a crash may empty it.
placements: Final = table(
    "placements",
    tenant_id(),
    text("replica", Kept.WORD, key=True),
    bigint("number", key=True),
    time("at"),
    bytea("load", Kept.DIGEST),
    bytea("entries", Kept.DIGEST),
    lifetime=OF_NO_TENANT,
    access=Access(runs="SELECT, INSERT, DELETE", of_runs=True),
    not_exported="of no tenant",
    prefixes=["UNLOGGED"],
)
# Backends that operators have taken out of use, for all tenants, under the nil one.
backend_drains: Final = table(
    "backend_drains",
    tenant_id(),
    text("name", Kept.WORD, key=True),
    time("drained_at"),
    text("drained_by", Kept.WORD),
    lifetime=OF_NO_TENANT,
    access=Access(runs="SELECT", operated=True),
    not_exported="of no tenant",
    is_upserted=True,
)
# What is under way at them, by each replica's own account. UNLOGGED.
drain_reports: Final = table(
    "drain_reports",
    tenant_id(),
    text("name", Kept.WORD, key=True),
    text("replica", Kept.WORD, key=True),
    time("at"),
    integer("in_flight"),
    lifetime=OF_NO_TENANT,
    access=Access(runs=EVERYTHING, operated=True),
    not_exported="of no tenant",
    is_upserted=True,
    prefixes=["UNLOGGED"],
)
# What tenants were served in background, and one response is expected to cost
# (`store.claim_order`); under the nil one where the last claim began. UNLOGGED.
background_shares: Final = table(
    "background_shares",
    tenant_id(),
    double("served"),
    double("expected"),
    time("at"),
    lifetime=Lifetime(expires="7 days after they were used"),
    access=Access(runs=EVERYTHING, of_runs=True),
    not_exported="how the gateway works",
    is_upserted=True,
    prefixes=["UNLOGGED"],
)
