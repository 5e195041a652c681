"""Signing in, sessions, and what a request must have to change anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gateway.console.application import _HEADERS, FORM_TOKEN
from gateway.console.login_sessions import (
    ADDRESSES_MAX,
    FAILURES_MAX,
    IDLE_S,
    SESSION_S,
    WINDOW_S,
    LoginAttempts,
    Visitor,
)
from gateway.errors import RateLimited
from gateway.store.postgres.statements import Statement
from gateway.store.schema import EVERYONE
from gateway.tenancy import TenantId
from gateway.tenancy.permissions import OPERATOR_ROLES
from tests.console.conftest import ORIGIN, OWN_SITE, console_site, first

if TYPE_CHECKING:
    from gateway.tenancy.permissions import OperatorRole
    from tests.console.conftest import Browser, Site

AGE = Statement("""
UPDATE console_sessions SET seen_at = seen_at - make_interval(secs => :idle_s),
    expires_at = expires_at - make_interval(secs => :whole_s)
WHERE tenant_id = :nobody AND name = :name
""")


async def age(site: Site, name: str, *, idle_s: float = 0, whole_s: float = 0) -> None:
    async with site.process.foundation.database.transaction(TenantId(EVERYONE)) as connection:
        parameters = {"idle_s": float(idle_s), "whole_s": float(whole_s), "name": name}
        await connection.execute(AGE, {"nobody": EVERYONE, **parameters})


async def test_a_link_signs_in_once(site: Site) -> None:
    token = await site.sessions.create_link("Grace", "support")
    async with site.client() as client:
        shown = await client.get(f"/console/login?token={token}")
        assert "Grace" in shown.text
        assert "set-cookie" not in shown.headers
        first = await client.post("/console/login", data={"token": token}, headers=OWN_SITE)
        assert (first.status_code, first.headers["location"]) == (303, "/console")
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        second = await client.post("/console/login", data={"token": token}, headers=OWN_SITE)
        assert second.status_code == 403
        assert (await client.get(f"/console/login?token={token}")).text.count("used already") == 1


async def test_wrong_links_are_refused_after_a_few(site: Site) -> None:
    other = console_site(site.settings)
    async with other.client() as client:
        statuses = [
            (await client.post("/console/login", data={"token": "x"}, headers=OWN_SITE)).status_code
            for _ in range(FAILURES_MAX + 1)
        ]
        assert statuses == [403] * FAILURES_MAX + [429]
        assert (await client.get("/console/login?token=y")).status_code == 429
        assert (await client.get("/console/login")).status_code == 200
    await other.process.foundation.database.close()


def test_attempts_are_forgotten_with_time_and_of_many_addresses() -> None:
    now = 0.0
    attempts = LoginAttempts(lambda: now)
    for _ in range(FAILURES_MAX):
        attempts.check("a")
        attempts.note_failure("a")
    with pytest.raises(RateLimited):
        attempts.check("a")
    attempts.check("b")
    now = WINDOW_S
    attempts.check("a")
    for number in range(ADDRESSES_MAX):
        attempts.note_failure(str(number))
    assert len(attempts._failures) == ADDRESSES_MAX
    assert "a" not in attempts._failures


async def test_a_link_expires(site: Site) -> None:
    token = await site.sessions.create_link("late", "owner")
    await age(site, "late", whole_s=601)
    assert await site.sessions.linked(token) is None
    async with site.client() as client:
        answer = await client.post("/console/login", data={"token": token}, headers=OWN_SITE)
    assert answer.status_code == 403


@pytest.mark.parametrize("aged", [{"idle_s": IDLE_S + 1}, {"whole_s": SESSION_S + 1}])
async def test_a_session_ends_by_itself(site: Site, aged: dict[str, float]) -> None:
    name = f"aged-{'-'.join(aged)}"
    async with site.browser(name=name) as browser:
        assert (await browser.get("/account")).status_code == 200
        await age(site, name, **aged)
        assert (await browser.get("/account")).headers["location"] == "/console/login"
        assert (await browser.post("/preferences", theme="dark")).status_code == 403


async def test_of_many_sessions_the_open_ones_are_looked_up_together(site: Site) -> None:
    sessions, visitor = site.sessions, Visitor()
    used, idle, old, ended = [
        await sessions.begin(f"many-{name}", "owner", visitor)
        for name in ("used", "idle", "old", "ended")
    ]
    await age(site, "many-used", idle_s=IDLE_S - 60)
    await age(site, "many-idle", idle_s=IDLE_S + 1)
    await age(site, "many-old", whole_s=SESSION_S + 1)
    session = await sessions.find(ended)
    assert session is not None
    await sessions.end(session, session.id, visitor)
    assert await sessions.open_among([used, idle, old, ended, "nobody's"]) == {used}
    # Looking is using.
    await age(site, "many-used", idle_s=IDLE_S - 60)
    assert await sessions.open_among([used]) == {used}
    assert await sessions.find(used) is not None


async def test_who_signs_out_is_out(site: Site) -> None:
    async with site.browser(name="leaver") as browser:
        cookies = dict(browser.client.cookies)
        assert (await browser.post("/logout")).headers["location"] == "/console/login"
        async with site.client(cookies=cookies) as kept:
            assert (await kept.get("/console/account")).status_code == 303


async def test_an_operator_ends_another_session_of_theirs_and_no_strangers(site: Site) -> None:
    async with (
        site.browser(name="twice") as one,
        site.browser(name="twice") as other,
        site.browser(name="stranger") as stranger,
    ):
        page = await one.page("/account")
        (ended,) = [field.attributes["value"] for field in page.css("td.acts input[name=session]")]
        await stranger.post("/account/end", session=ended or "")
        assert (await other.get("/account")).status_code == 200
        await one.post("/account/end", session=ended or "")
        assert (await other.get("/account")).status_code == 303
        assert (await one.post("/account/end", session="nonsense")).status_code == 400


async def test_the_database_has_no_secret(site: Site) -> None:
    token = await site.sessions.create_link("hashed", "owner")
    secret = await site.sessions.open(token, _nobody())
    assert secret is not None
    async with site.process.foundation.database.transaction(TenantId(EVERYONE)) as connection:
        rows = await connection.execute(Statement("SELECT * FROM console_sessions"))
    for one in (token, secret):
        assert one.encode() not in repr([dict(row.items()) for row in rows]).encode()


def _nobody() -> Any:
    from gateway.console.login_sessions import Visitor

    return Visitor()


async def test_logins_are_in_the_audit_log(site: Site) -> None:
    async with site.browser("auditor", name="Watcher") as browser:
        await browser.get("/account")
    async with site.process.foundation.database.transaction(TenantId(EVERYONE)) as connection:
        rows = await connection.execute(
            Statement("SELECT type, convert_from(actor, 'UTF8') AS actor FROM audit_log")
        )
    assert any(row.type == "login.succeeded" and "Watcher" in row.actor for row in rows)


# Every POST, from the router: a new act is among them by itself.


def posts(site: Site) -> list[str]:
    found = [route.path for route in site.console.routes if "POST" in (route.methods or ())]
    assert set(site.console.acts) <= set(found)
    return [path.replace("{", "").replace("}", "") for path in found]


async def test_no_post_passes_without_the_form_token(site: Site, owner: Browser) -> None:
    for path in posts(site):
        for fields in ({}, {FORM_TOKEN: ""}, {FORM_TOKEN: "0" * 64}):
            answer = await owner.client.post(path, data=fields, headers=OWN_SITE)
            assert answer.status_code == 403, path


async def test_no_post_passes_without_a_session(site: Site) -> None:
    async with site.client() as client:
        for path in posts(site):
            answer = await client.post(path, data={FORM_TOKEN: ""}, headers=OWN_SITE)
            assert answer.status_code == 403, path


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "origin": ORIGIN},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "http://127.0.0.1:9001"},
        {"origin": "https://127.0.0.1:9000"},
        {"origin": "null"},
        {},
    ],
)
async def test_no_post_passes_from_elsewhere(
    site: Site, owner: Browser, headers: dict[str, str]
) -> None:
    for path in posts(site):
        data = {FORM_TOKEN: owner.form_token}
        answer = await owner.client.post(path, data=data, headers=headers)
        assert answer.status_code == 403, path


async def test_an_old_browser_is_known_by_its_origin(owner: Browser) -> None:
    data = {FORM_TOKEN: owner.form_token, "theme": "dark"}
    headers = {"origin": ORIGIN}
    answer = await owner.client.post("/console/preferences", data=data, headers=headers)
    assert answer.status_code == 303


async def test_acts_and_pages_take_their_permission(site: Site) -> None:
    pages = {page.path: page.permission for page in site.console.pages}
    acts = {path.removeprefix("/console"): act for path, act in site.console.acts.items()}
    for role, allowed in OPERATOR_ROLES.items():
        async with site.browser(role, name=f"role-{role}") as browser:
            for path, permission in pages.items():
                if "{" not in path and permission is not None and permission not in allowed:
                    assert (await browser.get(path)).status_code == 403, (role, path)
            for path, act in acts.items():
                if act.permission is not None and act.permission not in allowed:
                    answer = await browser.post(path.replace("{", "").replace("}", ""))
                    assert answer.status_code == 403, (role, path)


def allowed_paths(site: Site, role: OperatorRole) -> list[str]:
    may = {None, *OPERATOR_ROLES[role]}
    pages = (page for page in site.console.pages if page.permission in may)
    return [page.path for page in pages if "{" not in page.path]


async def test_each_role_has_pages_and_all_its_links_lead_somewhere(site: Site) -> None:
    for role in OPERATOR_ROLES:
        async with site.browser(role, name=f"reader-{role}") as browser:
            home = await browser.get("", follow_redirects=True)
            assert home.status_code == 200, (role, home.text)
            for path in allowed_paths(site, role):
                answer = await browser.get(path, follow_redirects=True)
                assert answer.status_code == 200, (role, path, answer.text)


# What browsers are told


@pytest.mark.parametrize("path", ["/login", "/account", "/nowhere", "/static/nothing.css"])
async def test_every_answer_has_the_headers(owner: Browser, path: str) -> None:
    answer = await owner.get(path)
    for name, value in _HEADERS.items():
        assert answer.headers[name] == value
    assert answer.headers["cache-control"] == "no-store"


async def test_static_files_are_kept_for_ever(owner: Browser) -> None:
    page = await owner.page("/account")
    linked = [
        *(node.attributes["src"] for node in page.css("script")),
        *(node.attributes["href"] for node in page.css("link")),
    ]
    assert len(linked) >= 3
    for url in linked:
        answer = await owner.client.get(url or "")
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]


async def test_the_console_is_not_reached_under_a_foreign_name(site: Site) -> None:
    async with site.client(base_url="http://console.example:9000") as client:
        answer = await client.get("/console/login")
    assert answer.status_code == 403
    assert "console.public_url" in answer.text


async def test_behind_a_proxy_cookies_are_bound_to_host_and_tls(site: Site) -> None:
    console = {"enabled": True, "public_url": "https://console.example"}
    settings = site.settings.model_validate({**site.settings.model_dump(), "console": console})
    other = console_site(settings)
    async with other.browser(base_url="https://console.example") as browser:
        (name,) = browser.client.cookies.keys()
        assert name == "__Host-gateway-console"
        assert (await browser.get("/account")).status_code == 200
    await other.process.foundation.database.close()


async def test_preferences_are_kept_and_lead_back_to_the_console_alone(owner: Browser) -> None:
    answer = await owner.post("/preferences", theme="dark", times="utc", back="/account")
    assert answer.headers["location"] == "/console/account"
    page = await owner.page("/account")
    html = page.css_first("html")
    assert html is not None
    assert html.attributes["data-theme"] == "dark"
    assert "UTC" in first(page, "time").text()
    away = await owner.post("/preferences", theme="nonsense", back="//evil.example")
    assert away.headers["location"].startswith("/console")
    assert "set-cookie" not in away.headers


@pytest.mark.parametrize("body", [b"\xff", b"a=%ff", b"a=%00", b"&".join([b"a=1"] * 300)])
async def test_no_form_is_answered_by_a_5xx(owner: Browser, body: bytes) -> None:
    headers = {**OWN_SITE, "content-type": "application/x-www-form-urlencoded"}
    answer = await owner.client.post("/console/preferences", content=body, headers=headers)
    assert answer.status_code in {400, 403}


async def test_the_admin_api_beside_it_still_takes_keys(site: Site) -> None:
    async with site.client() as client:
        assert (await client.get("/admin/v1/tenants")).status_code == 401
        assert (await client.get("/consolex")).status_code == 401
        assert (await client.get("/healthz")).status_code == 200
