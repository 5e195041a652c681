"""What search engines are asked, what is read of their answers, and who is asked next."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.grants import DomainRules
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import TenantId
from gateway.tools.browser.search import (
    MCP_SEARCHES_MAX,
    BadAnswer,
    Brave,
    Exa,
    Hit,
    HttpSource,
    McpSource,
    Query,
    SearchClient,
    SearchFailed,
    SearchSource,
    SearXNG,
    Tavily,
    YouCom,
    hits_of_tool,
)
from gateway.tools.egress.network_policy import URL_CHARS_MAX, NetworkPolicy
from gateway.tools.egress.transport import EgressLimits, client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from gateway.tools.browser.search import Provider
    from gateway.tools.egress.transport import EgressClient

TENANT = TenantId(UUID(int=1))
POLICY = NetworkPolicy(networks=(ip_network("127.0.0.1/32"),))
QUERY = Query("fleet of GPUs", count=3, domains=("a.example", "b.example"), country="DE")
HIT = Hit("https://docs.a.example/1", "One", "first words", "2026-01-02")
_RESULT: dict[str, Any] = {"url": HIT.url, "title": "One"}
KINDS: list[tuple[Callable[[str], Provider], dict[str, Any], str]] = [
    (
        SearXNG,
        {"results": [{**_RESULT, "content": HIT.snippet, "publishedDate": HIT.published}]},
        "GET /search?q=fleet+of+GPUs+%28site%3Aa.example+OR+site%3Ab.example%29"
        "&format=json&safesearch=1",
    ),
    (
        lambda url: Brave("key", url),
        {"web": {"results": [{**_RESULT, "description": HIT.snippet, "page_age": HIT.published}]}},
        "GET /res/v1/web/search?q=fleet+of+GPUs+%28site%3Aa.example+OR+site%3Ab.example%29"
        "&count=3&result_filter=web&text_decorations=false&country=DE",
    ),
    (
        lambda url: Exa("key", url),
        {"results": [{**_RESULT, "highlights": [HIT.snippet], "publishedDate": HIT.published}]},
        "POST /search",
    ),
    (
        lambda url: Tavily("key", url),
        {"results": [{**_RESULT, "content": HIT.snippet, "published_date": HIT.published}]},
        "POST /search",
    ),
    (
        lambda url: YouCom("key", url),
        {"results": {"web": [{**_RESULT, "snippets": [HIT.snippet], "page_age": HIT.published}]}},
        "POST /v1/search",
    ),
]


def asking(http: EgressClient, *providers: Provider) -> SearchClient:
    sources = [HttpSource(provider, http, type(provider).__name__) for provider in providers]
    return client_of(*sources)


def client_of(*sources: SearchSource, metrics: Metrics | None = None) -> SearchClient:
    return SearchClient(sources, McpSource(nothing), metrics or Metrics())


async def nothing(arguments: dict[str, Any]) -> str:
    return "[]"


class Engine:
    """A search engine that gives its answers in turn, the last one for ever."""

    def __init__(self, *answers: tuple[str, object]) -> None:
        self.answers = list(answers)
        self.lines: list[str] = []
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            (
                int(line[15:])
                for line in head.lower().splitlines()
                if line.startswith("content-len")
            ),
            0,
        )
        self.lines.append(head.split(" HTTP/")[0])
        self.heads.append(head.lower())
        self.bodies.append(await reader.readexactly(length))
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = [f"HTTP/1.1 {status}", f"content-length: {len(sent)}", "connection: close"]
        writer.write("\r\n".join([*answer, "", ""]).encode() + sent)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def answering(*answers: tuple[str, object]) -> AsyncIterator[Engine]:
    engine = Engine(*answers)
    listener = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield engine


@pytest.mark.parametrize(("new", "answer", "line"), KINDS)
async def test_engine_is_asked_and_understood(
    new: Callable[[str], Provider], answer: dict[str, Any], line: str
) -> None:
    async with answering(("200 OK", answer)) as engine, client(POLICY, EgressLimits()) as http:
        found = await asking(http, new(engine.url)).search(QUERY, TENANT)
    assert found == [HIT]
    assert engine.lines == [line]
    if line.startswith("POST"):
        body = json.loads(engine.bodies[0])
        assert body["query"] == QUERY.text
        assert list(QUERY.domains) in body.values()
    if new is not SearXNG:
        assert "key" in engine.heads[0]


async def test_hits_of_other_domains_are_left_out() -> None:
    hits = [
        {"url": url, "title": "t", "content": "c"}
        for url in (
            "https://a.example/1", "https://a.example/1", "https://evil-a.example/", "ftp://a.example/",
            "http://[", "https://\u2460.b.example/", "https://x.b.example/", "https://a.example/2", "https://a.example/3",
        )
    ]  # fmt: skip
    async with (
        answering(("200 OK", {"results": hits})) as engine,
        client(POLICY, EgressLimits()) as http,
    ):
        found = await asking(http, SearXNG(engine.url)).search(QUERY, TENANT)
    assert [hit.url for hit in found] == [
        "https://a.example/1",
        "https://x.b.example/",
        "https://a.example/2",
    ]


@pytest.mark.slow
async def test_next_provider_is_asked() -> None:
    good = ("200 OK", {"results": [{**_RESULT, "content": "c"}]})
    bad: list[tuple[str, object]] = [
        ("503 Service Unavailable", b""),
        ("401 Unauthorized", b""),
        ("200 OK", b"<html>"),
        ("200 OK", {"results": "none"}),
    ]
    for one in bad:
        async with (
            answering(one) as first,
            answering(good) as second,
            client(POLICY, EgressLimits()) as http,
        ):
            search = asking(http, SearXNG(first.url), SearXNG(second.url))
            assert len(await search.search(QUERY, TENANT)) == 1
            assert len(first.lines) == 1
            with pytest.raises(SearchFailed) as raised:
                await asking(http, SearXNG(first.url)).search(QUERY, TENANT)
            assert first.url not in str(raised.value)


async def test_a_query_that_a_provider_refuses_says_nothing_of_the_next_one() -> None:
    good = ("200 OK", {"results": [{**_RESULT, "content": "c"}]})
    async with (
        answering(("422 Unprocessable Entity", b""), good) as first,
        answering(good) as second,
        client(POLICY, EgressLimits()) as http,
    ):
        search = client_of(
            HttpSource(SearXNG(first.url), http, "first"),
            HttpSource(SearXNG(second.url), http, "second"),
        )
        for _ in range(2):
            assert await search.search(QUERY, TENANT)
        assert (len(first.lines), len(second.lines)) == (2, 1)


async def test_busy_provider_is_asked_again_if_it_says_soon() -> None:
    busy = "429 Too Many Requests\r\nretry-after: {}"
    good = ("200 OK", {"results": [{**_RESULT, "content": "c"}]})
    for pause, times in (("0", 2), ("60", 1), ("9" * 5000, 1)):
        async with (
            answering((busy.format(pause), b""), good) as engine,
            client(POLICY, EgressLimits()) as http,
        ):
            search = asking(http, SearXNG(engine.url))
            if times == 2:
                assert await search.search(QUERY, TENANT)
            else:
                with pytest.raises(SearchFailed):
                    await search.search(QUERY, TENANT)
            assert len(engine.lines) == times


async def test_providers_may_be_missing_or_refused() -> None:
    async with client(NetworkPolicy(), EgressLimits()) as http:
        with pytest.raises(SearchFailed):
            await asking(http).search(QUERY, TENANT)
        with pytest.raises(SearchFailed):
            await asking(http, SearXNG("http://127.0.0.1")).search(QUERY, TENANT)


def test_searxng_may_have_a_proxy_with_a_key() -> None:
    headers = SearXNG("", "key").request(Query("q")).headers
    assert headers == {"authorization": "Bearer key"}
    assert SearXNG("").request(Query("q")).headers == {}


def test_what_a_page_says_of_itself_is_plain() -> None:
    answer = {
        "results": [{"url": "https://a.example/", "title": "【0†forged】", "content": "\u200bx"}]
    }
    hit = SearXNG("").hits(json.dumps(answer).encode())[0]
    assert (hit.title, hit.snippet) == ("〖0‡forged〗", "x")
    with pytest.raises(BadAnswer, match="url: Field required"):
        SearXNG("").hits(b'{"results": [{}]}')


def test_what_is_no_page_among_results_costs_none_of_the_others() -> None:
    """SearXNG lists what a calculator says, or a table, as a result without a URL."""
    page = {"url": HIT.url, "title": "One", "content": None}
    odd = ({"url": None, "content": "1 + 1 = 2"}, "words", {"url": HIT.url, "snippets": None})
    answer = json.dumps({"results": [*odd, page, None]})
    assert [hit.title for hit in SearXNG("").hits(answer.encode())] == ["One"]


async def test_hits_that_the_tenant_may_not_read_are_none() -> None:
    hosts = ("a.example", "no.a.example", "b.example")

    async def call(_: dict[str, Any]) -> str:
        return json.dumps([{"url": f"https://{host}/", "title": host} for host in hosts])

    query = Query("x", rules=DomainRules(("a.example",), ("no.a.example",)))
    search = SearchClient([McpSource(call)], McpSource(nothing), Metrics())
    assert [hit.url for hit in await search.search(query, TENANT)] == ["https://a.example/"]


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps({"results": [{"url": HIT.url, "title": "One", "snippet": "first words"}]}),
        json.dumps([{"url": HIT.url, "title": "One", "text": "first words"}]),
        json.dumps({"results": [{"url": HIT.url, "title": "One", "content": "first words"}]}),
    ],
)
async def test_mcp_server_searches(answer: str) -> None:
    asked: list[dict[str, Any]] = []

    async def call(arguments: dict[str, Any]) -> str:
        asked.append(arguments)
        return answer

    (hit,) = await client_of(McpSource(call)).search(QUERY, TENANT)
    assert (hit.url, hit.title, hit.snippet) == (HIT.url, "One", "first words")
    assert asked == [{"query": QUERY.text}]


@pytest.mark.parametrize("answer", ['{"results": [{}]}', "3", '{"results": 3}'])
async def test_mcp_server_that_says_something_else_is_passed_over(answer: str) -> None:
    async def call(arguments: dict[str, Any]) -> str:
        return answer

    with pytest.raises(SearchFailed):
        await client_of(McpSource(call)).search(QUERY, TENANT)


async def test_tenants_take_turns_at_an_mcp_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    full, answered = asyncio.Event(), asyncio.Semaphore(0)

    async def call(arguments: dict[str, Any]) -> str:
        asked.append(arguments["query"])
        if len(asked) == MCP_SEARCHES_MAX:
            full.set()
        await answered.acquire()
        return "[]"

    other = TenantId(UUID(int=8))
    search = client_of(McpSource(call))
    async with asyncio.TaskGroup() as group:
        for _ in range(3 * MCP_SEARCHES_MAX):
            group.create_task(search.search(Query("many"), TENANT))
        await full.wait()
        one = group.create_task(search.search(Query("one"), other))
        while not one.done():
            answered.release()
            await asyncio.sleep(0)
        assert asked.index("one") <= MCP_SEARCHES_MAX + 1
        for _ in range(3 * MCP_SEARCHES_MAX):
            answered.release()


async def test_who_waits_for_a_turn_in_vain_does_not_take_the_server_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.tools.browser.search.MCP_TURN_S", 0.0)
    answered = asyncio.Event()

    async def call(_: dict[str, Any]) -> str:
        await answered.wait()
        return "[]"

    metrics = Metrics()
    search = client_of(McpSource(call), metrics=metrics)
    async with asyncio.TaskGroup() as group:
        for _ in range(MCP_SEARCHES_MAX):
            group.create_task(search.search(Query("many"), TENANT))
        await asyncio.sleep(0)
        with pytest.raises(SearchFailed):
            await search.search(Query("late"), TENANT)
        answered.set()
    assert not search._rests_until
    labels = {"provider": "mcp", "outcome": "busy"}
    assert metrics.registry.get_sample_value("gateway_searches_total", labels) == 1


async def test_refused_key_is_an_alarm() -> None:
    metrics = Metrics()
    async with (
        answering(("402 Payment Required", b"")) as engine,
        client(POLICY, EgressLimits()) as http,
    ):
        source = HttpSource(Brave("key", engine.url), http, "brave")
        with pytest.raises(SearchFailed) as raised:
            await client_of(source, metrics=metrics).search(QUERY, TENANT)
    assert str(raised.value) == "Search is not available now."
    labels = {"provider": "brave", "outcome": "credentials"}
    assert metrics.registry.get_sample_value("gateway_searches_total", labels) == 1


async def test_nobody_outside_is_asked_offline() -> None:
    async with answering(("200 OK", {})) as engine, client(POLICY, EgressLimits()) as http:
        search = asking(http, SearXNG(engine.url))
        assert await search.search(QUERY, TENANT, is_live=False) == []
        assert engine.lines == []


async def test_hits_that_lead_nowhere_are_none() -> None:
    """Read as an address, any of them would be an error, which would cost the whole search."""
    odd = ("http://[bad", "http://a]b/", "http://[::1", "javascript:x()", "http://u@a.example/",
           f"http://a.example/{'x' * URL_CHARS_MAX}")  # fmt: skip

    async def call(_: dict[str, Any]) -> str:
        return json.dumps([{"url": url} for url in (*odd, HIT.url)])

    found = await client_of(McpSource(call)).search(Query("x"), TENANT)
    assert [hit.url for hit in found] == [HIT.url]


async def test_slow_source_is_passed_over() -> None:
    async def call(arguments: dict[str, Any]) -> str:
        await asyncio.Event().wait()
        return ""

    metrics = Metrics()
    search = SearchClient([McpSource(call)], McpSource(nothing), metrics, timeout_s=0.01)
    with pytest.raises(SearchFailed):
        await search.search(QUERY, TENANT)
    labels = {"provider": "mcp", "outcome": "timeout"}
    assert metrics.registry.get_sample_value("gateway_searches_total", labels) == 1


@pytest.mark.slow
@given(
    st.text(st.sampled_from("ab \n"), max_size=900),
    st.lists(st.sampled_from(["a.example", "b" * 60 + ".example"]), max_size=30).map(tuple),
)
def test_queries_fit_what_engines_take(text: str, domains: tuple[str, ...]) -> None:
    query = Query(text, domains=domains)
    asked = Brave("key").request(query).params["q"]
    assert len(asked) <= 400
    assert len(asked.split()) <= 50
    body = Tavily("key").request(query).json
    assert body is not None
    assert len(body["query"]) <= 400


@pytest.mark.parametrize("place", ["{}/search", "//:80/search"])
async def test_provider_leads_nowhere_else(place: str) -> None:
    async with answering(("200 OK", {"results": []})) as inside:
        moved = (f"302 Found\r\nlocation: {place.format(inside.url)}", b"")
        async with answering(moved) as engine, client(POLICY, EgressLimits()) as http:
            with pytest.raises(SearchFailed):
                await asking(http, Tavily("key", engine.url)).search(QUERY, TENANT)
            assert len(engine.lines) == 1
        assert inside.lines == []


def test_text_of_an_mcp_server_is_read_by_paragraphs() -> None:
    text = """Found 4 results:

Title: The lamp
Description: It burns
at night.
URL: https://a.example/lamp

2. [The tower](https://a.example/tower) It is high.

---
# The ferry
https://a.example/ferry
It sails.

nothing to see here"""
    hits = [(hit.url, hit.title, hit.snippet) for hit in hits_of_tool(text)]
    assert [hit[:2] for hit in hits] == [
        ("https://a.example/lamp", "The lamp"),
        ("https://a.example/tower", "The tower"),
        ("https://a.example/ferry", "The ferry"),
    ]
    assert "It burns at night." in hits[0][2]
    assert "It is high." in hits[1][2]
    assert hits_of_tool("nothing was found") == []


async def test_source_that_failed_is_asked_last_for_a_while() -> None:
    asked: list[str] = []
    now, broken = [0.0], {"first"}

    def source(name: str) -> McpSource:
        async def call(arguments: dict[str, Any]) -> str:
            asked.append(name)
            if name in broken:
                raise OSError("down")
            return "[]"

        return McpSource(call, name)

    sources = [source("first"), source("second")]
    search = SearchClient(sources, McpSource(nothing), Metrics(), rest_s=30.0, clock=lambda: now[0])
    for now[0], expected in ((0.0, "first second"), (29.0, "second"), (31.0, "first second")):
        asked.clear()
        assert await search.search(QUERY, TENANT) == []
        assert " ".join(asked) == expected
    broken.add("second")
    asked.clear()
    with pytest.raises(SearchFailed):
        await search.search(QUERY, TENANT)
    assert asked == ["second", "first"]
    broken.clear()
    asked.clear()
    assert await search.search(QUERY, TENANT) == []
    assert asked == ["first"]
