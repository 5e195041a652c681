"""Text of strangers: nothing that it says is a frame, a link, a citation, a control id or an order,
and none of it holds a process up.
"""

from __future__ import annotations

import re

import pytest

from gateway.eventlog.fold.citations import CitedAnswer, ContainerFiles, Pages
from gateway.protocol.grants import ShownPage
from gateway.tools.browser.extraction import ReadLimits
from gateway.tools.browser.extraction import page_of as page_of_any
from gateway.tools.browser.html import page_of
from gateway.tools.browser.page import Fetched, Page, find, links_in, view
from gateway.tools.result_text import bounded, plain
from gateway.tools.tool_contract import ToolCall
from gateway.tools.tool_executor import ToolLimits, _arguments_fault
from tests.fakes.cases import each
from tests.fakes.injections import CORPUS

URL = "https://site.example/page"
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


def words(text: str) -> int:
    return len(text.split())


def check(page: Page) -> None:
    """What the model is shown of a page has one frame, which is ours, and no links but its own."""
    shown = view(page, 3, ids_max=100_000, count_ids=words).text
    assert not UNSEEN.search(shown)
    head, rest = shown.split("\n\n", 1)
    assert re.fullmatch(r"\[3\] [^\n]*\n\*\*viewing lines \[\d+ - \d+\] of \d+\*\*", head)
    assert "【" not in head
    for number, line in enumerate(rest.splitlines()):
        assert line.startswith(f"L{number}: ")
    if not page.url.startswith("find:"):
        assert links_in(shown) <= len(page.links)


@each("text", CORPUS)
@each("kind", ["text/html", "text/plain", "text/markdown", "application/json"])
def test_page_cannot_write_its_own_frame(text: str, kind: str) -> None:
    body = text
    if kind == "text/html":
        body = f"<title>{text}</title><pre>{text}</pre><p>{text}<a href='/x'>{text}</a>"
        body += f"<img alt='{text}'>"
    sent = body.encode("utf-8", "surrogatepass")
    page = page_of_any(Fetched(URL, kind, sent), ReadLimits())
    check(page)
    assert all(link.startswith(("https://", "http://")) for link in page.links)
    found = find(page, "e")
    check(Page(f"find:{page.url}", found.title, found.text))


@each("text", CORPUS)
def test_text_of_a_tool_server_hides_nothing(text: str) -> None:
    assert not UNSEEN.search(plain(text))
    assert not UNSEEN.search(bounded(text, 1000))
    plain(text).encode()  # no halves of characters, which nothing could store


@each("text", CORPUS)
def test_title_of_a_page_makes_no_other_link(text: str) -> None:
    url = f"{URL}?({text})".encode("utf-8", "replace").decode()
    answer = CitedAnswer(Pages([ShownPage(0, "", "page", url, text, 0, 9)]), ContainerFiles())
    pieces = [*answer.feed("See 【0†L1】."), *answer.end(is_complete=True)]
    said = "".join(piece.text for piece in pieces)
    link = r"\[[^\[\]\n<>`]*\]\(https://site\.example/page[^\s()<>]*\)"
    assert re.fullmatch(rf"See \({link}\)\.", said)


@pytest.mark.slow
@pytest.mark.parametrize(
    "html",
    [
        f"<p style='font-size:0{' ' * 2_000_000}x'>text</p>",
        f"<a href=/x>words{' <b></b>' * 300_000}</a>",
        "<a href=/x><marquee>" * 500 + "words",
    ],
)
def test_hostile_markup_is_read_at_once(html: str) -> None:
    """Each of these took hours, while all threads of the process waited."""
    assert page_of(html, URL).url == URL


@pytest.mark.slow
def test_hostile_markdown_is_read_at_once() -> None:
    text = ("[a](" + "x" * 2100) * 20_000
    page = page_of_any(Fetched(URL, "text/markdown", text.encode()), ReadLimits())
    assert page.links == ()


def test_arguments_of_open_strings_are_measured_at_once() -> None:
    limits = ToolLimits()
    hostile = '"' + '\\"' * (limits.arguments_bytes_max // 2 - 1)
    assert _arguments_fault(ToolCall(0, "label.tool", hostile), limits) is None
    deep = "[" * 40 + '"]]]]'
    assert _arguments_fault(ToolCall(0, "label.tool", deep), limits) is not None


def test_a_link_within_a_link_is_words() -> None:
    page = page_of(
        "<a name=top><table><tr><td><a href=/y>one</a></table><p><a href=/z>two</a>", URL
    )
    assert page.links == ("https://site.example/y", "https://site.example/z")
