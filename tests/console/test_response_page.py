"""The pages of one response and of one conversation, of a gateway that generates."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.app import AdminGateway
from gateway.audit import COMMAND_LINE
from gateway.console.application import FRAGMENT
from gateway.console.pages.response import CONTENT_TABS, TABS
from gateway.console.rendering import visible
from gateway.store.postgres.database import Connection
from tests.console.conftest import Site, first
from tests.console.hostile_site import HOSTILE, check
from tests.console.test_statements import content_in
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from selectolax.lexbor import LexborNode

    from gateway.store.postgres.statements import Statement
    from tests.console.conftest import Browser
    from tests.fakes.gateway import RunningGateway
    from tests.fakes.postgres import PostgresServer


@dataclass
class Talk:
    """A gateway with a console, and what its tenant was answered."""

    site: Site
    background: dict[str, Any]
    plain: dict[str, Any]
    conversation: str

    async def allow(self, word: str | None) -> None:
        tenants = self.site.services.tenants
        (one, *_) = await tenants.list()
        await tenants.set_policy(COMMAND_LINE, one.name, {"operator_content_access": word})


@pytest.fixture(scope="module")
async def talk(postgres: PostgresServer, template: str) -> AsyncIterator[Talk]:
    name = await postgres.create(template)
    async with serving(create_simulator(WaywardOptions(name="b0"))) as backend:
        settings = gateway_settings(
            postgres.database_url(name),
            [backend],
            models=[{"id": "gpt-oss-20b"}],
            admin={"port": 9000},
            console={"enabled": True},
        )
        async with running_gateway(settings) as gateway:
            site = Site(AdminGateway(gateway.process), settings, gateway.process)
            yield await talked(gateway, site)
    await postgres.drop(name)


async def talked(gateway: RunningGateway, site: Site) -> Talk:
    body = {"model": "gpt-oss-20b", "input": HOSTILE}
    async with http_client(gateway.url, headers=gateway.headers, timeout=60) as client:
        opened = (await client.post("/v1/conversations", json={})).json()["id"]
        plain = await client.post("/v1/responses", json={**body, "conversation": opened})
        made = (await client.post("/v1/responses", json={**body, "background": True})).json()
        while made["status"] in {"queued", "in_progress"}:
            made = (await client.get(f"/v1/responses/{made['id']}")).json()
    return Talk(site, made, plain.json(), opened)


@pytest.fixture
async def owner(talk: Talk) -> AsyncIterator[Browser]:
    async with talk.site.browser() as browser:
        yield browser


async def test_a_response_shows_where_its_time_went(talk: Talk, owner: Browser) -> None:
    for made in (talk.background, talk.plain):
        page = await owner.page(f"/responses/{made['id']}")
        assert first(page, ".sentence").text().endswith(".")
        phases = page.css("svg.lane")[0].css("rect")
        assert float(phases[0].attributes["x"] or 1) == 0
        assert {one.text() for one in page.css(".lane-label")} >= {"Phases", "Backends", "Messages"}
        usage = made["usage"]
        assert str(usage["output_tokens"]) in " ".join(one.text() for one in page.css(".figure"))
        assert page.css("tbody tr")
    chain = await owner.page(f"/responses/{talk.plain['id']}?tab=chain")
    assert len(chain.css("tr.current")) == 1
    assert (await owner.get(f"/responses/{talk.plain['id']}?tab=nothing")).status_code == 400
    assert (await owner.get("/responses/resp_7")).status_code == 404
    conversation = await owner.page(f"/conversations/{talk.conversation}")
    assert len(conversation.css("tbody tr")) == 1
    assert conversation.css("meter")


async def test_nothing_is_said_before_it_is_revealed(
    talk: Talk, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    execute, task = Connection.execute, asyncio.current_task()

    async def recorded(self: Connection, statement: Statement, *rest: Any) -> Any:
        # The gateway does other things meanwhile.
        if asyncio.current_task() is task:
            statements.append(statement.sql)
        return await execute(self, statement, *rest)

    monkeypatch.setattr(Connection, "execute", recorded)
    path = f"/responses/{talk.background['id']}"
    for word in (None, "consent", "always"):
        await talk.allow(word)
        for tab in TABS:
            page = await owner.page(f"{path}?tab={tab}")
            assert bool(page.css(".hidden-content")) == (tab in CONTENT_TABS), tab
            assert bool(page.css("input[name=reason]")) == (
                tab in CONTENT_TABS and word == "always"
            )
        hidden = await owner.get(f"{path}?tab=tokens", headers={FRAGMENT: "tokens"})
        assert hidden.text.strip() == ""
    async with talk.site.browser("support") as support:
        page = await support.page(f"{path}?tab=items")
        assert not page.css("input[name=reason]")
        refused = await support.post(f"{path}/reveal", reason="let me see")
        assert refused.status_code == 403
    assert len(statements) > 3 * len(TABS)
    assert [sql for sql in statements if content_in(sql)] == []
    await talk.allow(None)


async def test_what_was_revealed_is_shown_as_text(talk: Talk, owner: Browser) -> None:
    await talk.allow("always")
    path = f"/responses/{talk.background['id']}"
    assert (await owner.post(f"{path}/reveal", reason="x")).status_code == 400
    done = await owner.post(f"{path}/reveal", reason="ticket 4711", tab="tokens")
    assert done.headers["location"] == f"/console{path}?tab=tokens"
    for tab in TABS:
        page = await owner.page(f"{path}?tab={tab}")
        assert not page.css(".hidden-content"), tab
        # Elements of ours show bytes, and are told by their class.
        for node in page.css("u.bytes"):
            node.decompose()
        check(page, tab)
    tokens = await owner.page(f"{path}?tab=tokens")
    spelled = "".join(one.text() for one in tokens.css(".run.p-body i") if not one.css("u"))
    assert "scripted server" in spelled
    assert [one.text() for one in tokens.css(".p-marker")][:2] == ["<|channel|>", "<|message|>"]
    assert re.fullmatch(r"\d+ \d+ \d* ", first(tokens, "#tokens i").attributes["data-t"] or "")
    part = await owner.get(f"{path}?tab=tokens&after=3", headers={FRAGMENT: "tokens"})
    assert 'data-first="4"' in part.text
    assert "<html" not in part.text
    items = await owner.page(f"{path}?tab=items")
    assert "⟨U+202E⟩" in "".join(one.text() for one in items.css("pre.text"))
    events = await owner.page(f"{path}?tab=events")
    assert first(events, "#event-0 summary").text() == "response.created"
    assert '"model"' in first(await owner.page(f"{path}?tab=request"), "pre.code").text()
    plain = f"/responses/{talk.plain['id']}"
    await owner.post(f"{plain}/reveal", reason="ticket 4711")
    gone = await owner.page(f"{plain}?tab=tokens")
    assert "There is no log of this response" in (gone.html or "")
    assert gone.css("#tokens i")
    await talk.allow(None)


def spelled(column: LexborNode) -> str:
    """The tokens of a column behind those that both share."""
    return "".join(one.text() for one in column.css(".seam.fork ~ .run i") or column.css("i"))


async def test_a_replay_stands_beside_the_original_as_text(talk: Talk, owner: Browser) -> None:
    path = f"/responses/{talk.background['id']}/replay"
    for word in (None, "always"):
        await talk.allow(word)
        assert (await owner.page(path)).css(".hidden-content")
        assert (await owner.post(path, at="0")).status_code == 403
    await owner.post(f"/responses/{talk.background['id']}/reveal", reason="ticket 4711")
    page = await owner.page(f"{path}?at=7")
    assert first(page, "input[name=at]").attributes["value"] == "7"
    assert [one.text() for one in page.css("select[name=backend] option")] == ["any", "b0"]
    same = owner.parse(await owner.post(path, at="", backend="b0"))
    assert first(same, ".sentence").text() == "It says the same, token for token."
    assert "as many as the model had" in (same.html or "")
    one, other = same.css(".split-replay .tokens")
    assert spelled(one) == spelled(other) != ""
    assert same.css(".differs") == []
    words = f" {HOSTILE}<|end|>"
    forked = await owner.post(path, at="12", text=words, temperature="0.5", seed="7")
    page = owner.parse(forked)
    for node in page.css("u.bytes"):
        node.decompose()
    check(page, path)
    assert first(page, ".sentence").text() == "It differs from token 12 on."
    assert [node.parent is not None for node in page.css(".differs")] == [True, True]
    one, other = page.css(".split-replay .tokens")
    assert other.css(".prefilled")[0].text().startswith(' "><')
    assert (first(page, "textarea").text() or "").strip("\n") == visible(words)
    for wrong in ({"at": "x"}, {"at": "99999"}, {"temperature": "9"}, {"seed": "1e9"}):
        answer = await owner.post(path, **wrong)
        assert answer.status_code == 400, wrong
    async with talk.site.browser("support") as support:
        assert (await support.get(path)).status_code == 403
        assert (await support.post(path)).status_code == 403
    await talk.allow(None)


async def test_the_prompt_is_read_when_it_is_opened_and_a_turn_is_a_download(
    talk: Talk, owner: Browser
) -> None:
    await talk.allow("always")
    path = f"/responses/{talk.background['id']}"
    await owner.post(f"{path}/reveal", reason="ticket 4711")
    tokens = await owner.page(f"{path}?tab=tokens")
    assert first(tokens, "#prompt").attributes["data-src"] == f"/console{path}?tab=prompt"
    assert not tokens.css(".prompt-message")
    part = owner.parse(await owner.get(f"{path}?tab=prompt", headers={FRAGMENT: "prompt"}))
    check(part, "prompt")
    labels = [one.text() for one in part.css(".prompt-message summary code")]
    assert labels == ["system", "user", "assistant"]
    assert "onerror=evil" in "".join(one.text() for one in part.css("pre"))
    rest = owner.parse(await owner.get(f"{path}?tab=prompt&after=0"))
    assert len(rest.css(".prompt-message")) == 2
    line = await owner.get(f"{path}?tab=corpus")
    assert line.headers["content-disposition"].endswith(f'{talk.background["id"]}.jsonl"')
    assert line.text.count("\n") == 1
    assert orjson.loads(line.content)["desired"][-1]["type"] == "message"
    await talk.allow(None)
