"""HTML → the text and the numbered links of a page.

The parser's time grows with the number of tags times their depth, and with the square of the number
of attributes of one tag. So `check_bounds` looks over a document first, in linear time; it is exact
only where tags are paired.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final
from urllib.parse import urldefrag, urljoin, urlsplit

from selectolax.lexbor import LexborHTMLParser

from gateway.tools.browser.page import TITLE_CHARS_MAX, Links, Page, Unreadable, link, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selectolax.lexbor import LexborNode


DEPTH_MAX: Final = 512
"""Browsers nest no deeper, either."""
ATTRIBUTES_MAX: Final = 512
_ATTRIBUTE: Final = (
    r"""[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"?|'[^']*+'?|[^\s>"'][^\s>]*+)?+)?+"""
)
"""Nothing is tried twice; an open quote lasts until the end."""
_ATTRIBUTES: Final = re.compile(_ATTRIBUTE)
_TAG: Final = re.compile(rf"<(?:!--|(/?)([a-zA-Z][^\s/>]*+)((?:{_ATTRIBUTE})*+)\s*+(/?))")
_ATTRIBUTE_CHARS_MIN: Final = 2
_RAW: Final = {
    name: re.compile(f"</{name}", re.IGNORECASE)
    for name in ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
}
"""Elements whose content has no tags, and what ends them."""
_TABLE_PARTS: Final = frozenset({"caption", "tbody", "td", "tfoot", "th", "thead", "tr"})
"""The beginning or end of one ends all that is open in the one before."""
_UNCOUNTED: Final = frozenset(
    {*_TABLE_PARTS,
     "area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param",
     "source", "track", "wbr",
     "a", "body", "colgroup", "dd", "dt", "head", "html", "li", "nobr", "optgroup", "option", "p",
     "rb", "rp", "rt", "rtc"}
)  # fmt: skip
"""Elements without content, or that the next of their kind ends: these nest only with others
between."""
_FOREIGN: Final = ("svg", "math")
"""Within these a tag that ends with `/>` is closed."""


def check_bounds(html: str) -> None:
    """Raise `Unreadable` for too deep a document, or too large a tag."""
    opened: list[str] = []
    count: Counter[str] = Counter()
    at = 0
    while (tag := _TAG.search(html, at)) is not None:
        at = tag.end()
        is_end, name, attributes, is_closed = tag.groups()
        if name is None:
            at = html.find("-->", at - len("--"))
            if at < 0:
                return  # the rest is a comment
            continue
        name = name.lower()
        if name in _TABLE_PARTS and count["table"]:
            _close_within("table", opened, count)
        if is_end:
            _pop(name, opened, count)
            continue
        _check_attributes(attributes)
        if (raw := _RAW.get(name)) is not None:
            end = raw.search(html, at)
            if end is None:
                return  # the rest has no tags
            at = end.start()
        elif name not in _UNCOUNTED and not (is_closed and any(count[one] for one in _FOREIGN)):
            _push(name, opened, count)


def _push(name: str, opened: list[str], count: Counter[str]) -> None:
    opened.append(name)
    count[name] += 1
    if len(opened) > DEPTH_MAX:
        raise Unreadable(f"its elements are nested deeper than {DEPTH_MAX} levels")


def _pop(name: str, opened: list[str], count: Counter[str]) -> None:
    if count[name]:
        _close_within(name, opened, count)
        count[opened.pop()] -= 1


def _close_within(name: str, opened: list[str], count: Counter[str]) -> None:
    while opened[-1] != name:
        count[opened.pop()] -= 1


def _check_attributes(written: str) -> None:
    if len(written) < ATTRIBUTES_MAX * _ATTRIBUTE_CHARS_MIN:
        return
    if sum(1 for _ in _ATTRIBUTES.finditer(written)) > ATTRIBUTES_MAX:
        raise Unreadable(f"one of its tags has more than {ATTRIBUTES_MAX} attributes")


LINK_CHARS_MAX: Final = 2048
_LEFT_OUT: Final = frozenset(
    {"script", "style", "noscript", "template", "svg", "math", "head", "iframe", "object", "select",
     "button", "canvas", "audio", "video", "textarea"}
)  # fmt: skip
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_PARAGRAPHS: Final = frozenset(
    {"p", "blockquote", "pre", "table", "ul", "ol", "dl", "figure", "section", "article", "hr",
     *_HEADINGS}
)  # fmt: skip
_BLOCKS: Final = frozenset(
    {"div", "li", "tr", "dt", "dd", "header", "footer", "main", "aside", "nav", "form", "address",
     "details", "summary", "fieldset", "figcaption"}
)  # fmt: skip
_CELLS: Final = frozenset({"td", "th"})
_HIDING: Final = re.compile(
    r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden"
    r"|font-size\s*:\s*0\s*(?:(?:px|em|%)\s*)?(?:;|$))",
    re.IGNORECASE,
)
"""Nothing here and below can be matched in two ways: a hostile page would have all of them
tried."""
_SPACE: Final = re.compile(r"\s+")
_KEPT_SPACE, _LINE, _PARAGRAPH = "\ue000", "\ue001", "\ue002"
"""Preformatted space, and edges of blocks: no text has them."""
_BREAKS: Final = re.compile(f" ?[\n{_LINE}{_PARAGRAPH}][ \n{_LINE}{_PARAGRAPH}]*")
"""In text whose spaces are squeezed."""
_SPACES: Final = re.compile(" {2,}")


def page_of(html: str, url: str) -> Page:
    """Return the page. Raises `Unreadable`."""
    check_bounds(html)
    tree = LexborHTMLParser(html)
    title = tree.css_first("title")
    writer = _Writer(url, _base(tree, url))
    root = _content(tree)
    if root is not None:
        _walk(root, writer)
    name = plain(" ".join(title.text().split())) if title is not None else ""
    text = f"URL: {plain(url)}\n\n{writer.text()}" if url else writer.text()
    shown = name[:TITLE_CHARS_MAX] or urlsplit(url).netloc
    return Page(url, shown, text.strip(), writer.links.urls)


def _base(tree: LexborHTMLParser, url: str) -> str:
    # The URL that links are relative to.
    base = tree.css_first("base[href]")
    href = base.attributes.get("href") if base is not None else None
    try:
        return urljoin(url, href) if href else url
    except ValueError:
        return url


def _content(tree: LexborHTMLParser) -> LexborNode | None:
    # The main part of the page if it is marked, otherwise the body.
    main = tree.css_first("main, [role=main]")
    if main is not None:
        return main
    articles = tree.css("article")
    return articles[0] if len(articles) == 1 else tree.body


def _walk(root: LexborNode, writer: _Writer) -> None:
    # Without recursion: a page may nest as deep as it likes.
    opened = [root]
    node = root.first_child
    while opened:
        if node is None:
            left = opened.pop()
            if opened:
                writer.close(left)
            node = left.next if opened else None
        elif node.tag == "-text":
            writer.write(node.text_content or "")
            node = node.next
        elif writer.open(node):
            opened.append(node)
            node = node.first_child
        else:
            node = node.next


class _Writer:
    def __init__(self, url: str, base: str) -> None:
        self.links = Links()
        self._base = base
        self._document = urldefrag(url).url
        self._host = urlsplit(url).hostname
        self._parts: list[str] = []
        self._images = 0
        self._preformatted = 0
        self._anchors: list[tuple[int, str | None]] = []
        """Index of the part where each open link's text begins, and its target."""
        self._is_linked = False
        """One of them has a target."""

    def open(self, node: LexborNode) -> bool:
        tag = node.tag or ""
        if tag in _LEFT_OUT or not tag or tag.startswith(("-", "!")):
            return False
        attributes = node.attributes
        if _is_hidden(attributes):
            return False
        self._break(tag)
        if tag in _HEADINGS:
            self._parts.append(_HEADINGS[tag])
        elif tag == "li":
            self._parts.append("* ")
        elif tag == "pre":
            self._preformatted += 1
        elif tag in {"sup", "sub"}:
            self._parts.append("^{" if tag == "sup" else "_{")
        elif tag == "img":
            self._image(attributes.get("alt") or "")
        elif tag == "a":
            # Nested links are an author's mistake. Only the outermost counts: otherwise the text of
            # each would be read again with that of all links within it.
            target = None if self._is_linked else self._target(attributes.get("href"))
            self._is_linked = self._is_linked or target is not None
            self._anchors.append((len(self._parts), target))
        return True

    def write(self, text: str) -> None:
        text = plain(text)
        if self._preformatted:
            self._parts.append(text.replace("\t", "    ").replace(" ", _KEPT_SPACE))
        else:
            self._parts.append(_SPACE.sub(" ", text))

    def close(self, node: LexborNode) -> None:
        tag = node.tag or ""
        if tag == "a":
            self._close_link()
        elif tag in {"sup", "sub"}:
            self._parts.append("}")
        elif tag == "pre":
            self._preformatted -= 1
        elif tag in _CELLS:
            self._parts.append(" ")
        if tag != "br":
            self._break(tag)

    def text(self) -> str:
        text = _SPACES.sub(" ", "".join(self._parts))
        return _BREAKS.sub(_break_of, text).strip().replace(_KEPT_SPACE, " ")

    def _break(self, tag: str) -> None:
        if tag in _PARAGRAPHS:
            self._parts.append(_PARAGRAPH)
        elif tag == "br":
            self._parts.append("\n")
        elif tag in _BLOCKS:
            self._parts.append(_LINE)

    def _image(self, alt: str) -> None:
        words = " ".join(plain(alt).split())
        self._parts.append(f"[Image {self._images}: {words}]" if words else "")
        self._images += bool(words)

    def _target(self, href: str | None) -> str | None:
        # None for a part of this page, and for a URL that is no page.
        if not href:
            return None
        try:
            url, fragment = urldefrag(urljoin(self._base, href.strip()))
            parts = urlsplit(url)
        except ValueError:
            return None
        if parts.scheme not in {"http", "https"} or len(url) > LINK_CHARS_MAX:
            return None
        return None if fragment and url == self._document else url

    def _close_link(self) -> None:
        start, target = self._anchors.pop()
        if target is None:
            return
        self._is_linked = False
        text = _SPACES.sub(" ", "".join(self._parts[start:]))
        words = _BREAKS.sub("\n", text).replace(_KEPT_SPACE, " ").strip()
        if not words or "【" in words:
            return
        number = self.links.number(target)
        if number is None:
            return
        host = urlsplit(target).hostname
        shown = link(number, words, None if host == self._host else host)
        self._parts[start:] = [_LINE, shown, _LINE] if "\n" in words else [shown]


def _is_hidden(attributes: Mapping[str, str | None]) -> bool:
    # Text that readers do not see may be instructions to a model.
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return True
    return _HIDING.search(attributes.get("style") or "") is not None


def _break_of(run: re.Match[str]) -> str:
    return "\n\n" if _PARAGRAPH in run[0] or run[0].count("\n") > 1 else "\n"
