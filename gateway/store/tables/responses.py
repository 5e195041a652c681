from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Index, func

from gateway.store.schema import RUNNING, TERMINAL
from gateway.store.tables.columns import (
    EVERYTHING,
    OF_NO_TENANT,
    ROOM_FOR_UPDATES,
    SETTINGS,
    Access,
    Kept,
    Lifetime,
    bigint,
    boolean,
    bytea,
    date,
    double,
    index,
    integer,
    of_parent,
    older_than,
    one_of,
    smallint,
    table,
    tenant_id,
    text,
    time,
    typed,
    uuid,
)

if TYPE_CHECKING:
    from sqlalchemy import Column

_WITH_RESPONSE: Final = Lifetime("its response", "with the response", "with the response")
_CLAIM: Final = "status, owner, epoch, lease_until, next_entry, attempts"
_SEEN: Final = (
    "tenant_id, id, key_id, model, background, durable, streamed, created_at, root_created_at,"
    " completed_at, parent_id, request, plan, prompt, fold_version, conversation_id,"
    f" conversation_end, project_id, timeline, {_CLAIM}"
)


def _item() -> list[Column[Any]]:
    return [
        text("kind", Kept.WORD),
        text("role", Kept.WORD, null=True),
        text("phase", Kept.WORD, null=True),
        bytea("item_id", Kept.ID),
        bytea("call_id", Kept.SEALED, null=True),
        bytea("name", Kept.SEALED, null=True),
        boolean("complete"),
        bytea("item", Kept.SEALED),
        bytea("ids", Kept.SEALED, null=True),
        bytea("includable", Kept.SEALED, null=True),
    ]


# `parent_id` is no foreign key: a parent may be deleted, and then its descendants say so.
# `conversation_*`: the conversation it continues, its items below that position.
# `durable`: its log is in `events`. `streamed`: the request was for a stream.
# `plan`, `prompt`: what any replica needs to go on with it, null once it has ended.
# `owner`, `epoch`, `lease_until`: the claim of the process that generates it.
# `tool_state`: what the hosted tools of its successors have to know (`protocol.grants`).
# `timeline`: the steps of its run with their times (`eventlog.fold.execution`), once it has ended.
# `placement`: where its last turn was generated (`upstreams.routing.prefix_index`).
responses: Final = table(
    "responses",
    tenant_id(),
    uuid("id", key=True),
    uuid("key_id"),
    text("status", Kept.WORD),
    text("model", Kept.WORD),
    boolean("background"),
    boolean("stored"),
    time("created_at"),
    time("root_created_at"),
    time("completed_at", null=True),
    uuid("parent_id", null=True),
    uuid("conversation_id", null=True),
    bigint("conversation_end", null=True),
    bytea("request", Kept.SEALED),
    bytea("body", Kept.SEALED, null=True),
    bytea("recoveries", Kept.SEALED, null=True),
    boolean("durable", default="false"),
    boolean("streamed", default="false"),
    bytea("plan", Kept.SEALED, null=True, exported=False),
    bytea("prompt", Kept.SEALED, null=True, exported=False),
    text("owner", Kept.WORD, null=True, exported=False),
    integer("epoch", default="0", exported=False),
    time("lease_until", null=True, exported=False),
    integer("next_entry", default="0"),
    smallint("attempts", default="0"),
    smallint("fold_version"),
    bytea("tool_state", Kept.SEALED, null=True),
    bytea("placement", Kept.DIGEST, null=True, exported=False),
    uuid("project_id", null=True),
    bytea("timeline", Kept.WORD, null=True),
    one_of("status", *RUNNING, *TERMINAL),
    # Not for those without: a look-up by id must not be planned on it.
    index("tenant_id", "parent_id", where="parent_id IS NOT NULL"),
    index("tenant_id", "conversation_id", where="conversation_id IS NOT NULL"),
    # Neither owner, lease nor head is indexed, so that heartbeats and appends stay HOT updates.
    index(
        "tenant_id", "id", name="ix_responses_running", where="status IN ('queued', 'in_progress')"
    ),
    # For claims: the oldest queued response of each key, and responses that are generated.
    index("tenant_id", "key_id", "id", name="ix_responses_queued", where="status = 'queued'"),
    index(
        "tenant_id", "id", name="ix_responses_generated", where="status = 'in_progress' AND durable"
    ),
    lifetime=Lifetime(
        deleted="itself",
        erased="those for them, and what goes on from these for nobody",
        expires="retention.response_s",
    ),
    access=Access(
        app=EVERYTHING,
        runs=f"SELECT ({_SEEN}), UPDATE ({_CLAIM}), DELETE",
        of_runs=True,
        of_projects=True,
    ),
    bound_by=("id",),
    postgresql_with=ROOM_FOR_UPDATES,
)
# An item is a context item, with columns for queries. `ids` null: not rendered yet. `includable`:
# the fields that `include` adds to it, as JSON.
messages: Final = table(
    "messages",
    tenant_id(),
    uuid("response_id", key=True),
    integer("position", key=True),
    boolean("is_output"),
    *_item(),
    of_parent("response_id", "responses"),
    lifetime=_WITH_RESPONSE,
    access=Access(app=EVERYTHING),
    bound_by=("item_id",),
)
# A digest of the key, because an index entry is limited in size and a client's key must not be.
idempotency_keys: Final = table(
    "idempotency_keys",
    tenant_id(),
    bytea("key_hash", Kept.DIGEST, key=True),
    bytea("fingerprint", Kept.DIGEST),
    uuid("response_id"),
    time("created_at"),
    of_parent("response_id", "responses"),
    index("tenant_id", "response_id"),
    lifetime=Lifetime(
        deleted="its response",
        erased="with the response",
        expires="retention.idempotency_key_s",
        expired=(older_than("created_at", ":idempotency_key_s"),),
    ),
    access=Access(app=EVERYTHING, runs="SELECT, DELETE", of_runs=True),
    not_exported="secrets, and digests of what others have",
    is_upserted=True,
)
# Credentials of a request for MCP servers, sealed; removed when its response ends.
run_secrets: Final = table(
    "run_secrets",
    tenant_id(),
    uuid("response_id", key=True),
    bytea("sealed", Kept.ELSEWHERE),
    of_parent("response_id", "responses"),
    lifetime=Lifetime(
        deleted="its response", erased="with the response", expires="when the response ends"
    ),
    access=Access(app="SELECT, INSERT, DELETE"),
    not_exported="secrets, and digests of what others have",
)
# `day` (UTC) is when the response was created, so that retention drops whole partitions.
events: Final = table(
    "events",
    tenant_id(),
    uuid("response_id", key=True),
    integer("first_entry", key=True),
    date("day", key=True),
    integer("epoch"),
    integer("entry_count"),
    bytea("entries", Kept.LOG),
    lifetime=Lifetime(
        deleted="its response", erased="with the response", expires="retention.log_s"
    ),
    access=Access(app="SELECT, INSERT, DELETE", runs="SELECT, INSERT, DELETE", of_runs=True),
    is_log=True,
    postgresql_partition_by="RANGE (day)",
)
# Progress of a process in writing the log of a tenant, and whether it may go on: see `flushes`.
writers: Final = table(
    "writers",
    tenant_id(),
    text("owner", Kept.WORD, key=True),
    bigint("fence"),
    bigint("number"),
    time("used_at"),
    lifetime=Lifetime(expires="a minute after their process"),
    access=Access(app="SELECT, UPDATE", runs=EVERYTHING, of_runs=True),
    not_exported="on their way into events",
    is_log=True,
    is_upserted=True,
    postgresql_with=ROOM_FOR_UPDATES,
)
# `members`: of which responses the entries are, packed as the module `flushes` says.
flushes: Final = table(
    "flushes",
    tenant_id(),
    text("owner", Kept.WORD, key=True),
    bigint("number", key=True),
    # Rows are gone in a second or two: packing them smaller would cost more than it saves.
    bytea("members", Kept.ID, packed=False),
    bytea("entries", Kept.LOG, packed=False),
    lifetime=Lifetime(
        deleted="its response", erased="with the response", expires="a minute after their process"
    ),
    access=Access(app="SELECT, UPDATE", runs=EVERYTHING, of_runs=True),
    not_exported="on their way into events",
    is_log=True,
)
# `writer`: the response that will add to it, for as long as that one is running.
conversations: Final = table(
    "conversations",
    tenant_id(),
    uuid("id", key=True),
    time("created_at"),
    bytea("metadata", Kept.SEALED),
    bigint("next_position", default="0"),
    uuid("writer", null=True),
    uuid("project_id", null=True),
    lifetime=Lifetime(deleted="itself", erased="those that the responses are of"),
    access=Access(app=EVERYTHING, of_projects=True),
    bound_by=("id",),
)
conversation_items: Final = table(
    "conversation_items",
    tenant_id(),
    uuid("conversation_id", key=True),
    bigint("position", key=True),
    *_item(),
    of_parent("conversation_id", "conversations"),
    lifetime=Lifetime(deleted="itself, its conversation", erased="with the conversation"),
    access=Access(app="SELECT, INSERT, DELETE"),
    bound_by=("item_id",),
    sealed_as="messages",
)
# `key` is a digest of kind, trace and record: ids are the client's, and may be of any length.
traces: Final = table(
    "traces",
    tenant_id(),
    bytea("key", Kept.DIGEST, key=True),
    text("kind", Kept.WORD),
    bytea("trace_id", Kept.ID),
    bytea("record_id", Kept.ID),
    uuid("response_id", null=True),
    time("received_at"),
    bytea("record", Kept.SEALED),
    one_of("kind", "trace", "span"),
    index("tenant_id", "received_at"),
    lifetime=Lifetime(
        erased="those that name the responses",
        expires="retention.traces_s",
        expired=(older_than("received_at", ":traces_s"),),
    ),
    access=Access(
        app=EVERYTHING, runs="SELECT (tenant_id, key, received_at), DELETE", of_runs=True
    ),
    bound_by=("key",),
    is_upserted=True,
)
# Progress of resealing a tenant's content with its key `number`: the last row is that with the key
# `place` (JSON) in `of_table`; null: at the beginning of the next pass. `written`, `total`: rows
# written in this pass, and in all. `held_until`: the lease of the process that works on it.
reseals: Final = table(
    "reseals",
    tenant_id(),
    integer("number"),
    text("of_table", Kept.WORD, null=True),
    bytea("place", Kept.ID, null=True),
    bigint("written"),
    bigint("total"),
    time("begun_at"),
    time("held_until"),
    time("finished_at", null=True),
    lifetime=SETTINGS,
    access=Access(operated=True),
    not_exported="how the gateway works",
    is_upserted=True,
)
# Placements of prompts that replicas exchange (`upstreams.routing.exchange`): rows of the nil
# tenant, without content. UNLOGGED: a crash may empty it.
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
# Requests in flight at drained backends, as each replica counts its own. UNLOGGED.
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
# Service that tenants got in background, and the expected cost of a response
# (`store.claim_order`); the nil tenant's row is where the last claim began. UNLOGGED.
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

# Keys are digests, because an index entry has at most 2,704 bytes and a client's id has no limit.
Index("ix_messages_tenant_id_item_id", messages.c.tenant_id, func.sha256(messages.c.item_id))
Index(
    "ix_conversation_items_tenant_id_item_id",
    conversation_items.c.tenant_id,
    func.sha256(conversation_items.c.item_id),
)
Index("ix_traces_tenant_id_trace_id", traces.c.tenant_id, func.sha256(traces.c.trace_id))

ACCEPTED: Final = typed(
    responses,
    without="tenant_id lease_until completed_at body recoveries tool_state placement timeline",
)
"""Columns that a response is accepted with, except tenant and lease."""
ENDED: Final = typed(
    responses, "id epoch status completed_at body recoveries tool_state placement timeline"
)
LOGGED: Final = typed(events, "first_entry entry_count entries")
ITEM: Final = {str(column.name): column.info["type"] for column in _item()}
