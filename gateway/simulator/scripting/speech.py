"""The conversation as the scripted model knows it, and the texts that the model writes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gateway.simulator.directives import without_directives
from gateway.simulator.scripting.values import make_value

if TYPE_CHECKING:
    from gateway.simulator.scripting.typescript import Schema, Tool
    from gateway.simulator.turns import Bodies, Message

_EFFORT: Final = re.compile(r"^Reasoning: (low|medium|high)\s*$", re.MULTILINE)
_NAME: Final = re.compile(r"\bmy name is ([\w'\-]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """Result of a tool call."""

    name: str
    text: str


@dataclass(frozen=True)
class Conversation:
    """The messages before the open turn, read on demand; texts of users without directives."""

    messages: tuple[Message, ...]
    bodies: Bodies

    def _texts(self, role: str) -> list[str]:
        return [self.bodies.text(message) for message in self.messages if message.role == role]

    @cached_property
    def effort(self) -> str:
        """Return the reasoning effort of the system message."""
        found = _EFFORT.search("\n".join(self._texts("system")))
        return found[1] if found else "medium"

    @cached_property
    def system(self) -> str:
        # The model's identity, built-in tools, channels.
        return "\n".join(self._texts("system"))

    @cached_property
    def developer(self) -> str:
        # Instructions, tools and response formats.
        return "\n".join(self._texts("developer"))

    @cached_property
    def raw_request(self) -> str:
        """Return the last message of the user with its directives; empty if there is none."""
        for message in reversed(self.messages):
            if message.role == "user":
                return self.bodies.text(message)
        return ""

    @cached_property
    def request(self) -> str:
        # The last message of the user.
        return without_directives(self.raw_request)

    @cached_property
    def users(self) -> list[str]:
        return [without_directives(text) for text in self._texts("user")]

    @cached_property
    def outputs(self) -> list[ToolOutput]:
        return self._outputs_from(0)

    @cached_property
    def new_outputs(self) -> list[ToolOutput]:
        """Return the tool outputs since the last message of the user."""
        after = [i for i, message in enumerate(self.messages) if message.role == "user"]
        return self._outputs_from(after[-1] + 1 if after else 0)

    @cached_property
    def user_name(self) -> str | None:
        """Return the name that the user gave most recently."""
        found = [match[1] for text in self.users if (match := _NAME.search(text))]
        return found[-1] if found else None

    def _outputs_from(self, index: int) -> list[ToolOutput]:
        return [
            ToolOutput(
                name=message.role.removeprefix("functions."),
                text=self.bodies.text(message),
            )
            for message in self.messages[index:]
            if message.role not in {"system", "developer", "user", "assistant"}
        ]


_QUOTE_CHARS_MAX: Final = 400
_FORMATS: Final = re.compile(r"^# Response Formats$", re.MULTILINE)
_SCHEMA_LINE: Final = re.compile(r"^\{", re.MULTILINE)
_MULTIBYTE: Final = re.compile(r"(?i)\b(?:emoji|unicode|chinese|japanese|cjk|multi-?byte)\b")
_TOOL_SAID: Final = re.compile(r"(?i)\bwhat (?:did|does|has) the (?:tool|function) s(?:ay|aid)\b")
_NAME_ASKED: Final = re.compile(r"(?i)\b(?:what(?:'s| is) my name|who am i)\b")
_LAST_ASKED: Final = re.compile(r"(?i)\bwhat (?:did|have) i (?:just )?(?:say|said|ask|asked)\b")
_SUMMARY_ASKED: Final = re.compile(r"(?i)\b(?:write|give me) a summary of this conversation\b")
_TURNS_ASKED: Final = re.compile(r"(?i)\bhow many (?:turns|messages|questions)\b")

MULTIBYTE: Final = (
    "Many bytes a character: 👋🏽 👩‍👩‍👧 🇯🇵, 东京 and 東京, 안녕하세요, नमस्ते, naïve, "
    "a combining e\N{COMBINING ACUTE ACCENT}, ⌈m/2⌉."
)
FILLER: Final = (
    " The script goes on because it was asked for a long answer, one plain word after the other."
)
_THOUGHTS: Final = (
    "The user wants something from a scripted server.",
    "I look at the whole conversation before I answer.",
    "Nothing here is computed by a model, so the rules decide what I say.",
    "First I read the last message again and see whether a tool is asked for.",
    "Then I see what the tools have answered so far, and whether anything is missing.",
    "If the answer has to follow a schema, I keep to it.",
    "I should be brief, and I should quote the user so that they see I have read it.",
    "That is all there is to think about.",
)
_THOUGHTS_BY_EFFORT: Final = {"low": 1, "medium": 3, "high": len(_THOUGHTS)}


def thoughts(conversation: Conversation) -> str:
    """Return the text of the analysis: longer with more effort, and about this request."""
    count = _THOUGHTS_BY_EFFORT[conversation.effort]
    about = _quote(conversation.request) if conversation.request else "nothing yet"
    return " ".join([*_THOUGHTS[: count - 1], f"They say {about}.", *_THOUGHTS[-1:]])


def preamble(tool: Tool) -> str:
    # Shown to the user before a call.
    return f"I will call {tool.name} and tell you what it says."


def answer(conversation: Conversation) -> str:
    """Return the final message: JSON if a response format is requested, else text."""
    schema = response_schema(conversation.developer)
    if schema is not None:
        value = make_value(schema, conversation.request)
        return json.dumps(value, ensure_ascii=False)
    if conversation.new_outputs and not _TOOL_SAID.search(conversation.request):
        return _report(conversation)
    return _reply(conversation)


def response_schema(developer: str) -> Schema | None:
    """Return the schema under the last `# Response Formats` of the developer message, if any."""
    sections = _FORMATS.split(developer)
    begun = _SCHEMA_LINE.search(sections[-1]) if len(sections) > 1 else None
    if begun is None:
        return None
    try:
        schema, _ = json.JSONDecoder().raw_decode(sections[-1], begun.start())
    except ValueError:
        return None
    return dict(schema)


def _report(conversation: Conversation) -> str:
    lines = [f"{output.name} says: {output.text}" for output in conversation.new_outputs]
    return "\n".join([*lines, f"That is my answer to {_quote(conversation.request)}."])


def _reply(conversation: Conversation) -> str:
    said = conversation.request
    if _TOOL_SAID.search(said):
        outputs = conversation.outputs
        return f"The tool said: {outputs[-1].text}" if outputs else "No tool has said anything."
    if _SUMMARY_ASKED.search(said):
        return _summary(conversation)
    if _NAME_ASKED.search(said):
        name = conversation.user_name
        return f"Your name is {name}." if name else "You have not told me your name."
    if _LAST_ASKED.search(said):
        return f"Before that you said {_quote(_previous(conversation))}."
    if _TURNS_ASKED.search(said):
        return f"This is turn {len(conversation.users)} of our conversation."
    return _small_talk(conversation)


def _summary(conversation: Conversation) -> str:
    asked = conversation.users[:-1]
    said = " ".join(f"{number}. {_quote(text)}" for number, text in enumerate(asked, 1))
    tools = "; ".join(
        f"{output.name} said {_quote(output.text)}" for output in conversation.outputs
    )
    return f"Messages of the user: {said or 'none'} Tools: {tools or 'none'}."


def _small_talk(conversation: Conversation) -> str:
    turns = len(conversation.users)
    sentences = [f"You said {_quote(conversation.request)}.", f"This is turn {turns}"]
    if turns > 1:
        sentences[-1] += f"; before that you said {_quote(_previous(conversation))}"
    sentences[-1] += "."
    if _MULTIBYTE.search(conversation.request):
        sentences.append(MULTIBYTE)
    sentences.append("I am a scripted server, not a model 🤖.")
    return " ".join(sentences)


def _previous(conversation: Conversation) -> str:
    return conversation.users[-2] if len(conversation.users) > 1 else ""


def _quote(text: str) -> str:
    short = text if len(text) <= _QUOTE_CHARS_MAX else text[:_QUOTE_CHARS_MAX] + "…"
    return f"“{short}”"
