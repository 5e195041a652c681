"""Turns of chat formats in their own notation, and what a parser makes of them in few words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.constraints.output_rules import OutputRules, ToolRule
from gateway.generation import FinishReason, SegmentEnded, SegmentKind, SegmentStarted, SegmentText
from gateway.models.chat.call_syntax import Syntax
from gateway.models.chat.chat_parser import ChatParser
from gateway.models.chat.families import CALLS, REASONING
from tests.fakes.chat_vocabulary import parts_of, vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.generation import SegmentEvent
    from gateway.models.chat.tokenizer import Vocabulary

ENDS = ("<|im_end|>", "</s>")
SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer"}, "text": {"type": "string"}},
}
SEARCH = "builtin:browser.search"
TOOLS = {
    "f": ToolRule("f", SegmentKind.FUNCTION_CALL, "f", declared=SCHEMA),
    "g": ToolRule("g", SegmentKind.FUNCTION_CALL, "g"),
    SEARCH: ToolRule(SEARCH, SegmentKind.WEB_SEARCH_CALL, "browser.search"),
}
RULES = OutputRules(tools=TOOLS, allowed=frozenset(TOOLS))


@dataclass(frozen=True)
class Model:
    """A syntax in a vocabulary in which each of its markers is an id, but for those `spelled`."""

    calls: str = "hermes"
    reasoning: str = "think"
    spelled: tuple[str, ...] = ()

    @property
    def syntax(self) -> Syntax:
        return Syntax(REASONING[self.reasoning], CALLS[self.calls])

    @property
    def vocabulary(self) -> Vocabulary:
        markers = tuple(one for one in self.syntax.markers if one not in self.spelled)
        return vocabulary((*markers, *ENDS), ENDS)

    def ids(self, text: str) -> list[int]:
        return parts_of(self.vocabulary, text)

    def parser(self, rules: OutputRules = RULES, *, trace: bool = False) -> ChatParser:
        return ChatParser(self.vocabulary, self.syntax, rules, trace=trace)

    def read(
        self, text: str, finish: FinishReason | None = FinishReason.STOP, rules: OutputRules = RULES
    ) -> tuple[list[str], dict[str, int]]:
        """What a turn says, read id by id, and which rules had a part in it."""
        parser = self.parser(rules)
        events = [event for token in self.ids(text) for event in parser.feed([token])]
        return told([*events, *parser.finish(finish)]), parser.recoveries


def told(events: Iterable[SegmentEvent]) -> list[str]:
    """Segments: `reasoning: text`, or `f(arguments)`, and how one ended that is not whole."""
    lines: list[str] = []
    name = ""
    for event in events:
        if isinstance(event, SegmentStarted):
            name = event.name
            lines.append(f"{name}(" if name else f"{event.kind.value}: ")
        elif isinstance(event, SegmentText):
            lines[-1] += event.text
        else:
            lines[-1] += (")" if name else "") + _ending(event)
    return lines


def _ending(event: SegmentEnded) -> str:
    return (" broken" if event.broken else "") + ("" if event.complete else " cut")


def text_of(events: Sequence[SegmentEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, SegmentText))
