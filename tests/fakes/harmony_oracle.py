"""openai-harmony as the judge of what we render, and the one vocabulary the tests share."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openai_harmony import (
    Conversation,
    DeveloperContent,
    HarmonyEncoding,
    Message,
    RenderConversationConfig,
    Role,
    StreamableParser,
    ToolDescription,
    load_harmony_encoding,
)

import gateway.models.harmony
from gateway.models.harmony.tokenizer import END_OF_TEXT, OPENING, START, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

_BEFORE = "namespace functions {\n\n"
_BEHIND = "\n} // namespace functions<|end|>"


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary.load()


@cache
def encoding() -> HarmonyEncoding:
    data = Path(next(iter(gateway.models.harmony.__path__))) / "data"
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(data)
    return load_harmony_encoding("HarmonyGptOss")


def library_prompt(messages: Sequence[Message]) -> list[int]:
    """The prompt that openai-harmony makes of these messages."""
    ids: list[int] = encoding().render_conversation_for_completion(
        Conversation.from_messages(messages),
        Role.ASSISTANT,
        RenderConversationConfig(auto_drop_analysis=False),
    )
    return ids


def library_declaration(parameters: dict[str, Any] | None) -> str:
    """The TypeScript that openai-harmony writes for a function `f` with these parameters."""
    tool = ToolDescription.new("f", "", parameters)
    content = DeveloperContent.new().with_function_tools([tool])
    message = Message.from_role_and_content(Role.DEVELOPER, content)
    text: str = encoding().decode(encoding().render(message))
    return text[text.index(_BEFORE) + len(_BEFORE) : -len(_BEHIND)]


def spelled(ids: Sequence[int]) -> str:
    """Ids as text, markers included."""
    text: str = encoding().decode(list(ids))
    return text


def well_formed(ids: Sequence[int]) -> int:
    """How many messages the library finds in a prompt, up to the one that it opens; fails for any
    that it cannot read, or reads as a part of another.
    """
    assert tuple(ids[-2:]) == OPENING
    whole = list(ids[:-2])
    parser = StreamableParser(encoding(), role=None, strict=True)
    for token in whole:
        parser.process(token)
    assert parser.current_role is None, "it ends between two messages"
    assert END_OF_TEXT not in whole
    assert len(parser.messages) == whole.count(START)
    return len(parser.messages)
