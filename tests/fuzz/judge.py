"""Whether an answer is one that the API documents: anything else is a finding."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.fuzz.targets import Known, Request

STATUSES: Final = frozenset({200, 201, 202, 204, 400, 401, 403, 404, 405, 413, 426, 429})
ENVELOPE: Final = {"message", "type", "param", "code"}
LEAKS: Final = (b'File "/', b'File \\"/', b"site-packages", b"asyncpg", b"sqlalchemy")
"""Tracebacks of ours name files; one of code that the model ran names its cell, and is content."""
SHOWN_CHARS: Final = 300
OPEN_RESPONSES: Final = "/openresponses/"
"""Its streams leave out what that dialect has no word for."""


def finding(
    asked: Request, status: int, headers: Mapping[str, str], body: bytes, known: Known
) -> str | None:
    """What is wrong with an answer; None for a good one, from which `known` learns."""
    fault = _fault(asked, status, headers, body, known)
    if fault is None:
        return None
    shown = body[:SHOWN_CHARS].decode(errors="replace")
    return f"{fault}: {asked.method} {asked.path[:120]} -> {status} {shown}"


def _fault(
    asked: Request, status: int, headers: Mapping[str, str], body: bytes, known: Known
) -> str | None:
    if status not in STATUSES:
        return "an undocumented status"
    if not headers.get("x-request-id", "").startswith("req_"):
        return "no x-request-id"
    if any(leak in body for leak in LEAKS):
        return "it shows its inside"
    if asked.method == "HEAD" or status == 204:
        return None
    kind = headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return _stream_fault(body, is_whole=not asked.path.startswith(OPEN_RESPONSES))
    return _body_fault(status, kind, body, known)


def _body_fault(status: int, kind: str, body: bytes, known: Known) -> str | None:
    if kind.startswith("application/json"):
        return _json_fault(status, body, known)
    return None if status == 200 and kind.startswith("text/") else "no JSON"


def _json_fault(status: int, body: bytes, known: Known) -> str | None:
    try:
        document: Any = json.loads(body)
    except ValueError:
        return "broken JSON"
    if status >= 400:
        error = document.get("error") if isinstance(document, dict) else None
        is_whole = isinstance(error, dict) and set(error) == ENVELOPE and error["message"]
        return None if is_whole else "no envelope"
    known.learn(document)
    return None


def _stream_fault(body: bytes, *, is_whole: bool) -> str | None:
    """Frames, each with JSON, and the end mark; if they are `is_whole`, no number is left out."""
    frames = [frame for frame in body.split(b"\n\n") if frame and not frame.startswith(b":")]
    if not frames or frames[-1] != b"data: [DONE]":
        return "a stream without its end"
    try:
        events = [json.loads(frame.rpartition(b"data: ")[2]) for frame in frames[:-1]]
    except ValueError:
        return "a frame that is no JSON"
    return _gap(events) if is_whole else None


def _gap(events: list[Any]) -> str | None:
    """A number that is missing between two events or two items."""
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    if any(later != number + 1 for number, later in pairwise(numbers)):
        return "a gap between two events"
    kind = "response.output_item.added"
    added = [event["output_index"] for event in events if event.get("type") == kind]
    if any(later != index + 1 for index, later in pairwise(added)):
        return "a gap between two items"
    return None
