"""The list of stored responses, and the search box."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from posixpath import normpath
from typing import TYPE_CHECKING

from gateway import ids
from gateway.store import responses
from tests.conftest import new_tenant
from tests.console.conftest import first
from tests.fakes.stored import new_response

if TYPE_CHECKING:
    from tests.console.conftest import Browser, Site


async def test_a_list_without_rows_says_so(owner: Browser) -> None:
    page = await owner.page("/responses?tenant=nobody")
    assert page.css_first("table") is None
    assert "No stored responses" in first(page, ".empty").text()


async def test_older_rows_are_behind_a_link_and_a_fragment(site: Site, owner: Browser) -> None:
    database = site.process.foundation.database
    tenant = await new_tenant(database)
    uuids = sorted(ids.new_uuid() for _ in range(60))
    for uuid in uuids:
        new = replace(new_response(uuid=uuid), created_at=datetime.now(UTC))
        await responses.insert(database, tenant, new)
    made = list(map(ids.response_id, uuids))
    here = f"/responses?tenant=tenant-{tenant}"
    page = await owner.page(here)
    shown = [node.attributes["title"] for node in page.css("td code.id")]
    assert shown == made[:-51:-1]
    older = first(page, "#older a")
    rest = await owner.page((older.attributes["hx-get"] or "").removeprefix("/console"))
    assert [node.attributes["title"] for node in rest.css("td code.id")] == made[9::-1]
    fragment = await owner.get(
        (older.attributes["hx-get"] or "").removeprefix("/console"), headers={"x-fragment": "rows"}
    )
    assert fragment.text.lstrip().startswith("<tr>")
    assert fragment.text.count("<tr") == 10
    unknown = await owner.get("/responses", headers={"x-fragment": "nonsense"})
    assert unknown.status_code == 404


async def test_filters_are_in_the_address_and_can_be_taken_off(owner: Browser) -> None:
    page = await owner.page("/responses?tenant=acme&status=failed")
    chips = {
        node.text(deep=True).split()[0]: (node.css_first("a") or node).attributes.get("href")
        for node in page.css(".chip")
    }
    assert set(chips) == {"Tenant", "Status"}
    assert chips["Status"] == "/console/responses?tenant=acme"
    assert (await owner.get("/responses?status=nonsense")).status_code == 400
    assert (await owner.get("/responses?id=nonsense")).status_code == 400
    assert (await owner.get("/responses?tenant=%00")).status_code == 400


async def test_any_id_leads_to_its_responses(owner: Browser) -> None:
    uuid = ids.new_uuid()
    for made, behind in (
        (ids.response_id(uuid), "/"),
        (ids.conversation_id(uuid), "/../conversations/"),
        (ids.api_key_id(uuid), "?api_key_id="),
        ("acme", "?tenant="),
    ):
        answer = await owner.get(f"/search?q={made}")
        location = normpath(f"/console/responses{behind}{made}")
        assert answer.headers["location"] == location
