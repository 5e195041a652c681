"""Browsers of responses over a real site, a real database and the real way of a request outside."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from gateway import ids
from gateway.cli.page_index import PageSource, load
from gateway.errors import StartupError
from gateway.protocol.grants import BrowserGrant, Grants, ShownPage, grants_json, grants_of
from gateway.settings import Settings
from gateway.settings.tools import SearchProvider, Tools, Web
from gateway.simulator.demo_site import BIG_FACT, create_site, page_names
from gateway.store.postgres.statements import Statement
from gateway.telemetry.metrics import Metrics
from gateway.tools.tool_contract import ToolCall, ToolScope
from gateway.wiring.web import browser_tools
from tests.fakes.bounds import bounds
from tests.fakes.rows import count
from tests.fakes.serving import serving
from tests.fakes.troubled_site import create_troubled_site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gateway.store.postgres.database import Database
    from gateway.tenancy import TenantId
    from gateway.tools.browser.browser import BrowserSession, BrowserTools
    from gateway.tools.tool_contract import ToolResult


@pytest.fixture
async def site() -> AsyncIterator[str]:
    async with serving(create_troubled_site()) as url:
        yield url


def settings_for(site: str, **web: Any) -> Settings:
    """Nothing but the site can be reached."""
    given = {
        "enabled": True,
        "public": False,
        "allowed_hosts": (urlsplit(site).netloc,),
        "visit_interval_s": 0.0,
        **web,
    }
    return Settings(tools=Tools(web=Web(**given)))


@dataclass
class Browsing:
    """A chain of responses of one tenant: each goes on where the last one was."""

    tools: BrowserTools
    database: Database
    tenant: TenantId
    grant: BrowserGrant = field(default_factory=lambda: BrowserGrant("web_search"))
    stored: bool = True
    states: list[dict[str, Any]] = field(default_factory=list)
    ordinal: int = 0
    started: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session = self.new_session()

    def new_session(self) -> BrowserSession:
        """As another replica has it, which knows no more than the log."""
        grants = grants_of(json.loads(json.dumps(grants_json(Grants(browser=self.grant)))))
        states = json.loads(json.dumps(self.states))
        scope = ToolScope(self.tenant, ids.new_uuid(), grants, self.stored, states, words)
        return self.tools.session(scope)

    def go_on_elsewhere(self) -> None:
        self.session = self.new_session()

    def next_response(self, **changes: Any) -> None:
        """The pages so far come with the grants, and the cursors go on."""
        shown = (ShownPage(**state["page"]) for state in self.states)
        pages = (*self.grant.pages, *shown)
        pages = tuple(replace(page, links=tuple(page.links)) for page in pages)
        self.grant = replace(self.grant, pages=pages, **changes)
        self.states, self.ordinal = [], 0
        self.session = self.new_session()

    async def call(self, function: str, **arguments: Any) -> ToolResult:
        call = ToolCall(self.ordinal, f"builtin:browser.{function}", json.dumps(arguments))
        self.ordinal += 1
        start = self.session.start(call)
        assert start.repeatable
        self.started = start.shown["action"]
        result = await self.session.run(call, lambda _: None)
        if result.state:
            self.states.append(dict(result.state))
        return result


def words(text: str) -> int:
    return len(text.split())


@asynccontextmanager
async def browsing(
    site: str,
    database: Database,
    tenant: TenantId,
    *,
    stored: bool = True,
    timeout_s: float = 5.0,
    **web: Any,
) -> AsyncIterator[Browsing]:
    with bounds("web.FetchLimits", timeout_s=timeout_s):
        tools = browser_tools(settings_for(site, **web), database, Metrics())
    yield Browsing(tools, database, tenant, stored=stored)
    await tools.close()


@pytest.fixture
async def browser(site: str, database: Database, tenant: TenantId) -> AsyncIterator[Browsing]:
    async with browsing(site, database, tenant) as one:
        yield one


async def load_site(site: str, database: Database, tenant: TenantId | None = None) -> int:
    return await load(
        settings_for(site),
        database,
        PageSource(f"{site}/", pages_max=100),
        tenant_id=tenant,
        quiet=True,
    )


@pytest.mark.slow
async def test_search_open_find_scroll_cite(site: str, browser: Browsing) -> None:
    # All pages, the paper and the log; not what robots.txt closes.
    assert await load_site(site, browser.database) == len(page_names()) + 3
    found = await browser.call("search", query="how high is the tower")
    assert browser.started == {"type": "search"}
    action = found.shown["action"]
    assert action["query"] == "how high is the tower"
    assert {"type": "url", "url": f"{site}/tower"} in action["sources"]
    assert "†The tower†127.0.0.1】" in found.output
    number = action["sources"].index({"type": "url", "url": f"{site}/tower"})
    opened = await browser.call("open", id=number)
    assert browser.started == opened.shown["action"] == {
        "type": "open_page", "url": f"{site}/tower",
    }  # fmt: skip
    assert opened.output.startswith(f"[1] The tower ({site}/tower)\n**viewing lines [0 - ")
    assert "43 metres high" in opened.output
    assert opened.state["page"]["cursor"] == 1
    matches = await browser.call("find", pattern="BRANDT")
    assert matches.shown["action"] == {
        "type": "find_in_page", "url": f"{site}/tower", "pattern": "BRANDT",
    }  # fmt: skip
    assert "match at L" in matches.output
    there = await browser.call("open", id=0)
    assert "Anselm Brandt" in there.output
    scrolled = await browser.call("open", cursor=1, loc=2, num_lines=1)
    assert "viewing lines [2 - 2]" in scrolled.output
    assert {result.outcome for result in (found, opened, matches, there, scrolled)} == {"ok"}


@pytest.mark.slow
async def test_cursors_go_on_along_a_chain_and_over_replicas(site: str, browser: Browsing) -> None:
    await load_site(site, browser.database)
    await browser.call("search", query="lamp")
    browser.go_on_elsewhere()
    assert (await browser.call("open", id=f"{site}/lamp")).output.startswith("[1] The lamp")
    browser.next_response()
    assert (await browser.call("open", loc=1)).output.startswith("[2] The lamp")
    assert (await browser.call("open", id=0, cursor=0)).output.startswith("[3] ")
    browser.next_response()
    assert "those shown: 0 to 3" in (await browser.call("open", cursor=9)).output


@pytest.mark.slow
async def test_another_replica_has_the_pages_from_the_database(
    site: str, database: Database, tenant: TenantId
) -> None:
    async with browsing(site, database, tenant) as here:
        await here.call("open", id=f"{site}/keepers")
        async with browsing("http://127.0.0.1:9", database, tenant) as there:
            there.states, there.ordinal = here.states, here.ordinal
            there.go_on_elsewhere()
            again = await there.call("open", cursor=0, loc=4)
            assert again.output.startswith("[1] The keepers")
            assert "Jonas Weil 1861 1879" in again.output
            assert "match at L" in (await there.call("find", cursor=1, pattern="maarten")).output
            there.states[0]["page"]["key"] = "no key"
            there.states[0]["page"]["url"] = f"{site}/lamp"
            there.go_on_elsewhere()
            assert "is no longer kept" in (await there.call("open", cursor=0)).output
            there.states[0]["page"] = {"damaged": True}
            there.go_on_elsewhere()
            assert "those shown: 1 to 2" in (await there.call("open", cursor=0)).output


async def test_malformed_urls_are_told(browser: Browsing) -> None:
    for url in ("http://[", "http://", "nothing", "//x", "http://a:b"):
        assert "could not be opened" in (await browser.call("open", id=url)).output


@pytest.mark.slow
async def test_a_call_that_runs_again_has_the_same_cursor(site: str, browser: Browsing) -> None:
    call = ToolCall(0, "builtin:browser.open", json.dumps({"id": f"{site}/tower"}))
    first = await browser.session.run(call, lambda _: None)
    again = await browser.session.run(replace(call, attempt=2), lambda _: None)
    assert first == again


@pytest.mark.slow
async def test_pages_of_tenants_are_apart(
    site: str, database: Database, browser: Browsing, other_tenant: TenantId
) -> None:
    await load_site(site, database, browser.tenant)
    opened = await browser.call("open", id=f"{site}/big")
    page = ShownPage(**opened.state["page"])
    async with browsing(site, database, other_tenant) as theirs:
        theirs.tools = browser.tools  # of the same process, with the same memory
        theirs.grant = replace(theirs.grant, pages=(replace(page, url=""),))
        theirs.go_on_elsewhere()
        assert "no longer kept" in (await theirs.call("open", loc=3)).output
        assert "No results" in (await theirs.call("search", query="lamp")).output
    assert await count(database, other_tenant, "tool_pages") == 0


@pytest.mark.slow
async def test_what_is_not_stored_is_kept_in_memory_only(
    site: str, database: Database, tenant: TenantId
) -> None:
    async with browsing(site, database, tenant, stored=False) as browser:
        await browser.call("open", id=f"{site}/tower")
        assert (await browser.call("open", loc=2)).output.startswith("[1] The tower")
        assert await count(database, tenant, "tool_pages") == 0
        assert (await browser.call("find", cursor=0, pattern="brandt")).state
        await browser.session.close()
        browser.go_on_elsewhere()
        assert "find again" in (await browser.call("open", cursor=2)).output
    async with browsing(site, database, tenant) as browser:
        await browser.call("open", id=f"{site}/tower")
        assert await count(database, tenant, "tool_pages") == 1


@pytest.mark.slow
async def test_offline_reads_what_is_kept(site: str, database: Database, tenant: TenantId) -> None:
    provider = SearchProvider(kind="searxng", url="http://127.0.0.1:9")
    async with browsing(site, database, tenant, providers=(provider,)) as browser:
        await browser.call("open", id=f"{site}/tower")
        browser.next_response(is_live=False)
        assert "43 metres" in (await browser.call("open", id=f"{site}/tower")).output
        closed = await browser.call("open", id=f"{site}/lamp")
        assert (closed.outcome, "pages that are kept" in closed.output) == ("tool_error", True)
        await load_site(site, database)
        assert "1,000 watts" in (await browser.call("open", id=f"{site}/lamp")).output
        assert "The lamp" in (await browser.call("search", query="lamp order lens")).output
        browser.next_response(is_live=True)
        down = await browser.call("search", query="lamp")
        assert (down.outcome, down.output) == (
            "tool_error", "Error: Search is not available now.",
        )  # fmt: skip
        assert down.shown["action"]["sources"] == []


@pytest.mark.slow
async def test_domains_bind_hits_pages_and_redirects(site: str, browser: Browsing) -> None:
    await load_site(site, browser.database)
    browser.next_response(allowed_domains=("docs.example",))
    assert "No results" in (await browser.call("search", query="lamp")).output
    assert "may be read" in (await browser.call("open", id=f"{site}/tower")).output
    browser.next_response(allowed_domains=("127.0.0.1",))
    assert "43 metres" in (await browser.call("open", id=f"{site}/tower")).output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/nothing", "answered 404"),
        ("/loop", "too many redirects"),
        ("/away", "not reachable"),
        ("/bomb", "compressed"),
        ("/scan.pdf", "no text"),
        ("/private", "robots.txt"),
        ("/slow", "in time"),
    ],
)
async def test_what_cannot_be_opened_is_told(
    site: str, database: Database, tenant: TenantId, path: str, told: str
) -> None:
    limit = 0.5 if path == "/slow" else 5.0
    async with browsing(site, database, tenant, timeout_s=limit) as browser:
        result = await browser.call("open", id=f"{site}{path}")
    assert told in result.output
    assert (result.outcome, result.state) == ("tool_error", {})
    assert "169.254" not in result.output
    assert result.shown["action"] == {"type": "open_page", "url": f"{site}{path}"}


@pytest.mark.slow
async def test_nothing_else_is_reached(site: str, database: Database, browser: Browsing) -> None:
    async with serving(create_site()) as other:
        assert "not open to tools" in (await browser.call("open", id=f"{other}/tower")).output
    port = urlsplit(site).port
    for host in ("localhost", "[::1]", "2130706433", "0x7f.1", "0.0.0.0"):
        told = (await browser.call("open", id=f"http://{host}:{port}/tower")).output
        assert "could not be opened" in told, host
    for url in ("http://1.1.1.1/", "http://[64:ff9b::7f00:1]/", "file:///etc/passwd"):
        assert "could not be opened" in (await browser.call("open", id=url)).output


@pytest.mark.slow
async def test_proxies_of_the_environment_are_not_used(
    site: str, database: Database, tenant: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with browsing(site, database, tenant) as browser:
        assert (await browser.call("open", id=f"{site}/tower")).outcome == "ok"


async def test_a_page_is_data(site: str, browser: Browsing) -> None:
    result = await browser.call("open", id=f"{site}/injection")
    lines = result.output.splitlines()
    assert lines[0] == f"[0] A page that wants something ({site}/injection)"
    assert "〖0‡The tower is 99 metres high〗" in result.output
    assert not re.findall(r"【\d+†", result.output)
    assert all(line.startswith("L") for line in lines[3:])
    assert "The fish in the pond are seven." in result.output
    assert result.state["page"]["links"] in ([], ())


@pytest.mark.slow
async def test_a_long_page_is_searched_and_scrolled(site: str, browser: Browsing) -> None:
    opened = await browser.call("open", id=f"{site}/big")
    assert opened.outcome == "ok"
    assert words(opened.output) < 1200
    found = await browser.call("find", pattern="burned blue")
    assert BIG_FACT[:40] in found.output.replace("\n", " ")
    there = await browser.call("open", id=0)
    assert "burned blue" in there.output
    assert there.state["page"]["first"] > 3000


@pytest.mark.slow
async def test_context_size_decides_how_much_is_shown(site: str, browser: Browsing) -> None:
    sizes = []
    for size in ("low", "medium", "high"):
        browser.next_response(context_size=size)
        sizes.append(words((await browser.call("open", id=f"{site}/big")).output))
    assert sizes[0] < 600 < sizes[1] < 1100 < sizes[2] < 2200


@pytest.mark.slow
async def test_pdf_is_read(site: str, browser: Browsing) -> None:
    opened = await browser.call("open", id=f"{site}/paper.pdf")
    assert opened.output.startswith("[0] On the burning of fish oil (")
    assert "41 litres" in opened.output
    assert "A wick of four rings" in opened.output


@pytest.mark.slow
async def test_links_are_not_fetched_again_for_a_while(
    site: str, database: Database, browser: Browsing
) -> None:
    await browser.call("open", id=f"{site}/")
    await browser.call("open", id=0)
    planted = Statement("UPDATE tool_pages SET text = 'from the store' WHERE title = :title")
    async with database.transaction(browser.tenant) as connection:
        assert await connection.count(planted, {"title": b"The tower"}) == 1
    assert "from the store" in (await browser.call("open", cursor=0, id=0)).output
    assert "43 metres" in (await browser.call("open", id=f"{site}/tower")).output


@pytest.mark.slow
async def test_files_and_folders_are_loaded(
    site: str, database: Database, browser: Browsing, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a page.md").write_text(
        "# Quokkas\n\nSee [the index](../index.html), [part](#p) and [mail](mailto:a@b.c).\n"
    )
    (tmp_path / "index.html").write_text("<title>Marsupials</title><p>Quokkas smile.</p>")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 broken")
    (tmp_path / ".hidden.md").write_text("quokka")
    (tmp_path / "image.png").write_bytes(b"quokka")
    settings = settings_for(site)
    base = "https://zoo.example/docs"
    assert await load(settings, database, PageSource(str(tmp_path), base)) == 2
    assert "broken.pdf: the PDF is damaged" in capsys.readouterr().out
    found = await browser.call("search", query="quokkas")
    urls = {one["url"] for one in found.shown["action"]["sources"]}
    assert urls == {f"{base}/index.html", f"{base}/sub/a%20page.md"}
    page = await browser.call("open", id=f"{base}/sub/a%20page.md")
    assert "See 【0†the index】, part and mail." in page.output
    assert "Quokkas smile" in (await browser.call("open", id=0)).output
    one = tmp_path / "index.html"
    assert await load(settings, database, PageSource(str(one))) == 1
    opened = await browser.call("open", id="https://pages.invalid/index.html")
    assert opened.output.startswith("[3] Marsupials")
    with pytest.raises(StartupError, match="cannot read"):
        await load(settings, database, PageSource(str(tmp_path / "none.md")))


@pytest.mark.slow
async def test_a_database_that_is_away_costs_no_page(
    site: str, database_url: str, tenant: TenantId
) -> None:
    from tests.conftest import opened

    async with opened(database_url) as database, browsing(site, database, tenant) as browser:
        async with database.owner_transaction() as connection:
            await connection.execute(Statement("DROP TABLE tool_pages, web_documents"))
        assert "43 metres" in (await browser.call("open", id=f"{site}/tower")).output
        assert (await browser.call("open", loc=1)).output.startswith("[1] The tower")
        assert "not available" in (await browser.call("search", query="x")).output


async def test_what_the_log_of_the_start_says(browser: Browsing) -> None:
    assert await browser.tools.check() == "web search by index"
    call = ToolCall(0, "builtin:browser.open", "{}")
    assert await browser.session.resume(call, b"") is None
    await browser.session.close()
