"""Calls of Llama 3.1 and its successors: one JSON object in place of an answer.

    {"name": "get_weather", "parameters": {"city": "Paris"}}

Semicolons separate several, and `<|python_tag|>` may stand in front. Without it an object is a call
if it begins with a name and its parameters follow; any other one is an answer.

Source: the chat templates of Llama 3.1 to 3.3; vLLM's and SGLang's parser `llama3_json` / `llama3`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.models.chat.call_syntax import CallSyntax, Left, Noted, Rule
from gateway.models.chat.syntax.json_call import CALL_KEYS, JsonCall
from gateway.models.json_values import WHITE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.models.chat.call_syntax import CallEvent

OPENING: Final = "<|python_tag|>"


class Llama3Reader:
    """Reader of objects in a row. `is_bare`: no marker stood in front of them."""

    def __init__(self, *, is_bare: bool) -> None:
        self._is_bare = is_bare  # and it is not known yet whether it is a call
        self._held: list[str] = []  # until it is
        self._call: JsonCall | None = JsonCall()
        self._is_parted = False  # a semicolon came behind an object

    @property
    def is_junk(self) -> bool:
        return self._call is not None and self._call.is_junk

    def quotes(self, _marker: str) -> bool:
        return self._call is not None and self._call.in_string

    def text(self, text: str) -> Iterator[CallEvent]:
        if self._is_bare:
            self._held.append(text)
        while text:
            if self._call is None:
                text = self._behind_gap(text)
                if text.startswith(";"):
                    self._is_parted, text = True, text[1:].lstrip(WHITE)
                if not text:
                    return
                if not text.startswith("{"):
                    yield Left(text)
                    return
                if not self._is_parted:
                    yield Noted(Rule.SLOPPY_JSON)
                self._call, self._is_parted = JsonCall(), False
            events, text = self._call.feed(text)
            if self._is_bare and self._is_answer(self._call):
                yield Left("".join(self._held))
                return
            self._is_bare = self._is_bare and not self._call.is_reported
            yield from events
            if self._call.is_over:
                yield from self._call.finish(cut=False)
                self._call = None

    def _behind_gap(self, text: str) -> str:
        return text.lstrip(WHITE)

    def _is_answer(self, call: JsonCall) -> bool:
        if call.is_reported:
            return False
        return call.is_over or call.is_junk or not CALL_KEYS.issuperset(call.keys)

    def mark(self, _marker: str) -> Iterator[CallEvent]:
        """Begin calls again: there is one marker only."""
        yield from self._end(cut=False)
        self._call, self._is_bare = JsonCall(), False

    def _end(self, *, cut: bool) -> Iterator[CallEvent]:
        if self._call is not None:
            yield from self._call.finish(cut=cut)

    def close(self, *, cut: bool) -> Iterator[CallEvent]:
        # Text that could have become a call goes out as text.
        if self._is_bare:
            yield Left("".join(self._held))
        else:
            yield from self._end(cut=cut)


LLAMA3_JSON: Final = CallSyntax(
    name="llama3_json",
    openers=(OPENING,),
    markers=(OPENING,),
    reader=lambda opener, _schema_of: Llama3Reader(is_bare=not opener),
    before_name=('{"name": "',),
    behind_name=('", "parameters": ',),
    behind=("}",),
    between=("; ",),
    is_bare=True,
    begins="{",
)
