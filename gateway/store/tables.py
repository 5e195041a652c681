"""The tables. Every key and every index starts with the tenant; the migrations build the same.

Only migrations import this, and SQLAlchemy with it: statements are written in SQL.

Text that clients or models wrote is kept in `bytea`: PostgreSQL's `text` and `jsonb` refuse NUL,
and no encoding of the server takes lone surrogates. `text` is for words of our own.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)

from gateway.tenancy import POLICY_VALUES

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def _required(name: str, kind: Any, *arguments: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, *arguments, nullable=False, **options)


def _item_columns() -> list[Column[Any]]:
    """A context item, with what a query must know of it. `ids` null: not rendered yet."""
    return [
        _required("kind", Text),
        Column("role", Text),
        Column("phase", Text),
        _required("item_id", LargeBinary),
        Column("call_id", LargeBinary),
        Column("name", LargeBinary),
        _required("complete", Boolean),
        _required("item", LargeBinary),
        Column("ids", LargeBinary),
    ]


_TIME = DateTime(timezone=True)

tenants = Table(
    "tenants",
    metadata,
    Column("id", Uuid, primary_key=True),
    _required("name", Text, unique=True),
    _required("created_at", _TIME),
    Column("disabled_at", _TIME),
    # The tenant's policy; null: the setting of that name, and the service tier `default`.
    *(
        Column(value.name, Text if value.column_type == "text" else Integer)
        for value in POLICY_VALUES.values()
    ),
    *(
        CheckConstraint(value.column_check, name=value.name)
        for value in POLICY_VALUES.values()
        if value.column_check is not None
    ),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.id"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    _required("name", Text),
    _required("hash", LargeBinary, unique=True),
    _required("hint", Text),
    _required("created_at", _TIME),
    Column("disabled_at", _TIME),
    # How its responses are spelled; null: `openai`.
    Column("dialect", Text),
    CheckConstraint("dialect IN ('openai', 'openresponses')", name="dialect"),
)

responses = Table(
    "responses",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("id", Uuid, primary_key=True),
    _required("key_id", Uuid),
    _required("status", Text),
    _required("model", Text),
    _required("background", Boolean),
    _required("stored", Boolean),
    _required("created_at", _TIME),
    _required("root_created_at", _TIME),
    Column("completed_at", _TIME),
    # No foreign key: a parent may be deleted, and then its descendants say so.
    Column("parent_id", Uuid),
    # The conversation it continues, as far as it had come: its items below this position.
    Column("conversation_id", Uuid),
    Column("conversation_end", BigInteger),
    _required("request", LargeBinary),
    Column("body", LargeBinary),
    Column("recoveries", LargeBinary),
    # Is there a log in `events`? Was it asked for as a stream?
    _required("durable", Boolean, server_default=text("false")),
    _required("streamed", Boolean, server_default=text("false")),
    # What any replica needs to go on with a durable run; gone once it has ended.
    Column("plan", LargeBinary),
    Column("prompt", LargeBinary),
    # The claim of whoever generates it.
    Column("owner", Text),
    _required("epoch", Integer, server_default=text("0")),
    Column("lease_until", _TIME),
    _required("next_entry", Integer, server_default=text("0")),
    _required("attempts", SmallInteger, server_default=text("0")),
    _required("fold_version", SmallInteger),
    CheckConstraint(
        "status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')",
        name="status",
    ),
    # Not for those without: a look-up by id must not be planned on it (see the migration).
    Index(None, "tenant_id", "parent_id", postgresql_where=text("parent_id IS NOT NULL")),
    # Neither owner, lease nor head is indexed, so that heartbeats and appends stay HOT updates.
    Index(
        "ix_responses_running",
        "tenant_id",
        "id",
        postgresql_where=text("status IN ('queued', 'in_progress')"),
    ),
    postgresql_with={"fillfactor": 50},
)

messages = Table(
    "messages",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("response_id", Uuid, primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    _required("is_output", Boolean),
    *_item_columns(),
    ForeignKeyConstraint(
        ["tenant_id", "response_id"], ["responses.tenant_id", "responses.id"], ondelete="CASCADE"
    ),
)
# A digest, because an index entry is limited to 2,704 bytes and a client's id is not.
Index("ix_messages_tenant_id_item_id", messages.c.tenant_id, func.sha256(messages.c.item_id))

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    # A digest, because an index entry is limited in size and a client's key must not be.
    Column("key_hash", LargeBinary, primary_key=True),
    _required("fingerprint", LargeBinary),
    _required("response_id", Uuid),
    _required("created_at", _TIME),
    ForeignKeyConstraint(
        ["tenant_id", "response_id"], ["responses.tenant_id", "responses.id"], ondelete="CASCADE"
    ),
    Index(None, "tenant_id", "response_id"),
)

events = Table(
    "events",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("response_id", Uuid, primary_key=True),
    Column("first_entry", Integer, primary_key=True, autoincrement=False),
    # The day (UTC) the response was created, so that retention drops whole partitions.
    Column("day", Date, primary_key=True),
    _required("epoch", Integer),
    _required("entry_count", Integer),
    _required("entries", LargeBinary),
    postgresql_partition_by="RANGE (day)",
)

# How far one process has come with the log of a tenant, and whether it may go on: see `flushes`.
writers = Table(
    "writers",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("owner", Text, primary_key=True),
    _required("fence", BigInteger),
    _required("number", BigInteger),
    _required("used_at", _TIME),
    postgresql_with={"fillfactor": 50},
)

flushes = Table(
    "flushes",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("owner", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    # Of which responses these entries are, packed as `flushes` says.
    _required("members", LargeBinary),
    _required("entries", LargeBinary),
)

conversations = Table(
    "conversations",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("id", Uuid, primary_key=True),
    _required("created_at", _TIME),
    _required("metadata", LargeBinary),
    _required("next_position", BigInteger, server_default=text("0")),
    # The response that will add to it, for as long as that one is running.
    Column("writer", Uuid),
)

conversation_items = Table(
    "conversation_items",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("conversation_id", Uuid, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    *_item_columns(),
    ForeignKeyConstraint(
        ["tenant_id", "conversation_id"],
        ["conversations.tenant_id", "conversations.id"],
        ondelete="CASCADE",
    ),
)
Index(
    "ix_conversation_items_tenant_id_item_id",
    conversation_items.c.tenant_id,
    func.sha256(conversation_items.c.item_id),
)

traces = Table(
    "traces",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    # A digest of kind, trace and record: ids are the client's, and may be of any length.
    Column("key", LargeBinary, primary_key=True),
    _required("kind", Text),
    _required("trace_id", LargeBinary),
    _required("record_id", LargeBinary),
    Column("response_id", Uuid),
    _required("received_at", _TIME),
    _required("record", LargeBinary),
    CheckConstraint("kind IN ('trace', 'span')", name="kind"),
    Index(None, "tenant_id", "received_at"),
)
Index("ix_traces_tenant_id_trace_id", traces.c.tenant_id, func.sha256(traces.c.trace_id))

usage = Table(
    "usage",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    # No foreign key: what was metered outlives the response.
    Column("response_id", Uuid, primary_key=True),
    _required("key_id", Uuid),
    _required("model", Text),
    _required("at", _TIME),
    _required("input_tokens", Integer),
    _required("cached_tokens", Integer),
    _required("output_tokens", Integer),
    _required("reasoning_tokens", Integer),
    _required("recomputed_tokens", Integer, server_default=text("0")),
    Index(None, "tenant_id", "at"),
)
