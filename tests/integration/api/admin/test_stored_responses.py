"""One stored response as operators see it: its execution, and what it says once it is revealed."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway import ids
from gateway.admin.responses import REVEALS_MAX
from gateway.audit import COMMAND_LINE
from gateway.entries import Queued, Tokens, TurnStarted, pack
from gateway.store import responses
from gateway.store.postgres.database import Connection
from gateway.wiring.admin import operator_services
from tests.console.test_statements import content_in
from tests.fakes.http_client import http_client
from tests.fakes.stored import durable_response
from tests.integration.api.admin.conftest import CANARY

if TYPE_CHECKING:
    from gateway.entries import Entry
    from gateway.store.postgres.statements import Statement
    from tests.integration.api.admin.conftest import Desk


async def test_where_its_time_went_is_seen_without_what_it_says(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await desk.create(background=True, stream=False)
    made = await desk.create(previous_response_id=first["id"])
    seen = {what: await desk.get(made, what) for what in ("", "/execution", "/log", "/chain")}
    old = {what: await desk.get(first, what) for what in ("", "/execution", "/log", "/chain")}
    assert CANARY.encode() not in orjson.dumps([seen, old])
    statements: list[str] = []
    execute, task = Connection.execute, asyncio.current_task()

    async def recorded(self: Connection, statement: Statement, *rest: Any) -> Any:
        # The gateway does other things meanwhile.
        if asyncio.current_task() is task:
            statements.append(statement.sql)
        return await execute(self, statement, *rest)

    monkeypatch.setattr(Connection, "execute", recorded)
    stored = operator_services(desk.site.gateway.process).responses
    assert (await stored.get(COMMAND_LINE, made["id"]))["id"] == made["id"]
    for use_case in (stored.execution, stored.log, stored.chain):
        assert await use_case(first["id"])
    await stored.conversation(ids.conversation_id(ids.new_uuid()))
    assert len(statements) > 6
    assert [sql for sql in statements if content_in(sql)] == []
    record = seen[""]
    assert record["usage"]["output_tokens"] == made["usage"]["output_tokens"]
    assert record["content"] == {
        "operator_content_access": "never",
        "may_be_revealed": False,
        "revealed_until": None,
    }
    for execution in (seen["/execution"], old["/execution"]):
        assert execution["is_known"]
        assert execution["is_over"]
        assert execution["sentence"]
        assert sum(one["ms"] for one in execution["totals"]) == execution["duration_ms"]
        lanes = execution["lanes"]
        assert [len(lanes[name]) for name in ("replicas", "attempts")] == [1, 1]
        assert [one["name"] for one in lanes["messages"]]
    assert old["/execution"]["lanes"]["phases"][0]["name"] in {"preparing", "queued"}
    assert old["/log"]["rows"][0]["first_entry"] == 0
    assert seen["/log"]["rows"] == []
    assert [one["kind"] for one in old["/log"]["steps"]][:2] == ["queued", "replica"]
    assert [one["id"] for one in seen["/chain"]["data"]] == [first["id"], made["id"]]
    assert old["/chain"]["data"] == seen["/chain"]["data"]


async def test_a_conversation_has_its_responses_and_what_each_read_of_the_cache(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = (await desk.user.post("/v1/conversations", json={})).json()["id"]
    made = [await desk.create(conversation=opened) for _ in range(2)]
    path = f"/admin/v1/conversations/{opened}/responses"
    page = (await desk.operator.get(path)).json()
    assert [one["id"] for one in page["data"]] == [one["id"] for one in made]
    assert [one["usage"]["input_tokens"] for one in page["data"]] == [
        one["usage"]["input_tokens"] for one in made
    ]
    monkeypatch.setattr("gateway.admin.responses.RELATIVES_MAX", 1)
    cut = (await desk.operator.get(path)).json()
    assert cut["has_more"]
    rest = (await desk.operator.get(f"{path}?after={cut['last_id']}")).json()
    assert [one["id"] for one in rest["data"]] == [made[1]["id"]]
    for wrong in ("/admin/v1/conversations/conv_7/responses", f"{path}?after=7"):
        assert (await desk.operator.get(wrong)).status_code == 400


@pytest.mark.parametrize("background", [True, False])
async def test_what_it_says_is_read_once_it_is_revealed(desk: Desk, background: bool) -> None:
    await desk.allow("always")
    made = await desk.create(background=background, stream=False)
    for what in ("/items", "/tokens", "/events"):
        refused = await desk.get(made, what, 403)
        assert refused["error"]["code"] == "content_not_revealed"
    told = (await desk.reveal(made)).json()
    assert (await desk.get(made))["content"]["revealed_until"] == told["revealed_until"]
    items = await desk.get(made, "/items")
    assert items["response"]["output"] == made["output"]
    assert CANARY in orjson.dumps(items["input"]).decode()
    tokens = await desk.get(made, "/tokens")
    assert tokens["source"] == ("log" if background else "items")
    assert tokens["is_over"]
    said = "".join(
        str(token[1]) for run in tokens["data"] if run["part"] == "body" for token in run["tokens"]
    )
    text = made["output"][-1]["content"][0]["text"]
    assert text.encode("ascii", "ignore").decode()[:40] in said.encode("ascii", "ignore").decode()
    page = await desk.get(made, "/tokens?after=1&limit=2")
    assert page["data"][0]["first"] == 2
    assert page["has_more"]
    events = await desk.get(made, "/events?limit=3")
    assert [one["sequence_number"] for one in events["data"]] == ([0, 1, 2] if background else [])
    if background:
        rest = await desk.get(made, "/events?after=2&limit=1000")
        assert rest["data"][-1]["data"]["response"]["output"] == made["output"]
    await desk.allow(None)
    assert (await desk.get(made, "/items", 403))["error"]["code"] == "content_access_denied"


async def test_a_tenant_consents_until_an_end_and_sees_who_read_why(desk: Desk) -> None:
    await desk.allow("consent")
    made = await desk.create()
    refused = await desk.reveal(made)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "content_access_denied")
    path = "/v1/organization/content_access"
    assert (await desk.owner.get(path)).json()["consent_expires_at"] is None
    for wrong in ({}, {"expires_in_s": 1}, {"expires_in_s": 10**9}, {"until": 7}):
        assert (await desk.owner.post(path, json=wrong)).status_code == 400
    given = (await desk.owner.post(path, json={"expires_in_s": 3600})).json()
    assert given["consent_expires_at"] > made["created_at"]
    assert (await desk.reveal(made)).status_code == 200
    assert await desk.get(made, "/tokens")
    logs = await desk.owner.get(
        "/v1/organization/audit_logs?event_types[]=harmony.content.revealed&limit=1"
    )
    (entry,) = logs.json()["data"]
    assert entry["harmony.content.revealed"] == {"id": made["id"], "data": {"reason": "ticket 12"}}
    assert (await desk.owner.delete(path)).json()["deleted"]
    assert (await desk.get(made, "/tokens", 403))["error"]["code"] == "content_access_denied"
    await desk.allow(None)


async def test_reveals_need_a_reason_and_are_bounded(desk: Desk) -> None:
    await desk.allow("always")
    made = await desk.create()
    path = f"/admin/v1/responses/{made['id']}/reveal"
    for wrong in ({}, {"reason": "  "}, {"reason": 7}, {"why": "ticket"}):
        assert (await desk.operator.post(path, json=wrong)).status_code == 400
    answers = await asyncio.gather(*(desk.reveal(made) for _ in range(REVEALS_MAX + 5)))
    assert Counter(one.status_code for one in answers) == {200: REVEALS_MAX, 429: 5}
    await desk.allow(None)


async def test_who_reveals_it_reads_it_alone_and_nobody_reads_what_there_is_not(desk: Desk) -> None:
    await desk.allow("always")
    made = await desk.create()
    assert (await desk.reveal(made)).status_code == 200
    created = await desk.operator.post("/admin/v1/operators", json={"name": "b", "role": "owner"})
    headers = {"authorization": f"Bearer {created.json()['value']}"}
    async with http_client(desk.site.admin_url, headers=headers) as other:
        refused = await other.get(f"/admin/v1/responses/{made['id']}/items")
        assert refused.json()["error"]["code"] == "content_not_revealed"
    for unknown in ("resp_7", "resp_" + "0" * 32):
        for what in ("", "/execution", "/log", "/chain", "/items", "/tokens", "/events"):
            await desk.get({"id": unknown}, what, 404)
    for wrong in ("/tokens?limit=0", "/tokens?after=x", "/events?limit=9999", "/items?limit=0"):
        await desk.get(made, wrong, 400)
    await desk.allow(None)


async def test_a_backend_that_breaks_off_is_an_attempt_and_a_seam(desk: Desk) -> None:
    await desk.allow("always")
    made = await desk.create(
        background=True, stream=False, input="Tell me of the sea. [[sim die_after=45]]"
    )
    execution = await desk.get(made, "/execution")
    attempts = execution["lanes"]["attempts"]
    *left, last = [one["outcome"] for one in attempts]
    assert (set(left), last) == ({"left"}, "stop")
    assert [one["name"] for one in execution["points"]] == ["backend"] * len(left)
    assert (await desk.reveal(made)).is_success
    runs = (await desk.get(made, "/tokens"))["data"]
    assert [run["seam"] for run in runs if "seam" in run] == ["backend"] * len(left)
    await desk.allow(None)


async def test_of_a_damaged_log_the_tokens_before_the_damage_are_shown(desk: Desk) -> None:
    await desk.allow("always")
    made = await desk.create()
    database = desk.site.gateway.process.foundation.database
    tenants = operator_services(desk.site.gateway.process).tenants
    tenant = (await tenants.get("looked-into")).tenant.id
    uuid = ids.parse_response_id(made["id"])
    assert uuid is not None
    like = await responses.load(database, tenant, uuid)
    assert like is not None
    log: list[Entry] = [
        Queued(),
        TurnStarted(1),
        Tokens((200_005,)),
        TurnStarted(1),
        Tokens((200_005,)),
    ]
    new = durable_response(status="cancelled")
    new = replace(new, request=like.request, entries=(len(log), pack(log)))
    await responses.insert(database, tenant, new)
    damaged = {"id": ids.response_id(new.uuid)}
    assert (await desk.reveal(damaged)).is_success
    tokens = await desk.get(damaged, "/tokens")
    assert tokens["damage"] == "a turn started inside of another"
    assert (tokens["is_over"], tokens["count"]) == (True, 1)
    assert [one["type"] for one in (await desk.get(damaged, "/events"))["data"]][-1:] == [
        "response.in_progress"
    ]
    await desk.allow(None)


async def test_a_running_response_is_read_as_far_as_it_is_committed(desk: Desk) -> None:
    await desk.allow("always")
    body = {"model": "gpt-oss-20b", "background": True}
    body["input"] = "Tell me of the sea. [[sim tokens_per_s=100]]"
    made = (await desk.user.post("/v1/responses", json=body)).json()
    assert (await desk.reveal(made)).is_success
    counts: list[int] = []
    said: list[int] = []
    is_over = False
    while not is_over:
        asked = f"after={len(said) - 1}&limit=16384&seen={len(said)}"
        page = await desk.get(made, f"/tokens?{asked}")
        said += [token[0] for run in page["data"] for token in run["tokens"]]
        counts.append(page["count"])
        is_over = page["is_over"]
        assert (await desk.get(made, "/execution"))["is_known"]
    assert (sorted(counts), counts[-1]) == (counts, len(said))
    # It was awakened, and did not ask in vain again and again.
    assert len(counts) <= len(said) + 9
    whole = await desk.get(made, "/tokens?limit=16384")
    assert said == [token[0] for run in whole["data"] for token in run["tokens"]]
    await desk.allow(None)


ENDLESS = "Tell me of the sea. [[sim tokens=100000 tokens_per_s=50 think=none]]"


async def test_a_response_is_cancelled_for_its_tenant_which_sees_who_did_it(desk: Desk) -> None:
    body = {"model": "gpt-oss-20b", "input": ENDLESS, "background": True}
    made = (await desk.user.post("/v1/responses", json=body)).json()
    path = f"/admin/v1/responses/{made['id']}/cancel"
    answer = await desk.operator.post(path)
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert (await desk.user.get(f"/v1/responses/{made['id']}")).json()["status"] == "cancelled"
    logs = await desk.owner.get(
        "/v1/organization/audit_logs?event_types[]=harmony.response.cancelled_by_operator&limit=1"
    )
    (entry,) = logs.json()["data"]
    assert entry["harmony.response.cancelled_by_operator"]["id"] == made["id"]
    again = await desk.operator.post(path)
    assert (again.status_code, again.json()["error"]["message"]) == (
        400,
        "The response is cancelled already.",
    )


async def test_what_its_client_waits_for_is_not_cancelled(desk: Desk) -> None:
    ended = await desk.create()
    answer = await desk.operator.post(f"/admin/v1/responses/{ended['id']}/cancel")
    assert answer.status_code == 400
    assert "completed" in answer.json()["error"]["message"]
    body = {"model": "gpt-oss-20b", "input": ENDLESS, "stream": True}
    async with desk.user.stream("POST", "/v1/responses", json=body) as stream:
        lines = stream.aiter_lines()
        async for line in lines:
            if line.startswith("data: "):
                break
        running = orjson.loads(line.removeprefix("data: "))["response"]["id"]
        answer = await desk.operator.post(f"/admin/v1/responses/{running}/cancel")
        assert answer.status_code == 400
        assert "client" in answer.json()["error"]["message"]
