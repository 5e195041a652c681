"""Conversations as prompts for the scripted model, and its answers read by openai-harmony."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from openai_harmony import (
    Author,
    DeveloperContent,
    Message,
    ReasoningEffort,
    Role,
    StreamableParser,
    SystemContent,
    TextContent,
    ToolDescription,
)

from gateway.models.harmony.tokenizer import NAMED_SPECIALS
from tests.fakes.harmony_oracle import encoding, library_prompt, vocabulary
from tests.fakes.wayward_engine import corpus
from tests.fakes.wayward_engine.constraint_fields import read_constraint
from tests.fakes.wayward_engine.decoding import constrained
from tests.fakes.wayward_engine.matcher import Guide
from tests.fakes.wayward_engine.options import WaywardOptions
from tests.fakes.wayward_engine.scripted_misbehaviour import WaywardModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.generation import FinishReason

WEATHER = ToolDescription.new(
    "get_weather",
    "Current weather.",
    {
        "type": "object",
        "properties": {
            "location": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["location"],
    },
)
_SPECIALS = {one: name for name, one in NAMED_SPECIALS.items()}
TIME = ToolDescription.new("now", "The time.", None)


@cache
def scripted_model() -> WaywardModel:
    return WaywardModel(vocabulary(), corpus.load())


def system(effort: str = "medium", *, browser: bool = False, python: bool = False) -> Message:
    content = SystemContent.new().with_reasoning_effort(ReasoningEffort[effort.upper()])
    content = content.with_browser_tool() if browser else content
    content = content.with_python_tool() if python else content
    return Message.from_role_and_content(Role.SYSTEM, content)


def developer(*tools: ToolDescription, instructions: str | None = None) -> Message:
    content = DeveloperContent.new()
    if instructions is not None:
        content = content.with_instructions(instructions)
    if tools:
        content = content.with_function_tools(list(tools))
    return Message.from_role_and_content(Role.DEVELOPER, content)


def user(text: str) -> Message:
    return Message.from_role_and_content(Role.USER, text)


def answered(text: str) -> Message:
    """An answer of an earlier turn."""
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel("final")


def thought(text: str) -> Message:
    """Reasoning of an earlier part of a turn."""
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel("analysis")


def called(name: str, arguments: str) -> Message:
    return (
        Message.from_role_and_content(Role.ASSISTANT, arguments)
        .with_channel("commentary")
        .with_recipient(f"functions.{name}")
        .with_content_type("<|constrain|>json")
    )


def returned(name: str, output: str) -> Message:
    author = Author.new(Role.TOOL, f"functions.{name}")
    message = Message(author=author, content=[TextContent(text=output)])
    return message.with_recipient("assistant").with_channel("commentary")


def called_builtin(recipient: str, text: str) -> Message:
    """A call of the browser or of Python."""
    form = "code" if recipient == "python" else "<|constrain|>json"
    message = Message.from_role_and_content(Role.ASSISTANT, text).with_channel("analysis")
    return message.with_recipient(recipient).with_content_type(form)


def resulted(name: str, output: str) -> Message:
    """What the browser or Python returned."""
    message = Message(author=Author.new(Role.TOOL, name), content=[TextContent(text=output)])
    return message.with_recipient("assistant").with_channel("analysis")


@dataclass(frozen=True)
class Said:
    """A turn as openai-harmony's strict parser reads it."""

    messages: list[Message]

    def texts(self, channel: str) -> list[str]:
        return [
            "".join(part.text for part in message.content if isinstance(part, TextContent))
            for message in self.messages
            if message.channel == channel
        ]

    @property
    def final(self) -> str:
        (text,) = self.texts("final")
        return text

    @property
    def calls(self) -> list[tuple[str, str]]:
        return [
            (message.recipient, message.content[0].text)
            for message in self.messages
            if message.recipient
        ]


def prompt_of(*messages: Message) -> list[int]:
    return library_prompt(messages)


def continuation(prompt: list[int]) -> list[int]:
    return scripted_model().continuation(prompt).ids


def formatted(schema: dict[str, Any], *tools: ToolDescription) -> Message:
    """A developer message that asks for an answer in JSON."""
    section = f"# Response Formats\n\n## answer\n\n{json.dumps(schema)}"
    return developer(*tools, instructions=section)


def obeyed(prompt: list[int], tag: dict[str, Any], *, ids_max: int = 400, **options: Any) -> Obeyed:
    """What is said under a structural tag, or before it where the engine binds answers alone."""
    constraint = read_constraint({"structural_tag": json.dumps(tag)}, {}, WaywardOptions(**options))
    assert constraint is not None
    said = scripted_model().continuation(prompt)
    held = constrained(said, prompt, constraint, ids_max=ids_max, vocabulary=vocabulary())
    guide = Guide(constraint.grammar, vocabulary())
    return Obeyed(held.ids, guide.accepts(held.ids) == len(held.ids), held.finish)


@dataclass(frozen=True)
class Obeyed:
    """The ids, whether the grammar allows them all, the stop id included, and why they end where
    that says more than the last one.
    """

    ids: list[int]
    is_valid: bool
    finish: FinishReason | None

    @property
    def text(self) -> str:
        """With the markers by their names."""
        pieces = [_SPECIALS.get(one, "").encode() or vocabulary().piece(one) for one in self.ids]
        return b"".join(pieces).decode("utf-8", "replace")


def parsed(ids: Sequence[int]) -> Said:
    """Raises HarmonyError for a turn that is not well formed."""
    parser = StreamableParser(encoding(), role=Role.ASSISTANT, strict=True)
    for one in ids:
        parser.process(one)
    messages: list[Any] = parser.messages
    return Said(messages)


def say(*messages: Message) -> Said:
    """What is said next in this conversation."""
    return parsed(continuation(prompt_of(*messages)))
