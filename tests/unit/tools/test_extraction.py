"""Documents as the model reads them, and those that nobody should have to read."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from io import BytesIO
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, NameObject

from gateway.tools.browser import document_worker
from gateway.tools.browser.document_reader import KEPT_BYTES_MAX, DocumentReader
from gateway.tools.browser.document_worker import FRAME_HEAD
from gateway.tools.browser.extraction import (
    CUT_NOTE,
    EMPTY_NOTE,
    ReadLimits,
    missing_libraries,
    page_of,
)
from gateway.tools.browser.html import ATTRIBUTES_MAX, DEPTH_MAX
from gateway.tools.browser.page import Fetched, Unreadable
from tests.fakes.cases import each
from tests.fakes.hostile_pages import PAGES
from tests.fakes.pdf_files import pdf_of
from tests.fakes.work import readers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.tools.browser.page import Page

URL = "https://site.example/docs/page"
PDF = "application/pdf"


async def read(
    body: bytes | str, content_type: str = "text/html", limits: ReadLimits | None = None
) -> Page:
    async with reading(limits) as reader:
        return await reader.read(fetched(body, content_type))


def fetched(body: bytes | str, content_type: str = "text/html") -> Fetched:
    return Fetched(URL, content_type, body.encode() if isinstance(body, str) else body)


@asynccontextmanager
async def reading(limits: ReadLimits | None = None) -> AsyncIterator[DocumentReader]:
    reader = DocumentReader(limits)
    try:
        yield reader
    finally:
        await reader.close()


async def test_tenants_take_turns_in_reading() -> None:
    done: list[str] = []
    async with reading(ReadLimits(documents_max=1)) as reader:

        async def read_for(name: str) -> None:
            await reader.read(fetched("<p>text"), name[0])
            done.append(name)

        await asyncio.gather(*map(read_for, ("a1", "a2", "a3", "b")))
    assert done == ["a1", "a2", "b", "a3"]


@pytest.mark.slow
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


@pytest.mark.slow
async def test_long_text_is_cut() -> None:
    limits = ReadLimits(text_chars_max=1000)
    for content_type in ("text/html", "text/plain"):
        page = await read("word " * 1000, content_type, limits)
        assert page.text.endswith(CUT_NOTE)
        assert len(page.text) < 1100


async def test_one_process_reads_one_page_after_the_other() -> None:
    async with reading() as reader:
        await reader.read(fetched("<p>one"))
        [first] = readers()
        assert "two" in (await reader.read(fetched("two", "text/plain"))).text
        assert [process.pid for process in readers()] == [first.pid]
    assert readers() == []


@pytest.mark.slow
async def test_process_that_ended_is_replaced() -> None:
    async with reading() as reader:
        await reader.read(fetched("<p>one"))
        [first] = readers()
        first.kill()
        first.wait()
        with suppress(Unreadable):  # that it has ended may not be known yet
            await reader.read(fetched("<p>two"))
        assert "three" in (await reader.read(fetched("<p>three"))).text


@pytest.mark.parametrize(
    "answer", [b"{", b"3", b"{}", b'{"unreadable": 3}', b'{"url": "", "links": 3}']
)
async def test_process_that_answers_otherwise_than_it_should_has_read_nothing(
    answer: bytes,
) -> None:
    sent = FRAME_HEAD.pack(len(answer)) + answer
    lie = f"import sys; sys.stdout.buffer.write({sent!r}); sys.stdout.flush(); sys.stdin.read()"
    liar = await asyncio.create_subprocess_exec(sys.executable, "-c", lie, stdin=PIPE, stdout=PIPE)
    async with reading() as reader:
        reader._idle.append(liar)
        with pytest.raises(Unreadable, match="damaged"):
            await reader.read(fetched("<p>one"))
        assert liar.returncode is not None


async def test_process_that_says_more_than_it_should_is_ended() -> None:
    lie = f"import sys; sys.stdout.buffer.write({FRAME_HEAD.pack(2**31)!r} + bytes(1024 * 1024))"
    liar = await asyncio.create_subprocess_exec(sys.executable, "-c", lie, stdin=PIPE, stdout=PIPE)
    async with reading() as reader, asyncio.timeout(60):
        reader._idle.append(liar)
        pipe = liar._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
        while pipe.is_reading():  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0)
        with pytest.raises(Unreadable, match="cannot be read"):
            await reader.read(fetched("<p>one"))
    assert liar.returncode == -signal.SIGKILL


@pytest.mark.slow
async def test_process_that_has_read_much_is_not_kept() -> None:
    async with reading() as reader:
        for much in (
            fetched(b" " * (KEPT_BYTES_MAX + 1), "text/plain"),
            fetched(pdf_of("", ["one"]), PDF),
        ):
            await reader.read(much)
            assert readers() == []


@pytest.mark.slow
async def test_kernel_ends_a_process_that_nobody_waits_for() -> None:
    head = json.dumps({"url": URL, "content_type": "text/html", "charset": None}).encode()
    body = PAGES["unpaired"].encode()
    frames = b"".join(FRAME_HEAD.pack(len(part)) + part for part in (head, body))
    limits = json.dumps(asdict(ReadLimits(document_timeout_s=0.5)))
    command = [sys.executable, "-I", document_worker.__file__, limits]
    worker = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    await worker.communicate(frames)
    assert worker.returncode == -signal.SIGXCPU


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [b"", b"%PDF-1.4\nnonsense", pdf_of("t", ["text"])[:200], bomb(80_000_000)],
    ids=["empty", "nonsense", "cut", "bomb"],
)
async def test_pdf_that_cannot_be_read_is_said(body: bytes) -> None:
    limits = ReadLimits(document_memory_bytes_max=256 * 1024 * 1024)
    with pytest.raises(Unreadable, match=r"the PDF (is damaged|has no text)"):
        await read(body, PDF, limits)


@pytest.mark.slow
async def test_small_bomb_is_a_page() -> None:
    assert (await read(bomb(1000), PDF)).text.endswith("some text")


async def test_pdf_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(Unreadable, match="took too long"):
        await read(pdf_of("t", ["x"]), PDF, ReadLimits(document_timeout_s=0.001))


def test_missing_libraries_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_libraries() == []
    monkeypatch.setitem(sys.modules, "pypdf", None)
    monkeypatch.delitem(sys.modules, "pypdf")
    monkeypatch.setattr("gateway.tools.browser.extraction.LIBRARIES", ("no_such_library",))
    assert missing_libraries() == ["no_such_library"]


PIECES = (*"<>/ahref= '\"[]():#\\u8d\0", "http://", '<base href="', "<a href=", "\\ud800")


@pytest.mark.slow
@given(
    st.binary(max_size=300)
    | st.lists(st.sampled_from(PIECES)).map(lambda parts: "".join(parts).encode()),
    st.sampled_from(["text/html", "text/markdown", "text/plain", "application/json"]),
    st.sampled_from(
        [None, "idna", "punycode", "unicode_escape", "utf-7", "utf-16", "rot13", "zlib"]
    ),
)
def test_anything_is_read(body: bytes, content_type: str, charset: str | None) -> None:
    page = page_of(Fetched(URL, content_type, body, charset), ReadLimits())
    for text in (page.title, page.text, *page.links):
        text.encode()
        assert "\0" not in text


@each(
    "html",
    [
        "<div>" * DEPTH_MAX + "x",
        "<div><br><img></div>" * 2000 + "x",
        "<ul>" + "<li>one<p>two" * 2000 + "x",
        "<table>" + "<tr><td><font>a</td>" * 2000 + "x",
        "<svg>" + "<path d='' />" * 2000 + "</svg>x",
        f"<!-- {'<div>' * 2000} -->x<!-->x",
        f"<script>{'<div>' * 2000}</SCRIPT>x",
        f"<p a='{'<div> b ' * 2000}'>x",
        f"<p {' '.join(f'a{number}' for number in range(ATTRIBUTES_MAX))}>x",
        '<p title="' + "a='b' " * 2000 + '">x',
        "x<!-- " + "<div>" * 2000,
        "x<script>" + "<div>" * 2000,
        "</div>" * 2000 + "x",
    ],
)
def test_ordinary_pages_are_within_the_bounds_of_html(html: str) -> None:
    assert "x" in page_of(fetched(html), ReadLimits()).text


@each(
    "html",
    [
        "<div>" * (DEPTH_MAX + 1),
        "<ul><li>" * (DEPTH_MAX + 1),
        "<DIV/>" * (DEPTH_MAX + 1),
        "<div><span></p>" * DEPTH_MAX,
        "<div><!-- --><script></script>" * (DEPTH_MAX + 1),
        "<p " + "a/" * (ATTRIBUTES_MAX + 1) + ">",
        "<p " + "a=''" * (ATTRIBUTES_MAX + 1) + ">",
        "<p " + "= = = " * (ATTRIBUTES_MAX + 1) + ">",
        "<p \n" + 'a = "<" ' * (ATTRIBUTES_MAX + 1),
    ],
)
def test_html_beyond_its_bounds_is_refused_before_it_is_parsed(html: str) -> None:
    with pytest.raises(Unreadable, match=r"nested deeper|has more than"):
        page_of(fetched(html), ReadLimits())
