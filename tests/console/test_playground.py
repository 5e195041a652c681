"""The Playground: questions of an operator, as requests of a project."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect
from selectolax.lexbor import LexborHTMLParser as HTMLParser

from gateway import ids
from gateway.admin.data_controls import DataRetentionUpdate
from gateway.admin.limits import LimitOwner
from gateway.admin.responses import Reveal
from gateway.admin.transactions import AdminCaller
from gateway.app import AdminGateway
from gateway.audit import COMMAND_LINE
from gateway.console.application import FORM_TOKEN
from gateway.console.login_sessions import login_url
from gateway.console.pages.playground import FILE_PAGE, PATH
from gateway.console.playground import KEY_S, KEY_TERMS
from gateway.store.postgres.statements import Statement
from gateway.store.tools import web_pages
from gateway.store.tools.web_pages import StoredPage
from gateway.tenancy import default_project
from gateway.tenancy.policy import ZERO_RETENTION
from tests.console.chromium import PROGRAM, chromium, sign_in, visit
from tests.console.conftest import OWN_SITE, Site, first
from tests.console.hostile_site import HOSTILE, check
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.harmony_oracle import vocabulary
from tests.fakes.http_client import http_client
from tests.fakes.observation import Backends
from tests.fakes.python_containers import HAS_BUBBLEWRAP, SYSTEM_PYTHON
from tests.fakes.serving import serving
from tests.fakes.wayward_engine.engine import create_simulator
from tests.fakes.wayward_engine.options import WaywardOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser as Chromium

    from tests.console.conftest import Browser
    from tests.fakes.postgres import PostgresServer

MODEL = "gpt-oss-20b"
MONTY = {"enabled": True, "engine": "monty"}
LINUX = {"enabled": True, "engine": "linux", "interpreter": str(SYSTEM_PYTHON)}
QUAGGAS = StoredPage(
    "https://zebra.example/<u>stripes",
    "Quaggas <script>evil()</script>\u202e",
    "The quagga had stripes on its neck only.\nThe last one died in 1883.",
)
KEPT_BYTES = 200_000
"""An image so large is a file of the container."""
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
KEYS = Statement("""
SELECT name, scopes, disabled_at, expires_at - created_at AS lifetime FROM api_keys
WHERE tenant_id = :tenant AND name = 'Playground' ORDER BY created_at
""")
NOTES = Statement("""
SELECT type, convert_from(actor, 'UTF8') AS actor FROM audit_log
WHERE tenant_id = :tenant AND target = :target ORDER BY at
""")


@dataclass
class Playing:
    """A site whose gateway answers, and the addresses of both listeners."""

    site: Site
    admin_url: str
    tenant: Any
    backends: Backends

    @property
    def project(self) -> str:
        return ids.project_id(default_project(self.tenant))

    @property
    def keys(self) -> Any:
        return self.site.console._services.playground.keys

    async def ask(self, browser: Browser, question: str, **fields: str) -> Answer:
        answer = await browser.post(f"{PATH}/ask", **self.fields(question, **fields))
        assert answer.status_code == 200, answer.text
        return Answer([json.loads(line) for line in answer.text.splitlines()], answer.text)

    def fields(self, question: str, **fields: str) -> dict[str, str]:
        chosen = {"tenant": "acme", "project": self.project, "model": MODEL}
        return {**chosen, "question": question, **fields}

    async def rows(self, statement: Statement, **parameters: Any) -> list[Any]:
        database = self.site.process.foundation.database
        async with database.transaction(self.tenant) as connection:
            return list(await connection.execute(statement, {"tenant": self.tenant, **parameters}))


@dataclass
class Answer:
    """Lines of an answer, as the page's script reads them."""

    lines: list[list[Any]]
    text: str

    @property
    def items(self) -> list[HTMLParser]:
        """The items at their end."""
        return [HTMLParser(line[2]) for line in self.lines if line[0] == "put"]

    @property
    def ending(self) -> HTMLParser:
        assert [line[0] for line in self.lines].count("end") == 1
        assert self.lines[-1][0] == "end"
        return HTMLParser(self.lines[-1][1])

    @property
    def id(self) -> str:
        return str(self.lines[-1][2])

    def of_kind(self, kind: str) -> list[HTMLParser]:
        return [item for item in self.items if item.css_first(f".is-{kind}") is not None]

    @property
    def said(self) -> str:
        return first(self.of_kind("message")[-1], ".said").text()


def steps(text: str) -> str:
    return f"[[sim think=2 steps={text}]]"


@pytest.fixture(scope="module")
async def playing(postgres: PostgresServer, template: str) -> AsyncIterator[Playing]:
    """With web pages, and Python where this machine can confine it."""
    url = postgres.database_url(name := await postgres.create(template))
    async with serving(create_simulator(WaywardOptions(name="b0"))) as backend:
        settings = gateway_settings(
            url,
            [backend],
            models=[{"id": MODEL}],
            tools={"web": {"enabled": True}, "python": LINUX if HAS_BUBBLEWRAP else MONTY},
            admin={"port": 9000},
            console={"enabled": True},
        )
        async with running_gateway(settings) as gateway:
            admin = AdminGateway(gateway.process)
            site = Site(admin, settings, gateway.process)
            await web_pages.put_documents(
                gateway.process.foundation.database,
                None,
                [QUAGGAS],
                language=settings.tools.web.index_language,
            )
            async with serving(admin) as admin_url, http_client() as client:
                acme = (await site.services.tenants.get("acme")).tenant
                yield Playing(site, admin_url, acme.id, Backends((backend,), client))
    await postgres.drop(name)


@pytest.fixture
async def ada(playing: Playing) -> AsyncIterator[Browser]:
    async with playing.site.browser() as browser:
        yield browser


async def test_an_answer_is_streamed_and_the_next_question_continues_it(
    playing: Playing, ada: Browser
) -> None:
    answer = await playing.ask(ada, "[[sim think=4 say=Deep blue sea.]]", effort="low")
    kinds = [line[0] for line in answer.lines]
    assert kinds.index("add") < kinds.index("text") < kinds.index("put") < kinds.index("end")
    streamed = "".join(line[2] for line in answer.lines if line[:2] == ["text", 1])
    assert streamed == answer.said == "Deep blue sea."
    (thinking,) = answer.of_kind("thinking")
    assert first(thinking, "details").attributes.get("open", "folded") == "folded"
    took = {
        first(HTMLParser(one.html or ""), "dt").text(): one.text(deep=True)
        for one in answer.ending.css(".took div")
    }
    assert {"First token", "Tokens/s"} <= took.keys()
    assert "cached" in took["Tokens in"]
    assert "thinking" in took["Tokens out"]
    link = first(answer.ending, ".follow a").attributes["href"] or ""
    assert answer.id in link
    assert (await ada.client.get(link)).status_code == 200
    more = await playing.ask(ada, "And?", previous=answer.id)
    stored = await playing.site.services.responses.get(COMMAND_LINE, more.id)
    assert stored["previous_response_id"] == answer.id
    assert stored["tenant"]["name"] == "acme"
    assert stored["project_id"] == playing.project
    usage = stored["usage"]
    assert usage is not None
    assert usage["output_tokens"] > 0


async def test_the_code_of_a_request_is_what_was_sent_without_its_key(
    playing: Playing, ada: Browser
) -> None:
    answer = await playing.ask(
        ada,
        "It's [[sim say=ok]]",
        instructions="Be brief.",
        max_output_tokens="64",
        tools=json.dumps(WEATHER),
    )
    curl, python = (node.text() for node in answer.ending.css(".follow pre"))
    assert '"instructions": "Be brief."' in curl
    assert "$OPENAI_API_KEY" in curl
    called: dict[str, Any] = {}
    body = re.search(r"create\(\n(.*)\)\nprint", python, re.DOTALL)
    assert body is not None
    exec(f"called = dict({body[1]})", called)
    assert called["called"] == {
        "model": MODEL,
        "instructions": "Be brief.",
        "max_output_tokens": 64,
        "tools": [WEATHER],
        "input": [{"role": "user", "content": "It's [[sim say=ok]]"}],
    }


async def test_a_session_has_one_key_for_ten_minutes_that_no_page_shows(
    playing: Playing, ada: Browser
) -> None:
    before = await playing.rows(KEYS)
    seen = [(await playing.ask(ada, "Hi [[sim say=a]]")).text for _ in range(2)]
    (made,) = (await playing.rows(KEYS))[len(before) :]
    assert made.lifetime.total_seconds() == KEY_S
    assert tuple(made.scopes) == tuple(sorted(KEY_TERMS.scopes))
    key = await held(playing, ada)
    address = f"{PATH}?tenant=acme&project={playing.project}"
    page = await ada.page(address)
    assert "hidden" not in first(page, "#key").attributes
    seen.append(page.html or "")
    events = await playing.rows(NOTES, target=key.id)
    assert [event.type for event in events] == ["api_key.created"]
    assert "Ada" in events[0].actor
    ended = await ada.post(f"{PATH}/end", tenant="acme", project=playing.project)
    assert ended.headers["location"] == f"/console{address}"
    assert [one.type for one in await playing.rows(NOTES, target=key.id)][-1] == "api_key.deleted"
    async with http_client(
        playing.admin_url, headers={"authorization": f"Bearer {key.secret}"}
    ) as client:
        assert (await client.get("/v1/models")).status_code == 401
    seen.append((await ada.page(address)).html or "")
    assert "hidden" in first(HTMLParser(seen[-1]), "#key").attributes
    assert [text for text in seen if key.secret in text or key.secret[-8:] in text] == []
    assert key.secret not in repr(key)


async def held(playing: Playing, browser: Browser) -> Any:
    secret = dict(browser.client.cookies)["gateway-console"]
    session = await playing.site.sessions.find(secret)
    assert session is not None
    return playing.keys.find(session)


async def test_a_key_that_has_ended_is_replaced_and_removed(playing: Playing) -> None:
    async with playing.site.browser(name="Slow") as slow:
        await playing.ask(slow, "Hi [[sim say=a]]")
        old = await held(playing, slow)
        (session_id,) = (one for one, key in playing.keys._by_session.items() if key is old)
        playing.keys._by_session[session_id] = replace(old, ends_at=0.0)
        assert await held(playing, slow) is None
        await playing.ask(slow, "Hi [[sim say=a]]")
        new = await held(playing, slow)
        assert new.id != old.id
        assert (await playing.rows(NOTES, target=old.id))[-1].type == "api_key.deleted"
        await slow.post("/logout")
        assert (await playing.rows(NOTES, target=new.id))[-1].type == "api_key.deleted"
        assert session_id not in playing.keys._by_session


async def test_sources_are_shown_with_their_address_and_lead_nowhere(
    playing: Playing, ada: Browser
) -> None:
    answer = await playing.ask(ada, steps("search quagga; open first; cite"), web_search="on")
    assert len(answer.of_kind("tool")) >= 2
    message = answer.of_kind("message")[-1]
    assert first(message, ".citations code").text() == QUAGGAS.url
    assert message.css("a") == []
    for item in answer.items:
        check(item, "an item")
    check(answer.ending, "the ending")


@pytest.mark.skipif(not HAS_BUBBLEWRAP, reason="bubblewrap and /usr/bin/python3 are not both here")
async def test_a_plot_is_an_image_of_the_console_and_a_file_a_download(
    playing: Playing, ada: Browser
) -> None:
    answer = await playing.ask(ada, plots(), code_interpreter="on")
    calls = answer.of_kind("tool")
    assert "class Plot" in first(calls[0], "pre").text()
    inline, address = (first(call, "img").attributes["src"] or "" for call in calls[1:])
    assert inline == f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    image = await ada.client.get(address)
    assert image.content.startswith(png())
    assert len(image.content) == len(png()) + KEPT_BYTES
    assert image.headers["content-type"] == "image/png"
    link = first(answer.of_kind("message")[-1], ".citations a")
    assert link.text() == "<u>a.csv"
    address = link.attributes["href"] or ""
    file = await ada.client.get(address)
    assert file.content == b"1,2"
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["content-disposition"].startswith("attachment")
    async with playing.site.browser(name="Other") as other:
        refused = await other.client.get(address)
        assert refused.headers["location"] == f"/console{PATH}?gone=1"
    foreign = await ada.get(f"{FILE_PAGE.path}?container=..&file=../../models")
    assert foreign.status_code == 303


@pytest.mark.slow
@pytest.mark.skipif(not PROGRAM.exists(), reason=f"there is no {PROGRAM}")
@pytest.mark.skipif(not HAS_BUBBLEWRAP, reason="bubblewrap and /usr/bin/python3 are not both here")
async def test_a_browser_draws_the_plot_of_a_program(playing: Playing, browser: Chromium) -> None:
    token = await playing.site.sessions.create_link("Ada", "owner")
    async with visit(browser) as visited:
        page = visited.page
        await sign_in(visited, login_url(playing.admin_url, token))
        address = f"{PATH}?tenant=acme&project={playing.project}"
        await page.goto(f"{playing.admin_url}/console{address}")
        await page.get_by_label("code interpreter").check()
        await page.get_by_label("Question").fill(plots())
        await page.get_by_role("button", name="Ask").click()
        await page.locator(".took").wait_for()
        images = page.locator("img.drawn")
        # One is in the page, one a file of the container.
        await expect(images).to_have_count(2)
        for number in range(2):
            image = images.nth(number)
            assert (
                await image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 2
            )
        await visited.check()


def plots() -> str:
    """A question whose programs draw a small image and one that is kept as a file."""
    drawn = base64.b64encode(png()).decode()
    code = (
        "import base64\\nopen('<u>a.csv', 'w').write('1,2')\\nclass Plot:\\n"
        "  def __init__(self, more): self.more = more\\n"
        f"  def _repr_png_(self): return base64.b64decode('{drawn}') + b'0' * self.more"
    )
    kept = f"python print('/mnt/data/<u>a.csv')\\nPlot({KEPT_BYTES})"
    return steps(f"python {code}; python Plot(0); {kept}; quote")


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 2, 2, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0\0\xff" * 2)
    begin = b"\x89PNG\r\n\x1a\n"
    return begin + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


async def test_a_call_of_a_function_waits_for_its_output(playing: Playing, ada: Browser) -> None:
    name = "weather"
    answer = await playing.ask(
        ada, steps(f'mcp {name} {{"city": "<u>Bern"}}; quote'), tools=json.dumps([WEATHER])
    )
    (call,) = answer.of_kind("tool")
    assert "<u>Bern" in first(call, "pre").text()
    field = first(answer.ending, "textarea").attributes["name"] or ""
    assert field.startswith("output:")
    more = await playing.ask(
        ada, "", previous=answer.id, tools=json.dumps(WEATHER), **{field: "12 <u>degrees"}
    )
    assert "12 <u>degrees" in more.said


async def test_a_refused_request_says_what_to_do(playing: Playing, ada: Browser) -> None:
    answer = await playing.ask(ada, "Hi", model="gpt-9")
    alert = first(answer.ending, "[role=alert]").text(deep=True)
    assert "gpt-9" in alert
    assert "code: model_not_found" in alert
    assert answer.lines[-1][2] is None
    few = await playing.ask(ada, "Hi", max_output_tokens="3")
    assert "param: max_output_tokens" in few.ending.text()
    short = await playing.ask(ada, "[[sim think=none tokens=200]]", max_output_tokens="20")
    assert "Raise 'Max tokens'" in first(short.ending, ".notice").text()
    assert short.id.startswith("resp_")
    for fields, words in (
        ({"question": ""}, "Write one"),
        ({"schema": "{"}, "Correct it"),
        ({"tools": "7"}, "is no object"),
        ({"max_output_tokens": "many"}, "is no number"),
        ({"max_output_tokens": "9" * 30}, "is no number"),
        ({"max_output_tokens": "9" * 5000}, "is no number"),
        ({"tenant": "nobody"}, "nobody"),
        ({"project": "proj_1"}, "proj_1"),
    ):
        data = {**playing.fields("Hi"), **fields}
        refused = await ada.post(f"{PATH}/ask", **data)
        assert refused.status_code in {400, 404}, fields
        assert words in first(HTMLParser(refused.text), "[role=alert]").text(), fields


async def test_the_limits_of_the_project_hold(playing: Playing, ada: Browser) -> None:
    tenants = playing.site.services.tenants
    await tenants.create(COMMAND_LINE, "bounded")
    tenant = (await tenants.get("bounded")).tenant.id
    await playing.site.console._services.tenant.limits.set_limits(
        LimitOwner.of_tenant(tenant), {("requests", 60): 1}
    )
    chosen = {"tenant": "bounded", "project": ids.project_id(default_project(tenant))}
    assert (await playing.ask(ada, "[[sim say=a]]", **chosen)).said == "a"
    refused = (await playing.ask(ada, "[[sim say=b]]", **chosen)).ending
    assert "Status: 429" in first(refused, ".details").text()
    assert "try again in" in first(refused, "[role=alert]").text()


async def test_an_answer_that_is_not_stored_is_not_continued(
    playing: Playing, ada: Browser
) -> None:
    tenants = playing.site.services.tenants
    await tenants.create(COMMAND_LINE, "secretive")
    tenant = (await tenants.get("secretive")).tenant.id
    zero = DataRetentionUpdate(retention_type=ZERO_RETENTION)
    controls = playing.site.console._services.tenant.data_controls
    await controls.set_of_organization(AdminCaller(tenant), zero)
    project = ids.project_id(default_project(tenant))
    answer = await playing.ask(ada, "[[sim say=a]]", tenant="secretive", project=project)
    assert "Not stored" in first(answer.ending, ".notice").text()
    assert answer.lines[-1][2] is None


async def test_what_a_model_writes_stays_text(playing: Playing, ada: Browser) -> None:
    words = HOSTILE.replace("]", "")
    answer = await playing.ask(ada, f"[[sim say={words}]]", instructions=HOSTILE)
    assert "evil()" in answer.said
    assert "⟨U+202E⟩" in answer.said
    assert "\u202e" not in answer.text
    for html in (line[-1] if line[0] == "put" else line[1] for line in answer.lines):
        if isinstance(html, str):
            check(HTMLParser(html), "a line")


@pytest.mark.parametrize("on_disconnect", ["cancel", "continue"])
async def test_who_stops_ends_the_request(playing: Playing, on_disconnect: str) -> None:
    """Over a socket, because only there a browser can leave."""
    tenants = playing.site.services.tenants
    await tenants.set_policy(COMMAND_LINE, "acme", {"on_disconnect": on_disconnect})
    options: dict[str, Any] = {"base_url": playing.admin_url, "transport": None}
    async with playing.site.browser(name="Hasty", **options) as browser:
        data = playing.fields("[[sim think=none tokens=100000 tokens_per_s=50]]")
        data[FORM_TOKEN] = browser.form_token
        response_id = ""
        async with browser.client.stream(
            "POST", f"/console{PATH}/ask", data=data, headers=OWN_SITE
        ) as answer:
            async for line in answer.aiter_lines():
                kind, *rest = json.loads(line)
                if kind == "begin":
                    (response_id,) = rest
                elif kind == "text":
                    break
        if on_disconnect == "continue":
            stopped = await browser.post(f"{PATH}/stop", response=response_id)
            assert stopped.status_code == 204
        uuid = response_id.removeprefix("resp_")
        await playing.backends.until(
            lambda rows: (
                [row["aborted"] for row in rows if str(row["request_id"]).startswith(uuid)]
                == [True]
            )
        )
    await tenants.set_policy(COMMAND_LINE, "acme", {"on_disconnect": "cancel"})


@pytest.mark.slow
@pytest.mark.skipif(not PROGRAM.exists(), reason=f"there is no {PROGRAM}")
async def test_a_browser_shows_what_is_streamed(playing: Playing) -> None:
    token = await playing.site.sessions.create_link("Ada", "owner")
    async with chromium() as browser, visit(browser) as visited:
        page = visited.page
        await sign_in(visited, login_url(playing.admin_url, token))
        await page.goto(f"{playing.admin_url}/console{PATH}")
        await page.get_by_label("Tenant", exact=True).fill("acme")
        await page.get_by_role("button", name="Go on").click()
        await page.get_by_role("button", name="Go on").click()
        question = page.get_by_label("Question")
        await question.fill(f"[[sim think=4 say={HOSTILE.replace(']', '')}]]")
        await question.press("Control+Enter")
        await page.locator(".took").wait_for()
        await expect(page.locator(".is-message .said")).to_contain_text("⟨U+202E⟩</textarea>")
        await expect(page.locator("#thread img, #thread u, #thread script")).to_have_count(0)
        await expect(page.locator(".question")).to_have_count(1)
        await expect(page.locator("details", has_text="Thinking").get_by_text("…")).to_be_hidden()
        await question.fill("[[sim think=none tokens=100000 tokens_per_s=50]]")
        await page.get_by_role("button", name="Ask").click()
        await page.locator(".answer").nth(1).get_by_text("The script goes on").wait_for()
        await page.get_by_role("button", name="Stop").click()
        await page.get_by_text("Stopped. The next question").wait_for()
        await page.get_by_label("Other tools, as JSON").fill("{")
        await expect(page.locator("[name=tools]:invalid")).to_have_count(1)
        await page.get_by_label("Other tools, as JSON").fill("")
        await page.get_by_label("Max tokens").fill("16")
        await page.get_by_role("button", name="End now").click()
        await expect(page.get_by_role("button", name="End now")).to_be_hidden()
        await question.fill("Hello")
        await page.get_by_role("button", name="Ask").click()
        await page.locator(".took").wait_for()
        secrets = [key.secret for key in playing.keys._by_session.values()]
        assert secrets != []
        shown = await page.content()
        assert [secret for secret in secrets if secret in shown] == []
        assert await visited.violations() == []
        assert visited.complaints == []


# Forks


async def revealed(playing: Playing, browser: Browser, response_id: str) -> None:
    stored = playing.site.services.responses
    secret = dict(browser.client.cookies)["gateway-console"]
    session = await playing.site.sessions.find(secret)
    assert session is not None
    author = replace(COMMAND_LINE, actor=session.actor)
    await stored.reveal(author, response_id, Reveal(reason="a test"))


async def test_a_fork_continues_a_response_behind_any_item(playing: Playing, ada: Browser) -> None:
    tenants = playing.site.services.tenants
    await tenants.set_policy(COMMAND_LINE, "acme", {"operator_content_access": "always"})
    begin = await playing.ask(ada, "[[sim think=2 say=One]]")
    answer = await playing.ask(ada, "[[sim think=2 say=Two]]", previous=begin.id)
    path = f"{PATH}?fork={answer.id}&item=0"
    hidden = await ada.get(path)
    assert hidden.status_code == 403
    assert "Reveal the response" in hidden.text
    data = playing.fields("[[sim say=Three]]", fork=answer.id, item="0")
    assert (await ada.post(f"{PATH}/ask", **data)).status_code == 403
    await revealed(playing, ada, answer.id)
    links = [node.attributes["href"] for node in (await items_tab(ada, answer.id)).css("article a")]
    assert links == [f"/console{PATH}?fork={answer.id}&item={item}" for item in range(2)]
    page = await ada.page(path)
    assert first(page, "input[name=fork]").attributes["value"] == answer.id
    assert first(page, "input[name=project]").attributes["value"] == playing.project
    fork = await playing.ask(ada, "[[sim say=Three]]", fork=answer.id, item="0")
    sent = await context(playing, ada, fork.id)
    assert [one["type"] for one in sent] == [
        *("message", "reasoning", "message"),
        *("message", "reasoning"),
        "message",
    ]
    assert "Two" not in json.dumps(sent[3:5][1])
    last = await playing.ask(ada, "[[sim say=Four]]", fork=answer.id, item="1")
    record = await playing.site.services.responses.get(COMMAND_LINE, last.id)
    assert record["previous_response_id"] == answer.id
    for number in ("x", "9" * 5000):
        assert (await ada.get(f"{PATH}?fork={answer.id}&item={number}")).status_code == 400
    beyond = playing.fields("Hi", fork=answer.id, item="9")
    assert (await ada.post(f"{PATH}/ask", **beyond)).status_code == 400


async def items_tab(browser: Browser, response_id: str) -> HTMLParser:
    return await browser.page(f"/responses/{response_id}?tab=items")


async def test_a_fork_has_what_tools_returned(playing: Playing, ada: Browser) -> None:
    tenants = playing.site.services.tenants
    await tenants.set_policy(COMMAND_LINE, "acme", {"operator_content_access": "always"})
    on = {"code_interpreter": "on"}
    answer = await playing.ask(ada, steps("python 6 * 7; say done"), **on)
    kinds = [first(item, ".item").attributes["class"] for item in answer.items]
    assert answer.said == "done"
    await revealed(playing, ada, answer.id)
    item = str(kinds.index("item is-tool"))
    fork = await playing.ask(ada, "[[sim think=2 say=ok]]", fork=answer.id, item=item, **on)
    (begin,) = await playing.backends.of_response(fork.id)
    prompt = vocabulary().decode(begin["prompt_ids"])
    assert "6 * 7python to=assistantanalysis42user" in prompt
    assert prompt.count("done") == 1, "in the question before"


async def context(playing: Playing, browser: Browser, response_id: str) -> list[Any]:
    from gateway.protocol.pages import PageParams

    await revealed(playing, browser, response_id)
    secret = dict(browser.client.cookies)["gateway-console"]
    session = await playing.site.sessions.find(secret)
    assert session is not None
    author = replace(COMMAND_LINE, actor=session.actor)
    page = PageParams(limit=100, order="asc")
    items = await playing.site.services.responses.items(author, response_id, page)
    return list(items["input"])


async def test_a_fork_takes_the_permission_for_content(playing: Playing, ada: Browser) -> None:
    answer = await playing.ask(ada, "[[sim say=One]]")
    async with playing.site.browser("admin", name="Admin") as admin:
        refused = await admin.get(f"{PATH}?fork={answer.id}")
    assert refused.status_code == 403
    assert "content.read" in refused.text
