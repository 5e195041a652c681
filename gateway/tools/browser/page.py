"""A page in the form that gpt-oss was trained on (openai/gpt-oss, `gpt_oss/tools/simple_browser`):

    [3] Title (https://host/path)
    **viewing lines [40 - 61] of 180**

    L40: Some text, and 【7†a link†other.host】 in it.

What a page says must not look like the frame around it.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gateway.tools.result_text import UNSEEN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LINE_CHARS_MAX: Final = 80
URL_CHARS_SHOWN: Final = 1024
TITLE_CHARS_MAX: Final = 300
LINKS_MAX: Final = 512
LINKS_CHARS_MAX: Final = 48_000
MATCHES_MAX: Final = 50
MATCH_LINES: Final = 4
_LINK: Final = re.compile(r"【(\d+)†([^【†】]*)(?:†[^【】]*)?】")
_LINK_BEGIN: Final = re.compile(r"【(\d{1,4})†")
_FRAME_CHARS: Final = str.maketrans({"【": "〖", "】": "〗", "†": "‡"})
# The rest of the line if it fits, or as much as ends with a space, or else a piece of a word.
_WRAP: Final = re.compile(
    rf".{{1,{LINE_CHARS_MAX}}}\Z|.{{0,{LINE_CHARS_MAX - 1}}}\s|.{{1,{LINE_CHARS_MAX}}}", re.DOTALL
)
_TAB_CHARS: Final = 4
_LINE_ENDS: Final = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
"""A line without a number would look like the frame."""
_UNSEEN: Final = re.compile(f"[{UNSEEN}\u200b-\u200d\u2060-\u2065\ue000-\uf8ff\ud800-\udfff]")
"""Also zero-width and private characters, with which a page could forge the frame."""


@dataclass(frozen=True)
class Page:
    """Fetched page, or results (without `url`). `links` are the URLs of the numbers in `text`."""

    url: str
    title: str
    text: str
    links: tuple[str, ...] = ()

    @cached_property
    def lines(self) -> list[str]:
        # At most `LINE_CHARS_MAX` characters each; empty lines are kept.
        return [line for whole in self.text.split("\n") for line in _wrapped(whole)]


@dataclass(frozen=True, slots=True)
class View:
    """Lines of a page: from `first` on, up to but not `end`, of `count`."""

    text: str
    first: int
    end: int
    count: int


class Links:
    """Numbers of a page's URLs, bounded because what was shown is logged."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._chars = 0

    def number(self, url: str) -> int | None:
        number = self._numbers.get(url)
        if number is not None:
            return number
        chars = self._chars + len(url)
        if len(self._numbers) >= LINKS_MAX or chars > LINKS_CHARS_MAX:
            return None
        self._chars = chars
        return self._numbers.setdefault(url, len(self._numbers))

    @property
    def urls(self) -> tuple[str, ...]:
        # In the order of their numbers.
        return tuple(self._numbers)


class NoSuchLine(ValueError):
    """A location behind the end of a page."""


def plain(text: str) -> str:
    """Remove hidden characters, and those by which a page could imitate the frame."""
    return _UNSEEN.sub("", _LINE_ENDS.sub("\n", text)).translate(_FRAME_CHARS)


def link(number: int, text: str, domain: str | None = None) -> str:
    """Format a link. `domain`: not that of the page."""
    words = " ".join(plain(text).split())
    return f"【{number}†{words}†{plain(domain)}】" if domain else f"【{number}†{words}】"


def view(
    page: Page,
    cursor: int,
    *,
    first: int = 0,
    line_count: int | None = None,
    ids_max: int,
    count_ids: Callable[[str], int],
) -> View:
    """Return at least one line, and as many as fit in `ids_max` ids. Raises `NoSuchLine`."""
    lines = page.lines
    if not 0 <= first < len(lines):
        raise NoSuchLine(f"There is no line {first}: the page has lines 0 to {len(lines) - 1}.")
    last = len(lines) if line_count is None else min(len(lines), first + max(1, line_count))
    shown: list[str] = []
    left = ids_max
    for number in range(first, last):
        line = f"L{number}: {lines[number]}"
        left -= count_ids(line) + 1  # its end
        if left < 0 and shown:
            break
        shown.append(line)
    end = first + len(shown)
    head = f"[{cursor}] {_title(page)}\n**viewing lines [{first} - {end - 1}] of {len(lines) - 1}**"
    return View(f"{head}\n\n" + "\n".join(shown), first, end, len(lines))


def words_of(text: str) -> str:
    return _LINK.sub(r"\2", text)


def links_in(shown: str) -> int:
    """Count the links, from the first on, that are needed for what is shown."""
    return 1 + max((int(match[1]) for match in _LINK_BEGIN.finditer(shown)), default=-1)


def link_places(page: Page) -> tuple[tuple[int, str], ...]:
    """Return the line and the words where each link first occurs; empty if any does not occur."""
    places: dict[int, tuple[int, str]] = {}
    number = 0
    for whole in page.text.split("\n"):
        for match in _LINK.finditer(whole):
            places.setdefault(int(match[1]), (number, match[2]))
        number += len(_wrapped(whole))
    numbers = range(len(page.links))
    return tuple(places[at] for at in numbers) if places.keys() >= set(numbers) else ()


def find(page: Page, pattern: str) -> Page:
    """Return the places that contain a text, ignoring case; links count as their words."""
    lines = [words_of(line) for line in page.lines]
    wanted = pattern.casefold()
    chunks: list[str] = []
    number = 0
    while number < len(lines) and len(chunks) < MATCHES_MAX:
        if wanted in lines[number].casefold():
            chunk = "\n".join(lines[number : number + MATCH_LINES])
            chunks.append(f"# 【{len(chunks)}†match at L{number}】\n{chunk}")
            number += MATCH_LINES
        else:
            number += 1
    shown = plain(pattern)
    title = f"Find results for text: `{shown}` in `{page.title}`"
    text = "\n\n".join(chunks) or f"No `find` results for pattern: `{shown}`"
    return Page("", title[:TITLE_CHARS_MAX], text)


def _title(page: Page) -> str:
    title = " ".join(plain(page.title).split())[:TITLE_CHARS_MAX]
    if not page.url:
        return title
    url = plain(page.url)
    return f"{title} ({url if len(url) <= URL_CHARS_SHOWN else url[:URL_CHARS_SHOWN] + '…'})"


def _wrapped(line: str) -> Sequence[str]:
    if len(line) <= LINE_CHARS_MAX:
        return (line,)
    return _WRAP.findall(line.expandtabs(_TAB_CHARS))


_NOT_OF_PAGES: Final = frozenset(
    {"unicode-escape", "raw-unicode-escape", "idna", "punycode", "undefined", "utf-7"}
)
"""No encodings of the web, and UTF-7, which browsers refuse."""
_META_CHARSET: Final = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([\w-]{1,40})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Document at its final URL."""

    url: str
    content_type: str
    body: bytes
    charset: str | None = None

    @property
    def text(self) -> str:
        meta = _META_CHARSET.search(self.body, 0, 2048)
        named = self.charset or (meta[1].decode("ascii", "ignore") if meta else None)
        try:
            if named and codecs.lookup(named).name not in _NOT_OF_PAGES:
                return self.body.decode(named, "replace")
        except (LookupError, ValueError):
            pass
        return self.body.decode("utf-8", "replace")


class Unreadable(Exception):
    """Failure to read a document. The message is for the model."""
