"""Pages as a prompt shows them: what `browser.search`, `open` and `find` returned.

A display is `[3] Title (https://host/path)`, the line `**viewing lines [40 - 61] of 180**`, an
empty line, and then numbered ones: `L40: Some text, and 【7†a link】 in it.`
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.simulator.scripting.speech import ToolOutput

BROWSER: Final = "browser."
QUOTED_WORDS_MAX: Final = 10
_HEAD: Final = re.compile(
    r"^\[(\d+)\] ([^\n]*)\n\*\*viewing lines \[(\d+) - (\d+)\] of \d+\*\*", re.MULTILINE
)
_LINE: Final = re.compile(r"^L(\d+): (.*)$", re.MULTILINE)
_LINK: Final = re.compile(r"【(\d+)†([^【】†]*)[^【】]*】")
_URL: Final = re.compile(r" \((https?://[^\s()]+)\)$")
_WORD: Final = re.compile(r"\w{3,}")


@dataclass(frozen=True, slots=True)
class Display:
    """A page that was shown under a cursor, and the lines of it that were. `url` is empty for
    results of a search or a find.
    """

    cursor: int
    title: str
    url: str
    lines: tuple[tuple[int, str], ...]
    links: tuple[tuple[int, str], ...]
    """Their numbers and words, the lowest number first."""

    def best_link(self, words: frozenset[str]) -> int:
        # The link with most of these words; there must be one.
        return max(self.links, key=lambda one: len(words & words_of(one[1])))[0]

    def best_line(self, words: frozenset[str]) -> tuple[int, str]:
        """Return the line with most of these words, without the markup of links."""
        lines = [(number, _LINK.sub(r"\2", line).strip()) for number, line in self.lines]
        said = [one for one in lines if one[1] and not one[1].startswith(("#", "URL:"))]
        found = max(said or lines, key=lambda one: len(words & words_of(one[1])))
        return found[0], " ".join(found[1].split()[:QUOTED_WORDS_MAX])


def words_of(text: str) -> frozenset[str]:
    # Longer words only, in lower case.
    return frozenset(_WORD.findall(text.casefold()))


def displays_of(outputs: Iterable[ToolOutput]) -> list[Display]:
    """Return all pages that results of the browser show, in order."""
    texts = [output.text for output in outputs if output.name.startswith(BROWSER)]
    return [display for text in texts if (display := _display(text)) is not None]


def _display(text: str) -> Display | None:
    head = _HEAD.search(text)
    if head is None:
        return None
    body = text[head.end() :]
    lines = tuple((int(number), line) for number, line in _LINE.findall(body))
    if not lines:
        return None
    url = _URL.search(head[2])
    links = sorted((int(number), words) for number, words in _LINK.findall(body))
    title = head[2] if url is None else head[2][: url.start()]
    return Display(int(head[1]), title, url[1] if url else "", lines, tuple(links))
