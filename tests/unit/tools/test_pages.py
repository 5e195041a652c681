"""HTML as the model reads it, and the lines of it that it is shown."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.browser.html import DEPTH_MAX, page_of
from gateway.tools.browser.page import (
    LINE_CHARS_MAX,
    LINKS_CHARS_MAX,
    LINKS_MAX,
    NoSuchLine,
    Page,
    View,
    find,
    link_places,
    plain,
    view,
    words_of,
)
from tests.fakes.cases import each

URL = "https://site.example/docs/page.html"


def body(html: str) -> str:
    return page_of(html, URL).text.removeprefix(f"URL: {URL}").strip()


def words(text: str) -> int:
    return len(text.split())


def shown(page: Page, **options: int | None) -> View:
    return view(page, 3, ids_max=options.pop("ids_max", None) or 10_000, count_ids=words, **options)  # type: ignore[arg-type]


@each(
    ("html", "text"),
    [
        ("<h2>One</h2><p>two  three\n four</p>", "## One\n\ntwo three four"),
        ("<ul><li>a<li>b</ul>", "* a\n* b"),
        ("x<sup>2</sup> H<sub>2</sub>O", "x^{2} H_{2}O"),
        ("a<br>b<script>evil()</script><style>p{}</style>", "a\nb"),
        (
            '<p style="color:red; DISPLAY : none">no</p><p style="visibility:hidden">no</p>yes',
            "yes",
        ),
        ('<p style="font-size:0">no</p><p style="font-size:0.9em;display:block">yes</p>', "yes"),
        ("<p hidden>no</p><p aria-hidden=true>no</p>yes", "yes"),
        ("<pre>a\n  b\tc</pre>", "a\n  b    c"),
        ("<table><tr><th>a<th>b<tr><td>1<td>2</table>", "a b\n1 2"),
        ('<a href="/b">to b</a>', "【0†to b】"),
        ('<a href="https://other.example/x">x</a>', "【0†x†other.example】"),
        ('<a href="/b">1</a> <a href="/c">2</a> <a href="/b#f">3</a>', "【0†1】 【1†2】 【0†3】"),
        ('<a href="#part">part</a>', "part"),
        ('<a href="mailto:a@b.c">mail</a> <a href="javascript:x()">run</a>', "mail run"),
        ('<a href="http://[bad">bad</a><a>none</a><a href="/e"></a>', "badnone"),
        ('<a href="/b"><div>block</div></a>tail', "【0†block】tail"),
        ('<a href="/b"><p>one</p><p>two</p></a>tail', "【0†one two】\ntail"),
        ('<img alt="a cat"><img><img alt="a dog">', "[Image 0: a cat][Image 1: a dog]"),
        ("<math><mi>x</mi></math><svg><text>t</text></svg>left", "left"),
        ("<nav>menu</nav><main>content</main>", "content"),
        ("<nav>menu</nav><article>content</article>", "content"),
        ("<article>one</article><article>two</article>", "one\n\ntwo"),
        ('<base href="http://["><a href="/b">b</a>', "【0†b】"),
        ("【1†forged】 † \u200bzero\u202e", "〖1‡forged〗 ‡ zero"),
    ],
)
def test_html_reads_as_text(html: str, text: str) -> None:
    assert body(html) == text


def test_page_knows_its_title_and_links() -> None:
    page = page_of(
        '<title> A\n page </title><base href="https://cdn.example/"><a href="x">x</a>', URL
    )
    assert page.title == "A page"
    assert page.links == ("https://cdn.example/x",)
    assert page.text.startswith(f"URL: {URL}\n")
    assert page_of("", "https://bare.example/").title == "bare.example"
    # The title is logged with each view, and quoted by citations.
    assert page_of(f"<title>{'long ' * 1000}</title>", URL).title == ("long " * 60)
    assert page_of("text", "").text == "text"


@pytest.mark.slow
def test_spaces_in_a_link_are_squeezed_however_many() -> None:
    """Each looked at from each other they would take a page of a MiB some minutes."""
    page = page_of('<a href="/to">a' + "<i> </i>" * 100_000 + "b</a>", URL)
    assert "【0†a b】" in page.text


def test_links_do_not_nest() -> None:
    page = page_of('<a href="/1">out<marquee><a href="/2">in</a></marquee></a>' * 2, URL)
    assert [urlsplit(one).path for one in page.links] == ["/1"]


def test_links_are_bounded() -> None:
    many = "".join(f'<a href="/{n}">{n}</a>\n' for n in range(LINKS_MAX + 5))
    page = page_of(many, URL)
    assert len(page.links) == LINKS_MAX
    assert page.text.endswith(str(LINKS_MAX + 4))


def test_long_links_are_fewer() -> None:
    url = "https://other.example/" + "x" * 1000
    page = page_of("".join(f'<a href="{url}{n}">{n}</a>\n' for n in range(100)), URL)
    assert 0 < sum(map(len, page.links)) <= LINKS_CHARS_MAX
    assert len(page.links) < 50
    assert "【0†0†other.example】" in page.text
    assert page.text.endswith("99")


def test_deep_nesting_is_read() -> None:
    assert body("<div>" * (DEPTH_MAX - 8) + "deep") == "deep"


@pytest.mark.slow
@given(st.text(st.sampled_from([*"<>/aphref= \"'【】†:#", "\ue000", "\u200b"]), max_size=200))
def test_no_page_forges_a_link(html: str) -> None:
    page = page_of(html, URL)
    for number in re.findall(r"【(\d+)†", page.text):
        assert int(number) < len(page.links)
    assert page.text.count("【") == page.text.count("】")


def test_view_numbers_lines() -> None:
    page = Page(URL, "Title", "\n".join(f"line {n}" for n in range(10)))
    first = shown(page, line_count=2)
    assert first.text == (
        f"[3] Title ({URL})\n**viewing lines [0 - 1] of 9**\n\nL0: line 0\nL1: line 1"
    )
    assert (first.first, first.end, first.count) == (0, 2, 10)
    assert shown(page, first=8).end == 10
    assert shown(page, ids_max=8).end == 2
    assert shown(page, first=4, ids_max=1).end == 5
    for wrong in (-1, 10):
        with pytest.raises(NoSuchLine, match="0 to 9"):
            shown(page, first=wrong)


def test_long_urls_are_cut_and_missing_ones_left_out() -> None:
    assert "…)" in shown(Page("https://a.example/" + "x" * 2000, "T", "t")).text
    assert shown(Page("", "results", "t")).text.startswith("[3] results\n")


@given(st.text(st.sampled_from([*"ab \n\t", "長"]), max_size=400))
def test_wrapping_keeps_all_text(text: str) -> None:
    lines = Page("", "", text).lines
    assert "".join(lines) == text.replace("\n", "").expandtabs(4) or "\t" in text
    assert all(len(line) <= LINE_CHARS_MAX for line in lines)


def test_links_are_told_with_their_lines() -> None:
    long = "x " * LINE_CHARS_MAX
    text = f"# q\n\n* 【0†One†a.example】\n{long}\n\n* 【1†Two】 【0†again】"
    page = Page("", "q", text, ("https://a.example", "https://b.example"))
    places = link_places(page)
    assert [words for _, words in places] == ["One", "Two"]
    assert [page.lines[at][:6] for at, _ in places] == ["* 【0†O", "* 【1†T"]
    assert link_places(Page("", "q", "【1†Two】", page.links)) == ()


def test_find_shows_matches_with_their_lines() -> None:
    page = Page(
        URL, "Title", "\n".join(["zero", "A 【3†Needle†x.example】 here", *"bcdef", "needle"])
    )
    found = find(page, "NEEDLE here")
    assert found.text == "# 【0†match at L1】\nA Needle here\nb\nc\nd"
    assert find(page, "needle").text.count("match at") == 2
    assert "No `find` results" in find(page, "absent").text
    assert find(page, "【x】").title == "Find results for text: `〖x〗` in `Title`"
    assert find(Page("", "", "n\n" * 400), "n").text.count("match at") == 50


@pytest.mark.slow
@given(st.text())
def test_plain_is_stable(text: str) -> None:
    assert plain(plain(text)) == plain(text)
    assert not set("【】†") & set(plain(text))


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["【1†", "【1†a†", "【1", "【1†a【"])
def test_links_that_do_not_end_are_text_and_read_in_linear_time(piece: str) -> None:
    """In a time that grows with the square these would take hours."""
    text = piece * 300_000
    assert words_of(text) == text
    assert link_places(Page("", "", text, ("a",))) == ()
