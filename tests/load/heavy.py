"""Requests that are large in one way each, as bytes to send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway import ids
from tests.load import histories, replays, texts
from tests.load.histories import Size
from tests.load.systems import FOREGROUND, SYSTEMS
from tests.load.tape import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.load.asking import Asking
    from tests.load.processes import Child
    from tests.load.stack import Stack

    Make = Callable[[Stack, Child, Asking], bytes]

PROMPT_TOKENS: Final = 100_000
LETTERS: Final = 1_000_000
MESSAGES: Final = 1000
MESSAGE_WORDS: Final = 60
REPLAYED_TOKENS: Final = 10_000
TOOLS: Final = 500
ITEMS: Final = 19_990
"""Up to 20,000 make a context by default, and the turn brings one of its own and is answered."""
SCHEMA_PROPERTIES: Final = 1500
NOTHING: Final = "nothing"


def _prompt(stack: Stack, child: Child, client: Asking) -> bytes:
    return _turn(client, texts.text(texts.words_of(stack.tape), PROMPT_TOKENS))


def _letter(stack: Stack, child: Child, client: Asking) -> bytes:
    return _turn(client, "a" * LETTERS)


def _messages(stack: Stack, child: Child, client: Asking) -> bytes:
    words = texts.words_of(stack.tape)
    said = [texts.message(words, MESSAGE_WORDS, number=number) for number in range(MESSAGES)]
    return _turn(client, [*said, texts.message(words, MESSAGE_WORDS, number=MESSAGES)])


def _replay(stack: Stack, child: Child, client: Asking) -> bytes:
    name = replays.logged(stack, child, REPLAYED_TOKENS, entries_a_row=1)
    return client.request("GET", f"/v1/responses/{name}?stream=true")


def _tools(stack: Stack, child: Child, client: Asking) -> bytes:
    words = texts.words_of(stack.tape)
    return _turn(client, "hi", tools=[tool(words, number) for number in range(TOOLS)])


def _conversation(stack: Stack, child: Child, client: Asking) -> bytes:
    """Items of one word each, since all of them have to fit into the model's context."""
    made = histories.conversation(stack, child, Size(messages=1, words=1)).conversation
    assert made is not None
    histories.repeat_item(stack.database_url, made, ITEMS)
    return _turn(client, "hi", conversation=ids.conversation_id(made))


def _schema(stack: Stack, child: Child, client: Asking) -> bytes:
    schema = object_schema(texts.words_of(stack.tape), SCHEMA_PROPERTIES)
    form = {"type": "json_schema", "name": "large", "strict": True, "schema": schema}
    return _turn(client, "hi", text={"format": form})


REQUESTS: Final[dict[str, Make]] = {
    "100,000 tokens of new text": _prompt,
    "1 MB of one letter": _letter,
    "1,000 messages as input": _messages,
    "replay of 10,000 tokens": _replay,
    "500 tools": _tools,
    "conversation of 20,000 items": _conversation,
    "schema of 1,500 properties": _schema,
}


def tool(words: Sequence[bytes], number: int) -> dict[str, Any]:
    """A function with five arguments."""
    return {
        "type": "function",
        "name": f"tool_{number}",
        "description": texts.text(words, 12, seed=number).strip(),
        "strict": False,
        "parameters": object_schema(words, 5),
    }


def object_schema(words: Sequence[bytes], properties: int) -> dict[str, Any]:
    """An object of strings, numbers and lists, all of them required."""
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "string"},
        {"type": "integer"},
        {"type": "array", "items": {"type": "number"}},
    )
    described = {
        f"field_{at}": {
            **kinds[at % len(kinds)],
            "description": texts.text(words, 6, seed=at).strip(),
        }
        for at in range(properties)
    }
    return {
        "type": "object",
        "properties": described,
        "required": list(described),
        "additionalProperties": False,
    }


def _turn(client: Asking, said: object, **fields: object) -> bytes:
    body = {"model": MODEL, "input": said, "max_output_tokens": 16, "store": False, **fields}
    return client.request("POST", SYSTEMS[FOREGROUND].path, orjson.dumps(body))
