"""Items as the messages of a chat completion, which a chat template renders.

Reasoning, an answer and calls are one message of the assistant, up to the next output. Other items
of hosted tools are a call and its output. A system message is the user's where the template takes
none (`Habits`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.constraints.schemas import object_schema
from gateway.errors import InvalidRequest
from gateway.generation import BROWSER_TOOLS, PREAMBLE, PYTHON_TOOL, Span
from gateway.models.chat.call_syntax import offered_name
from gateway.models.history import (
    INSTRUCTING_ROLES,
    PlacedItem,
    instructions_before,
    instructions_of,
    leading_instructions,
    message_text,
    reasoning_text,
    shown_items,
)
from gateway.models.json_values import with_escapes
from gateway.protocol.call_items import Call, call_of, hosted_exchange, output_text, part_text
from gateway.protocol.items import (
    CallItem,
    Compaction,
    HostedItem,
    InputImage,
    InputText,
    Message,
    OutputItem,
    Reasoning,
)
from gateway.text_ids import CHARACTERS_PER_TOKEN, IMAGE_TOKENS

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Sequence

    from gateway.constraints.output_rules import AnswerFormat
    from gateway.models.format import Builtins, RenderOptions
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.items import AnyHostedItem, ContentPart, Item

_SEARCH, _OPEN, _FIND = map(offered_name, BROWSER_TOOLS)
_CITE: Final = (
    "Cite what you found as 【cursor†L1-L2】: the number in front of a page, and its lines."
)
_PYTHON: Final = (
    "Run Python code in a notebook that keeps its state between calls. What the code prints, and "
    "the value of its last line, is returned."
)


def _function(
    name: str, about: str, *required: str, **properties: tuple[str, str]
) -> dict[str, Any]:
    schemas = {key: {"type": kind, "description": text} for key, (kind, text) in properties.items()}
    parameters = object_schema(schemas, *required)
    return {"name": name, "description": about, "parameters": parameters}


_BROWSER: Final = (
    _function(
        _SEARCH,
        f"Search the web. Each result has a number, by which {_OPEN} opens it. {_CITE}",
        "query",
        query=("string", "What to search for."),
        topn=("integer", "How many results at most."),
    ),
    _function(
        _OPEN,
        "Open a page: a result or a link of a page by its number, or a URL. Without an `id` the "
        "page is the last one, at another place. Its lines are numbered.",
        id=("string", "The number of a link, or a URL."),
        cursor=("integer", "The number of the page that has the link."),
        loc=("integer", "The line to begin with."),
        num_lines=("integer", "How many lines to show."),
    ),
    _function(
        _FIND,
        "Find a text in a page that was opened.",
        "pattern",
        pattern=("string", "The text."),
        cursor=("integer", "The number of the page; by default the last one."),
    ),
)


def builtin_functions(builtins: Builtins) -> list[dict[str, Any]]:
    functions = list(_BROWSER) if builtins.browser else []
    if builtins.python:
        about = builtins.python_description or _PYTHON
        code = ("string", "The code.")
        functions.append(_function(offered_name(PYTHON_TOOL), about, "code", code=code))
    return functions


ChatMessage = dict[str, Any]
Look = Callable[[int, InputImage], "dict[str, Any]"]
"""Index of an item, and an image of it → the part of a message."""
CALL_ID_CHARS: Final = 9
"""Mistral's templates take only ids of nine letters and digits."""
IMAGE_CHARS: Final = IMAGE_TOKENS * CHARACTERS_PER_TOKEN
FRAME_CHARS: Final = 16
"""Characters around a message, approximately."""
UNSEEN: Final = "\u200b"
"""Breaks the spelling of a marker; has no width."""


@dataclass(frozen=True, slots=True)
class Habits:
    """Messages that a template takes beyond those that all take. `system`: at the beginning;
    `late_system`: after others; `repeated_user`: two in a row.
    """

    system: bool = True
    late_system: bool = True
    repeated_user: bool = True
    user_behind_result: bool = True
    several_calls: bool = True


ANY: Final = Habits()
_NEITHER_CALL_NOR_RESULT: Final = frozenset(
    {"message", "reasoning", "compaction", "mcp_list_tools", "additional_tools"}
)


class Markers:
    """Texts that a tokenizer makes markers of wherever they stand, also in a user's words."""

    def __init__(self, texts: Iterable[str]) -> None:
        spelled = sorted({_in_json(text) for text in texts if len(text) > 1}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, spelled))) if spelled else None

    def broken_up(self, words: str) -> str:
        if self._pattern is None:
            return words
        return self._pattern.sub(_broken_up, words)


def _in_json(text: str) -> str:
    return orjson.dumps(text).decode()[1:-1]


def _broken_up(match: re.Match[str]) -> str:
    return f"{match[0][0]}{UNSEEN}{match[0][1:]}"


def question(
    messages: Sequence[ChatMessage],
    tools: Sequence[dict[str, Any]],
    template_kwargs: dict[str, Any],
    *,
    markers: Markers | None = None,
    opens_turn: bool = True,
) -> bytes:
    """Return the body of a request to a server to render messages (`models.format.Unrendered`)."""
    body: dict[str, Any] = {"messages": messages, "add_generation_prompt": opens_turn}
    if tools:
        body["tools"] = tools
    if template_kwargs:
        body["chat_template_kwargs"] = template_kwargs
    words = orjson.dumps(body, default=str)
    return words if markers is None else markers.broken_up(words.decode()).encode()


def call_id_of(call_id: str | None) -> str:
    # Every template takes an id of this form; equal ids stay equal.
    return hashlib.sha256((call_id or "").encode("utf-8", "replace")).hexdigest()[:CALL_ID_CHARS]


def functions(options: RenderOptions) -> list[dict[str, Any]]:
    declared = [
        {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters}
        for tool in options.tools
    ]
    for one in declared:
        one["parameters"] = one["parameters"] or {"type": "object", "properties": {}}
    return [
        {"type": "function", "function": function}
        for function in (*builtin_functions(options.builtins), *declared)
    ]


def answer_text(answer: AnswerFormat) -> str:
    about = f" ({answer.description})" if answer.description else ""
    if answer.kind == "json_object":
        return "Answer with exactly one JSON object, with nothing before or behind it."
    schema = orjson.dumps(answer.schema, default=str).decode()
    return (
        f"Answer with exactly one JSON value{about}, with nothing before or behind it, that this "
        f"JSON Schema describes:\n{schema}"
    )


def system_text(options: RenderOptions, leading: Sequence[ContextItem]) -> str:
    instructions = instructions_before(options, instructions_of(leading))
    answer = answer_text(options.answer) if options.answer is not None else ""
    return "\n\n".join(text for text in (instructions, answer) if text)


@dataclass(slots=True)
class ChatConversation:
    """Messages of a prompt; `sizes` are the characters of each item's messages, approximately
    (`PREAMBLE`: without an item).
    """

    habits: Habits
    see: Look | None = None
    """None: the model sees no images."""
    messages: list[ChatMessage] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    _results: list[ChatMessage] = field(default_factory=list)
    _growing: list[tuple[ChatMessage, tuple[str, ...]]] = field(default_factory=list)
    """Messages with members that are lists of texts until `finish`: there may be thousands."""
    last_call: str = ""
    _called_at: int | None = None
    """Item of the last call, while others may be made at once with it."""

    def spans(self, ids: int) -> tuple[Span, ...]:
        """Estimate which part of a prompt of `ids` ids each item became."""
        total = sum(self.sizes.values()) or 1
        spans, begun = [], 0
        for source, size in self.sizes.items():
            end = begun + size
            spans.append(Span(source, begun * ids // total, end * ids // total))
            begun = end
        return tuple(spans)

    def say(self, source: int, role: str, text: str) -> None:
        self.close()
        if role == "system" and not (
            self.habits.late_system if self.messages else self.habits.system
        ):
            role = "user"
        before = self.messages[-1]["role"] if self.messages else ""
        if before == "tool" and role == "user" and not self.habits.user_behind_result:
            self._new_assistant()  # who was interrupted has said nothing
        if before == "user" == role and not self.habits.repeated_user:
            self._add(self.messages[-1], text, "\n\n", "content")
        else:
            self.messages.append({"role": role, "content": text})
        self._note(source, text)

    def show(self, source: int, parts: Sequence[ContentPart]) -> None:
        self.close()
        assert self.see is not None, "somebody sees"
        content = [self._part(source, part, self.see) for part in parts]
        self.messages.append({"role": "user", "content": content})

    def _part(self, source: int, part: ContentPart, see: Look) -> dict[str, Any]:
        if isinstance(part, InputImage):
            shown = see(source, part)
            if shown["type"] == "image_url":
                self.sizes[source] = self.sizes.get(source, 0) + IMAGE_CHARS
                return shown
            text = str(shown["text"])
        else:
            text = part_text(part)
        self._note(source, text)
        return {"type": "text", "text": text}

    def answer(self, source: int, text: str) -> None:
        message = self._assistant()
        if message.get("tool_calls"):
            message = self._new_assistant()
        self._add(message, text, "\n\n", "content")
        self._note(source, text)

    def think(self, source: int, text: str) -> None:
        """Add a thought of the assistant: it begins one turn."""
        message = self._assistant()
        if message["content"] or message.get("tool_calls"):
            message = self._new_assistant()
        # vLLM shows templates the first of these, SGLang the second.
        self._add(message, text, "\n\n", "reasoning", "reasoning_content")
        self._note(source, text)

    def call(self, source: int, call_id: str, name: str, arguments: str) -> None:
        """Add a call, to the message of the call before it if both were made at once."""
        is_beside = self._called_at is not None and source == self._called_at + 1
        several = self.habits.several_calls
        message = self.messages[-1] if is_beside and several else self._assistant()
        if message.get("tool_calls") and not several:
            message = self._new_assistant()
        function = {"name": offered_name(name), "arguments": object_of(name, arguments)}
        call = {"id": call_id_of(call_id), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
        self._called_at, self.last_call = source, call_id
        self._note(source, name + arguments)

    def give(self, source: int, call_id: str, name: str, text: str) -> None:
        """Add the result of a call, behind all calls that were made at once."""
        self._results.append(
            {
                "role": "tool",
                "tool_call_id": call_id_of(call_id),
                "name": offered_name(name),
                "content": text,
            }
        )
        self._note(source, text)

    def _note(self, source: int, text: str) -> None:
        self.sizes[source] = self.sizes.get(source, 0) + len(text) + FRAME_CHARS

    def _add(self, message: ChatMessage, text: str, between: str, *names: str) -> None:
        texts = message.get(names[0], "")
        if isinstance(texts, str):
            texts = [texts] if texts else []
            message.update(dict.fromkeys(names, texts))
            self._growing.append((message, names))
        texts += (between, text) if texts else (text,)

    def close(self) -> None:
        self.messages += self._results
        self._results, self._called_at = [], None

    def finish(self) -> None:
        self.close()
        for message, names in self._growing:
            message.update(dict.fromkeys(names, "".join(message[names[0]])))

    def _assistant(self) -> ChatMessage:
        if self._results:
            self.close()
        if self.messages and self.messages[-1]["role"] == "assistant":
            return self.messages[-1]
        return self._new_assistant()

    def _new_assistant(self) -> ChatMessage:
        self.close()
        message: ChatMessage = {"role": "assistant", "content": ""}
        self.messages.append(message)
        return message


def object_of(name: str, arguments: str) -> str:
    """Return arguments as a JSON object: servers refuse others."""
    if name == PYTHON_TOOL:
        return orjson.dumps({"code": arguments}).decode()
    arguments = with_escapes(arguments)
    try:
        value = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        value = arguments
    return arguments or "{}" if isinstance(value, dict) else orjson.dumps({"input": value}).decode()


def chat_conversation(
    items: Sequence[ContextItem], options: RenderOptions, habits: Habits, see: Look | None = None
) -> ChatConversation:
    leading = leading_instructions(items)
    made = ChatConversation(habits, see)
    if text := system_text(options, items[:leading]):
        made.say(PREAMBLE, "system", text)
    for one in shown_items(_with_preambles(items), leading, options.approved):
        _tell(made, one)
    made.finish()
    return made


def _with_preambles(items: Sequence[ContextItem]) -> list[ContextItem]:
    # Text before a call is no answer, though it looked like one while it streamed: the thought
    # before it goes on behind the result.
    shown: list[ContextItem] = []
    is_beside = False
    for item in reversed(items):
        is_text = item.role == "assistant"
        is_beside = is_beside if is_text else item.kind not in _NEITHER_CALL_NOR_RESULT
        shown.append(replace(item, phase="commentary") if is_text and is_beside else item)
    return shown[::-1]


def with_summary_text(item: ContextItem, text_of: Callable[[array[int]], str]) -> ContextItem:
    """Return a summary that was made during this request, and has only ids, as text."""
    if item.kind != "compaction" or item.ids is None or item.json:
        return item
    content = (InputText(text=text_of(item.ids)),)
    return replace(item, parsed=Message(role="user", content=content))


def require_some(messages: Sequence[ChatMessage]) -> None:
    # Servers refuse an empty list of messages, each in its own words.
    if not messages:
        raise InvalidRequest(
            "There is nothing to answer: neither what was sent nor what it continues has anything "
            "that this model is shown. Send a message.",
            code="missing_required_parameter",
            param="input",
        )


def _tell(made: ChatConversation, placed: PlacedItem) -> None:
    source, item, function = placed.source, placed.item.item(), placed.function
    # Ids that items get here are others whenever the same prompt is made.
    call_id = placed.item.call_id or f"item {source}"
    match item:
        case Message():
            _tell_message(made, source, item)
        case Reasoning():
            if text := reasoning_text(item):
                made.think(source, text)
        case Compaction():
            pass  # it could not be opened
        case _ if isinstance(item, CallItem):
            call = call_of(item)
            made.call(source, call_id, call.name, call.arguments)
        case _ if isinstance(item, HostedItem) and not isinstance(item, OutputItem):
            _tell_hosted(made, placed, item)
        case _:
            if placed.item.stands_alone:
                made.call(source, call_id, function or "", "{}")
            made.give(source, call_id, function or "", output_text(item))
            if made.see is not None and (images := images_of(item)):
                made.show(source, images)


def images_of(item: Item) -> list[InputImage]:
    if isinstance(item, Message):
        parts: Any = item.content if item.role == "user" else ()
    else:
        parts = getattr(item, "output", None)
    return [one for one in parts if isinstance(one, InputImage)] if parts else []


def _tell_message(made: ChatConversation, source: int, message: Message) -> None:
    if made.see is not None and images_of(message):
        made.show(source, message.content)
        return
    text = message_text(message)
    if message.role == "assistant":
        if text:
            made.answer(source, text)
    elif text or message.role == "user":
        made.say(source, "system" if message.role in INSTRUCTING_ROLES else "user", text)


def _tell_hosted(made: ChatConversation, placed: PlacedItem, item: AnyHostedItem) -> None:
    source = placed.source
    call, result = hosted_exchange(item, placed.function)
    if call is None and result is not None and not placed.function:
        call = Call(result.name, "{}")  # no server takes a result without one
    if call is not None:
        made.call(source, f"item {source}", call.name, call.arguments)
    if result is not None:
        made.give(source, made.last_call, result.name, result.text)
        made.close()
