"""The tables with their keys, defaults, checks and indexes; the migrations build the same.

Only migrations import this, and SQLAlchemy with it: statements are written in SQL. Every key and
every index starts with the tenant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, CIDR, JSONB, TSVECTOR
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.types import UserDefinedType
from typing_extensions import override

from gateway.store.schema import COUNTS, RUNNING, SUMMED_BY, TERMINAL, columns_of
from gateway.tenancy import POLICY_VALUES

if TYPE_CHECKING:
    from collections.abc import Mapping

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


class TransactionId(UserDefinedType[int]):
    """`xid8`: which transaction wrote a row, and never wraps. SQLAlchemy does not know it."""

    cache_ok = True

    @override
    def get_col_spec(self, **_: object) -> str:
        return "xid8"


ischema_names["xid8"] = TransactionId

_TYPES: Final[dict[str, Any]] = {
    "uuid": Uuid,
    "text": Text,
    "bytea": LargeBinary,
    "boolean": Boolean,
    "smallint": SmallInteger,
    "integer": Integer,
    "bigint": BigInteger,
    "date": Date,
    "timestamptz": DateTime(timezone=True),
    "double precision": Double,
    "tsvector": TSVECTOR,
    "jsonb": JSONB,
    "xid8": TransactionId,
    "text[]": ARRAY(Text),
    "cidr[]": ARRAY(CIDR),
}
_ROOM_FOR_UPDATES: Final = {"fillfactor": 50}
_ALWAYS_COUNTED: Final = {"input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"}
_NO_DEFAULTS: Final[Mapping[str, str]] = {}


def _table(
    name: str, key: str, *rest: Any, defaults: Mapping[str, str] = _NO_DEFAULTS, **options: Any
) -> Table:
    """A table with the columns of `schema.COLUMNS`, and with what is not said there."""
    return Table(
        name,
        metadata,
        *(
            Column(
                column,
                _TYPES[kind.removesuffix("!")],
                primary_key=column in key.split(),
                autoincrement=False,
                nullable=not kind.endswith("!"),
                server_default=text(defaults[column]) if column in defaults else None,
            )
            for column, kind in columns_of(name).items()
        ),
        *rest,
        **options,
    )


def _of_parent(column: str, table: str) -> ForeignKeyConstraint:
    """Rows that are deleted with the row of `table` whose id is in `column`."""
    return ForeignKeyConstraint(
        ["tenant_id", column], [f"{table}.tenant_id", f"{table}.id"], ondelete="CASCADE"
    )


def _one_of(column: str, *values: str) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


_table(
    "tenants",
    "id",
    UniqueConstraint("name"),
    *(
        CheckConstraint(value.column_check, name=value.name)
        for value in POLICY_VALUES.values()
        if value.column_check is not None
    ),
)
_table(
    "api_keys",
    "tenant_id id",
    UniqueConstraint("hash"),
    ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
    _one_of("dialect", "openai", "openresponses"),
    _one_of("kind", "project", "admin"),
    _one_of("owner_type", "service_account", "user"),
    Index(None, "tenant_id", "project_id"),
    defaults={"kind": "'project'"},
)
_table(
    "projects",
    "tenant_id id",
    ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
    _one_of("models_mode", "allow_list", "deny_list"),
)
_table(
    "service_accounts",
    "tenant_id id",
    ForeignKeyConstraint(["tenant_id", "project_id"], ["projects.tenant_id", "projects.id"]),
    _one_of("role", "owner", "member", "none"),
    Index(None, "tenant_id", "project_id"),
)
_table(
    "identity_providers",
    "tenant_id id",
    ForeignKeyConstraint(["tenant_id"], ["tenants.id"]),
    # Not by tenant: they are for who has a token, and no tenant yet.
    Index("ix_identity_providers_id", "id"),
    Index(
        "uq_identity_providers_bearer",
        *("issuer", "audience"),
        unique=True,
        postgresql_where=text("bearer"),
    ),
    Index(
        "uq_identity_providers_named",
        *("tenant_id", "issuer", "audience"),
        unique=True,
        postgresql_where=text("named_bearer AND deleted_at IS NULL"),
    ),
)
_table(
    "federation_rules",
    "tenant_id id",
    ForeignKeyConstraint(
        ["tenant_id", "provider_id"], ["identity_providers.tenant_id", "identity_providers.id"]
    ),
    ForeignKeyConstraint(
        ["tenant_id", "service_account_id"],
        ["service_accounts.tenant_id", "service_accounts.id"],
    ),
    Index(None, "tenant_id", "provider_id"),
)
_table("operator_keys", "tenant_id id", UniqueConstraint("hash"))
_table(
    "operator_issuers",
    "tenant_id id",
    Index(
        "uq_operator_issuers_issuer",
        *("tenant_id", "issuer", "audience"),
        unique=True,
        postgresql_where=text("deleted_at IS NULL"),
    ),
)
responses = _table(
    "responses",
    "tenant_id id",
    _one_of("status", *RUNNING, *TERMINAL),
    # Not for those without: a look-up by id must not be planned on it.
    Index(None, "tenant_id", "parent_id", postgresql_where=text("parent_id IS NOT NULL")),
    # Neither owner, lease nor head is indexed, so that heartbeats and appends stay HOT updates.
    Index(
        "ix_responses_running",
        "tenant_id",
        "id",
        postgresql_where=text("status IN ('queued', 'in_progress')"),
    ),
    # For claims: of each key that has something queued the oldest, and what is generated.
    Index(
        "ix_responses_queued",
        *("tenant_id", "key_id", "id"),
        postgresql_where=text("status = 'queued'"),
    ),
    Index(
        "ix_responses_generated",
        *("tenant_id", "id"),
        postgresql_where=text("status = 'in_progress' AND durable"),
    ),
    defaults={
        "durable": "false",
        "streamed": "false",
        "epoch": "0",
        "next_entry": "0",
        "attempts": "0",
    },
    postgresql_with=_ROOM_FOR_UPDATES,
)
messages = _table(
    "messages", "tenant_id response_id position", _of_parent("response_id", "responses")
)
_table(
    "idempotency_keys",
    "tenant_id key_hash",
    _of_parent("response_id", "responses"),
    Index(None, "tenant_id", "response_id"),
)
_table("events", "tenant_id response_id first_entry day", postgresql_partition_by="RANGE (day)")
_table("writers", "tenant_id owner", postgresql_with=_ROOM_FOR_UPDATES)
_table("flushes", "tenant_id owner number")
_table("conversations", "tenant_id id", defaults={"next_position": "0"})
conversation_items = _table(
    "conversation_items",
    "tenant_id conversation_id position",
    _of_parent("conversation_id", "conversations"),
)
traces = _table(
    "traces",
    "tenant_id key",
    _one_of("kind", "trace", "span"),
    Index(None, "tenant_id", "received_at"),
)
_table(
    "tool_pages",
    "tenant_id key",
    Index(None, "tenant_id", "asked"),
    Index(None, "tenant_id", "fetched_at"),
)
_table("web_documents", "tenant_id key")
_table("mcp_servers", "tenant_id id", UniqueConstraint("tenant_id", "label"))
_table("tool_approvals", "tenant_id request_id", Index(None, "tenant_id", "expires_at"))
_table(
    "audit_log",
    "tenant_id number",
    UniqueConstraint("tenant_id", "id"),
    Index(None, "tenant_id", "at"),
)
_table("reseals", "tenant_id")
_table("placements", "tenant_id replica number", prefixes=["UNLOGGED"])
_table("backend_drains", "tenant_id name")
_table("drain_reports", "tenant_id name replica", prefixes=["UNLOGGED"])
usage = _table(
    "usage",
    "tenant_id response_id seq",
    Index(None, "tenant_id", "at"),
    # Not by tenant first: it is for who reads the new lines of all, in the order of their commits.
    Index(
        "ix_usage_tx",
        *("tx", "tenant_id", "response_id", "seq"),
        postgresql_where=text("tx IS NOT NULL"),
    ),
    defaults={
        **{name: "0" for name in COUNTS if name not in _ALWAYS_COUNTED},
        "seq": "0",
        "kind": "'response'::text",
        "tx": "pg_current_xact_id()",
    },
)
_table("usage_hours", " ".join(SUMMED_BY), postgresql_with=_ROOM_FOR_UPDATES)
_table("usage_minutes", " ".join(SUMMED_BY), postgresql_with=_ROOM_FOR_UPDATES)
_table("usage_days", " ".join(SUMMED_BY))
_table("usage_end_user_days", "tenant_id day project_id end_user model")
_table("usage_cursors", "tenant_id name")
_table("run_secrets", "tenant_id response_id", _of_parent("response_id", "responses"))
_table("tool_calls", "tenant_id response_id ordinal attempt", Index(None, "tenant_id", "at"))
_table(
    "containers",
    "tenant_id id",
    Index(None, "tenant_id", "created_at"),
    Index(None, "tenant_id", "expires_at"),
    defaults={"epoch": "0"},
    postgresql_with=_ROOM_FOR_UPDATES,
)
_table(
    "files",
    "tenant_id id",
    _of_parent("container_id", "containers"),
    _one_of("source", "user", "assistant"),
    Index(None, "tenant_id", "container_id", "created_at"),
    Index(None, "tenant_id", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)
_table("limits", "tenant_id scope scope_id model what window_s")
_table(
    "budgets",
    "tenant_id id",
    UniqueConstraint(
        "tenant_id", "scope", "scope_id", "unit", "span", name="uq_budgets_tenant_id_scope"
    ),
)
_table("spend_alerts", "tenant_id id")
_table("prices", "tenant_id id component")
_table("spend", "tenant_id meter starts_at replica")
_table("alert_firings", "tenant_id alert_id starts_at")
_table("buckets", "tenant_id name", prefixes=["UNLOGGED"])
_table("limit_reports", "tenant_id name replica", prefixes=["UNLOGGED"])
_table("background_shares", "tenant_id", prefixes=["UNLOGGED"])
_table("stored_bytes", "tenant_id project_id")
_table("file_chunks", "tenant_id file_id number", _of_parent("file_id", "files"))
# Of digests, because an index entry is limited to 2,704 bytes and a client's id is not.
Index("ix_messages_tenant_id_item_id", messages.c.tenant_id, func.sha256(messages.c.item_id))
Index(
    "ix_conversation_items_tenant_id_item_id",
    conversation_items.c.tenant_id,
    func.sha256(conversation_items.c.item_id),
)
Index("ix_traces_tenant_id_trace_id", traces.c.tenant_id, func.sha256(traces.c.trace_id))
