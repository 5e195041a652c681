"""Calls of Hermes 2 Pro and Qwen, each one JSON object between two markers:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Several objects between two markers are several calls. Qwen2.5-Coder, and others at times, leave the
markers out, mostly for a code fence: such an object in place of an answer is a call if it names a
declared function.

Source: the chat templates of Qwen2.5 and Qwen3; vLLM's and SGLang's parser `hermes` / `qwen25`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from gateway.models.chat.call_syntax import CallSyntax, Ended, Left, Mark, Noted, Rule, no_call
from gateway.models.chat.syntax.json_call import JsonCall
from gateway.models.chat.syntax.llama3_json import Llama3Reader
from gateway.models.json_values import WHITE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.models.chat.call_syntax import CallEvent, CallReader, SchemaOf

OPENING: Final = "<tool_call>"
CLOSING: Final = "</tool_call>"
_FENCE: Final = re.compile(r"`{1,2}|`{3}[a-z_]{0,16}\s{0,16}")
"""Front of a code fence, up to its content."""


class HermesReader:
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


class BareReader(Llama3Reader):
    """Reader of calls without a marker in front of them, up to other text."""

    def __init__(self, schema_of: SchemaOf) -> None:
        super().__init__(is_bare=True)
        self._schema_of = schema_of
        self._fence: str | None = ""  # None behind it
        self._fence_marks = 0  # that close it, and have not come
        self._marked: HermesReader | None = None  # behind a marker

    @override
    def quotes(self, marker: str) -> bool:
        return super().quotes(marker) if self._marked is None else self._marked.quotes(marker)

    @override
    def text(self, text: str) -> Iterator[CallEvent]:
        if self._marked is not None:
            yield from self._marked.text(text)
        elif self._fence is None:
            yield from self._bare_text(text)
        else:
            self._fence += text
            front = self._fence.partition("{")[0]
            if front and not _FENCE.fullmatch(front):
                yield Left(self._fence)
            elif front != self._fence:
                self._held, rest, self._fence = [front], self._fence[len(front) :], None
                self._fence_marks = front.count("`")
                yield from self._bare_text(rest)

    def _bare_text(self, text: str) -> Iterator[CallEvent]:
        was_bare = self._is_bare
        for event in super().text(text):
            if was_bare and not self._is_bare:
                was_bare = False
                yield Noted(Rule.ODD_FRAME)
            yield event

    @override
    def _behind_gap(self, text: str) -> str:
        text = text.lstrip(WHITE + ",")
        while self._fence_marks and text.startswith("`"):
            self._fence_marks -= 1
            text = text[1:].lstrip(WHITE)
        return text

    @override
    def _is_answer(self, call: JsonCall) -> bool:
        is_other = call.name is not None and self._schema_of(call.name) is None
        return is_other or super()._is_answer(call)

    @override
    def mark(self, marker: str) -> Iterator[CallEvent]:
        if self._marked is not None:
            yield from self._marked.mark(marker)
        else:
            yield from self._mark_bare(marker)

    def _mark_bare(self, marker: str) -> Iterator[CallEvent]:
        if self._is_bare:
            yield no_call("".join((*self._held, self._fence or "")).strip())
        else:
            yield from self._end(cut=False)
        if marker == OPENING:
            self._is_bare, self._marked = False, HermesReader()
        else:
            yield Left()

    @override
    def close(self, *, cut: bool) -> Iterator[CallEvent]:
        yield from super().close(cut=cut) if self._marked is None else self._marked.close(cut=cut)


def _reader(opener: str, schema_of: SchemaOf) -> CallReader:
    return HermesReader() if opener else BareReader(schema_of)


HERMES: Final = CallSyntax(
    name="hermes",
    openers=(OPENING,),
    markers=(OPENING, CLOSING),
    reader=_reader,
    before_name=(Mark(OPENING), '\n{"name": "'),
    behind_name=('", "arguments": ',),
    behind=("}\n", Mark(CLOSING)),
    between=("\n",),
    begins="{`",
)
