"""Usage lines as others get them: records in JSON lines, CSV and CloudEvents, page by page.

Fields are added at the end without a new `VERSION`. The same lines always make the same events with
the same ids, so that a receiver recognises a repeated batch.
"""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import UUID

import orjson

from gateway import ids
from gateway.errors import InvalidRequest
from gateway.json_output import one_line
from gateway.store.ledger import cursors
from gateway.store.ledger.cursors import LINE_COLUMNS, LinePosition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from gateway.store.postgres.database import Database, Row

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
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings that a spreadsheet takes for a formula (OWASP, CSV injection)."""


def record_of(row: Row) -> dict[str, Any]:
    record = {name: read(row) for name, read in _FIELDS.items()}
    return record | {name: row[name] for name in sorted(_FIGURES)}


def encoded(records: Iterable[Mapping[str, Any]], form: Format, *, has_head: bool) -> bytes:
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


PAGE_LINES_MAX: Final = 100_000
READ_LINES_MAX: Final = 2_000
_CURSOR: Final = re.compile(r"u1-([0-9]{1,19})-([0-9a-f]{32})-([0-9a-f]{32})-(-?[0-9]{1,9})")


def cursor_of(place: LinePosition) -> str:
    return f"u1-{place.tx}-{place.tenant.hex}-{place.response.hex}-{place.seq}"


def place_of(cursor: str | None) -> LinePosition:
    if not cursor:
        return LinePosition()
    match = _CURSOR.fullmatch(cursor)
    if match is None or int(match[1]) >= 2**63:
        raise InvalidRequest(
            "'from_tx' must be the next cursor of an export, or nothing for its beginning.",
            code="invalid_value",
            param="from_tx",
        )
    return LinePosition(int(match[1]), UUID(match[2]), UUID(match[3]), int(match[4]))


async def export(
    database: Database, cursor: str | None, form: Format, *, lines_max: int = PAGE_LINES_MAX
) -> AsyncIterator[bytes]:
    """Yield lines of text; the last has the next cursor. Raises `InvalidRequest`."""
    place, left, has_head = place_of(cursor), lines_max, True
    while left > 0:
        rows_max = min(left, READ_LINES_MAX)
        rows, place = await cursors.read_lines(database, place, lines_max=rows_max)
        if rows or has_head:
            yield encoded(map(record_of, rows), form, has_head=has_head)
        has_head = False
        left -= len(rows)
        if len(rows) < rows_max:
            break
    yield trailer(form, cursor_of(place))


CLOUDEVENTS_TYPE: Final = "application/cloudevents-batch+json"
COMPLETED: Final = "harmony.response.completed"
ADJUSTED: Final = "harmony.response.adjusted"


def cloud_events(
    rows: Iterable[Row], *, source: str, customers: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a CloudEvents 1.0 event for each line; all values of its data are strings.

    `customers` maps a tenant's name or id to the receiver's name for it.
    """
    return [_cloud_event(row, source, customers) for row in rows]


def _cloud_event(row: Row, source: str, customers: Mapping[str, str]) -> dict[str, Any]:
    record = record_of(row)
    data = {
        **{name: _word(value) for name, value in record.items() if not isinstance(value, dict)},
        **{f"tool_{name}": str(value) for name, value in record["tools"].items()},
        **{f"tag_{name}": value for name, value in record["tags"].items()},
    }
    return {
        "specversion": "1.0",
        "id": record["id"],
        "source": source,
        "type": ADJUSTED if row.seq else COMPLETED,
        "subject": customers.get(row.tenant_name or "")
        or customers.get(record["tenant_id"])
        or record["tenant_id"],
        "time": record["at"],
        "datacontenttype": "application/json",
        "data": {name: value for name, value in data.items() if value is not None},
    }


def _word(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
