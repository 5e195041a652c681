"""The summary of a reasoning item: an extract, since no second model is asked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from gateway.constraints.rules import Summary

CHARACTERS_MAX: Final = 300
"""A concise summary is no longer than that."""
_PARAGRAPH_END: Final = re.compile(r"\n[^\S\n]*\n")


class Summarizer(Protocol):
    """Reads the text of one item. What it hands out, joined, is the summary."""

    def feed(self, text: str) -> str: ...

    def finish(self) -> str: ...


def summarizer(summary: Summary) -> Summarizer | None:
    """The one for what a request asked for; None for no summary."""
    if summary == "off":
        return None
    return Concise() if summary == "concise" else Detailed()


class Detailed:
    """All of it."""

    def feed(self, text: str) -> str:
        """The text itself."""
        return text

    def finish(self) -> str:
        """Nothing is kept back."""
        return ""


class Concise:
    """The first paragraph, cut at a word; handed out in one piece as soon as it is certain."""

    def __init__(self) -> None:
        self._text = ""
        self._is_told = False

    def feed(self, text: str) -> str:
        """The extract if it is certain now, otherwise nothing."""
        if self._is_told:
            return ""
        self._text = (self._text + text).lstrip()
        found = _PARAGRAPH_END.search(self._text)
        return self.finish() if found or len(self._text) > CHARACTERS_MAX else ""

    def finish(self) -> str:
        """The extract, if it was not handed out before."""
        if self._is_told:
            return ""
        self._is_told = True
        # One character more, to see whether the last word ends there.
        front = self._text[: CHARACTERS_MAX + 1]
        paragraph = _PARAGRAPH_END.split(front, maxsplit=1)[0].rstrip()
        if len(paragraph) <= CHARACTERS_MAX:
            return paragraph
        words = paragraph.rsplit(maxsplit=1)
        return words[0] if len(words) > 1 else paragraph[:CHARACTERS_MAX]
