"""A response about which everybody tells the truth, for tests to put one lie into."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from gateway import ids
from gateway.entries import Finished, Queued, Tokens, TurnEnded, TurnStarted, pack
from gateway.generation import FinishReason
from tests.chaos.checker import fold_events
from tests.chaos.history import Connection, Frame, Record, StoredEntries, Transcript, UsageLine
from tests.chaos.oracle import Question, answer_to
from tests.fakes.response_heads import ECHO
from tests.fakes.simulated_conversation import continuation, prompt_of, system, user

if TYPE_CHECKING:
    from gateway.entries import Entry

UUID_: Final = UUID("019aa000-0000-7000-8000-000000000001")
RESPONSE_ID: Final = ids.response_id(UUID_)
QUESTION: Final = Question(("apple", "river", "stone", "cloud"))
CREATED_AT: Final = 1_780_000_000
IDS_PER_ENTRY: Final = 5
ENTRIES_PER_ROW: Final = 2


def entries() -> list[Entry]:
    """The whole log."""
    prompt = prompt_of(system(), user(QUESTION.text))
    said = continuation(prompt)
    return [
        Queued(),
        TurnStarted(len(prompt)),
        *(
            Tokens(tuple(said[at : at + IDS_PER_ENTRY]))
            for at in range(0, len(said), IDS_PER_ENTRY)
        ),
        TurnEnded(FinishReason.STOP),
        Finished("completed", CREATED_AT + 9),
    ]


def record(log: list[Entry] | None = None, **fields: Any) -> Record:
    """What is stored of it; the first rows of the log are of epoch 1, the others of epoch 2."""
    log = entries() if log is None else log
    rows = [log[at : at + ENTRIES_PER_ROW] for at in range(0, len(log), ENTRIES_PER_ROW)]
    stored = Record(
        uuid=UUID_,
        status="completed",
        durable=True,
        background=True,
        created_at=CREATED_AT,
        epoch=2,
        next_entry=len(log),
        request=orjson.dumps({"echo": ECHO, "binding": None}),
        body=b"",
        log=tuple(
            StoredEntries(number * ENTRIES_PER_ROW, len(row), 1 + (number > 1), pack(row))
            for number, row in enumerate(rows)
        ),
        usage=(UsageLine(answer_to(QUESTION).input_tokens, answer_to(QUESTION).output_tokens, 0),),
    )
    last = orjson.loads(fold_events(stored)[-1])
    return replace(stored, **{"body": orjson.dumps(last.get("response")), **fields})


def transcript(stored: Record | None = None, cut: int = 5) -> Transcript:
    """A reader who was cut off after `cut` events, and read the rest elsewhere."""
    frames = [Frame(data, float(at)) for at, data in enumerate(fold_events(stored or record()))]
    first = Connection(0, -1, status=200, frames=frames[:cut])
    second = Connection(1, cut - 1, status=200, frames=frames[cut:], done=True)
    return Transcript(QUESTION, True, RESPONSE_ID, [first, second], ended=True)
