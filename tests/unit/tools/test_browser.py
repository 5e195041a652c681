"""What a model gets that searches, opens and finds, whatever it passes."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import ids
from gateway.cache import LruCache
from gateway.protocol.grants import DomainRules, ShownPage
from gateway.tools.browser.browser import CHANGED_NOTE, Browser, BrowserOptions, Function, Shown
from gateway.tools.browser.fetch import FetchFailed
from gateway.tools.browser.html import page_of
from gateway.tools.browser.page import Page
from gateway.tools.browser.page_access import KeptPages, SessionPages
from gateway.tools.browser.search import Hit, Query, SearchFailed, SearXNG

HOME, OTHER = "https://site.example/", "https://site.example/other"
HTML = {
    HOME: f'<title>Home</title><p>Welcome.</p><a href="{OTHER}">the other page</a>'
    + "<p>filler</p>" * 30
    + "<p>Needle here.</p>",
    OTHER: "<title>Other</title><p>It says other things.</p>",
}


class SmallWeb:
    """Two pages, and whoever searches finds both."""

    def __init__(self) -> None:
        self.asked: list[Query] = []
        self.anew: list[bool] = []
        self.hits: list[Hit] = []

    async def search(self, query: Query) -> list[Hit]:
        self.asked.append(query)
        if query.text == "down":
            raise SearchFailed("it is down")
        if self.hits:
            return self.hits
        hits = [Hit(HOME, "Home", "a snippet", "2026"), Hit(OTHER, "Other", "more")]
        return hits if query.text != "nothing" else []

    async def open(self, url: str, *, anew: bool) -> Page:
        self.anew.append(anew)
        url = url.partition("#")[0]
        if url not in HTML:
            raise FetchFailed("the server answered 404")
        return page_of(HTML[url], url)


class MemoryPages:
    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.count = 0

    async def put(self, page: Page, asked: str = "") -> str:
        self.count += 1
        key = str(self.count)
        self.pages[key] = page
        return key

    async def get(self, key: str) -> Page | None:
        return self.pages.get(key)


def words(text: str) -> int:
    return len(text.split())


class Session:
    """Calls of one response, one after the other."""

    def __init__(self, **options: Any) -> None:
        self.shown: list[ShownPage] = []
        self.web = SmallWeb()
        self.pages = MemoryPages()
        self._options = BrowserOptions(words, **options)

    async def call(self, function: Function, arguments: object = None, **named: Any) -> Shown:
        passed = arguments if isinstance(arguments, str) else json.dumps(named)
        browser = Browser(self.shown, web=self.web, store=self.pages, options=self._options)
        before = browser.action(function, passed)
        assert before["type"] == {"open": "open_page", "find": "find_in_page"}.get(
            function, function
        )
        shown = await browser.call(function, passed)
        if shown.page is not None:
            self.shown.append(shown.page)
        if function == "find" and shown.page is not None:
            assert before == shown.action
        return shown


async def test_search_open_find() -> None:
    session = Session(domains=("site.example",), country="DE")
    found = await session.call("search", query="pages", topn="2")
    assert found.text.startswith("[0] pages\n**viewing lines [0 - ")
    assert "【0†Home†site.example】 (2026)" in found.text
    assert found.action == {"type": "search", "query": "pages", "queries": ["pages"]}
    assert found.sources == (HOME, OTHER)
    assert found.page is not None
    assert [line for line, _ in found.page.hits] == sorted(line for line, _ in found.page.hits)
    assert found.page.hits[0][1] == "Home"
    assert session.web.asked == [Query("pages", 2, ("site.example",), "DE")]
    opened = await session.call("open", id=0)
    assert opened.text.startswith(f"[1] Home ({HOME})")
    assert opened.action == {"type": "open_page", "url": HOME}
    matches = await session.call("find", pattern="needle")
    assert matches.text.startswith("[2] Find results for text: `needle` in `Home`")
    assert matches.action == {"type": "find_in_page", "url": HOME, "pattern": "needle"}
    there = await session.call("open", id=0.0)
    assert there.text.startswith(f"[3] Home ({HOME})")
    assert "Needle here." in there.text
    assert there.page is not None
    assert there.page.first > 0
    linked = await session.call("open", id=0, cursor=1)
    assert "It says other things." in linked.text
    again = await session.call("open", cursor=1, loc=2, num_lines=1)
    assert "viewing lines [2 - 2]" in again.text
    by_url = await session.call("open", id=OTHER)
    assert by_url.text.startswith("[6] Other")
    assert by_url.sources == (OTHER,)
    assert session.web.anew == [False, False, True]


async def test_cursors_go_on_from_earlier_responses() -> None:
    session = Session()
    session.shown.append(ShownPage(6, "k6", "page", HOME, "Old"))
    assert (await session.call("search", query="x")).text.startswith("[7] x")
    assert (await session.call("open", id="1", cursor="7")).text.startswith("[8] Other")
    assert "no cursor 3; those shown: 6 to 8" in (await session.call("open", cursor=3)).text


@pytest.mark.parametrize(
    ("function", "arguments", "told"),
    [
        ("search", "{", "not valid JSON"),
        ("search", "[]", "not a JSON object"),
        ("search", "", "`query` is missing"),
        ("search", '{"query": null}', "`query` is missing"),
        ("search", '{"query": "a", "topn": "many"}', "`topn` is not a number"),
        ("open", "{}", "no page was opened yet"),
        ("open", '{"id": 3}', "there is no cursor"),
        ("open", '{"id": []}', "`id` is not a number"),
        ("find", '{"pattern": " "}', "`pattern` is missing"),
        ("find", '{"pattern": "a"}', "nothing to find"),
    ],
)
async def test_model_is_told_what_is_wrong(function: Function, arguments: str, told: str) -> None:
    shown = await Session().call(function, arguments)
    assert told in shown.text
    assert shown.page is None
    assert shown.failed == ("no cursor" not in told)


async def test_places_that_are_not_there() -> None:
    session = Session()
    await session.call("search", query="pages")
    assert "open a page" in (await session.call("find", pattern="x")).text
    assert "its links: 0 to 1" in (await session.call("open", id=2)).text
    await session.call("open", id=1)
    assert "its links: none" in (await session.call("open", id=0)).text
    assert "lines 0 to" in (await session.call("open", loc=1000)).text
    await session.call("find", pattern="absent")
    assert "no match 0" in (await session.call("open", id=0)).text


async def test_what_fails_is_said() -> None:
    session = Session()
    down = await session.call("search", query="down")
    assert (down.failed, down.action) == (
        True,
        {"type": "search", "query": "down", "queries": ["down"]},
    )
    nothing = await session.call("search", query="nothing")
    assert (nothing.failed, nothing.page) == (False, None)
    gone = await session.call("open", id="https://site.example/none")
    assert gone.failed
    assert "answered 404" in gone.text


async def test_pages_that_are_no_longer_kept_are_fetched_again() -> None:
    session = Session()
    await session.call("search", query="pages")
    await session.call("open", id=1)
    session.pages.pages.clear()
    again = await session.call("open", cursor=1)
    assert "It says other things." in again.text
    assert again.text.endswith(CHANGED_NOTE)
    assert "search or find again" in (await session.call("open", cursor=0)).text
    session.pages.pages.clear()
    html = HTML.pop(OTHER)
    try:
        assert "no longer kept, and: the server" in (await session.call("open", cursor=1)).text
    finally:
        HTML[OTHER] = html


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["search", "open", "find"]),
            st.dictionaries(
                st.sampled_from(["query", "id", "cursor", "loc", "num_lines", "pattern", "topn"]),
                st.none() | st.booleans() | st.integers(-2, 40) | st.floats() | st.text(max_size=5),
            ),
        ),
        max_size=8,
    )
)
async def test_anything_is_answered(calls: list[tuple[Function, dict[str, object]]]) -> None:
    session = Session()
    for function, arguments in calls:
        count = len(session.shown)
        shown = await session.call(function, json.dumps(arguments))
        assert shown.text
        assert shown.text.startswith(f"[{count}] ") == (shown.page is not None)


@pytest.mark.parametrize(
    ("options", "url", "told"),
    [
        ({}, "https://far.example/?" + "q" * 129, "too long"),
        ({}, "https://far.example/" + "p" * 500, "too long"),
        ({}, "https://far.example/?q=short", "answered 404"),
        ({"only_seen_urls": True}, "https://far.example/", "only URLs that the user gave"),
        ({"only_seen_urls": True}, "http://[", "only URLs that the user gave"),
        (
            {"only_seen_urls": True, "user_urls": ("https://far.example/#part",)},
            "https://far.example/",
            "answered 404",
        ),
        ({"only_seen_urls": True}, OTHER, "It says other things."),
        (
            {"only_seen_urls": True, "user_urls": ("https://far.example",)},
            "https://far.example/",
            "answered 404",
        ),
        (
            {"only_seen_urls": True, "user_urls": ("https://far.example",)},
            "https://far.example/?q=secret",
            "only URLs that the user gave",
        ),
        ({"only_seen_urls": True}, f"{OTHER}#part", "It says other things."),
    ],
)
async def test_urls_that_a_model_makes_up(options: dict[str, Any], url: str, told: str) -> None:
    session = Session(**options)
    await session.call("search", query="pages")
    assert told in (await session.call("open", id=url)).text


async def test_long_url_that_a_page_spells_out_may_be_opened() -> None:
    long = "https://far.example/?" + "q" * 200
    session = Session()
    HTML[HOME], html = f"<p>See {long}</p>", HTML[HOME]
    try:
        await session.call("open", id=HOME)
        assert "answered 404" in (await session.call("open", id=long)).text
    finally:
        HTML[HOME] = html


@pytest.mark.parametrize("option", [{"only_seen_urls": True}, {}])
async def test_url_is_not_known_because_the_model_looked_for_it(option: dict[str, Any]) -> None:
    made_up = "https://far.example/?" + "secret" * 40
    session = Session(**option)
    await session.call("search", query=made_up)
    await session.call("open", id=0)
    await session.call("find", pattern=made_up)
    told = (await session.call("open", id=made_up)).text
    assert "only URLs" in told or "too long" in told


async def test_pages_of_domains_that_are_not_allowed_now_are_not_read_again() -> None:
    session = Session()
    await session.call("open", id=OTHER)
    session._options = BrowserOptions(words, domains=("else.example",))
    assert "not of a domain" in (await session.call("open", loc=0)).text
    assert "not of a domain" in (await session.call("find", pattern="x")).text
    session._options = BrowserOptions(words, rules=DomainRules((), ("site.example",)))
    assert "not of a domain" in (await session.call("open", loc=0)).text


HOSTILE = st.text(
    st.sampled_from([*"【】†0[] \nL:*#", "\u202e", "\u200b", "\x00", "x"]), max_size=60
)


@pytest.mark.slow
@given(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
async def test_nothing_that_is_found_looks_like_the_frame_around_it(
    title: str, text: str, date: str, query: str
) -> None:
    found = {"results": [{"url": f"{HOME}{title}", "title": title, "content": text, "age": date}]}
    (hit,) = SearXNG("").hits(json.dumps(found).encode())
    session = Session()
    session.web.hits = [hit]
    shown = await session.call("search", query=query or "x")
    if shown.page is not None:
        head, _, *lines = shown.text.split("\n")
        assert head.startswith("[0] ")
        assert shown.text.count("【") == shown.text.count("】") == 1
        assert all(re.match(r"L\d+: ", line) for line in lines[1:])
    HTML[HOME], html = f"<title>{title}</title><p>{text}</p>", HTML[HOME]
    try:
        opened = await session.call("open", id=HOME)
    finally:
        HTML[HOME] = html
    assert not {"【", "†", "】"} & set(opened.text)


async def test_links_that_were_not_shown_are_not_remembered() -> None:
    links = "".join(f'<p>{"word " * 20}<a href="/{n}">link {n}</a></p>' for n in range(50))
    session = Session()
    HTML[HOME], html = links, HTML[HOME]
    try:
        await session.call("open", id=HOME, num_lines=5)
        assert session.shown[0].links == (f"{HOME}0",)
        assert "its links: 0 to 0" in (await session.call("open", id=2)).text
        await session.call("open", loc=4)
        assert len(session.shown[-1].links) > 20
    finally:
        HTML[HOME] = html


async def test_pages_count_in_memory_with_their_lines() -> None:
    values: LruCache[str, Page] = LruCache(size_max=100_000)
    pages = SessionPages(cast("KeptPages", None), ids.new_uuid(), values)
    for text, is_kept in (
        ("word " * 6000, True),
        ("ab\n" * 10_000, False),
        ("\U0001f600" * 15_000, False),
    ):
        assert (values.get(await pages.put(Page(HOME, "Home", text))) is not None) == is_kept
