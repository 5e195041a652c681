"""What statements have to know of the schema. `tables` has all of it, for migrations alone."""

from __future__ import annotations

from typing import Final

APP_ROLE: Final = "harmony_gateway_app"
"""The role of every tenant transaction: no login, no ownership, so row-level security binds it."""
RUNS_ROLE: Final = "harmony_gateway_runs"
"""The role of what one process does for the runs of all tenants at once: claim, append, expire. It
sees no item, no body and no key."""

RUNNING: Final = ("queued", "in_progress")
TERMINAL: Final = ("completed", "incomplete", "failed", "cancelled")

REVISION: Final = "b7e4d19a3c60"
"""The newest revision of the schema (`migrations`)."""
OLDER_REVISIONS: Final = (
    *("5d1e0c7a9b42", "8c2f6a1be073", "c41d7b0e95fa", "f27a90c3d5b8", "a6e19b04c7d2"),
    *("d3b7c05e61f8", "b8e40d29f6a3"),
)
"""Those before it, the first one first. A revision that is neither is of a newer release."""

ACCEPTED: Final = {
    "id": "uuid",
    "key_id": "uuid",
    "status": "text",
    "model": "text",
    "background": "boolean",
    "stored": "boolean",
    "created_at": "timestamptz",
    "root_created_at": "timestamptz",
    "parent_id": "uuid",
    "conversation_id": "uuid",
    "conversation_end": "bigint",
    "request": "bytea",
    "durable": "boolean",
    "streamed": "boolean",
    "plan": "bytea",
    "prompt": "bytea",
    "owner": "text",
    "epoch": "integer",
    "next_entry": "integer",
    "attempts": "smallint",
    "fold_version": "smallint",
}
"""The types of the columns of `responses` that one is accepted with, but for tenant and lease."""
ENDED: Final = {
    "id": "uuid",
    "epoch": "integer",
    "status": "text",
    "completed_at": "timestamptz",
    "body": "bytea",
    "recoveries": "bytea",
}
"""Those that it ends with."""
LOGGED: Final = {"first_entry": "integer", "entry_count": "integer", "entries": "bytea"}
"""Those of a row of `events`, but for its key."""
ITEM: Final = {
    "kind": "text",
    "role": "text",
    "phase": "text",
    "item_id": "bytea",
    "call_id": "bytea",
    "name": "bytea",
    "complete": "boolean",
    "item": "bytea",
    "ids": "bytea",
}
"""Those of an item, in `messages` as in `conversation_items`."""
COUNTS: Final = {
    "input_tokens": "integer",
    "cached_tokens": "integer",
    "output_tokens": "integer",
    "reasoning_tokens": "integer",
    "recomputed_tokens": "integer",
}
"""Those of `usage` that count."""
