from __future__ import annotations

from typing import Final

from gateway.store.tables.columns import (
    DERIVED,
    EVERYTHING,
    OF_NO_TENANT,
    Access,
    Kept,
    bytea,
    table,
    tenant_id,
    text,
    time,
    unique,
    uuid,
)

# Under the nil tenant. A row is a login link until that is opened, and a session from then on, with
# another hash: `opened_at` is null before. `address` and `agent` are those of the browser.
console_sessions: Final = table(
    "console_sessions",
    tenant_id(),
    uuid("id", key=True),
    text("name", Kept.OPERATOR),
    text("role", Kept.WORD),
    bytea("hash", Kept.DIGEST),
    time("created_at"),
    time("opened_at", null=True),
    time("seen_at", null=True),
    time("expires_at"),
    text("address", Kept.WORD, null=True),
    text("agent", Kept.OPERATOR, null=True),
    unique("hash"),
    lifetime=OF_NO_TENANT,
    access=Access(app=EVERYTHING),
    not_exported="of no tenant",
)
# What a replica is doing, as JSON without content, under the nil tenant. Written once a second
# while somebody looks at any replica: until `watched_until`, which the one looked at sets.
replica_snapshots: Final = table(
    "replica_snapshots",
    tenant_id(),
    text("replica", Kept.WORD, key=True),
    time("at"),
    time("watched_until", null=True),
    bytea("body", Kept.WORD),
    lifetime=OF_NO_TENANT,
    access=Access(runs=EVERYTHING, of_runs=True),
    not_exported=DERIVED,
    is_upserted=True,
    prefixes=["UNLOGGED"],
)
