"""All lines from a place on, as text: pages of a bounded number of lines, each with the next place.

A cursor is opaque to who asks. An empty one is the beginning of all lines that are kept.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from uuid import UUID

from gateway.errors import InvalidRequest
from gateway.ledger.records import encoded, record_of, trailer
from gateway.store.ledger import exports
from gateway.store.ledger.cursors import LinePosition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.ledger.records import Format
    from gateway.store.postgres.database import Database

PAGE_LINES_MAX: Final = 100_000
READ_LINES_MAX: Final = 2_000
"""Of one page, and of one statement."""
_CURSOR: Final = re.compile(r"u1-([0-9]{1,19})-([0-9a-f]{32})-([0-9a-f]{32})-(-?[0-9]{1,9})")


def cursor_of(place: LinePosition) -> str:
    return f"u1-{place.tx}-{place.tenant.hex}-{place.response.hex}-{place.seq}"


def place_of(cursor: str | None) -> LinePosition:
    """Return the position that a cursor stands for. Raises `InvalidRequest`."""
    if not cursor:
        return LinePosition()
    found = _CURSOR.fullmatch(cursor)
    if found is None or int(found[1]) >= 2**63:
        raise InvalidRequest(
            "'from_tx' must be the next cursor of an export, or nothing for its beginning.",
            code="invalid_value",
            param="from_tx",
        )
    return LinePosition(int(found[1]), UUID(found[2]), UUID(found[3]), int(found[4]))


async def export(
    database: Database, cursor: str | None, form: Format, *, lines_max: int = PAGE_LINES_MAX
) -> AsyncIterator[bytes]:
    """Yield lines of text; the last has the next cursor, the same one at the end of the data.

    Raises `InvalidRequest` and `StoreUnavailable`.
    """
    place, left, has_head = place_of(cursor), lines_max, True
    while left > 0:
        asked = min(left, READ_LINES_MAX)
        rows, place = await exports.read_lines(database, place, lines_max=asked)
        if rows or has_head:
            yield encoded(map(record_of, rows), form, has_head=has_head)
        has_head = False
        left -= len(rows)
        if len(rows) < asked:
            break
    yield trailer(form, cursor_of(place))
