r"""Items of the Responses API as Harmony messages, and these as ids.

| item | message |
|---|---|
| user message | role user |
| system or developer message | role developer, as instructions |
| assistant message, phase commentary | channel commentary |
| assistant message, phase final_answer or none | channel final |
| reasoning | channel analysis |
| call of any kind | channel commentary, to the function, content type `<\|constrain\|>json` |
| output of any kind | role tool, named after the function, to the assistant |
| call of a tool of an MCP server | as a call and its output |
| MCP approval request | as a call |
| MCP approval response that denies it | as its output, which says so |
| other item of a hosted tool | as a call and its output, each as JSON; some are only one of these |
| compaction | none: once it is opened, the message that it stands for is in its place |

Every tool is a function to the model (`protocol.tools`), so every call is one of a function; but
for those that it was trained with (`builtins`), which the items of this gateway's own responses
repeat by their ids.

A message is one text: the parts of an input are joined by a newline, those
of the assistant by nothing, as they were one text when the model said them.

Ids are written piece by piece as openai-harmony 0.0.8 does it. A long text is cut where its pieces
have the tokens that it has as a whole: tokens never reach over what the vocabulary's pattern takes
at once, and nothing that it takes

- begins with something else than white space and goes on with a space, or
- begins with a letter and goes on with a line feed, a full stop or a comma (Chinese ones, too).

So there a match ends, whatever stands behind it; and a match begins that depends on nothing before
it. (A space, a letter or a mark may each stand in front of others; an apostrophe may follow a
letter, and is no place to cut.)
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gateway.errors import InvalidRequest
from gateway.models.harmony.builtins import is_code
from gateway.models.harmony.headers import (
    CALL_CHANNEL,
    NAMESPACE,
    NO_MARKER,
    addressed,
    headers,
)
from gateway.models.harmony.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START
from gateway.models.history import message_text, reasoning_text
from gateway.protocol.calls import (
    call_of,
    hosted_author,
    hosted_call,
    hosted_result,
    mcp_name,
    mcp_result_text,
    output_text,
    refusal_text,
)
from gateway.protocol.items import (
    CallItem,
    HostedItem,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    OutputItem,
    Reasoning,
)
from gateway.protocol.tools import FUNCTION_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.protocol.items import AnyHostedItem, Item

JSON_CONTENT: Final = "<|constrain|>json"
CODE_CONTENT: Final = "code"
INSTRUCTIONS: Final = "# Instructions\n\n"
"""What instructions of a developer message begin with, as openai-harmony 0.0.8 writes them."""
PIECE_CHARS: Final = 32 * 1024
"""Characters that are tokenised at once: in less than a millisecond, in which nothing else runs."""
_WINDOW_CHARS: Final = 16 * 1024
# It begins with what can be searched for at once. What is no letter is sorted out afterwards.
_PLACE: Final = re.compile(r"[ \n.,\u3002\uff0c](?:(?<=\S )|(?<=\w[\n.,\u3002\uff0c]))")


@dataclass(frozen=True, slots=True)
class HarmonyMessage:
    """A message of a prompt; `text` is all that stands between its header and its end.

    `author` is the role, or of what a tool returned the name of the tool. `is_json` and `is_code`:
    the header says so.
    """

    author: str
    text: str
    channel: str | None = None
    recipient: str | None = None
    is_json: bool = False
    is_code: bool = False

    @property
    def is_call(self) -> bool:
        return self.author == "assistant" and self.recipient is not None


def recipient(name: str, *, param: str = "input") -> str:
    """Return the Harmony recipient of a function.

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
    return NAMESPACE + name


def harmony_messages(item: Item, function: str | None = None) -> tuple[HarmonyMessage, ...]:
    """Return the messages of an item; none for one without content.

    `function` is the name of the function that an output belongs to; of the tool that an MCP
    approval response is about; and of an MCP call before which its approval request stands, which
    is the call. Raises `InvalidRequest` for a name that must not reach a header.
    """
    if isinstance(item, HostedItem) and not isinstance(item, CallItem | OutputItem):
        return _hosted_messages(item, function)
    message = _harmony_message(item, function)
    return () if message is None else (message,)


def _harmony_message(item: Item, function: str | None) -> HarmonyMessage | None:
    if isinstance(item, Message):
        return _message(item)
    if isinstance(item, Reasoning):
        text = reasoning_text(item)
        return _assistant("analysis", text) if text else None
    if isinstance(item, CallItem):
        call = call_of(item)
        return _function_call(call.name, call.arguments)
    if isinstance(item, OutputItem):
        return _function_result(function or "", output_text(item))
    return None  # a compaction that nobody could open


def call_message(name: str, text: str) -> HarmonyMessage:
    """Return a call of the tool that rules name so, as the model was trained to write it."""
    channel, to = addressed(name)
    code = is_code(name)
    return HarmonyMessage("assistant", text, channel, to, is_json=not code, is_code=code)


def result_message(name: str, text: str) -> HarmonyMessage:
    """Return the result of such a call: from its recipient, on its channel."""
    channel, author = addressed(name)
    return HarmonyMessage(author, text, channel, recipient="assistant")


def _function_call(name: str, arguments: str) -> HarmonyMessage:
    to = recipient(name)
    return HarmonyMessage("assistant", arguments, CALL_CHANNEL, recipient=to, is_json=True)


def _function_result(name: str, text: str) -> HarmonyMessage:
    return HarmonyMessage(recipient(name), text, CALL_CHANNEL, recipient="assistant")


def _hosted_messages(item: AnyHostedItem, function: str | None) -> tuple[HarmonyMessage, ...]:
    if isinstance(item, McpCall) and (name := mcp_name(item)):
        result = _function_result(name, mcp_result_text(item))
        return (result,) if function else (_function_call(name, item.arguments), result)
    if isinstance(item, McpApprovalRequest) and (name := mcp_name(item)):
        return (_function_call(name, item.arguments),)
    if isinstance(item, McpApprovalResponse) and function:
        return (_function_result(function, refusal_text(item)),)
    author, asked, returned = hosted_author(item.type), hosted_call(item), hosted_result(item)
    calls = () if asked is None else (_function_call(author, asked),)
    return calls if returned is None else (*calls, _function_result(author, returned))


def _message(message: Message) -> HarmonyMessage | None:
    text = message_text(message)
    if message.role == "user":
        return HarmonyMessage("user", text)
    if not text:
        return None
    if message.role == "assistant":
        return _assistant("commentary" if message.phase == "commentary" else "final", text)
    return HarmonyMessage("developer", INSTRUCTIONS + text)


def _assistant(channel: str, text: str) -> HarmonyMessage:
    return HarmonyMessage("assistant", text, channel)


class MessageWriter:
    """Writer of messages, shared by all threads. Text passes only through `Vocabulary.encode`."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._encode = vocabulary.encode
        self._encode_packed = vocabulary.encode_packed

    def message_ids(self, message: HarmonyMessage, *, form: int = 0) -> array[int]:
        """Return the ids of one message.

        `form` is that of the header of a call, or of a message of the assistant.
        """
        header = self._formed_header(message, form) if form else self._header(message)
        opening = (START, *self._encode(message.author), *header, MESSAGE)
        return self.plain_message(opening, message.text, CALL if message.is_call else END)

    def plain_message(self, opening: Sequence[int], text: str, end: int = END) -> array[int]:
        """Return the ids of a message that begins with `opening`.

        A long text is encoded piece by piece: other threads run in between.
        """
        ids = array("I", opening)
        for part in self._encode_pieces(text):
            ids.extend(part)
        ids.append(end)
        return ids

    def count_ids(self, text: str) -> int:
        return sum(map(len, self._encode_pieces(text)))

    def _encode_pieces(self, text: str) -> Iterator[Sequence[int]]:
        if len(text) <= PIECE_CHARS:
            yield self._encode(text)
        else:
            yield from map(self._encode_packed, pieces(text))

    def _header(self, message: HarmonyMessage) -> list[int]:
        ids: list[int] = []
        if message.recipient is not None:
            ids += self._encode(f" to={message.recipient}")
        if message.channel is not None:
            ids += [CHANNEL, *self._encode(message.channel)]
        if message.is_json:
            ids += [*self._encode(" "), CONSTRAIN, *self._encode("json")]
        return ids + self._encode(" code") if message.is_code else ids

    def _formed_header(self, message: HarmonyMessage, form: int) -> list[int]:
        ids: list[int] = []
        for part in tuple(headers(message.channel or "", message.recipient))[form]:
            marker = [] if part.marker == NO_MARKER else [part.marker]
            ids += [*marker, *self._encode(part.text)]
        return ids


def pieces(text: str) -> Iterator[str]:
    """Yield the text in pieces of about `PIECE_CHARS` characters, each cut where it can be."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        cut = _next_cut(text, start + PIECE_CHARS)
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]


def _next_cut(text: str, low: int) -> int:
    for start in range(low, len(text), _WINDOW_CHARS):
        for match in _PLACE.finditer(text, start, start + _WINDOW_CHARS):
            place = match.start()
            if text[place] == " " or text[place - 1].isalpha():
                return place
    return len(text)
