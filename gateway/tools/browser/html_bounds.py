"""Look over an HTML document, once and in linear time, for what a parser takes long to read.

The time of a parser grows with the number of tags times the depth at which they are, and with the
square of the number of attributes of one tag. This is no parser: it finds the depth of a document
whose tags are paired, and about that of others. The process that parses has bounds for all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from gateway.tools.browser.fetched import Unreadable

DEPTH_MAX: Final = 512
"""Elements within each other. Browsers nest no deeper, either."""
ATTRIBUTES_MAX: Final = 512
"""Attributes of one tag."""
_ATTRIBUTE: Final = (
    r"""[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"?|'[^']*+'?|[^\s>"'][^\s>]*+)?+)?+"""
)
"""Here and below nothing is tried twice, as in `html.py`; an open quote lasts until the end."""
_ATTRIBUTES: Final = re.compile(_ATTRIBUTE)
_TAG: Final = re.compile(rf"<(?:!--|(/?)([a-zA-Z][^\s/>]*+)((?:{_ATTRIBUTE})*+)\s*+(/?))")
_ATTRIBUTE_CHARS_MIN: Final = 2
_RAW: Final = {
    name: re.compile(f"</{name}", re.IGNORECASE)
    for name in ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")
}
"""Elements whose content has no tags, and what ends them."""
_CELLS: Final = frozenset({"caption", "tbody", "td", "tfoot", "th", "thead", "tr"})
"""Of a table: where one begins or ends, all that is open in the one before ends."""
_UNCOUNTED: Final = frozenset(
    {*_CELLS,
     "area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param",
     "source", "track", "wbr",
     "a", "body", "colgroup", "dd", "dt", "head", "html", "li", "nobr", "optgroup", "option", "p",
     "rb", "rp", "rt", "rtc"}
)  # fmt: skip
"""Elements that have no content, and those that the next of their kind ends: many of these are
within each other only with other elements between, which count."""
_FOREIGN: Final = ("svg", "math")
"""Within these a tag that ends with `/>` is closed."""


def check(html: str) -> None:
    """Raise `Unreadable` for a document that is nested too deeply, or has too large a tag."""
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
        if name in _CELLS and count["table"]:
            _close_within("table", opened, count)
        if is_end:
            _close(name, opened, count)
            continue
        _check_attributes(attributes)
        if (raw := _RAW.get(name)) is not None:
            end = raw.search(html, at)
            if end is None:
                return  # the rest has no tags
            at = end.start()
        elif name not in _UNCOUNTED and not (is_closed and any(count[one] for one in _FOREIGN)):
            _open(name, opened, count)


def _open(name: str, opened: list[str], count: Counter[str]) -> None:
    opened.append(name)
    count[name] += 1
    if len(opened) > DEPTH_MAX:
        raise Unreadable(f"its elements are nested deeper than {DEPTH_MAX} levels")


def _close(name: str, opened: list[str], count: Counter[str]) -> None:
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
