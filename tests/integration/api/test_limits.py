"""Limits and budgets over the wire: what is charged on every way out, and what a refusal says."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, RateLimitError
from websockets.exceptions import InvalidStatus

from gateway.admin.limits import LimitOwner, Limits
from gateway.admin.prices import NANO_MAX, PriceCreate, Prices
from gateway.admin.spend_limits import SpendLimits
from gateway.audit import COMMAND_LINE
from gateway.ledger.jobs import Reconciliation
from gateway.limits.money import NANO
from gateway.limits.rules import DAY_S, MINUTE_S, VALUE_MAX
from gateway.replication.storage_meter import StorageMeter
from gateway.store import claims
from gateway.store.postgres.statements import Statement
from gateway.telemetry.metrics import Metrics
from tests.fakes.gateway import new_key
from tests.fakes.http_client import NO_TLS, http_client
from tests.fakes.raw_http import request_bytes, reset
from tests.fakes.stream import stream
from tests.fakes.websocket import connected
from tests.integration.api.bodies import MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import httpx2

    from gateway.limits.money import Component, Price
    from gateway.limits.rules import Scope, What
    from gateway.settings import Settings
    from gateway.store.postgres.database import Database
    from tests.fakes.gateway import RunningGateway

    Way = Callable[["Limited"], Awaitable[int]]
    """Has a response made, and says how many tokens it took."""

A_DAY = 100_000
COST = Statement("""
SELECT input_tokens, cached_tokens, output_tokens, price_id, cost_nano, input_cost_nano,
       cached_cost_nano, output_cost_nano, tools_cost_nano
FROM usage WHERE tenant_id = :tenant
""")
LOCKED = Statement("LOCK TABLE responses IN SHARE MODE")
RECORDING = Statement("""
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
  AND query LIKE '%WITH standing AS MATERIALIZED%'
""")
KEY = Statement("SELECT id FROM api_keys WHERE tenant_id = :tenant")
DUE = Statement("UPDATE stored_bytes SET due_at = clock_timestamp() WHERE tenant_id = :tenant")
DOUBLED = Statement("UPDATE spend SET amount = 2 * amount WHERE tenant_id = :tenant")
DRAINED = Statement(
    "UPDATE buckets SET level = -1, at = clock_timestamp() WHERE tenant_id = :tenant"
)
APPENDING = Statement("""
SELECT count(*) FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND query LIKE '%UPDATE conversations SET writer%'
""")


@dataclass
class Limited:
    """A tenant of its own, its key, and the services that set its limits."""

    gateway: RunningGateway
    client: httpx2.AsyncClient
    key: str
    limits: Limits
    budgets: SpendLimits
    owner: LimitOwner
    tenant_name: str

    async def set(self, what: What, value: int, window_s: int = DAY_S, **more: Any) -> None:
        await self.limits.set_limits(self.owner, {(what, window_s): value}, **more)

    async def set_price(self, nano: dict[Component, int]) -> Price:
        prices = Prices(self.gateway.process.foundation.database)
        body = PriceCreate(model=MODEL, tenant=self.tenant_name, nano_per_unit=nano)
        return await prices.set(COMMAND_LINE, body)

    def left(self, what: str) -> float:
        """What is left of the bucket, by the account of the process."""
        gates = self.gateway.process.replica.limiter.gates
        found = [
            bucket.available(gates._clock())
            for (tenant, name), bucket in gates.live_buckets()
            if tenant == self.owner.tenant_id and f"/{what}/" in name
        ]
        assert len(found) <= 1
        return found[0] if found else A_DAY

    async def charged(self, tokens: int) -> None:
        """Waits until the bucket has been charged so many: what a reader of the database knows,
        the process that committed it may not know yet.
        """
        while self.left("tokens") < A_DAY - tokens:
            await self.client.get("/v1/models")
        # A little has come back meanwhile: about one a second.
        assert self.left("tokens") <= A_DAY - tokens + 15

    def places(self) -> int:
        gates = self.gateway.process.replica.limiter.gates
        return sum(n for (tenant, _), n in gates.places.items() if tenant == self.owner.tenant_id)

    def openai(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(
            base_url=f"{self.gateway.url}/v1",
            api_key=self.key,
            http_client=DefaultAsyncHttpxClient(trust_env=False, verify=NO_TLS, **options),
        )


@pytest.fixture
async def limited(
    gateway: RunningGateway, settings: Settings, request: pytest.FixtureRequest
) -> AsyncIterator[Limited]:
    name = re.sub(r"[^A-Za-z0-9]", "-", request.node.name)[-60:].strip("-")
    key = await new_key(settings, name)
    database = gateway.process.foundation.database
    service = Limits(database)
    owner = LimitOwner.of_tenant(await service.tenant(name))
    async with http_client(gateway.url, headers={"authorization": f"Bearer {key}"}) as client:
        yield Limited(gateway, client, key, service, SpendLimits(database), owner, name)


async def usage_lines(limited: Limited) -> int:
    database = limited.gateway.process.foundation.database
    async with database.transaction(limited.owner.tenant_id) as connection:
        rows = await connection.execute(COST, {"tenant": limited.owner.tenant_id})
    return len(list(rows))


async def appending(database: Database) -> int:
    # Within one transaction the activity never changes.
    async with database.owner_transaction() as connection:
        return int((await connection.execute(APPENDING, {})).one().count)


def said(usage: dict[str, int]) -> int:
    tokens_in = usage.get("input_tokens", usage.get("prompt_tokens"))
    tokens_out = usage.get("output_tokens", usage.get("completion_tokens"))
    assert tokens_in is not None
    assert tokens_out is not None
    return tokens_in + tokens_out


async def post(limited: Limited, path: str, **body: Any) -> int:
    answer = await limited.client.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return said(answer.json()["usage"])


async def streamed(limited: Limited) -> int:
    events = await stream(limited.client, {"model": MODEL, "input": "Hello there"})
    return said(events[-1]["response"]["usage"])


async def background(limited: Limited) -> int:
    body = {"model": MODEL, "input": "Hello there", "background": True}
    made = (await limited.client.post("/v1/responses", json=body)).json()
    while made["status"] in {"queued", "in_progress"}:
        made = (await limited.client.get(f"/v1/responses/{made['id']}")).json()
    return said(made["usage"])


async def over_a_websocket(limited: Limited) -> int:
    async with connected(limited.gateway.url, limited.key) as socket:
        response = await socket.response("Hello there", store=False)
    return said(response["usage"])


WAYS: dict[str, Way] = {
    "stored": lambda one: post(one, "/v1/responses", input="Hello there"),
    "unstored": lambda one: post(one, "/v1/responses", input="Hello there", store=False),
    "incomplete": lambda one: post(
        one, "/v1/responses", input="Hello there", max_output_tokens=16, store=False
    ),
    "chat": lambda one: post(
        one, "/v1/chat/completions", messages=[{"role": "user", "content": "Hello there"}]
    ),
    "completions": lambda one: post(one, "/v1/completions", prompt="Hello there"),
    "compact": lambda one: post(one, "/v1/responses/compact", input="Hello there"),
    "stream": streamed,
    "background": background,
    "websocket": over_a_websocket,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_out_is_charged_what_was_generated(limited: Limited, way: str) -> None:
    await limited.set("tokens", A_DAY)
    await limited.set("responses", 5, 0)
    tokens = await WAYS[way](limited)
    assert tokens > 16
    await limited.charged(tokens)
    assert limited.places() == 0


async def asked(limited: Limited, text: str, **body: Any) -> None:
    await limited.client.post("/v1/responses", json={"model": MODEL, "input": text, **body})


async def cancelled(limited: Limited, text: str) -> None:
    """One in background, when it said something; with no text, while it waits for its turn."""
    body = {"model": MODEL, "input": text, "background": True}
    made = (await limited.client.post("/v1/responses", json=body)).json()
    path = f"/v1/responses/{made['id']}"
    if text == SLOW:
        async with limited.client.stream("GET", f"{path}?stream=true") as one:
            async for line in one.aiter_lines():
                if "output_text.delta" in line:
                    break
    await limited.client.post(f"{path}/cancel")


async def cancelled_in_the_queue(limited: Limited) -> None:
    await limited.set("background_running", 0, 0)
    limited.gateway.process.access.forget()
    await cancelled(limited, "Hello there")


async def hung_up(limited: Limited, **body: Any) -> None:
    sent = {"model": MODEL, "stream": True, "input": SLOW, **body}
    headers = {"idempotency-key": "hung-up"} if body.get("max_output_tokens") else {}
    async with limited.client.stream("POST", "/v1/responses", json=sent, headers=headers) as one:
        async for line in one.aiter_lines():
            if "delta" in line:
                break


async def hung_up_a_websocket(limited: Limited) -> None:
    async with connected(limited.gateway.url, limited.key) as socket:
        await socket.ask(SLOW)
        await socket.hear_until(lambda frame: frame["type"] == "response.output_text.delta")


SLOW = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"
ENDS: dict[str, Callable[[Limited], Awaitable[None]]] = {
    "failed before its first token": lambda one: asked(one, "[[sim status=500]] go"),
    "refused by the backend": lambda one: asked(one, "[[sim status=400]] go", store=False),
    "failed in the middle": lambda one: asked(one, "[[sim error_after=9 tokens=50]] go"),
    "failed in the middle, unstored": lambda one: asked(
        one, "[[sim die_after=9 tokens=50]] go", store=False
    ),
    "failed in background": lambda one: asked(
        one, "[[sim error_after=9 tokens=50]] go", background=True
    ),
    "cancelled in background": lambda one: cancelled(one, SLOW),
    "cancelled in the queue": cancelled_in_the_queue,
    "hung up": hung_up,
    "hung up, unstored": lambda one: hung_up(one, store=False),
    "hung up, goes on": lambda one: hung_up(one, max_output_tokens=40),
    "hung up a websocket": hung_up_a_websocket,
    "nothing to generate": lambda one: asked(one, "go", max_output_tokens=1),
    "invalid": lambda one: asked(one, "go", temperature=7),
    "too long": lambda one: asked(one, "go " * 200_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
async def test_whatever_its_end_a_response_is_charged_what_is_billed(
    limited: Limited, end: str
) -> None:
    """Once, or nothing where it has no token; the place is given back."""
    await limited.set("tokens", A_DAY)
    await limited.set("responses", 5, 0)
    await ENDS[end](limited)
    database = limited.gateway.process.foundation.database
    tenant, left, billed = limited.owner.tenant_id, 0.0, 0
    supervisor = limited.gateway.process.replica.dependencies.supervisor
    while limited.places() or supervisor._of_tenants[tenant] or supervisor._prepared[tenant]:
        await limited.client.get("/v1/models")
    for _ in range(5_000):  # a line is written when it is its turn
        async with database.transaction(tenant) as connection:
            lines = list(await connection.execute(COST, {"tenant": tenant}))
        billed = sum(line.input_tokens + line.output_tokens for line in lines if line.output_tokens)
        left = limited.left("tokens")
        if A_DAY - billed <= left <= A_DAY - billed + 15:
            return
    pytest.fail(f"{billed} tokens are billed, {A_DAY - left} charged")


async def test_limits_change_and_go_while_responses_run(limited: Limited) -> None:
    statuses = []

    async def ask(value: int | None) -> None:
        await limited.limits.set_limits(limited.owner, {("tokens", DAY_S): value})
        limited.gateway.process.access.forget()
        body = {"model": MODEL, "input": "x", "store": False, "max_output_tokens": 16}
        answer = await limited.client.post("/v1/responses", json=body)
        statuses.append((value, answer.status_code, answer.headers.get("x-should-retry")))

    await limited.set("tokens", A_DAY)
    await limited.set("responses", 5, 0)
    sent = {"model": MODEL, "stream": True, "input": SLOW, "store": False}
    async with limited.client.stream("POST", "/v1/responses", json=sent) as one:
        async for line in one.aiter_lines():
            if "delta" in line:
                break
        for value in (50, VALUE_MAX, 0, VALUE_MAX, None):
            await ask(value)
    assert statuses == [
        (50, 429, "false"),
        (VALUE_MAX, 200, None),
        (0, 429, "false"),
        (VALUE_MAX, 200, None),
        (None, 200, None),
    ]
    while limited.places():
        await limited.client.get("/v1/models")
    await ask(A_DAY)
    assert statuses[-1][1] == 200
    assert limited.left("tokens") <= A_DAY


@pytest.mark.slow
async def test_a_raised_limit_gives_the_difference_and_a_new_one_all_of_it(
    limited: Limited,
) -> None:
    body = {"model": MODEL, "input": "x", "store": False, "max_output_tokens": 16}

    async def ask(limit: int | None) -> int:
        await limited.limits.set_limits(limited.owner, {("tokens", DAY_S): limit})
        limited.gateway.process.access.forget()
        await limited.gateway.process.replica.limiter.once()
        return (await limited.client.post("/v1/responses", json=body)).status_code

    await limited.set("tokens", A_DAY)
    await limited.charged(await post(limited, "/v1/responses", input="x"))
    database = limited.gateway.process.foundation.database
    async with database.runs_transaction() as connection:
        await connection.execute(DRAINED, {"tenant": limited.owner.tenant_id})
    del limited.gateway.process.replica.limiter.gates._buckets[limited.owner.tenant_id]
    assert await ask(A_DAY) == 429
    assert await ask(A_DAY + 10) == 429
    assert await ask(2 * A_DAY) == 200
    assert limited.left("tokens") <= A_DAY
    assert await ask(50) == 429
    assert await ask(None) == 200
    assert await ask(A_DAY) == 200
    assert limited.left("tokens") > A_DAY / 2


@pytest.mark.slow
async def test_who_hangs_up_is_charged_what_came_and_gives_the_place_back(limited: Limited) -> None:
    await limited.set("tokens", A_DAY)
    await limited.set("responses", 1, 0)
    body = {"model": MODEL, "stream": True, "store": False}
    slow = "[[sim tokens_per_s=50 tokens=100000 think=none]] go"
    async with limited.client.stream("POST", "/v1/responses", json={**body, "input": slow}) as one:
        assert one.status_code == 200
        async for line in one.aiter_lines():
            if "delta" in line:
                break
        assert limited.places() == 1
        refused = await limited.client.post("/v1/responses", json={**body, "input": "x"})
        assert refused.status_code == 429
        assert "concurrent responses: Limit 1, Used 1" in refused.json()["error"]["message"]
        assert refused.headers["x-ratelimit-limit-tokens"] == str(A_DAY)
    while limited.places():
        await limited.client.get("/v1/models")
    used = A_DAY - limited.left("tokens")
    assert 0 < used < 1_024  # what was reserved was more


@pytest.mark.slow
async def test_what_runs_in_background_takes_no_place_of_concurrent_responses(
    limited: Limited,
) -> None:
    await limited.set("responses", 1, 0)
    body = {"model": MODEL, "input": SLOW, "background": True}
    running = [(await limited.client.post("/v1/responses", json=body)).json() for _ in range(2)]
    while (await limited.client.get(f"/v1/responses/{running[1]['id']}")).json()["status"] == (
        "queued"
    ):
        pass
    assert not limited.places()
    await post(limited, "/v1/responses", input="Hello there")
    for one in running:
        await limited.client.post(f"/v1/responses/{one['id']}/cancel")


@pytest.mark.slow
async def test_what_is_queued_in_background_does_not_pass_a_budget(limited: Limited) -> None:
    await limited.budgets.set_budget(limited.owner, 3_000, unit="tokens")
    await limited.set("background_running", 1, 0)
    gates = limited.gateway.process.replica.limiter.gates

    def set_aside() -> int:
        return sum(
            meter.reserved
            for (tenant, _), meter in gates.meters()
            if tenant == limited.owner.tenant_id
        )

    body = {"model": MODEL, "input": SLOW, "background": True}
    answers = [await limited.client.post("/v1/responses", json=body) for _ in range(4)]
    # The first one runs, and each sets aside about 1,100.
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert set_aside() > 2_000
    for one in answers[:2]:
        await limited.client.post(f"/v1/responses/{one.json()['id']}/cancel")
    process = limited.gateway.process
    while set_aside():
        await process.replica.runs.charges.look(partial(claims.heads, process.foundation.database))
    await background(limited)


@pytest.mark.slow
async def test_who_hangs_up_while_a_response_is_recorded_is_given_nothing_back_twice(
    limited: Limited,
) -> None:
    """It is recorded all the same, and whoever generates it settles."""
    await limited.set("tokens", A_DAY)
    database = limited.gateway.process.foundation.database
    body = {"model": MODEL, "input": "Hello there", "background": True}
    async with database.owner_transaction() as connection:
        await connection.execute(LOCKED, {})
        _, asking = await asyncio.open_connection("127.0.0.1", limited.client.base_url.port)
        headers = {
            "authorization": limited.client.headers["authorization"],
            "content-type": "application/json",
        }
        asking.write(request_bytes("POST", "/v1/responses", orjson.dumps(body), headers))
        while not (await connection.execute(RECORDING, {})).one().count:
            await connection.script("SELECT pg_stat_clear_snapshot()")
        reset(asking)
        await limited.client.get("/v1/models")
        assert limited.left("tokens") < A_DAY - 256, "what it may use is still set aside"
    while (await usage_lines(limited)) != 1:
        pass
    assert limited.left("tokens") <= A_DAY


async def test_what_limits_refuse_is_not_counted_as_stored(limited: Limited) -> None:
    """Neither at the first gate nor at the second, when the tokens are known."""
    await limited.set("stored_bytes", 10_000_000, 0)
    await limited.set("tokens", 50, MINUTE_S)
    storage = limited.gateway.process.replica.limiter.gates.storage
    for path in ("/v1/responses", "/v1/chat/completions"):
        asked = {"messages": [{"role": "user", "content": "x"}], "store": True}
        sent = {"input": "x"} if path == "/v1/responses" else asked
        for _ in range(3):
            answer = await limited.client.post(path, json={"model": MODEL, **sent})
            assert answer.status_code == 429
    (account,) = [key for key, _ in storage.watched() if key[0] == limited.owner.tenant_id]
    assert storage.used(account) == 0


@pytest.mark.slow
async def test_a_summary_that_no_response_came_of_is_charged(limited: Limited) -> None:
    await limited.set("tokens", A_DAY)
    items = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]
    made = await limited.client.post("/v1/conversations", json={"items": items})
    body = {
        "model": MODEL,
        "input": [{"type": "compaction_trigger"}],
        "conversation": made.json()["id"],
        "background": True,
    }
    database = limited.gateway.process.foundation.database
    async with database.owner_transaction() as connection:
        await connection.execute(LOCKED, {})
        asking = [
            asyncio.create_task(limited.client.post("/v1/responses", json=body)) for _ in range(4)
        ]
        while await appending(database) < 4:
            pass
    answers = await asyncio.gather(*asking)
    assert {one.status_code for one in answers} > {200}, "others found it locked"
    while await usage_lines(limited) < 4:
        pass
    async with database.transaction(limited.owner.tenant_id) as connection:
        rows = await connection.execute(COST, {"tenant": limited.owner.tenant_id})
    tokens = sum(row.input_tokens + row.output_tokens for row in rows)
    await limited.charged(tokens)


async def test_a_key_has_as_many_websockets_as_it_may(limited: Limited) -> None:
    await limited.set("websockets", 1, 0)
    async with connected(limited.gateway.url, limited.key) as socket:
        assert (await socket.response("Hello", store=False))["status"] == "completed"
        with pytest.raises(InvalidStatus) as refused:
            async with connected(limited.gateway.url, limited.key):
                raise NotImplementedError
        assert refused.value.response.status_code == 429
    while limited.places():
        await limited.client.get("/v1/models")
    async with connected(limited.gateway.url, limited.key) as socket:
        assert (await socket.response("Hello", store=False))["status"] == "completed"


@pytest.mark.requirement("header.rate-limits")
@pytest.mark.requirement("header.retry-after")
async def test_a_refusal_says_when_and_the_answers_before_what_is_left(limited: Limited) -> None:
    await limited.set("requests", 2, MINUTE_S)
    await limited.set("tokens", 60_000, MINUTE_S)
    body = {"model": MODEL, "input": "Hello there", "store": False}
    answers = [await limited.client.post("/v1/responses", json=body) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    first, _, last = answers
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert first.headers["x-ratelimit-limit-tokens"] == "60000"
    assert 50_000 < int(first.headers["x-ratelimit-remaining-tokens"]) < 60_000
    assert re.fullmatch(r"\d+(\.\d+)?s", first.headers["x-ratelimit-reset-requests"])
    error = last.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "requests", "rate_limit_exceeded", None
    )  # fmt: skip
    assert re.fullmatch(
        rf"Rate limit reached for {MODEL} in organization \S+ on requests per min \(RPM\): Limit "
        r"2, Used \d, Requested 1\. Please try again in \d+(\.\d+)?s\.",
        error["message"],
    )
    assert 1 <= int(last.headers["retry-after"]) <= 60
    assert int(last.headers["retry-after-ms"]) <= 1_000 * int(last.headers["retry-after"])
    assert last.headers["x-ratelimit-remaining-requests"] == "0"
    assert last.headers["x-ratelimit-limit-tokens"] == "60000"
    assert "x-should-retry" not in last.headers


async def test_counting_a_prompt_is_a_request(limited: Limited) -> None:
    await limited.set("requests", 2, MINUTE_S)
    body = {"model": MODEL, "input": "Hello there"}
    path = "/v1/responses/input_tokens"
    answers = [await limited.client.post(path, json=body) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert answers[1].headers["x-ratelimit-remaining-requests"] == "0"
    assert answers[1].json()["input_tokens"] > 0


async def test_what_stores_something_without_a_model_is_a_request(limited: Limited) -> None:
    await limited.set("requests", 3, MINUTE_S)
    await limited.limits.set_limits(limited.owner, {("requests", MINUTE_S): 1}, model=MODEL)
    items = {"items": [{"role": "user", "content": "Hello"}]}
    made = await limited.client.post("/v1/conversations", json=items)
    path = f"/v1/conversations/{made.json()['id']}"
    added = await limited.client.post(f"{path}/items", json=items)
    asked = {"model": MODEL, "input": "Hello", "conversation": made.json()["id"]}
    answered = await limited.client.post("/v1/responses", json=asked)
    refused = await limited.client.post("/v1/conversations", json=items)
    statuses = [one.status_code for one in (made, added, answered, refused)]
    assert statuses == [200, 200, 200, 429]
    # Before anything is read or made of its items: it would find out that one is unknown.
    unknown = {"items": [{"type": "item_reference", "id": "msg_unknown"}]}
    assert (await limited.client.post(path, json={"metadata": {}})).status_code == 429
    traces = {"data": [{"object": "trace", "id": "trace_x", "workflow_name": "x"}]}
    assert (await limited.client.post("/v1/traces/ingest", json=traces)).status_code == 429
    for where in ("/v1/conversations", f"{path}/items"):
        assert (await limited.client.post(where, json=unknown)).status_code == 429
    assert refused.json()["error"]["message"].startswith("Rate limit reached in organization ")
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert (await limited.client.get(path)).status_code == 200
    assert (await limited.client.delete(path)).status_code == 200


async def test_a_warm_up_is_stored_though_it_uses_no_tokens(limited: Limited) -> None:
    await limited.set("stored_bytes", 30_000, 0)
    warm = {"model": MODEL, "input": "x" * 12_000, "prompt_cache_options": {"prewarm": True}}
    answers = [await limited.client.post("/v1/responses", json=warm) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]


async def test_what_can_never_fit_is_not_tried_again(limited: Limited) -> None:
    await limited.set("requests", 9, MINUTE_S)
    await limited.set("tokens", 50, MINUTE_S)
    body = {"model": MODEL, "input": "Hello there", "store": False}
    answer = await limited.client.post("/v1/responses", json=body)
    assert answer.status_code == 429
    error = answer.json()["error"]
    assert error["type"] == "tokens"
    assert answer.headers["x-ratelimit-remaining-requests"] == "8"
    assert error["message"].startswith(f"Request too large for {MODEL} in organization ")
    assert error["message"].endswith("Lower 'max_output_tokens' or the input.")
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers


@pytest.mark.slow
async def test_what_may_be_stored_is_refused_once_it_is_used_up_and_nothing_else(
    limited: Limited,
) -> None:
    base = limited.gateway.process.foundation
    meter = StorageMeter(base.database, base.counters, base.metrics, interval_s=1e-6)
    await limited.set("stored_bytes", 30_000, 0)
    body = {"model": MODEL, "input": "x" * 12_000, "max_output_tokens": 16}
    answers = [await limited.client.post("/v1/responses", json=body) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    error = answers[2].json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "insufficient_quota", "insufficient_quota", None
    )  # fmt: skip
    assert re.search(
        rf"stored bytes of organization {limited.tenant_name} are used up: Limit 30000, Used 2\d+, "
        r"Requested 14\d+\. Delete stored responses",
        error["message"],
    )
    assert answers[2].headers["x-should-retry"] == "false"
    items = {"items": [{"role": "user", "content": "x" * 9_000}]}
    trace = {"object": "trace", "id": "trace_x", "workflow_name": "x" * 9_000}
    for path, sent in {
        "/v1/conversations": items,
        "/v1/traces/ingest": {"data": [trace]},
        "/v1/responses": {**body, "background": True},
    }.items():
        assert (await limited.client.post(path, json=sent)).status_code == 429, path
    unstored = await limited.client.post("/v1/responses", json={**body, "store": False})
    assert unstored.status_code == 200
    assert "x-ratelimit-limit-requests" not in unstored.headers
    data = (await limited.client.get("/v1/key")).json()["data"]
    assert data["harmony"]["limits"][0]["what"] == "stored_bytes"
    assert 0 < data["harmony"]["limits"][0]["remaining"] < 6_000
    for answer in answers[:2]:
        await limited.client.delete(f"/v1/responses/{answer.json()['id']}")
    while (await limited.client.post("/v1/conversations", json=items)).status_code == 429:
        # What was stored within a second before a measurement counts beside it. A meter of another
        # gateway may have measured it, for a long time.
        async with base.counters.runs_transaction() as connection:
            await connection.execute(DUE, {"tenant": limited.owner.tenant_id})
        await meter.once()
        await limited.gateway.process.replica.limiter.once()
    metrics = (await limited.client.get("/metrics")).text
    assert 'gateway_limit_refused_total{what="stored_bytes"}' in metrics
    assert "gateway_stored_bytes_fullest" in metrics


@pytest.mark.slow
async def test_of_a_project_so_many_wait_and_run_in_background(limited: Limited) -> None:
    owner = LimitOwner(limited.owner.tenant_id, "project", limited.owner.tenant_id)
    bounds: dict[tuple[What, int], int | None] = {
        ("background_running", 0): 1,
        ("background_queued", 0): 2,
    }
    await limited.limits.set_limits(owner, bounds)
    slow = "[[sim tokens_per_s=50 tokens=100000 think=none]] go"
    body = {"model": MODEL, "background": True, "input": "x"}
    first = await limited.client.post("/v1/responses", json={**body, "input": slow})
    path = f"/v1/responses/{first.json()['id']}"
    while (await limited.client.get(path)).json()["status"] == "queued":
        pass
    answers = [await limited.client.post("/v1/responses", json=body) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    error = answers[2].json()["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert re.fullmatch(
        r"Rate limit reached in project proj_\w+ on background responses that wait: Limit 2, Used "
        r"2, Requested 1\. Please try again in 1s\.",
        error["message"],
    )
    assert answers[2].headers["retry-after"] in {"1", "2"}
    keyed = await limited.client.post(
        "/v1/responses", json=body, headers={"idempotency-key": "another"}
    )
    assert keyed.status_code == 429
    unqueued = await limited.client.post("/v1/responses", json={**body, "background": False})
    assert unqueued.status_code == 200
    limits = (await limited.client.get("/v1/key")).json()["data"]["harmony"]["limits"]
    assert {one["what"]: one["remaining"] for one in limits} == {
        "background_running": 0,
        "background_queued": 0,
    }
    assert 'refused_total{what="background_queued"}' in (await limited.client.get("/metrics")).text
    await limited.client.post(f"{path}/cancel")
    for answer in answers[:2]:
        path = f"/v1/responses/{answer.json()['id']}"
        while (await limited.client.get(path)).json()["status"] != "completed":
            pass


async def test_a_queue_that_is_only_observed_refuses_nothing(limited: Limited) -> None:
    await limited.set("background_queued", 0, 0, mode="observe")
    assert await background(limited) > 16
    metrics = (await limited.client.get("/metrics")).text
    assert 'gateway_limit_would_refuse_total{what="background_queued"}' in metrics


async def test_what_is_only_observed_refuses_nothing(limited: Limited) -> None:
    await limited.set("requests", 1, MINUTE_S, mode="observe")
    body = {"model": MODEL, "input": "Hello there", "store": False}
    answers = [await limited.client.post("/v1/responses", json=body) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 200]
    metrics = (await limited.client.get("/metrics")).text
    assert 'gateway_limit_would_refuse_total{what="requests"}' in metrics


async def test_a_spent_budget_is_tried_once_by_openais_client(limited: Limited) -> None:
    await limited.budgets.set_budget(limited.owner, 100, unit="tokens")
    assert await post(limited, "/v1/responses", input="x", max_output_tokens=16) > 50
    asked: list[str] = []

    async def count(request: httpx2.Request) -> None:
        asked.append(request.url.path)

    async with limited.openai(event_hooks={"request": [count]}) as client:
        with pytest.raises(RateLimitError) as refused:
            await client.responses.create(model=MODEL, input="x")
    assert len(asked) == 1
    assert refused.value.code == "insufficient_quota"
    assert refused.value.type == "insufficient_quota"
    assert "monthly token budget" in refused.value.message
    assert "It resets at " in refused.value.message


@pytest.mark.slow
async def test_a_limit_that_was_reached_is_tried_again_when_it_fits(limited: Limited) -> None:
    await limited.set("requests", 60, MINUTE_S)
    await post(limited, "/v1/responses", input="x", store=False)
    gates = limited.gateway.process.replica.limiter.gates
    database = limited.gateway.process.foundation.counters
    async with database.runs_transaction() as connection:
        await connection.execute(DRAINED, {"tenant": limited.owner.tenant_id})
    del gates._buckets[limited.owner.tenant_id]
    statuses: list[tuple[int, str | None]] = []

    async def note(response: httpx2.Response) -> None:
        statuses.append((response.status_code, response.headers.get("retry-after-ms")))

    async with limited.openai(event_hooks={"response": [note]}) as client:
        made = await client.responses.create(model=MODEL, input="x", store=False)
    assert made.status == "completed"
    assert [status for status, _ in statuses] == [429, 200]
    assert statuses[0][1] is not None
    assert 100 <= int(statuses[0][1]) <= 2_500


async def test_a_response_of_any_price_is_metered(limited: Limited) -> None:
    await limited.set_price({"input": NANO_MAX, "output": NANO_MAX})
    body = {"model": MODEL, "input": "x " * 30_000}
    for _ in range(2):
        answer = await limited.client.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
    assert await usage_lines(limited) == 2


async def test_a_line_costs_what_its_price_says(limited: Limited) -> None:
    price = await limited.set_price({"input": 50, "input_cached": 5, "output": 200})
    tenant = limited.owner.tenant_id
    await limited.budgets.set_budget(limited.owner, NANO)
    limited.gateway.process.replica.limiter._prices_at = float("-inf")
    await post(limited, "/v1/responses", input="Hello there")
    database = limited.gateway.process.foundation.database
    async with database.transaction(tenant) as connection:
        row = (await connection.execute(COST, {"tenant": tenant})).one()
    assert row.price_id == price.id
    cost = price.tokens(
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
    )
    assert cost > 0
    assert row.cost_nano == cost
    parts = row.input_cost_nano + row.cached_cost_nano + row.output_cost_nano + row.tools_cost_nano
    assert parts == cost
    await limited.gateway.process.replica.limiter.once()
    state = await limited.budgets.budget(limited.owner, "usd", "month")
    assert state is not None
    assert state.spent == cost


@pytest.mark.parametrize("scope", ["tenant", "project", "key"])
async def test_a_budget_counts_what_its_interval_had_before_it(
    limited: Limited, scope: Scope
) -> None:
    tenant = limited.owner.tenant_id
    tokens = await post(limited, "/v1/responses", input="Hello there")
    async with limited.gateway.process.foundation.database.transaction(tenant) as connection:
        key_id = await connection.scalar(KEY, {"tenant": tenant})
    scope_id = key_id if scope == "key" else tenant
    owner = LimitOwner(tenant, scope, scope_id)
    await limited.budgets.set_budget(owner, tokens, unit="tokens", interval="day")
    reconciliation = Reconciliation(limited.gateway.process.foundation.counters, metrics=Metrics())
    corrected = (await reconciliation.round()).corrected
    assert tenant not in {one.tenant_id for one in corrected}
    for spent in (tokens, tokens):
        state = await limited.budgets.budget(owner, "tokens", "day")
        assert state is not None
        assert state.spent == spent
        await limited.budgets.remove_budget(owner, "tokens", "day")
        await limited.budgets.set_budget(owner, tokens, unit="tokens", interval="day")
    limited.gateway.process.access.forget()
    async with limited.openai() as client:
        with pytest.raises(RateLimitError, match="daily token budget"):
            await client.responses.create(model=MODEL, input="x")


async def test_spending_that_somebody_changed_is_put_right(limited: Limited) -> None:
    await limited.budgets.set_budget(limited.owner, 10**9, unit="tokens")
    tokens = await post(limited, "/v1/responses", input="Hello there")
    replica = limited.gateway.process.replica
    await replica.limiter.once()
    database = limited.gateway.process.foundation.counters
    async with database.runs_transaction() as connection:
        await connection.execute(DOUBLED, {"tenant": limited.owner.tenant_id})

    async def spent() -> int:
        state = await limited.budgets.budget(limited.owner, "tokens", "month")
        assert state is not None
        return state.spent

    assert await spent() == 2 * tokens
    await Reconciliation(database, metrics=Metrics()).round()
    assert await spent() == tokens
    await Reconciliation(database, metrics=Metrics()).round()
    assert await spent() == tokens


@pytest.mark.slow
async def test_a_key_is_told_what_its_limits_budgets_and_the_ledger_say(
    limited: Limited, settings: Settings
) -> None:
    await limited.set_price({"input": 50, "output": 200})
    limited.gateway.process.replica.limiter._prices_at = float("-inf")
    await limited.set("tokens", A_DAY)
    await limited.set("requests", 60, MINUTE_S)
    await limited.limits.set_limits(limited.owner, {("responses", 0): 7})
    await limited.budgets.set_budget(limited.owner, NANO)
    await limited.budgets.set_budget(limited.owner, 10**6, unit="tokens", interval="day")
    limited.gateway.process.access.forget()
    before = (await limited.client.get("/v1/key")).json()["data"]
    assert (before["limit"], before["limit_remaining"], before["limit_reset"]) == (1, 1, "monthly")
    assert before["rate_limit"] == {"requests": 60, "interval": "60s"}
    spent = sum([await streamed(limited), await background(limited)])
    told = (await limited.client.get("/v1/key")).json()["data"]
    database = limited.gateway.process.foundation.database
    async with database.transaction(limited.owner.tenant_id) as connection:
        lines = await connection.execute(COST, {"tenant": limited.owner.tenant_id})
    cost = sum(line.cost_nano for line in lines) / NANO
    assert cost > 0
    for name in ("usage", "usage_daily", "usage_weekly", "usage_monthly"):
        assert told[name] == pytest.approx(cost), name
    assert told["limit_remaining"] == pytest.approx(1 - cost)
    for used in told["harmony"]["usage"].values():
        assert used["requests"] == 2
        assert used["input_tokens"] + used["output_tokens"] == spent
    limits = {(one["what"], one["window_seconds"]): one for one in told["harmony"]["limits"]}
    assert limits["tokens", DAY_S]["remaining"] == pytest.approx(A_DAY - spent, abs=10)
    assert limits["tokens", DAY_S]["reset_seconds"] > 0
    assert limits["responses", None]["remaining"] == 7
    assert limits["responses", None]["reset_seconds"] is None
    budgets = {one["unit"]: one for one in told["harmony"]["budgets"]}
    assert budgets["tokens"]["spent"] == spent
    assert budgets["tokens"]["remaining"] == 10**6 - spent
    assert budgets["usd"]["spent"] == pytest.approx(cost)
    assert budgets["usd"]["reserved"] == 0
    other = await new_key(settings, limited.tenant_name)
    headers = {"authorization": f"Bearer {other}"}
    async with http_client(limited.gateway.url, headers=headers) as client:
        told = (await client.get("/v1/key")).json()["data"]
    assert told["usage"] == 0
    assert told["limit_remaining"] == pytest.approx(1 - cost), "the budget is of both keys"
