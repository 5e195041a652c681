"""Documents as the model reads them, and those that nobody should have to read."""

from __future__ import annotations

import asyncio
import sys
from io import BytesIO
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, NameObject

from gateway.simulator.site.pdf import pdf_of
from gateway.tools.browser.extraction import (
    CUT_NOTE,
    EMPTY_NOTE,
    INLINE_BYTES_MAX,
    DocumentReader,
    ReadLimits,
    Unreadable,
    missing_libraries,
)
from gateway.tools.browser.fetch import Fetched

if TYPE_CHECKING:
    from gateway.tools.browser.page import Page

URL = "https://site.example/docs/page"
PDF = "application/pdf"


async def read(
    body: bytes | str, content_type: str = "text/html", limits: ReadLimits | None = None
) -> Page:
    sent = body.encode() if isinstance(body, str) else body
    return await DocumentReader(limits or ReadLimits()).read(Fetched(URL, content_type, sent))


@pytest.mark.parametrize(
    ("content_type", "body", "title", "text"),
    [
        ("text/html", "<title>T</title><p>a</p>", "T", "a"),
        ("application/xhtml+xml", "<title>T</title><p>a</p>", "T", "a"),
        ("text/plain", "\n== Notes ==\n【1†x】\u202e", "Notes", "== Notes ==\n〖1‡x〗"),
        ("text/plain", "", "page", ""),
        ("text/html", "<title>App</title><script>run()</script><div></div>", "App", EMPTY_NOTE),
        ("application/json", '{"a": 1}', '{"a": 1}', '{"a": 1}'),
        (
            "text/markdown",
            "# M\n[one](/a) [two](https://b.example/x 't') [one](</a>)"
            " ![i](/i.png) [p](#p) [m](mailto:x)",
            "M",
            "# M\n【0†one】 【1†two†b.example】 【0†one】 ![i](/i.png) p m",
        ),
    ],
)  # fmt: skip
async def test_documents_read_as_text(content_type: str, body: str, title: str, text: str) -> None:
    page = await read(body, content_type)
    assert (page.url, page.title) == (URL, title)
    assert page.text == f"URL: {URL}\n\n{text}".strip()


async def test_links_of_markdown_lead_somewhere() -> None:
    page = await read("[a](x) [b](http://[) [c](/y?z#f)", "text/markdown")
    assert page.links == ("https://site.example/docs/x", "https://site.example/y?z#f")
    assert "b 【1†c】" in page.text


async def test_long_text_is_cut() -> None:
    limits = ReadLimits(text_chars_max=1000)
    for content_type in ("text/html", "text/plain"):
        page = await read("word " * 1000, content_type, limits)
        assert page.text.endswith(CUT_NOTE)
        assert len(page.text) < 1100


async def test_long_documents_are_read_beside_the_loop() -> None:
    body = "<p>" + "x " * INLINE_BYTES_MAX
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.ensure_future(tick())
    page = await read(body)
    ticking.cancel()
    assert len(page.text) > INLINE_BYTES_MAX
    assert ticks > 1


async def test_pdf_is_read_page_by_page() -> None:
    page = await read(pdf_of("A (title)", ["one", "two", "three"]), PDF)
    assert (page.title, page.links) == ("A (title)", ())
    assert "Page 1\n\none" in page.text
    assert "Page 3\n\nthree" in page.text
    short = await read(pdf_of("", ["one", "two"]), PDF, ReadLimits(pdf_pages_max=1))
    assert "two" not in short.text
    assert short.title == "one"


def bomb(size_bytes: int) -> bytes:
    """A PDF of some kilobytes whose page has so many bytes."""
    writer = PdfWriter(clone_from=BytesIO(pdf_of("bomb", [""])))
    content, written = DecodedStreamObject(), BytesIO()
    content.set_data(b"BT /F1 12 Tf 50 780 Td (some text) Tj ET" + b" " * size_bytes)
    writer.pages[0][NameObject("/Contents")] = writer._add_object(content.flate_encode(9))
    writer.write(written)
    return written.getvalue()


@pytest.mark.parametrize(
    "body",
    [b"", b"%PDF-1.4\nnonsense", pdf_of("t", ["text"])[:200], bomb(80_000_000)],
    ids=["empty", "nonsense", "cut", "bomb"],
)
async def test_pdf_that_cannot_be_read_is_said(body: bytes) -> None:
    limits = ReadLimits(pdf_memory_bytes_max=256 * 1024 * 1024)
    with pytest.raises(Unreadable, match=r"the PDF (is damaged|has no text)"):
        await read(body, PDF, limits)


async def test_small_bomb_is_a_page() -> None:
    assert (await read(bomb(1000), PDF)).text.endswith("some text")


async def test_pdf_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(Unreadable, match="took too long"):
        await read(pdf_of("t", ["x"]), PDF, ReadLimits(pdf_timeout_s=0.001))


def test_missing_libraries_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_libraries() == []
    monkeypatch.setitem(sys.modules, "pypdf", None)
    monkeypatch.delitem(sys.modules, "pypdf")
    monkeypatch.setattr("gateway.tools.browser.extraction.LIBRARIES", ("no_such_library",))
    assert missing_libraries() == ["no_such_library"]


PIECES = (*"<>/ahref= '\"[]():#\\u8d\0", "http://", '<base href="', "<a href=", "\\ud800")


@given(
    st.binary(max_size=300)
    | st.lists(st.sampled_from(PIECES)).map(lambda parts: "".join(parts).encode()),
    st.sampled_from(["text/html", "text/markdown", "text/plain", "application/json"]),
    st.sampled_from(
        [None, "idna", "punycode", "unicode_escape", "utf-7", "utf-16", "rot13", "zlib"]
    ),
)
async def test_anything_is_read(body: bytes, content_type: str, charset: str | None) -> None:
    page = await DocumentReader().read(Fetched(URL, content_type, body, charset))
    for text in (page.title, page.text, *page.links):
        text.encode()
        assert "\0" not in text
