"""Which columns have content, and how each is kept from whoever reads the tables alone.

One table of all columns that could hold what a client or a model said. A column of `bytea` or
`text` that is not in it fails a test: whoever adds one has to decide.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.encryption.cipher import ContentCipher


class Kept(Enum):
    """How what stands in a column is kept, where a tenant has keys."""

    SEALED = "sealed"
    """Only with the tenant's key."""
    NAME = "sealed so that equal ones look equal"
    """It is looked for: whoever reads the table sees which rows have the same."""
    LOG = "sealed in frames"
    ELSEWHERE = "sealed by who writes it"
    """With a key of the gateway, not of the tenant."""
    DIGEST = "a digest"
    """Whoever guesses what was digested can tell that they guessed right."""
    ID = "plain: an id"
    """Of ours, or one that a client chose: ids are names, and no place for content."""
    WORD = "plain: a word of ours, or of the operator"
    DECLARED = "plain: values of metadata that the tenant wants on its bill"
    OPERATOR = "plain: what operators let be searched, or registered"


_RESPONSE: Final = {
    **dict.fromkeys(("request", "body", "recoveries", "plan", "prompt", "tool_state"), Kept.SEALED),
    **dict.fromkeys(("status", "model", "owner"), Kept.WORD),
    "placement": Kept.DIGEST,
}
_ITEM: Final = {
    **dict.fromkeys(("call_id", "name", "item", "ids", "includable"), Kept.SEALED),
    **dict.fromkeys(("kind", "role", "phase"), Kept.WORD),
    "item_id": Kept.ID,
}
_ISSUER: Final = {
    **dict.fromkeys(("name", "description", "issuer", "audience"), Kept.OPERATOR),
    **dict.fromkeys(("discovery_url", "jwks_url", "jwks", "transformations"), Kept.OPERATOR),
    "algorithms": Kept.WORD,
}
CONTENT: Final[Mapping[str, Mapping[str, Kept]]] = {
    "responses": _RESPONSE,
    "messages": _ITEM,
    "conversation_items": _ITEM,
    "conversations": {"metadata": Kept.SEALED},
    "events": {"entries": Kept.LOG},
    "flushes": {"owner": Kept.WORD, "members": Kept.ID, "entries": Kept.LOG},
    "writers": {"owner": Kept.WORD},
    "idempotency_keys": {"key_hash": Kept.DIGEST, "fingerprint": Kept.DIGEST},
    "traces": {
        "key": Kept.DIGEST,
        "kind": Kept.WORD,
        "trace_id": Kept.ID,
        "record_id": Kept.ID,
        "record": Kept.SEALED,
    },
    "tool_pages": {
        **dict.fromkeys(("url", "title", "text", "links"), Kept.SEALED),
        **dict.fromkeys(("key", "asked"), Kept.DIGEST),
    },
    "containers": {
        "name": Kept.NAME,
        **dict.fromkeys(("owner", "engine", "handle"), Kept.WORD),
    },
    "files": {
        "name": Kept.NAME,
        **dict.fromkeys(("purpose", "source"), Kept.WORD),
        "digest": Kept.DIGEST,
    },
    "file_chunks": {"content": Kept.SEALED},
    "tool_calls": {
        **dict.fromkeys(("server", "tool", "hosts"), Kept.SEALED),
        **dict.fromkeys(("kind", "outcome", "replica", "approval"), Kept.WORD),
        "arguments_hash": Kept.DIGEST,
        "approval_request_id": Kept.ID,
    },
    "tool_approvals": {"request_id": Kept.ID, "digest": Kept.DIGEST},
    "run_secrets": {"sealed": Kept.ELSEWHERE},
    "mcp_servers": {
        **dict.fromkeys(("label", "url", "allowed_tools", "purposes"), Kept.OPERATOR),
        "secret": Kept.ELSEWHERE,
    },
    "web_documents": {
        "key": Kept.DIGEST,
        **dict.fromkeys(("url", "host", "title", "text", "links"), Kept.OPERATOR),
    },
    "tenants": {"name": Kept.WORD, "retention_type": Kept.WORD},
    "projects": dict.fromkeys(
        (
            *("name", "retention_type", "service_tier_max", "tools_off", "models_mode", "models"),
            *("service_tiers", "service_tier_default"),
        ),
        Kept.WORD,
    ),
    "identity_providers": _ISSUER,
    "operator_issuers": {**_ISSUER, **dict.fromkeys(("tenants", "roles"), Kept.OPERATOR)},
    "federation_rules": {
        **dict.fromkeys(("name", "description", "matchers"), Kept.OPERATOR),
        "scopes": Kept.WORD,
    },
    "service_accounts": dict.fromkeys(("name", "role"), Kept.WORD),
    "api_keys": {
        **dict.fromkeys(("name", "hint", "dialect", "kind", "owner_type"), Kept.WORD),
        **dict.fromkeys(("scopes", "allowed_models"), Kept.WORD),
        "hash": Kept.DIGEST,
    },
    "operator_keys": {**dict.fromkeys(("name", "hint", "role"), Kept.WORD), "hash": Kept.DIGEST},
    "audit_log": {
        **dict.fromkeys(("type", "actor", "address", "request_id", "details"), Kept.WORD),
        "target": Kept.ID,
        **dict.fromkeys(("previous", "hash"), Kept.DIGEST),
    },
    "reseals": {"of_table": Kept.WORD, "place": Kept.ID},
    "usage": {
        **dict.fromkeys(("model", "kind", "status", "service_tier"), Kept.WORD),
        **dict.fromkeys(("tools", "reason", "author"), Kept.WORD),
        "end_user": Kept.DIGEST,
        "tags": Kept.DECLARED,
    },
    "usage_hours": dict.fromkeys(("model", "service_tier", "kind"), Kept.WORD),
    "usage_minutes": dict.fromkeys(("model", "service_tier", "kind"), Kept.WORD),
    "usage_days": dict.fromkeys(("model", "service_tier", "kind"), Kept.WORD),
    "usage_end_user_days": {"end_user": Kept.DIGEST, "model": Kept.WORD},
    "usage_cursors": dict.fromkeys(("name", "holder", "stopped"), Kept.WORD),
    "limits": dict.fromkeys(("scope", "model", "what", "mode"), Kept.WORD),
    "budgets": dict.fromkeys(("scope", "unit", "span", "mode"), Kept.WORD),
    "spend_alerts": dict.fromkeys(("scope", "unit", "span", "channel"), Kept.WORD),
    "alert_firings": {"told": Kept.WORD},
    "prices": dict.fromkeys(("component", "model", "service_tier"), Kept.WORD),
    "spend": dict.fromkeys(("meter", "replica"), Kept.WORD),
    "buckets": {"name": Kept.WORD},
    "limit_reports": dict.fromkeys(("name", "replica"), Kept.WORD),
    "placements": {
        "replica": Kept.WORD,
        **dict.fromkeys(("load", "entries"), Kept.DIGEST),
    },
    "backend_drains": dict.fromkeys(("name", "drained_by"), Kept.WORD),
    "drain_reports": dict.fromkeys(("name", "replica"), Kept.WORD),
}
"""By table and column. Numbers, times, uuids and truth values are never content."""
BOUND_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "responses": ("id",),
    "messages": ("item_id",),
    "conversation_items": ("item_id",),
    "conversations": ("id",),
    "traces": ("key",),
    "tool_pages": ("key",),
    "containers": (),
    "files": (),
    "file_chunks": ("digest", "number"),
    "tool_calls": ("response_id", "ordinal"),
}
"""The columns whose values a seal is bound to, beside tenant and column. Items are copied from a
response to its conversation, and chunks from file to file, by statements that cannot open them:
they are bound to what is copied with them."""
_PLACES: Final = {"conversation_items": "messages"}
"""A seal that was made for a column of the one table counts in the other."""


def place_of(table: str, column: str) -> str:
    """What a seal in this column is bound to."""
    return f"{_PLACES.get(table, table)}.{column}"


_SEALED: Final = {
    table: tuple(
        (column, place_of(table, column)) for column, kept in columns.items() if kept is Kept.SEALED
    )
    for table, columns in CONTENT.items()
}


def sealed(cipher: ContentCipher, table: str, row: dict[str, Any]) -> dict[str, Any]:
    """The row as it is written: its sealed columns sealed, as far as it has them. Names are the
    caller's to seal. It has the columns that `BOUND_BY` names.
    """
    if not cipher.seals:
        return row
    bound_by = [row[name] for name in BOUND_BY[table]]
    changed = {
        column: cipher.seal(row[column], place, *bound_by)
        for column, place in _SEALED[table]
        if column in row
    }
    return row | changed


def opened(
    cipher: ContentCipher, table: str, row: Mapping[str, Any], names: Iterable[str]
) -> dict[str, Any]:
    """These columns of a row as they were before it was sealed. Raises `ContentSealed`."""
    bound_by = [row[name] for name in BOUND_BY[table]]
    return {name: cipher.open(row[name], place_of(table, name), *bound_by) for name in names}
