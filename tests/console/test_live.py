"""Snapshots of replicas through the database, and the streams that show them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from gateway.admin.limits import LimitOwner
from gateway.app import AdminGateway
from gateway.console import streams
from gateway.console.streams import Streams, Topic
from gateway.errors import RateLimited, StoreUnavailable
from gateway.limits.rules import DAY_S
from gateway.replication import snapshots
from gateway.store import replica_snapshots
from gateway.store.postgres.database import Connection
from gateway.upstreams.probe import ReportedLoad
from tests.console.conftest import OWN_SITE, Site, console_site, first
from tests.console.showcase import MODELS
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from tests.console.conftest import Browser
    from tests.console.showcase import Showcase
    from tests.fakes.gateway import RunningGateway

PATIENCE_S = 30


async def test_replicas_write_while_one_of_them_is_looked_at(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "TICK_S", 0.05)
    monkeypatch.setattr(snapshots, "SHARED_S", 0.04)
    settings = gateway_settings(database_url, ["http://127.0.0.1:9"], admin={"port": 0})
    async with running_gateway(settings) as one, running_gateway(settings) as other:
        database = one.process.foundation.database
        assert not await replica_snapshots.is_watched(database)
        async with asyncio.timeout(PATIENCE_S):
            seen: set[str] = set()
            while len(seen) < 2:
                seen = {found.replica for found in await one.process.replica.snapshots.read()}
                await asyncio.sleep(0.01)
        assert seen == {each.process.foundation.owner for each in (one, other)}
        assert await replica_snapshots.is_watched(database)


_sent: ContextVar[list[str] | None] = ContextVar("_sent", default=None)
"""What a test and the tasks that it begins send to the database, with frames of transactions."""


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(method: Any) -> Any:
        async def record(self: Connection, what: Any, *rest: Any) -> Any:
            if (sent := _sent.get()) is not None:
                sent.append(what if isinstance(what, str) else what.sql)
            return await method(self, what, *rest)

        return record

    for name in ("execute", "script"):
        monkeypatch.setattr(Connection, name, recorded(getattr(Connection, name)))


async def test_a_watched_fleet_costs_each_replica_one_statement_a_second(
    database_url: str, recording: None
) -> None:
    settings = gateway_settings(database_url, ["http://127.0.0.1:9"], admin={"port": 0})
    async with running_gateway(settings) as one, running_gateway(settings) as other:
        shown, base = one.process.replica.snapshots, other.process.foundation
        await shown.read()
        sent: list[str] = []
        _sent.set(sent)
        shown._read_at -= snapshots.TICK_S
        await asyncio.gather(*(shown.read() for _ in range(50)))
        assert [sql.split()[0] for sql in sent] == ["WITH"]
        assert await replica_snapshots.post(base.notices, base.owner, b"{}")
        assert [sql.split()[0] for sql in sent] == ["WITH", "WITH"]


@asynccontextmanager
async def two_replicas(database_url: str) -> AsyncIterator[tuple[Site, RunningGateway]]:
    """The console of a replica, and another one, with a slow backend."""
    simulated = create_simulator(WaywardOptions(name="b0", models=MODELS, tokens_per_s=20.0))
    async with serving(simulated) as backend:
        settings = gateway_settings(
            database_url, [backend], models=[{"id": MODELS[0]}], admin={"port": 0},
            console={"enabled": True},
        )  # fmt: skip
        async with running_gateway(settings) as one, running_gateway(settings) as other:
            yield Site(AdminGateway(one.process), settings, one.process), other


@pytest.mark.slow
async def test_backends_are_shown_as_all_replicas_use_them(database_url: str) -> None:
    async with two_replicas(database_url) as (site, other):
        asked = asyncio.create_task(_ask_at(other))
        async with site.browser() as browser, asyncio.timeout(PATIENCE_S):
            cells = await _cells(browser)
            # The other replica sent it, and the backend says what it runs.
            while cells[2:4] != ["1", "0"] or cells[1][:7] != "1 of 32" or cells[5][0] not in "12":
                await asyncio.sleep(0.05)
                cells = await _cells(browser)
            tiles = (await browser.page("/now")).css(".tile")
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    assert cells[4].endswith("%")
    assert 0 < float(cells[5]) < 200
    assert "1 running · 0 waiting · KV" in tiles[0].text(deep=True)


@pytest.mark.slow
async def test_limits_are_shown_as_all_replicas_use_them(database_url: str) -> None:
    async with two_replicas(database_url) as (site, other):
        (tenant,) = await site.services.tenants.list()
        owner = LimitOwner.of_tenant(tenant.id)
        limits = site.console._services.tenant.limits
        await limits.set_limits(owner, {("requests", DAY_S): 100, ("responses", 0): 8})
        asked = asyncio.create_task(_ask_at(other))
        async with site.browser() as browser, asyncio.timeout(PATIENCE_S):
            used = {"requests a day": "0", "responses at once": "0"}
            while used != {"requests a day": "1", "responses at once": "1"}:
                await asyncio.sleep(0.05)
                page = await browser.page(f"/tenants/{tenant.name}")
                used = {
                    row.css("th")[0].text(): row.css(".load")[0].text(deep=False).strip()
                    for row in page.css("#gauges tbody tr")
                }
        figures = await site.services.limit_states.named(tenant.name, None)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    assert [one.remaining for one in figures.limits if not one.limit.window_s] == [7]


async def _ask_at(gateway: RunningGateway) -> None:
    body = {"model": MODELS[0], "input": "[[sim think=2000]] Hello"}
    async with http_client(gateway.url, headers=gateway.headers) as client:
        await client.post("/v1/responses", json=body)


async def _cells(browser: Browser) -> list[str]:
    page = await browser.page("/backends")
    return [cell.text(deep=True).strip() for cell in page.css("tbody td")]


async def test_all_that_look_at_once_share_one_statement(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanged = []
    exchange = replica_snapshots.exchange

    async def counted(*given: Any, **named: Any) -> Any:
        exchanged.append(given)
        return await exchange(*given, **named)

    monkeypatch.setattr(replica_snapshots, "exchange", counted)
    own = site.process.replica.snapshots
    own._read_at = float("-inf")
    await asyncio.gather(*(own.read() for _ in range(20)))
    assert len(exchanged) == 1


async def test_a_response_in_flight_is_shown_without_what_it_says(shown: Showcase) -> None:
    secret = "a word that nobody else says"
    own = shown.gateway.process.replica.snapshots
    running = [asyncio.create_task(shown.generate(input=secret)) for _ in range(4)]
    body = own.body()
    async with asyncio.timeout(PATIENCE_S):
        while not body["responses"]:
            await asyncio.sleep(0.01)
            body = own.body()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    one = body["responses"][-1]
    assert (one["tenant"], one["model"]) == ("acme", "gpt-oss-20b")
    assert one["phase"] in {"waiting", "thinking", "answering"}
    assert one["backend"] in {"", "b0", "b1"}
    assert body["tenants"][0]["tenant"] == "acme"
    assert secret not in str(body)
    assert {each["name"] for each in body["backends"]} == {"b0", "b1", "b2"}


@pytest.mark.parametrize("name", ["now", "queue", "backends"])
async def test_a_stream_renews_the_page(shown: Showcase, name: str) -> None:
    async with http_client(shown.admin_url) as client:
        token = await shown.sessions.create_link("Ada", "support")
        data = {"token": token}
        assert (await client.post("/console/login", data=data, headers=OWN_SITE)).is_redirect
        async with client.stream("GET", f"/console/stream/{name}") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert "content-security-policy" in answer.headers
            event = await first_event(answer.aiter_lines())
    assert all(line.startswith("data: ") for line in event)
    assert 'hx-target="#state"' in event[0]
    assert "form_token" not in "".join(event)


async def first_event(lines: AsyncIterator[str]) -> list[str]:
    event = []
    async with asyncio.timeout(PATIENCE_S):
        while line := await anext(lines):
            event.append(line)
    return event


async def test_a_stream_takes_a_session_and_its_permission(site: Site) -> None:
    async with site.client() as nobody:
        assert (await nobody.get("/console/stream/now")).status_code == 403
    async with site.browser("billing", name="Biller") as browser:
        assert (await browser.get("/stream/now")).status_code == 403
        assert (await browser.get("/stream/usage")).status_code == 404


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (ReportedLoad(running=3), "3 running"),
        (ReportedLoad(waiting=4, kv_used=0.5), "4 waiting · KV 50 %"),
        (ReportedLoad(running=1, waiting=0, tokens_per_s=2e3), "1 running · 0 waiting · 2.0k tok"),
    ],
)
async def test_a_backend_may_say_a_part_of_its_load(
    site: Site, owner: Browser, load: ReportedLoad, words: str
) -> None:
    (member,) = site.process.foundation.pool.members()
    member.loaded(load)
    site.process.replica.snapshots._read_at = float("-inf")
    assert words in first(await owner.page("/now"), ".tile").text(deep=True)
    await owner.page("/backends")


async def test_there_are_not_too_many_viewers(
    owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "VIEWERS_MAX", 0)
    assert (await owner.get("/stream/now")).status_code == 429
    with pytest.raises(RateLimited):
        Streams({}, bool, all_of).require_room()


class Rendering:
    """Counts what it renders, and fails where it is told to."""

    def __init__(self) -> None:
        self.count = 0
        self.failing = 0

    async def __call__(self) -> str:
        self.count += 1
        if self.failing:
            self.failing -= 1
            raise StoreUnavailable("away")
        return f"<p>version\n{self.count}</p>"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "INTERVAL_S", 0.01)


async def test_a_version_is_rendered_once_for_all(hurried: None) -> None:
    rendering = Rendering()
    topic = Topic(rendering)
    for number in range(3):
        versions = await asyncio.gather(*(topic.after(number) for _ in range(10)))
        assert set(versions) == {(number + 1, f"<p>version\n{number + 1}</p>")}
    assert rendering.count == 3


async def test_where_the_one_that_renders_leaves_another_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Topic(Rendering(), clock=lambda: 0.0)
    await topic.after(0)
    topic._due = 3600.0
    leaving = asyncio.create_task(topic.after(1))
    staying = asyncio.create_task(topic.after(1))
    await asyncio.sleep(0)
    topic._due = 0.0
    leaving.cancel()
    async with asyncio.timeout(PATIENCE_S):
        assert (await staying)[0] == 2


async def all_of(secrets: Collection[str]) -> Collection[str]:
    return set(secrets)


async def test_a_stream_ends_when_the_process_does(hurried: None) -> None:
    ending: list[bool] = []
    own = Streams({"/now": Topic(Rendering())}, lambda: bool(ending), all_of)
    followed = own.follow("/now", "secret")
    assert await anext(followed) == b"data: <p>version\ndata: 1</p>\n\n"
    assert own._viewers == {"secret": 1}
    ending.append(True)
    assert [event async for event in followed] == []
    assert own._viewers == {}


async def test_a_new_viewer_gets_nothing_older_than_the_page(hurried: None) -> None:
    topic = Topic(Rendering())
    await topic.after(0)
    own = Streams({"/now": topic}, bool, all_of)
    assert b"data: 2</p>" in await anext(own.follow("/now", "secret"))


async def test_a_stream_outlives_the_database_and_not_its_session(
    hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendering, left, looks = Rendering(), {"ended", "open"}, []

    async def open_among(secrets: Collection[str]) -> Collection[str]:
        looks.append(set(secrets))
        if len(looks) == 1:
            raise StoreUnavailable("away")
        return left & set(secrets)

    own = Streams({"/now": Topic(rendering)}, bool, open_among)
    ended, opened = own.follow("/now", "ended"), own.follow("/now", "open")
    await asyncio.gather(anext(ended), anext(opened))
    rendering.failing = 3
    assert b"version" in await anext(ended)
    own._checked_at = float("-inf")
    assert b"version" in await anext(ended)
    left.discard("ended")
    own._checked_at = float("-inf")
    assert b"version" in await anext(opened)
    assert [event async for event in ended] == []
    assert b"version" in await anext(opened)
    # Of all that look one looks for all.
    assert looks == [{"ended", "open"}] * 2


async def test_who_comes_while_sessions_are_looked_up_stays(hurried: None) -> None:
    looking, looked = asyncio.Event(), asyncio.Event()

    async def open_among(secrets: Collection[str]) -> Collection[str]:
        present = set(secrets)
        looking.set()
        await looked.wait()
        return present

    own = Streams({"/now": Topic(Rendering())}, bool, open_among)
    first, second = own.follow("/now", "first"), own.follow("/now", "second")
    await anext(first)
    own._checked_at = float("-inf")
    going_on = asyncio.ensure_future(anext(first))
    await looking.wait()
    assert b"version" in await anext(second)
    looked.set()
    assert b"version" in await going_on
    assert b"version" in await anext(second)


async def test_a_key_is_connected_by_its_first_response(shown: Showcase) -> None:
    process = shown.gateway.process
    site = Site(AdminGateway(process), process.foundation.settings, process)
    async with site.browser(name="Connector") as browser:
        place = f"/tenants/acme/projects/{shown.project_id}"
        made = browser.parse(await browser.post(f"{place}/keys/create", name="newcomer"))
        secret = first(made, "#secret").text()
        page = await browser.page(f"/connect?tenant=acme&project={shown.project_id}")
        newest = page.css("select[name=key] option")[1]
        assert newest.text().startswith("newcomer")
        here = f"/connect?tenant=acme&project={shown.project_id}&key={newest.attributes['value']}"
        assert "Waiting" in first(await browser.page(here), "#seen").text()
        body = {"model": "gpt-oss-20b", "input": "Hello", "max_output_tokens": 16}
        headers = {"authorization": f"Bearer {secret}"}
        async with http_client(shown.gateway.url, headers=headers) as client:
            assert (await client.post("/v1/responses", json=body)).status_code == 200
        fragment = await browser.get(here, headers={"x-fragment": "seen"})
        assert "Connected." in fragment.text
        assert "hx-trigger" not in fragment.text


@pytest.mark.parametrize(
    ("origin", "address"),
    [
        ("http://127.0.0.1:9000", "http://127.0.0.1:8000/v1"),
        ("http://localhost:9000", "http://localhost:8000/v1"),
        ("http://[::1]:9000", "http://[::1]:8000/v1"),
    ],
)
async def test_the_address_for_clients_is_that_of_the_page(
    site: Site, origin: str, address: str
) -> None:
    async with site.browser(name="Addressee", base_url=origin) as browser:
        page = await browser.page("/connect")
        assert first(page, "input[name=base]").attributes["value"] == address
        other = await browser.page("/connect?base=https://api.example/v1")
        assert "https://api.example/v1/responses" in first(other, "pre").text()
        for base in ("javascript:x", "http://[x", "http://\uff0f.example", "https://"):
            refused = await browser.get("/connect", params={"base": base})
            assert refused.status_code == 400, base


async def test_the_address_is_that_of_the_proxy(site: Site) -> None:
    console = {"enabled": True, "public_url": "https://gateway.example"}
    settings = site.settings.model_validate({**site.settings.model_dump(), "console": console})
    other = console_site(settings)
    async with other.browser(base_url="https://gateway.example") as browser:
        page = await browser.page("/connect")
        value = first(page, "input[name=base]").attributes["value"]
    assert value == "https://gateway.example/v1"
    await other.process.foundation.database.close()
