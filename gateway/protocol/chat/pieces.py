"""What a response says, piece by piece: the same from its events and from its body.

| item | is |
|---|---|
| message | content, or a refusal |
| message, phase commentary, of an answer in a format | reasoning: the content is the JSON alone |
| reasoning | reasoning |
| call of a function or a custom tool | a tool call |

A chat has one text of each sort where a response may have several items: they are joined by a
blank line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from gateway.protocol.chat.places import in_chat_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Json = dict[str, Any]

Field = Literal["content", "refusal", "reasoning_content"]
MEMBERS: Final[Mapping[Field, tuple[str, ...]]] = {
    "content": ("content",),
    "refusal": ("refusal",),
    "reasoning_content": ("reasoning_content", "reasoning"),
}
"""The members of a message, and of a delta, that a text of each sort stands in."""
FIELDS: Final[tuple[Field, ...]] = get_args(Field)

SEPARATOR: Final = "\n\n"
CALL_TEXTS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
"""The calls that a chat knows, with the field that has what the model wrote."""
CALL_KINDS: Final = {"function_call": "function", "custom_tool_call": "custom"}
"""What kinds of tools a chat says they call."""
CANCELLED: Final = "The response was cancelled."

_OF_REQUEST: Final = frozenset(
    {
        "context_length_exceeded",
        "invalid_structured_output",
        "invalid_tool_call",
        "required_tool_not_called",
    }
)
"""Codes of failures that lie in what was asked for, perhaps of this model: it was tried as often as
it may be, so clients that send what is a server's error again by themselves must not.
"""


@dataclass(frozen=True, slots=True)
class Text:
    """Some text of an item. `logprobs` are those of its tokens, where they are known."""

    field: Field
    index: int
    text: str
    logprobs: list[Json]


def is_formatted(response: Json) -> bool:
    """The answer is in a format that the request asked for."""
    return bool(response["text"]["format"]["type"] != "text")


def field_of(item: Json, *, formatted: bool) -> Field:
    """Where the text of a message or of reasoning is shown, unless it is a refusal."""
    is_aside = formatted and item.get("phase") == "commentary"
    return "reasoning_content" if is_aside or item["type"] == "reasoning" else "content"


def texts_of(response: Json) -> Iterator[Text]:
    """The texts of a body, in order."""
    formatted = is_formatted(response)
    for index, item in enumerate(response["output"]):
        if item["type"] not in {"message", "reasoning"}:
            continue
        field = field_of(item, formatted=formatted)
        for part in item["content"]:
            if part["type"] == "refusal":
                yield Text("refusal", index, part["refusal"], [])
            else:
                yield Text(field, index, part["text"], part.get("logprobs", []))


def calls_of(response: Json) -> list[Json]:
    """The items of a body that are calls a chat knows."""
    return [item for item in response["output"] if item["type"] in CALL_TEXTS]


class Joiner:
    """Makes one text of each sort of all there are."""

    def __init__(self) -> None:
        self._last: dict[Field, int] = {}

    def add(self, field: Field, index: int, text: str) -> str:
        """What to append for more text of the item at `index`."""
        before = self._last.get(field, index)
        self._last[field] = index
        return text if before == index else SEPARATOR + text


def failure_of(response: Json) -> Json | None:
    """The error of a response that failed or was cancelled, as envelopes spell it."""
    if response["status"] not in {"failed", "cancelled"}:
        return None
    error = response["error"] or {"code": None, "message": CANCELLED}
    is_of_request = error["code"] in _OF_REQUEST
    return {
        "message": in_chat_words(error["message"]),
        "type": "invalid_request_error" if is_of_request else "server_error",
        "param": None,
        "code": error["code"],
    }
