"""A line of usage as others are told of it: one record, always with the same fields in order.

`VERSION` counts what readers have to know of: fields are added at the end without a new one.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from gateway import ids
from gateway.json_lines import one_line
from gateway.store.ledger.exports import LINE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gateway.store.postgres.database import Row

VERSION: Final = 1
Format = Literal["jsonl", "csv"]
MEDIA_TYPES: Final[dict[Format, str]] = {
    "jsonl": "application/jsonl",
    "csv": "text/csv; charset=utf-8",
}
_FIGURES: Final = tuple(
    name for name in LINE_COLUMNS if name.endswith(("_tokens", "_nano", "_calls", "_searches"))
)
_FIELDS: Final[dict[str, Callable[[Row], Any]]] = {
    "id": lambda row: f"{ids.response_id(row.response_id)}-{row.seq}",
    "at": lambda row: row.at.isoformat(),
    "tenant_id": lambda row: ids.tenant_id(row.tenant_id),
    "tenant": lambda row: row.tenant_name,
    "project_id": lambda row: ids.project_id(row.project_id or row.tenant_id),
    "api_key_id": lambda row: ids.api_key_id(row.key_id),
    "response_id": lambda row: ids.response_id(row.response_id),
    "seq": lambda row: row.seq,
    "kind": lambda row: row.kind,
    "status": lambda row: row.status,
    "model": lambda row: row.model,
    "service_tier": lambda row: row.service_tier or "default",
    "background": lambda row: bool(row.background),
    "attempts": lambda row: row.attempts,
    "end_user": lambda row: None if row.end_user is None else row.end_user.hex(),
    "tags": lambda row: {} if row.tags is None else orjson.loads(row.tags),
    "tools": lambda row: {} if row.tools is None else orjson.loads(row.tools),
    "reason": lambda row: row.reason,
    "author": lambda row: row.author,
    "tx": lambda row: row.tx,
}
FIELDS: Final = (*_FIELDS, *sorted(_FIGURES))
"""The fields of every record, in order."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would take for the beginning of a formula (OWASP, CSV injection)."""


def record_of(row: Row) -> dict[str, Any]:
    """Return the exported record of a line that `store.ledger.exports` read."""
    told = {name: read(row) for name, read in _FIELDS.items()}
    return told | {name: row[name] for name in sorted(_FIGURES)}


def encoded(records: Iterable[Mapping[str, Any]], form: Format, *, has_head: bool) -> bytes:
    """Encode records as lines of text. `has_head`: CSV begins with the column names."""
    if form == "jsonl":
        return b"".join(one_line(orjson.dumps(one)) + b"\n" for one in records)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if has_head:
        writer.writerow(FIELDS)
    for one in records:
        writer.writerow(_cell(one[name]) for name in FIELDS)
    return text.getvalue().encode("utf-8", "replace")


def trailer(form: Format, next_cursor: str) -> bytes:
    """Return the last line of a page, which has the cursor of the next one."""
    if form == "jsonl":
        return orjson.dumps({"next_cursor": next_cursor, "version": VERSION}) + b"\n"
    return f"# next_cursor={next_cursor} version={VERSION}\n".encode()


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return orjson.dumps(value).decode() if value else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
