"""Calls as Hermes 2 Pro and Qwen write them, each one JSON object between two markers:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Several objects between two markers are several calls.

Source: the chat templates of Qwen2.5 and Qwen3; vLLM's and SGLang's parser `hermes` / `qwen25`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.models.chat.call_syntax import CallSyntax, Ended, Left, Mark, Rule
from gateway.models.chat.syntax.json_call import JsonCall
from gateway.models.json_values import WHITE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.models.chat.call_syntax import CallEvent

OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"


class HermesReader:
    """Reader of one object, or more, up to the marker behind it."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._call = JsonCall()
        self._is_parted = self._leftover = False  # a comma, and words, stand behind the object

    @property
    def is_junk(self) -> bool:
        return self._call.is_junk

    def quotes(self, _marker: str) -> bool:
        return self._call.in_string

    def text(self, text: str) -> Iterator[CallEvent]:
        while text and not self._leftover:
            if self._call.is_over:
                rest = text.lstrip(WHITE + ",")
                self._is_parted = self._is_parted or "," in text[: len(text) - len(rest)]
                self._leftover = rest[:1] not in {"", "{"}
                if not rest.startswith("{"):
                    return
                self._is_parted = False
                yield from self._end((Rule.SLOPPY_JSON,), cut=False)
                self._begin()
                text = rest
            events, text = self._call.feed(text)
            yield from events

    def mark(self, marker: str) -> Iterator[CallEvent]:
        """End the call; at another opener the next one begins."""
        rules = (Rule.UNCLOSED_CALL,) if marker == OPENING else ()
        yield from self._end(rules, cut=False)
        if marker == OPENING:
            self._begin()
        else:
            yield Left()

    def close(self, *, cut: bool) -> Iterator[CallEvent]:
        yield from self._end((Rule.UNCLOSED_CALL,), cut=cut)

    def _end(self, rules: tuple[Rule, ...], *, cut: bool) -> Iterator[CallEvent]:
        for event in self._call.finish(cut=cut):
            if isinstance(event, Ended):
                leftover = (Rule.CALL_LEFTOVER,) if self._leftover or self._is_parted else ()
                yield Ended(event.broken, (*event.rules, *leftover, *rules))
            else:
                yield event


HERMES: Final = CallSyntax(
    name="hermes",
    openers=(OPENING,),
    markers=(OPENING, CLOSING),
    reader=lambda _opener, _schema_of: HermesReader(),
    before_name=(Mark(OPENING), '\n{"name": "'),
    behind_name=('", "arguments": ',),
    behind=("}\n", Mark(CLOSING)),
    between=("\n",),
)
