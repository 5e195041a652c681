"""A response's bill, told from its log and from what its backends sent."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from gateway import ids
from gateway.engine.output_guard import WITHIN_TURN
from gateway.entries import Hop, Repair, Tokens, TurnStarted, unpack
from gateway.store.postgres.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.entries import Entry
    from gateway.store.postgres.database import Database
    from tests.fakes.observation import Backends

_LOG = Statement("SELECT entries FROM events WHERE response_id = :id ORDER BY first_entry")


async def log_of(database: Database, response_id: str) -> list[Entry]:
    """The log of a response in the background."""
    async with database.runs_transaction() as connection:
        rows = await connection.scalars(_LOG, {"id": ids.parse_response_id(response_id)})
        return [entry for packed in rows for entry in unpack(packed)]


async def check_bill(response: dict[str, Any], database: Database, backends: Backends) -> None:
    """What was billed is what the backends sent, less what was taken back of it."""
    log = await log_of(database, response["id"])
    spoken = _said_by_request(log)
    voided = sum(entry.voided for entry in log if isinstance(entry, Repair))
    assert response["usage"]["output_tokens"] == sum(map(len, spoken)) - voided
    seen = await backends.of_response(response["id"])
    for said, request in zip(spoken, seen, strict=True):
        assert request["sent_ids"][: len(said)] == said.tolist()


def _said_by_request(log: Sequence[Entry]) -> list[array[int]]:
    """What was said to each request for ids, with what was taken back."""
    spoken: list[array[int]] = []
    for entry in log:
        is_repeated = isinstance(entry, Repair) and entry.rule in WITHIN_TURN
        if is_repeated or isinstance(entry, TurnStarted | Hop):
            spoken.append(array("I"))
        elif isinstance(entry, Tokens):
            spoken[-1].extend(entry.ids)
    return [ids for ids in spoken if ids]
