"""The usage of a response, counted a second time: from the ids in its log, without the parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway import ids
from gateway.entries import Mark, Repair, Tokens, TurnStarted, unpack
from gateway.models.harmony.tokenizer import CHANNEL, FIRST_SPECIAL, MESSAGE, START
from gateway.store import events
from gateway.store import responses as rows
from tests.fakes.harmony_oracle import vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.entries import Entry
    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId

LOG_BYTES_MAX: Final = 1 << 26


async def log_of(database: Database, tenant_id: TenantId, response_id: str) -> list[Entry]:
    """All entries of a response whose log is in the database, but for marks."""
    uuid = ids.parse_response_id(response_id)
    assert uuid is not None
    stored = await rows.load(database, tenant_id, uuid)
    assert stored is not None
    day = events.day_of(stored.created_at)
    found = await events.read(database, tenant_id, uuid, day, bytes_max=LOG_BYTES_MAX)
    entries = (entry for row in found for entry in unpack(row.entries))
    return [entry for entry in entries if not isinstance(entry, Mark)]


def recounted(log: Iterable[Entry]) -> dict[str, int]:
    """Tokens of input, of output, and of those the text of reasoning, what is void left out."""
    counts = {"input_tokens": 0, "output_tokens": 0, "reasoning_tokens": 0}
    turns: list[tuple[int, list[int]]] = []
    for entry in log:
        match entry:
            case TurnStarted():
                counts["input_tokens"] += entry.input_tokens
                turns.append((len(entry.prefill), list(entry.prefill)))
            case Tokens():
                turns[-1][1].extend(entry.ids)
            case Repair() if entry.voided:
                del turns[-1][1][-entry.voided :]
            case _:
                pass
    for prefilled, said in turns:
        counts["output_tokens"] += len(said) - prefilled
        counts["reasoning_tokens"] += sum(at >= prefilled for at in _reasoning(said))
    return counts


def used(response: dict[str, Any]) -> dict[str, int]:
    """The same numbers as a response tells them."""
    usage = response["usage"]
    return {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "reasoning_tokens": usage["output_tokens_details"]["reasoning_tokens"],
    }


def _reasoning(said: Sequence[int]) -> list[int]:
    """The positions of the text ids in messages of the analysis channel that call nobody."""
    found: list[int] = []
    header: list[int] = []
    is_header, counts = True, False
    for at, token in enumerate(said):
        if token == START:
            header, is_header, counts = [], True, False
        elif is_header and token == MESSAGE:
            is_header, counts = False, _is_reasoning(header)
        elif is_header:
            header.append(token)
        elif token >= FIRST_SPECIAL:
            counts = False
        elif counts:
            found.append(at)
    return found


def _is_reasoning(header: list[int]) -> bool:
    if CHANNEL not in header:
        return False
    text = vocabulary().decode([token for token in header if token < FIRST_SPECIAL])
    return "analysis" in text and " to=" not in text
