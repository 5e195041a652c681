"""A context as the token ids of a prompt.

The messages are openai-harmony's; the ids are made here, piece by piece as openai-harmony 0.0.8
does it (which decides where tokens end), with a tokeniser that is linear and frees the GIL. Text
from outside only ever passes through `Vocabulary.encode`, so it cannot become a marker.

Only the header of a call or an answer whose id says that the model wrote it in another form is
repeated in that form (`forms`), so that the prompt is the one it went on from.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import orjson
from openai_harmony import DeveloperContent, Role, SystemContent

from gateway.generation import PREAMBLE, Prompt, Span
from gateway.harmony.cutting import PIECE_CHARS, pieces
from gateway.harmony.forms import headers
from gateway.harmony.framing import OPENING
from gateway.harmony.headers import NO_MARKER
from gateway.harmony.history import (
    Placed,
    in_call_order,
    leading_instructions,
    since_compaction,
    without_stale_reasoning,
)
from gateway.harmony.messages import JSON_CONTENT, harmony_message, message_text
from gateway.harmony.preamble import (
    RenderOptions,
    SystemFacts,
    developer_text,
    instructions_text,
    reference_preamble,
    system_message,
    system_text,
)
from gateway.harmony.repeated import RepeatedTexts
from gateway.harmony.schema import SchemaLimits
from gateway.harmony.vocabulary import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, START
from gateway.ids import call_form, message_form
from gateway.pacing import give_way, paced
from gateway.protocol.items import CallItem, Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from openai_harmony import Content
    from openai_harmony import Message as HarmonyMessage

    from gateway.harmony.vocabulary import Vocabulary
    from gateway.protocol.context import ContextItem
    from gateway.protocol.items import Item

SYSTEM_MESSAGES_MAX: Final = 64
"""Whose ids are kept. There is one for each effort, date, and whether there are tools."""

REPEATED_AT_ONCE: Final = 256
"""Repeating the ids of so many items takes a fraction of a millisecond."""

__all__ = ["RenderOptions", "Renderer", "SchemaLimits", "prompt_messages"]


class Renderer:
    """Renders contexts and single items. Shared by all threads.

    What a text costs must not depend on what another tenant sent before. So only system messages
    are kept for everyone, in which there is no text of a request; declarations of tools, which
    agents repeat in every request, are kept for those of the same scope (`RenderOptions.scope`).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        schema_limits: SchemaLimits | None = None,
        *,
        repeated_ids_max: int = 1 << 20,
    ) -> None:
        """`repeated_ids_max` bounds the ids of declarations that are kept, of four bytes each."""
        self._encode = vocabulary.encode
        self._encode_packed = vocabulary.encode_packed
        self._schema_limits = schema_limits or SchemaLimits()
        self._system_ids = lru_cache(SYSTEM_MESSAGES_MAX)(self._new_system_ids)
        self._repeated = RepeatedTexts(ids_max=repeated_ids_max)
        self._user = (START, *vocabulary.encode(Role.USER.value), MESSAGE)
        assistant = (START, *vocabulary.encode(Role.ASSISTANT.value), CHANNEL)
        self._commentary = (*assistant, *vocabulary.encode("commentary"), MESSAGE)
        self._final = (*assistant, *vocabulary.encode("final"), MESSAGE)
        self._developer = (START, *vocabulary.encode(Role.DEVELOPER.value), MESSAGE)

    def render(self, items: Sequence[ContextItem], options: RenderOptions) -> Prompt:
        """The prompt that continues `items`, ending with `<|start|>assistant`.

        Items that carry ids are repeated id for id. Items that are not shown (what a compaction
        made short, stale reasoning, calls that were cut off) and leading instructions, which are
        part of the preamble, have no span. Raises `InvalidRequest` for text, names, schemas and
        outputs that have no rendering.
        """
        leading = leading_instructions(items)
        ids = array("I", self._system_ids(SystemFacts.of(options)))
        ids.extend(self._developer_ids(options, _instructions(items[:leading]) if leading else ()))
        spans = [Span(PREAMBLE, 0, len(ids))]
        start = len(ids)
        for placed in _shown(items, leading):
            item, source = placed.item, placed.source
            own = item.ids
            if own is None or source % REPEATED_AT_ONCE == 0:
                give_way()
            ids.extend(self.render_item(item, placed.function) if own is None else own)
            end = len(ids)
            if end > start:
                spans.append(Span(source, start, end))
                start = end
        ids.extend(OPENING)
        return Prompt(ids, tuple(spans))

    def render_item(self, item: ContextItem, function: str | None = None) -> Sequence[int]:
        """The ids of one item, made anew; empty for an item that says nothing.

        `function` names the function that an output belongs to.
        """
        typed = item.item()
        if isinstance(typed, Message) and (opening := self._opening(typed)):
            text = message_text(typed)
            return self._plain_message(opening, text) if text or typed.role == "user" else []
        message = harmony_message(typed, function)
        return [] if message is None else self.message_ids(message, form=_form(typed))

    def _opening(self, message: Message) -> tuple[int, ...]:
        """What a message begins with; empty for one that is no plain text behind that."""
        if message.role == "user":
            return self._user
        if message.role != "assistant" or message_form(message.id or ""):
            return ()
        return self._commentary if message.phase == "commentary" else self._final

    def message_ids(
        self, message: HarmonyMessage, *, has_functions: bool = False, form: int = 0
    ) -> array[int]:
        """The ids of one message; `has_functions` matters to the system message only.

        `form` is that of the header of a call, or of a message of the assistant.
        """
        author = message.author
        is_tool = author.role is Role.TOOL
        ids = array("I", [START, *self._encode(author.name if is_tool else author.role.value)])
        ids.extend(self._formed_header(message, form) if form else self._header(message))
        ids.append(MESSAGE)
        for content in message.content:
            self._write(ids, self._text(content, has_functions=has_functions))
        is_call = author.role is Role.ASSISTANT and message.recipient is not None
        ids.append(CALL if is_call else END)
        return ids

    def _new_system_ids(self, facts: SystemFacts) -> Sequence[int]:
        return self.message_ids(system_message(facts), has_functions=facts.has_functions)

    def _developer_ids(self, options: RenderOptions, leading: Sequence[str]) -> Sequence[int]:
        """The ids of the first developer message; empty without one."""
        if not (options.instructions or leading or options.tools or options.answer):
            return ()
        if not (options.tools and options.scope):
            return self._new_developer_ids(options, leading)
        digest = _declaration_digest(options, leading)
        ids = self._repeated.get(digest)
        if ids is None:
            ids = self._new_developer_ids(options, leading)
            self._repeated.put(digest, ids)
        return ids

    def _new_developer_ids(self, options: RenderOptions, leading: Sequence[str]) -> Sequence[int]:
        text = developer_text(options, leading, self._schema_limits)
        return self._plain_message(self._developer, text) if text else ()

    def _plain_message(self, opening: Sequence[int], text: str) -> array[int]:
        ids = array("I", opening)
        self._write(ids, text)
        ids.append(END)
        return ids

    def _write(self, ids: array[int], text: str) -> None:
        """Append the ids of a text, piece by piece: nothing else runs while they are made."""
        if len(text) <= PIECE_CHARS:
            ids.extend(self._encode(text))
            return
        for piece in paced(pieces(text)):
            ids.extend(self._encode_packed(piece))

    def _header(self, message: HarmonyMessage) -> list[int]:
        """What stands behind the author, as openai-harmony writes it."""
        ids: list[int] = []
        if message.recipient is not None:
            ids += self._encode(f" to={message.recipient}")
        if message.channel is not None:
            ids += [CHANNEL, *self._encode(message.channel)]
        if message.content_type == JSON_CONTENT:
            ids += [*self._encode(" "), CONSTRAIN, *self._encode("json")]
        return ids

    def _formed_header(self, message: HarmonyMessage, form: int) -> list[int]:
        """The same as a model wrote it that has another way."""
        ids: list[int] = []
        for part in tuple(headers(message.channel or "", message.recipient))[form]:
            marker = [] if part.marker == NO_MARKER else [part.marker]
            ids += [*marker, *self._encode(part.text)]
        return ids

    def _text(self, content: Content, *, has_functions: bool) -> str:
        if isinstance(content, SystemContent):
            return system_text(content, has_functions=has_functions)
        if isinstance(content, DeveloperContent):
            return instructions_text(content)
        text: str = content.text
        return text


def prompt_messages(items: Sequence[ContextItem], options: RenderOptions) -> list[HarmonyMessage]:
    """The messages of a prompt, all made anew, headers in form 0: what its ids mean."""
    leading = leading_instructions(items)
    shown = (harmony_message(p.item.item(), p.function) for p in _shown(items, leading))
    return [
        *reference_preamble(options, _instructions(items[:leading]), SchemaLimits()),
        *(message for message in shown if message is not None),
    ]


def _form(item: Item) -> int:
    """The form of the header that the item notes, if it is of a kind that does."""
    if isinstance(item, CallItem):
        return call_form(item.call_id)
    is_answer = isinstance(item, Message) and item.role == "assistant"
    return message_form(item.id or "") if is_answer else 0


def _instructions(items: Sequence[ContextItem]) -> list[str]:
    typed = (item.item() for item in items)
    return [message_text(item) for item in typed if isinstance(item, Message)]


def _declaration_digest(options: RenderOptions, leading: Sequence[str]) -> bytes:
    """Of all that the first developer message depends on, and whose it is. Nobody can make two
    messages with the same one.
    """
    tools = [(tool.name, tool.description, tool.parameters) for tool in options.tools]
    content = orjson.dumps((options.instructions, leading, tools, options.answer))
    return sha256(options.scope + content).digest()


def _shown(items: Sequence[ContextItem], leading: int) -> Iterable[Placed]:
    shown = items[leading:]
    if len(shown) == 1 and shown[0].kind == "message":
        return [Placed(leading, shown[0])]
    placed = (Placed(index, item) for index, item in enumerate(shown, leading))
    if all(item.kind == "message" for item in shown):
        return placed  # only reasoning and calls, and what is behind a summary, are ever left out
    return list(in_call_order(without_stale_reasoning(since_compaction(placed))))
