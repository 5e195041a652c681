"""Calls as Hermes 2 Pro and Qwen write them, each one JSON object between two markers:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Source: the chat templates of Qwen2.5 and Qwen3; vLLM's and SGLang's parser `hermes` / `qwen25`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.models.chat.recovery import Rule
from gateway.models.chat.syntax.contract import CallSyntax, Ended, Left, Mark
from gateway.models.chat.syntax.json_call import JsonCall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.models.chat.syntax.contract import CallEvent

OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"


class HermesReader:
    """One object, up to the marker behind it."""

    def __init__(self) -> None:
        self._call = JsonCall()
        self._leftover = False

    def text(self, text: str) -> Iterator[CallEvent]:
        """More of the object; words behind it are dropped."""
        events, rest = self._call.feed(text)
        yield from events
        self._leftover = self._leftover or bool(rest.strip())

    def mark(self, marker: str) -> Iterator[CallEvent]:
        """The call is over; at another opener the next one begins."""
        rules = (Rule.UNCLOSED_CALL,) if marker == OPENING else ()
        yield from self._end(rules, cut=False)
        if marker == OPENING:
            self._call, self._leftover = JsonCall(), False
        else:
            yield Left()

    def close(self, *, cut: bool) -> Iterator[CallEvent]:
        """The turn is over within the call."""
        yield from self._end((Rule.UNCLOSED_CALL,), cut=cut)

    def _end(self, rules: tuple[Rule, ...], *, cut: bool) -> Iterator[CallEvent]:
        for event in self._call.finish(cut=cut):
            if isinstance(event, Ended):
                leftover = (Rule.CALL_LEFTOVER,) if self._leftover else ()
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
