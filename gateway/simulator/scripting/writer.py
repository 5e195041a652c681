"""Write the script of a turn: think, perhaps announce and call a tool, or answer."""

from __future__ import annotations

import json
import re
from functools import cached_property
from itertools import cycle, islice
from typing import TYPE_CHECKING, Final

from gateway.simulator.scripting import speech
from gateway.simulator.scripting.hosted import (
    BROWSER,
    Act,
    act_of,
    code_for,
    plausible,
    query_for,
)
from gateway.simulator.scripting.typescript import tools_of
from gateway.simulator.scripting.values import make_arguments
from gateway.simulator.turns import (
    ANALYSIS,
    CALL_PREFIX,
    COMMENTARY,
    FINAL,
    PYTHON,
    PartWriter,
    is_call,
    script_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.models.harmony.vocabulary import Vocabulary
    from gateway.simulator.directives import Directives, Wishes
    from gateway.simulator.scripting.speech import Conversation
    from gateway.simulator.scripting.typescript import Schema, Tool
    from gateway.simulator.turns import Part, Script

CALLS_MAX: Final = 100
_TIMES: Final = {"once": 1, "twice": 2, "thrice": 3}
_COUNTS: Final = {"two": 2, "three": 3, "four": 4, "five": 5}
_REPEAT: Final = re.compile(r"(?i)\b(once|twice|thrice)\b|\b(two|three|four|five|\d{1,2}) times\b")
_REFUSAL: Final = re.compile(r"(?i)\b(?:don't|do not|never|without) (?:call|us(?:e|ing)|run)")
_ASKS: Final = re.compile(r"(?i)\b(?:call|use|run|invoke)\b")
_IMPERATIVE: Final = re.compile(
    r"(?i)\A(?:please\s+)?(?:add|book|calculate|check|compute|create|delete|execute|fetch|find|get"
    r"|list|look|make|open|order|read|search|send|set|show|start|tell me the|update|write)\b"
)
_WORD_CHARS_MIN: Final = 4


def planned_calls(request: str, tools: Sequence[Tool], wishes: Wishes) -> list[Tool]:
    """Return the tools that answer the request, in the order of the calls; empty for none."""
    if wishes.call == "none" or not tools:
        return []
    chosen = _chosen(request, tools, wishes)
    if len(chosen) != 1:
        return chosen[:CALLS_MAX]
    times = wishes.calls if wishes.calls is not None else _repetitions(request)
    return chosen * min(times, CALLS_MAX)


def _chosen(request: str, tools: Sequence[Tool], wishes: Wishes) -> list[Tool]:
    if wishes.call is not None:
        return [tool for tool in tools if tool.name == wishes.call]
    if _REFUSAL.search(request):
        return []
    if named := _named(request, tools):
        return named
    if meant := [tool for tool in tools if _is_meant(request, tool)]:
        return meant[:1]
    if _ASKS.search(request) or (len(tools) == 1 and _IMPERATIVE.search(request)):
        return list(tools[:1])
    return []


def _named(request: str, tools: Sequence[Tool]) -> list[Tool]:
    # The whole name of the tool; in the order of the request.
    found = {
        match.start(): tool
        for tool in tools
        if (match := re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", request, re.IGNORECASE))
    }
    return [found[place] for place in sorted(found)]


def _is_meant(request: str, tool: Tool) -> bool:
    # A longer word of the name is enough: `weather` of `get_weather`.
    said = set(re.findall(r"\w+", request.casefold()))
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", tool.name)
    return any(word.casefold() in said for word in words if len(word) >= _WORD_CHARS_MIN)


def _repetitions(request: str) -> int:
    match = _REPEAT.search(request)
    if match is None:
        return 1
    if match[1]:
        return _TIMES[match[1].lower()]
    word = match[2].lower()
    return _COUNTS[word] if word in _COUNTS else int(word)


_PREAMBLE_ASKED: Final = re.compile(r"\bpreamble\b", re.IGNORECASE)
_NO_REASONING: Final = 0
_PYTHON_OFFERED: Final = re.compile(r"^## python$", re.MULTILINE)


class ScriptWriter:
    """The script of one conversation, and single messages of it that somebody else opened."""

    def __init__(
        self, conversation: Conversation, directives: Directives, vocabulary: Vocabulary
    ) -> None:
        self._conversation = conversation
        self._vocabulary = vocabulary
        self._encode = vocabulary.encode
        self._parts = PartWriter(vocabulary)
        self.directives = directives

    @cached_property
    def _tools(self) -> list[Tool]:
        return tools_of(self._conversation.developer)

    @cached_property
    def _tools_by_kind(self) -> dict[str, Tool]:
        browser = tools_of(self._conversation.system, BROWSER.rstrip("."))
        functions = [(CALL_PREFIX + tool.name, tool) for tool in self._tools]
        tools: dict[str, Tool] = {}
        for kind, tool in (*functions, *((BROWSER + tool.name, tool) for tool in browser)):
            tools.setdefault(kind, tool)
        return tools

    @cached_property
    def _offered(self) -> list[str]:
        # The recipients of all calls that could be made.
        has_python = _PYTHON_OFFERED.search(self._conversation.system)
        return [*self._tools_by_kind, *([PYTHON] if has_python else [])]

    @cached_property
    def act(self) -> Act | None:
        """Return what is due by the steps of the directives, else what hosted tools have to do."""
        wishes, conversation = self.directives.wishes, self._conversation
        done = len(conversation.new_outputs)
        if wishes.steps is not None:
            due = wishes.steps[done : done + 1]
            return act_of(due[0], conversation, self._offered) if due else None
        is_told = (wishes.say, wishes.call, wishes.tokens) != (None, None, None)
        if is_told or self._schema is not None or self._planned_calls:
            return None
        return plausible(conversation, self._offered)

    @cached_property
    def _schema(self) -> Schema | None:
        return speech.response_schema(self._conversation.developer)

    @property
    def is_shaped(self) -> bool:
        # The prompt shows a schema for something that may be written.
        return bool(self._tools) or self._schema is not None

    @property
    def call_kinds(self) -> list[str]:
        """Return the recipients that can be called, the planned ones first."""
        due = [self.act.kind] if self.act and is_call(self.act.kind) else []
        planned = [CALL_PREFIX + tool.name for tool in self._planned_calls]
        return list(dict.fromkeys([*due, *planned, *self._offered]))

    def script(self) -> Script:
        return script_of([*self.thinking(), *self._acting()])

    def part(self, kind: str) -> Part:
        """Return the message of this kind, even if the script has none."""
        return self._parts.part_of_ids(kind, self._body(kind))

    def completion(self, kind: str, body: list[int]) -> list[int] | None:  # noqa: ARG002
        """Return the rest of a body that another model began; None if this one cannot tell."""
        return None

    def call_mark(self, kind: str) -> tuple[int, ...]:
        # The rest of the header behind the recipient.
        return self._parts.call_mark(kind)

    def header_of(self, kind: str) -> tuple[int, ...]:
        return self._parts.header(kind)

    def thinking(self) -> list[Part]:
        """Return the reasoning of the script, in one message or none."""
        length = self.directives.wishes.think
        if length is None:
            return [self.part(ANALYSIS)]
        if length == _NO_REASONING:
            return []
        return [self._parts.part_of_ids(ANALYSIS, self._filler(length))]

    def _acting(self) -> list[Part]:
        if self.act is not None:
            return [self.part(self.act.kind)]
        done = len(self._conversation.new_outputs)
        if done < len(self._planned_calls):
            return self._calling(self._planned_calls[done])
        return [self.part(FINAL)]

    @cached_property
    def _planned_calls(self) -> list[Tool]:
        return planned_calls(self._conversation.request, self._tools, self.directives.wishes)

    def _calling(self, tool: Tool) -> list[Part]:
        call = self.part(CALL_PREFIX + tool.name)
        if not _PREAMBLE_ASKED.search(self._conversation.request):
            return [call]
        return [self._parts.part(COMMENTARY, speech.preamble(tool)), call]

    def _body(self, kind: str) -> list[int]:
        if kind == FINAL:
            return self._answer_ids()
        if kind == ANALYSIS:
            return self._encode(speech.thoughts(self._conversation))
        if kind == COMMENTARY:
            return self._encode("One moment, please.")
        return self._encode(self._arguments(kind))

    def _arguments(self, kind: str) -> str:
        if self.directives.wishes.arguments is not None:
            return self.directives.wishes.arguments
        if self.act is not None and self.act.kind == kind:
            return self.act.text
        request = self._conversation.request
        if kind == PYTHON:
            return code_for(request, self._conversation.system)
        if kind == BROWSER + "search":
            return json.dumps({"query": query_for(request)}, ensure_ascii=False)
        tool = self._tools_by_kind.get(kind)
        value = make_arguments(tool.parameters if tool else {}, request)
        return self._formed(kind, json.dumps(value, ensure_ascii=False))

    def _answer_ids(self) -> list[int]:
        wishes = self.directives.wishes
        if self.act is not None and self.act.kind == FINAL:
            return self._encode(self.act.text)
        if wishes.say is not None:
            return self._encode(wishes.say)
        if wishes.tokens is not None:
            return self._filler(wishes.tokens)
        return self._encode(self._formed(FINAL, speech.answer(self._conversation)))

    def _formed(self, kind: str, draft: str) -> str:  # noqa: ARG002
        # The text that is written for a draft of arguments or of an answer.
        return draft

    def _filler(self, length: int) -> list[int]:
        words = self._encode(speech.FILLER)
        return list(islice(cycle(words), length))
