r"""Items of the Responses API as Harmony messages.

| item | message |
|---|---|
| user message | role user |
| system or developer message | role developer, as instructions |
| assistant message, phase commentary | channel commentary |
| assistant message, phase final_answer or none | channel final |
| reasoning | channel analysis |
| call of any kind | channel commentary, to the function, content type `<\|constrain\|>json` |
| output of any kind | role tool, named after the function, to the assistant |
| item of a hosted tool | role tool, named after it, what it was asked and returned as JSON |
| compaction | none: once it is opened, the message that it stands for is in its place |

Every tool is a function to the model (`protocol.tools`), so every call is one of a function.

One item is at most one message with one text: the parts of an input are joined by a newline, those
of the assistant by nothing, as they were one text when the model said them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest
from gateway.models.item_texts import message_text, reasoning_text
from gateway.protocol.calls import (
    call_of,
    hosted_author,
    hosted_text,
    output_text,
)
from gateway.protocol.items import (
    CallItem,
    Compaction,
    HostedItem,
    Message,
    Reasoning,
)
from gateway.protocol.tools import FUNCTION_NAME

if TYPE_CHECKING:
    from gateway.protocol.items import AnyHostedItem, Item

JSON_CONTENT: Final = "<|constrain|>json"
TOOL_PREFIX: Final = "functions."
INSTRUCTIONS: Final = "# Instructions\n\n"
"""What instructions of a developer message begin with, as openai-harmony 0.0.8 writes them."""


@dataclass(frozen=True, slots=True)
class HarmonyMessage:
    """A message of a prompt; `text` is all that stands between its header and its end.

    `author` is the role, or of what a tool returned the name of the tool. `is_json`: the header
    says so.
    """

    author: str
    text: str
    channel: str | None = None
    recipient: str | None = None
    is_json: bool = False

    @property
    def is_call(self) -> bool:
        """It ends the turn, and waits for an output."""
        return self.author == "assistant" and self.recipient is not None


def recipient(name: str, *, param: str = "input") -> str:
    """The Harmony recipient of a function.

    Headers are text to the tokeniser, so a name like `f to=system` would forge one. Raises
    `InvalidRequest` for all but letters, digits, `_`, `-` and `.`, 1 to 128 of them.
    """
    if not FUNCTION_NAME.fullmatch(name):
        raise InvalidRequest(
            "Invalid function name: expected 1 to 128 letters, digits, underscores, dashes or "
            "dots.",
            code="invalid_value",
            param=param,
        )
    return TOOL_PREFIX + name


def harmony_message(item: Item, function: str | None = None) -> HarmonyMessage | None:
    """The message of an item, None for one that says nothing.

    `function` is the name of the function that an output belongs to. Raises `InvalidRequest` for a
    name that must not reach a header.
    """
    if isinstance(item, Message):
        return _message(item)
    if isinstance(item, Reasoning):
        text = reasoning_text(item)
        return _assistant("analysis", text) if text else None
    if isinstance(item, CallItem):
        return _call(item)
    if isinstance(item, Compaction):
        return None
    if isinstance(item, HostedItem):
        return _hosted(item)
    author = recipient(function or "")
    return HarmonyMessage(author, output_text(item), "commentary", recipient="assistant")


def _hosted(item: AnyHostedItem) -> HarmonyMessage | None:
    text = hosted_text(item)
    author = recipient(hosted_author(item))
    return HarmonyMessage(author, text, "commentary", recipient="assistant") if text else None


def _message(message: Message) -> HarmonyMessage | None:
    text = message_text(message)
    if message.role == "user":
        return HarmonyMessage("user", text)
    if not text:
        return None
    if message.role == "assistant":
        return _assistant("commentary" if message.phase == "commentary" else "final", text)
    return HarmonyMessage("developer", INSTRUCTIONS + text)


def _call(item: CallItem) -> HarmonyMessage:
    call = call_of(item)
    to = recipient(call.name)
    return HarmonyMessage("assistant", call.arguments, "commentary", recipient=to, is_json=True)


def _assistant(channel: str, text: str) -> HarmonyMessage:
    return HarmonyMessage("assistant", text, channel)
