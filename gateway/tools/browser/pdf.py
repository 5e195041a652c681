"""PDF → the text of its pages.

A PDF is a program of sorts: only a process that may be killed reads one.
"""

from __future__ import annotations

from io import BytesIO
from typing import Final

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from gateway.tools.browser.fetched import Unreadable

_TITLE_CHARS_MAX: Final = 1000


def pages_of(body: bytes, *, pages_max: int, chars_max: int) -> tuple[str, list[str]]:
    """Return the title, which may be empty, and the text of each page, within the bounds.

    Raises `Unreadable`.
    """
    try:
        reader = PdfReader(BytesIO(body))
        title = str((reader.metadata and reader.metadata.title) or "")
        pages: list[str] = []
        for number, page in enumerate(reader.pages):
            if number >= pages_max or sum(map(len, pages)) >= chars_max:
                break
            pages.append(page.extract_text()[:chars_max])
    except (PyPdfError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        raise Unreadable("the PDF is damaged, locked, or too large to read") from None
    if not any(text.strip() for text in pages):
        raise Unreadable("the PDF has no text that can be read; it may be of pictures")
    return title[:_TITLE_CHARS_MAX], pages
