"""(f) One more turn on a stored conversation that is short or long."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import ids
from tests.load import histories, loading, texts
from tests.load.asking import asking
from tests.load.figures import Column, Target
from tests.load.histories import History, Size
from tests.load.processes import RunVoid
from tests.load.systems import STORED, SYSTEMS
from tests.load.tape import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.load.asking import Answer
    from tests.load.figures import Figures
    from tests.load.stack import Stack

TURN: Final[dict[str, Any]] = {
    "model": MODEL,
    "input": "and what else is there to say?",
    "max_output_tokens": 24,
    "stream": True,
}
TURNS, QUICK_TURNS = 20, 10
BEYOND_READING_MS: Final = 3.0
SHORT_WORDS: Final = 30
LONG: Final = Size(messages=310, words=408)
"""With what frames each message 128,000 tokens, and what is left of 131,072 is for the turn."""
_MESSAGES: Final = {"2": 2, "20": 20, "200": 200, "1,000": 1000}


@dataclass(frozen=True, slots=True)
class Form:
    """A row: a chain of responses or a Conversation, and how long."""

    is_chain: bool
    size: Size
    is_quick: bool


def _forms() -> dict[str, Form]:
    forms: dict[str, Form] = {}
    for name in ("chain", "conversation"):
        is_chain = name == "chain"
        for shown, messages in _MESSAGES.items():
            size = Size(messages, SHORT_WORDS)
            forms[f"{name}, {shown} messages"] = Form(is_chain, size, is_quick=messages == 2)
        forms[f"{name}, 128k tokens"] = Form(is_chain, LONG, is_quick=True)
    return forms


FORMS: Final = _forms()
LONGEST: Final = ("chain, 128k tokens", "conversation, 128k tokens")


class Turns:
    """Stored streams, one after the other: each continues the same chain, or a fresh copy of the
    same Conversation. So none of them finds more than the one before."""

    letter = "f"
    title = "one more turn on a stored conversation"
    is_quick = True
    columns = (
        Column("to the backend p50 ms", "reached_p50_ms", 2),
        Column("CPU ms/turn", "cpu_ms", 2),
        Column("bare read ms", "read_ms", 2),
        Column("beyond it ms", "beyond_ms", 2),
        Column("above the shortest", "beyond_ms", 2, "above", "chain, 2 messages"),
        Column("PostgreSQL ms/turn", "database_ms", 2),
    )
    targets = tuple(
        Target(row, "CPU ms a turn beyond the bare read", "beyond_ms", BEYOND_READING_MS)
        for row in LONGEST
    )

    def rows(self, stack: Stack) -> Sequence[str]:
        return list(FORMS) if STORED in stack.offered else []

    @contextmanager
    def opened(self, stack: Stack, *, quick: bool) -> Iterator[Callable[[str], Figures]]:
        made = _made(stack, quick=quick)
        turns = QUICK_TURNS if quick else TURNS
        yield lambda row: measure(stack, made[row], turns) if row in made else {}


def _made(stack: Stack, *, quick: bool) -> dict[str, History]:
    """The histories of those rows that are measured."""
    child = stack.child(SYSTEMS[STORED])
    stack.marks.set_rate(0)
    return {
        row: (histories.chain if form.is_chain else histories.conversation)(stack, child, form.size)
        for row, form in FORMS.items()
        if form.is_quick or not quick
    }


def measure(stack: Stack, history: History, turns: int) -> Figures:
    """ms of CPU, and from the request to the backend's first word.

    `beyond_ms` is what the gateway used more than a bare read of the rows takes.
    """
    words = texts.words_of(stack.tape)
    bodies = [orjson.dumps(TURN | place) for place in places(stack, history, turns + 1)]
    read_ms = histories.bare_read_ms(stack, history)
    stack.marks.set_rate(0)
    system = SYSTEMS[STORED]
    with asking(stack.child(system).port, stack.key) as client:
        requests = [client.request("POST", system.path, body) for body in bodies]
        client.ask(requests.pop())

        def take_turns() -> list[tuple[Answer, float]]:
            asked = (client.ask(request) for request in requests)
            return [(answer, reached_ms(stack, words, answer)) for answer in asked]

        answers, total_ms, database_ms = loading.charged(stack, system, take_turns)
    cpu_ms = total_ms / turns
    return {
        "reached_p50_ms": median(reached for _, reached in answers),
        "cpu_ms": cpu_ms,
        "database_ms": database_ms / turns,
        "read_ms": read_ms,
        "beyond_ms": cpu_ms - read_ms,
        "answered_p50_ms": median(answer.us for answer, _ in answers) / 1e3,
    }


def places(stack: Stack, history: History, count: int) -> list[dict[str, str]]:
    """What so many requests say of where they go on."""
    if history.conversation is None:
        return [{"previous_response_id": ids.response_id(history.responses[-1])}] * count
    made = histories.copies(stack.database_url, history.conversation, count)
    return [{"conversation": ids.conversation_id(uuid)} for uuid in made]


def reached_ms(stack: Stack, words: Sequence[bytes], answer: Answer) -> float:
    """From the write of a request to the first word of the backend, which comes at once."""
    if b'"type":"response.completed"' not in answer.body:
        raise RunVoid(f"a turn did not complete: {answer.body[-1000:]!r}")
    sent_ns = stack.marks.sent_ns(texts.slot_of(words, answer.body), 0)
    return (sent_ns - answer.asked_ns) / 1e6
