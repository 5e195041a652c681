"""A fetched document, before the gateway reads it."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Final

_NOT_OF_PAGES: Final = frozenset(
    {"unicode-escape", "raw-unicode-escape", "idna", "punycode", "undefined", "utf-7"}
)
"""Codecs of Python that are no encodings of the web, and one that the web has given up."""
_META_CHARSET: Final = re.compile(rb"<meta[^>]{0,200}charset=[\"']?([\w-]{1,40})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fetched:
    """Document at a URL. `url` is where the last redirect led."""

    url: str
    content_type: str
    body: bytes
    charset: str | None = None

    @property
    def text(self) -> str:
        """Decode the body by its header's charset, or else the document's own, or UTF-8."""
        found = _META_CHARSET.search(self.body, 0, 2048)
        named = self.charset or (found[1].decode("ascii", "ignore") if found else None)
        try:
            if named and codecs.lookup(named).name not in _NOT_OF_PAGES:
                return self.body.decode(named, "replace")
        except (LookupError, ValueError):
            pass
        return self.body.decode("utf-8", "replace")


class Unreadable(Exception):
    """Failure to read text from a document. The message is for the model."""
