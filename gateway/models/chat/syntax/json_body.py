"""The arguments of a call whose function is named outside of its JSON: one value, as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.models.chat.recovery import Rule
from gateway.models.chat.syntax.contract import Argued, Ended
from gateway.models.chat.syntax.json_call import WHITE, ArgumentsReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.models.chat.syntax.contract import CallEvent


class JsonBody:
    """Reader of text from behind the name on. It passes on what is no JSON unchanged."""

    def __init__(self) -> None:
        self._value: ArgumentsReader | None = None
        self._raw: list[str] = []

    @property
    def is_over(self) -> bool:
        return self._value is not None and self._value.is_over

    def feed(self, text: str) -> tuple[list[CallEvent], str]:
        """Return the events of more text, and the rest of it behind the value."""
        if self.is_over:
            return [], text
        if self._value is None:
            text = text if self._raw else text.lstrip(WHITE)
            if self._raw or (text and text[0] not in '{["'):
                self._raw.append(text)
                return [], ""
            if not text:
                return [], ""
            self._value = ArgumentsReader()
        told, rest = self._value.feed(text)
        return ([Argued(told)] if told else []), rest

    def finish(self, *rules: Rule, cut: bool) -> Iterator[CallEvent]:
        """End the call: it is over, or there is no more text."""
        value, raw = self._value, "".join(self._raw).strip()
        is_missing = value is None and not raw and cut
        if is_missing or (value is not None and not value.is_over):
            yield Ended(broken=True)
        elif value is not None:
            text, found = value.finish()
            yield from [Argued(text)] if text else []
            yield Ended(rules=(*found, *rules))
        else:
            is_empty = raw in {"", "null"}
            yield Argued("{}" if is_empty else raw)
            rule = Rule.EMPTY_ARGUMENTS if is_empty else Rule.INVALID_ARGUMENTS
            yield Ended(broken=cut and not is_empty, rules=(rule, *rules))
