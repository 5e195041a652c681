"""Citations of an answer: pages by markers, which become links, and files by their path.

gpt-oss writes markers:

    【3†L12-L15】      the display with cursor 3, lines 12 to 15
    【3†source】       the display with cursor 3

These brackets are quotation marks in Chinese and Japanese, so a marker must begin with a number and
a dagger. Source: https://cookbook.openai.com/articles/openai-harmony, and the description of the
browser tool in openai-harmony.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from gateway.protocol.grants import CITED_FILES_MAX
from gateway.protocol.items import URL_CITATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gateway.protocol.grants import ShownPage

OPENING: Final = "【"
CLOSING: Final = "】"
DAGGER: Final = "†"
CITATIONS_MAX: Final = 1024
"""Links in one answer: a marker takes a few ids, and its link and annotation 4 kB and more."""
MARKER_CHARS_MAX: Final = 64
CURSOR_DIGITS_MAX: Final = 6
LINK_CHARS_MAX: Final = 80
TITLE_CHARS_MAX: Final = 300
"""The author of a page chooses its title."""
_UNLINKABLE: Final = re.compile(r"[\s\[\]<>`\\【】\x00-\x1f\x7f]+")
"""Whatever would end the text of a link, or make it something other than text."""
_ADDRESS: Final = "%:/?#[]@!$&'*+,;=~-._"
"""Safe in the address of a link; a space or a round bracket ends it."""
SANDBOX: Final = "sandbox:"
"""Prefix that models write before a path in a link."""
_FIRSTS: Final = SANDBOX[0] + "/"
_GOES_ON: Final = re.compile("[A-Za-z0-9_/-]")
"""Behind a path: it is the front of another one."""
_LINES: Final = re.compile(r"L?(\d{1,9})(?:\s*-\s*L?(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Citation:
    cursor: int
    lines: tuple[int, int] | None = None


class CitationReader:
    """Reader that splits streamed text into text and citations, regardless of chunk boundaries."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> Sequence[str | Citation]:
        """Return the decided pieces of more text; texts are never empty, and never adjacent."""
        if not self.held and OPENING not in text:
            return (text,) if text else ()
        pieces: list[str | Citation] = []
        plain: list[str] = []
        for char in text:
            if char == CLOSING and DAGGER in self.held:
                _keep(pieces, plain)
                pieces.append(_parse_marker(self.held))
                self.held = ""
            elif char == OPENING:
                plain.append(self.held)
                self.held = OPENING
            elif self.held and self._may_go_on(char):
                self.held += char
            else:
                plain += (self.held, char)
                self.held = ""
        _keep(pieces, plain)
        return pieces

    def end(self) -> str:
        held, self.held = self.held, ""
        return held

    def _may_go_on(self, char: str) -> bool:
        held = self.held
        if DAGGER in held:
            return len(held) < MARKER_CHARS_MAX - 1 and char != "\n"
        if char == DAGGER:
            return len(held) > len(OPENING)
        return char.isascii() and char.isdigit() and len(held) <= CURSOR_DIGITS_MAX


def _keep(pieces: list[str | Citation], plain: list[str]) -> None:
    if text := "".join(plain):
        pieces.append(text)
    plain.clear()


def _parse_marker(held: str) -> Citation:
    cursor, _, where = held.removeprefix(OPENING).partition(DAGGER)
    match = _LINES.match(where)
    if match is None:
        return Citation(int(cursor))
    first = int(match[1])
    return Citation(int(cursor), (first, max(first, int(match[2] or first))))


class Pages:
    __slots__ = ("_pages",)

    def __init__(self, pages: Iterable[ShownPage]) -> None:
        self._pages = {page.cursor: page for page in pages}

    def __iter__(self) -> Iterator[ShownPage]:
        return iter(self._pages.values())

    def add(self, page: ShownPage) -> None:
        self._pages.pop(page.cursor, None)
        self._pages[page.cursor] = page

    def cited(self, citation: Citation) -> tuple[str, str] | None:
        """Return URL and title of a citation's page; None if nothing with an address was shown.

        For matches found in a page it is that page; for search results, the result in the cited
        lines.
        """
        page = self._pages.get(citation.cursor)
        if page is not None and not page.url and page.of is not None:
            page = self._pages.get(page.of)
        if page is None:
            return None
        url, title = page.url, page.title
        if not url and citation.lines is not None:
            url, title = _find_hit(page, citation.lines)
        return (url, title) if "://" in url else None


def _find_hit(page: ShownPage, lines: tuple[int, int]) -> tuple[str, str]:
    first, last = lines
    hits = [(line, url, words) for (line, words), url in zip(page.hits, page.links, strict=False)]
    above = [hit for hit in hits if hit[0] <= first]
    within = [hit for hit in hits if first < hit[0] <= last]
    for _, url, words in (*above[-1:], *within[:1]):
        return url, words
    return "", ""


Logprobs = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CitedText:
    """Text of an answer; with an `annotation`, all of it is the link."""

    text: str
    annotation: dict[str, Any] | None = None
    logprobs: Logprobs | None = None


class ContainerFiles:
    """Files by absolute path."""

    __slots__ = ("_ids", "_lengths", "_paths", "_root", "container_id")

    def __init__(self) -> None:
        self.container_id = ""
        self._ids: dict[str, str] = {}
        self._paths: list[str] = []
        self._root = ""
        self._lengths: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._ids)

    def put(self, container_id: str, files: Mapping[str, str]) -> None:
        self.container_id = container_id
        self._ids = dict(list(files.items())[-CITED_FILES_MAX:])
        self._paths = sorted(self._ids)
        ends = zip(self._paths[0], self._paths[-1], strict=False)
        self._root = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], ends))
        # The longest that fits: one path may be the front of another.
        self._lengths = sorted({len(path) for path in self._paths}, reverse=True)

    def annotation(self, path: str) -> dict[str, Any]:
        return {
            "type": "container_file_citation",
            "container_id": self.container_id,
            "file_id": self._ids[path],
            "filename": path.rpartition("/")[2],
        }

    def find(self, text: str, start: int) -> tuple[int, int, str] | None:
        """Return begin and end of the first path from `start` on, and the path itself."""
        at = text.find(self._root, start)
        while at >= 0:
            for length in self._lengths:
                path = text[at : at + length]
                end = at + len(path)
                if path in self._ids and not _GOES_ON.match(text, end):
                    begin = at - len(SANDBOX)
                    is_prefixed = begin >= start and text.startswith(SANDBOX, begin)
                    return begin if is_prefixed else at, end, path
            at = text.find(self._root, at + 1)
        return None

    def front(self, text: str, start: int) -> int | None:
        """Return the position from `start` on of a path that may continue after the text."""
        for at in range(max(start, len(text) - len(SANDBOX) - self._lengths[0]), len(text)):
            if text[at] in _FIRSTS and self._is_front(text[at:]):
                return at
        return None

    def _is_front(self, text: str) -> bool:
        # No table of all fronts: with long paths it would take megabytes.
        path = text.removeprefix(SANDBOX)
        if not path.startswith("/"):
            return SANDBOX.startswith(text)
        at = bisect_left(self._paths, path)
        return at < len(self._paths) and self._paths[at].startswith(path)


class FileReader:
    __slots__ = ("_files", "held")

    def __init__(self, files: ContainerFiles) -> None:
        self._files = files
        self.held = ""

    def feed(self, text: str) -> list[CitedText]:
        return self._cite_paths(self.held + text, is_last=False)

    def end(self) -> list[CitedText]:
        return self._cite_paths(self.held, is_last=True)

    def _cite_paths(self, text: str, *, is_last: bool) -> list[CitedText]:
        shown: list[CitedText] = []
        done = 0
        while True:
            front = None if is_last else self._files.front(text, done)
            match = self._files.find(text, done)
            if match is None or (front is not None and front <= match[0]):
                break
            begin, end, path = match
            shown.append(CitedText(text[done:begin]))
            shown.append(CitedText(text[begin:end], self._files.annotation(path)))
            done = end
        end = len(text) if front is None else front
        self.held = text[end:]
        shown.append(CitedText(text[done:end]))
        return [piece for piece in shown if piece.text]


class CitedAnswer:
    """Answer in which each marker becomes a link, and paths of files are annotated.

    A marker is dropped if its page is not known, behind `CITATIONS_MAX` others, or if a link would
    break the answer's format (`links` False). Without `pages` markers are text.
    """

    __slots__ = (
        *("_files", "_length", "_links", "_markers", "_pages", "_reader", "_spelled"),
        "unresolved",
    )

    def __init__(
        self, pages: Pages | None, files: ContainerFiles | None, *, links: bool = True
    ) -> None:
        self._pages = pages
        self._links = links
        self._reader = CitationReader()
        self._files = FileReader(files) if files else None
        self._length = 0
        self._markers = 0
        self._spelled: Logprobs | None = []
        self.unresolved = 0

    def feed(self, text: str) -> list[CitedText]:
        shown: list[CitedText] = []
        for piece in (text,) if self._pages is None else self._reader.feed(text):
            if isinstance(piece, str):
                shown += self._with_files(piece)
                continue
            self._markers += 1
            shown += self._files.end() if self._files else []
            is_linked = self._links and self._markers <= CITATIONS_MAX
            link = self._link(piece) if is_linked else None
            self.unresolved += link is None
            shown += [link] if link else []
        return list(map(self._with_offsets, shown))

    def feed_spelled(self, units: Iterable[tuple[str, Logprobs | None]]) -> list[CitedText]:
        """Return the pieces that more text decides; its units have as few ids as spell whole
        characters.

        Logprobs go with the text once it is certain that none of it is a marker; otherwise they are
        dropped.
        """
        shown: list[CitedText] = []
        for text, logprobs in units:
            markers = self._markers
            pieces = self.feed(text)
            is_plain = markers == self._markers
            has_logprobs = self._spelled is not None and logprobs is not None and is_plain
            self._spelled = [*(self._spelled or ()), *(logprobs or ())] if has_logprobs else None
            for piece in pieces:
                _join(shown, piece)
            if not (self._reader.held or (self._files and self._files.held)):
                self._tell(shown)
        return shown

    def end(self, *, is_complete: bool) -> list[CitedText]:
        """Return the text that was held back, without incomplete markers.

        In an answer that was cut off, an open bracket is dropped too.
        """
        held = self._reader.end()
        if held and (not is_complete or DAGGER in held):
            held, self._spelled = "", None
        shown = self._with_files(held) if held else []
        shown += self._files.end() if self._files else []
        rest = list(map(self._with_offsets, shown))
        self._tell(rest)
        return rest

    def _with_files(self, text: str) -> list[CitedText]:
        return [CitedText(text)] if self._files is None else self._files.feed(text)

    def _tell(self, shown: list[CitedText]) -> None:
        # The logprobs of all ids since the last call go with the last text.
        logprobs, self._spelled = self._spelled, []
        if logprobs and shown:
            last = shown[-1]
            shown[-1] = replace(last, logprobs=[*(last.logprobs or ()), *logprobs])

    def _with_offsets(self, piece: CitedText) -> CitedText:
        # Offsets count code points of the text that the client has.
        start, self._length = self._length, self._length + len(piece.text)
        if piece.annotation is None:
            return piece
        place = {"start_index": start, "end_index": self._length}
        return CitedText(piece.text, {**piece.annotation, **place})

    def _link(self, citation: Citation) -> CitedText | None:
        cited = None if self._pages is None else self._pages.cited(citation)
        if cited is None:
            return None
        url, title = cited
        title = " ".join(title.split())[:TITLE_CHARS_MAX] or _domain(url)
        words = _UNLINKABLE.sub(" ", title).strip()[:LINK_CHARS_MAX].rstrip() or _domain(url)
        address = quote(url, safe=_ADDRESS)
        annotation = {"type": URL_CITATION, "title": title, "url": url}
        return CitedText(f"([{words}]({address}))", annotation)


def _join(shown: list[CitedText], piece: CitedText) -> None:
    if shown and shown[-1].annotation is None and piece.annotation is None:
        shown[-1] = replace(shown[-1], text=shown[-1].text + piece.text)
    else:
        shown.append(piece)


def _domain(url: str) -> str:
    host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    return host or url
