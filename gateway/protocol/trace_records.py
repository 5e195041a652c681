"""`POST /v1/traces/ingest`: what agents report of their runs, as the Agents SDK exports it.

Only the keys of traces and spans are checked; everything else is kept as it came.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from gateway import ids
from gateway.protocol.json_body import parse_object
from gateway.protocol.request_errors import (
    array_too_long,
    invalid,
    missing,
    string_empty,
    string_too_long,
    wrong_type,
    wrong_value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from gateway.protocol.json_body import InputLimits

TraceKind = Literal["trace", "span"]

KINDS: Final[Mapping[str, TraceKind]] = {"trace": "trace", "trace.span": "span"}
TRACE_ID_CHARS_MAX: Final = 256
RECORDS_MAX: Final = 1000
"""Records of one body."""
RECORD_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one trace or span."""


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """Trace or span. A later record with the same `key` replaces an earlier one."""

    kind: TraceKind
    trace_id: str
    record_id: str
    json: bytes
    response: UUID | None = None

    @property
    def key(self) -> bytes:
        # Unique among the records of a tenant.
        return hashlib.sha256(orjson.dumps([self.kind, self.trace_id, self.record_id])).digest()


def parse_traces(body: bytes, *, limits: InputLimits) -> list[TraceRecord]:
    """Parse the records of a body; of several with the same key the last counts."""
    document = parse_object(body, limits)
    if document.get("data") is None:
        raise missing("data")
    data = document["data"]
    if not isinstance(data, list):
        raise wrong_type("data", "an array of objects", data)
    if len(data) > RECORDS_MAX:
        raise array_too_long("data", len(data), RECORDS_MAX)
    records = [_record(value, f"data[{index}]") for index, value in enumerate(data)]
    return list({record.key: record for record in records}.values())


def _record(value: object, path: str) -> TraceRecord:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    name = _text(value, "object", path)
    if name not in KINDS:
        raise wrong_value(f"{path}.object", name, tuple(KINDS))
    kind = KINDS[name]
    record_id = _text(value, "id", path)
    trace_id = record_id if kind == "trace" else _text(value, "trace_id", path)
    response = None if kind == "trace" else _response_of(value, path)
    return TraceRecord(kind, trace_id, record_id, _json(value, path), response)


def _json(record: dict[str, Any], path: str) -> bytes:
    json = orjson.dumps(record)
    if len(json) > RECORD_BYTES_MAX:
        raise invalid(
            path,
            f"it has {len(json)} bytes. Expected at most {RECORD_BYTES_MAX} bytes; shorten "
            "the texts in it.",
        )
    return json


def _text(record: dict[str, Any], name: str, path: str) -> str:
    param = f"{path}.{name}"
    match record.get(name):
        case None:
            raise missing(param)
        case "":
            raise string_empty(param)
        case str(text) if len(text) > TRACE_ID_CHARS_MAX:
            raise string_too_long(param, len(text), TRACE_ID_CHARS_MAX)
        case str(text):
            return text
        case value:
            raise wrong_type(param, "a string", value)


def _response_of(span: dict[str, Any], path: str) -> UUID | None:
    match span.get("span_data"):
        case {"response_id": str(response_id)}:
            return ids.parse_response_id(response_id)
        case dict() | None:
            return None
        case value:
            raise wrong_type(f"{path}.span_data", "an object", value)
