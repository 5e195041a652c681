"""Writes the script of a turn: think, perhaps announce and call a tool, or answer."""

from __future__ import annotations

import json
import re
from functools import cached_property
from itertools import cycle, islice
from typing import TYPE_CHECKING, Final

from gateway.simulator import speech
from gateway.simulator.directives import parse
from gateway.simulator.planning import planned_calls
from gateway.simulator.script import (
    ANALYSIS,
    CALL_PREFIX,
    COMMENTARY,
    FINAL,
    PartWriter,
    script_of,
)
from gateway.simulator.typescript import tools_of
from gateway.simulator.values import make_arguments

if TYPE_CHECKING:
    from gateway.harmony.vocabulary import Vocabulary
    from gateway.simulator.conversation import Conversation
    from gateway.simulator.script import Part, Script
    from gateway.simulator.typescript import Tool

_PREAMBLE_ASKED: Final = re.compile(r"\bpreamble\b", re.IGNORECASE)
_NO_REASONING: Final = 0


class ScriptWriter:
    """The script of one conversation, and single messages of it that somebody else opened.

    Raises `SimulatedError` for a directive that means nothing.
    """

    def __init__(self, conversation: Conversation, vocabulary: Vocabulary) -> None:
        self._conversation = conversation
        self._encode = vocabulary.encode
        self._parts = PartWriter(vocabulary)
        self.directives = parse(conversation.raw_request)

    @cached_property
    def _tools(self) -> list[Tool]:
        return tools_of(self._conversation.developer)

    def script(self) -> Script:
        """Everything that is said in this turn."""
        conversation = self._conversation
        calls = planned_calls(conversation.request, self._tools, self.directives.wishes)
        done = len(conversation.new_outputs)
        parts = self._thinking()
        if done < len(calls):
            parts += self._calling(calls[done])
        else:
            parts.append(self.part(FINAL))
        return script_of(parts)

    def part(self, kind: str) -> Part:
        """The message of this kind, whether the script has one or not."""
        if kind == FINAL:
            return self._parts.part_of_ids(FINAL, self._answer_ids())
        if kind == ANALYSIS:
            return self._parts.part(ANALYSIS, speech.thoughts(self._conversation))
        if kind == COMMENTARY:
            return self._parts.part(COMMENTARY, "One moment, please.")
        return self._parts.part(kind, self._arguments(kind.removeprefix(CALL_PREFIX)))

    def _thinking(self) -> list[Part]:
        length = self.directives.wishes.think
        if length is None:
            return [self.part(ANALYSIS)]
        if length == _NO_REASONING:
            return []
        return [self._parts.part_of_ids(ANALYSIS, self._filler(length))]

    def _calling(self, tool: Tool) -> list[Part]:
        call = self.part(CALL_PREFIX + tool.name)
        if not _PREAMBLE_ASKED.search(self._conversation.request):
            return [call]
        return [self._parts.part(COMMENTARY, speech.preamble(tool)), call]

    def _arguments(self, name: str) -> str:
        schema = next((tool.parameters for tool in self._tools if tool.name == name), {})
        value = make_arguments(schema, self._conversation.request)
        return json.dumps(value, ensure_ascii=False)

    def _answer_ids(self) -> list[int]:
        wishes = self.directives.wishes
        if wishes.say is not None:
            return self._encode(wishes.say)
        if wishes.tokens is not None:
            return self._filler(wishes.tokens)
        return self._encode(speech.answer(self._conversation))

    def _filler(self, length: int) -> list[int]:
        words = self._encode(speech.FILLER)
        return list(islice(cycle(words), length))
