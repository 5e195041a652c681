"""Two replicas on one database: what one generates the other shows, stops, and goes on with."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from tests.fakes.event_grammar import check_stream
from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.stream import as_events, parse_stream
from tests.integration.api.bodies import MODEL, create
from tests.integration.api.following import (
    created,
    data_of,
    ended,
    id_in,
    is_delta,
    listed,
    resumed,
    said_something,
    taken,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends

    Start = Callable[[], Awaitable[tuple[RunningGateway, httpx2.AsyncClient]]]

SLOW = "[[sim tokens_per_s=200 tokens=800 think=none]] go"
SLOW_TOKENS = 804
ENDLESS = "[[sim tokens_per_s=100 tokens=100000 think=none]] go"


@asynccontextmanager
async def replicas(database_url: str, backends: Backends) -> AsyncIterator[Start]:
    """Starts replicas of a database of the test's own, each with a client of the same tenant."""
    settings = gateway_settings(database_url, backends.urls)
    headers: dict[str, str] = {}
    async with AsyncExitStack() as stack:

        async def start() -> tuple[RunningGateway, httpx2.AsyncClient]:
            running = await stack.enter_async_context(running_gateway(settings))
            headers.update(headers or running.headers)
            client = http_client(running.url, headers=headers)
            return running, await stack.enter_async_context(client)

        yield start


@pytest.mark.slow
@pytest.mark.requirement("accept.resume-elsewhere")
@pytest.mark.requirement("resume.seam")
@pytest.mark.requirement("replicas.same-stream")
async def test_a_stream_looks_the_same_from_every_replica(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient
) -> None:
    first = await taken(created(client, input=SLOW), is_delta)
    response_id = id_in(first)
    rest = [
        listed(resumed(one, response_id, len(first) - 1)) for one in (client, second) for _ in "ab"
    ]
    one, *others = await asyncio.gather(*rest)
    assert others == [one] * 3
    check_stream(as_events(parse_stream("".join([*first, *one]))))


@pytest.mark.slow
@pytest.mark.requirement("replicas.cancel")
async def test_any_replica_stops_it(
    client: httpx2.AsyncClient, second: httpx2.AsyncClient, backends: Backends
) -> None:
    for one, other in ((client, second), (second, client)) * 2:
        response_id = id_in(await taken(created(one, input=ENDLESS), is_delta))
        assert (await said_something(other, response_id))["status"] == "in_progress"
        answer = await other.post(f"/v1/responses/{response_id}/cancel")
        assert answer.json()["status"] == "cancelled"
        uuid = response_id.removeprefix("resp_")

        def is_stopped(rows: list[dict[str, object]], uuid: str = uuid) -> bool:
            return [r["aborted"] for r in rows if str(r["request_id"]).startswith(uuid)] == [True]

        await backends.until(is_stopped)


@pytest.mark.requirement("replicas.drain")
@pytest.mark.parametrize("background", [True, False])
async def test_another_replica_goes_on_when_one_is_told_to_end(
    database_url: str, backends: Backends, background: bool
) -> None:
    async with replicas(database_url, backends) as start:
        pair = [await start(), await start()]
        headers = {"idempotency-key": "a-drain"}
        begun = created(pair[0][1], headers, input=SLOW, background=background)
        seen = await taken(begun, is_delta)
        response_id = id_in(seen)
        (leaving, client), (_, other) = sorted(pair, key=generates, reverse=True)
        frames = resumed(client, response_id, len(seen) - 1)
        seen.append(await anext(frames))
        await leaving.process.begin_drain()
        readiness = await client.get("/readyz")
        assert (readiness.status_code, readiness.json()["status"]) == (503, "draining")
        seen += [await anext(frames) for _ in range(20)]  # written by the other, shown here
        leaving.process.end_streams()
        seen += [frame async for frame in frames]
        assert not data_of(seen[-1])["type"].startswith("response.completed")
        whole = [*seen, *await listed(resumed(other, response_id, len(seen) - 1))]
        events = parse_stream("".join(whole))
        check_stream(as_events(events))
        assert events[-1]["type"] == "response.completed"
        assert await listed(resumed(other, response_id)) == whole
        usage = events[-1]["response"]["usage"]
        assert usage["output_tokens"] == SLOW_TOKENS  # as many as if nothing had happened
        assert len(await backends.of_response(response_id)) == 2


def generates(replica: tuple[RunningGateway, httpx2.AsyncClient]) -> int:
    """How many responses it generates right now."""
    supervisor = replica[0].process.replica.dependencies.supervisor
    return supervisor.in_flight + supervisor.claimed


@pytest.mark.slow
@pytest.mark.requirement("replicas.drain")
async def test_whoever_waits_for_a_body_is_told_to_ask_again(
    database_url: str, backends: Backends
) -> None:
    async with replicas(database_url, backends) as start:
        leaving, client = await start()
        _, other = await start()
        headers = {"idempotency-key": "a-drain"}
        body = {"model": MODEL, "input": SLOW, "max_output_tokens": 98_765}
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(client.post("/v1/responses", json=body, headers=headers))
            await backends.until(
                lambda rows: any(r["max_tokens"] == 98_765 and r["sent_tokens"] for r in rows)
            )
            await leaving.process.begin_drain()
            leaving.process.end_streams()
        refusal = waiting.result()
        assert refusal.status_code == 503
        assert "Idempotency-Key" in refusal.json()["error"]["message"]
        assert int(refusal.headers["retry-after"]) >= 1
        again = await other.post("/v1/responses", json=body, headers=headers)
        assert again.headers["idempotent-replayed"] == "true"
        assert again.json()["status"] == "completed"


@pytest.mark.slow
async def test_requests_are_still_taken_while_the_end_is_near(
    database_url: str, backends: Backends
) -> None:
    async with replicas(database_url, backends) as start:
        leaving, client = await start()
        await leaving.process.begin_drain()
        assert (await create(client, input="Hello there"))["status"] == "completed"
        queued = await create(client, input="Hello there", background=True)
        assert (await client.get(f"/v1/responses/{queued['id']}")).json()["status"] == "queued"
        _, other = await start()
        assert (await ended(other, queued["id"]))["status"] == "completed"


@pytest.mark.slow
@pytest.mark.requirement("replicas.drain")
async def test_a_stream_that_begins_when_all_others_end_says_what_to_resume(
    database_url: str, backends: Backends
) -> None:
    async with replicas(database_url, backends) as start:
        leaving, client = await start()
        await leaving.process.begin_drain()
        leaving.process.end_streams()
        seen = await listed(created(client, input="Hello there"))
        assert [data_of(frame)["type"] for frame in seen] == ["response.created", "response.queued"]
        _, other = await start()
        seen += await listed(resumed(other, id_in(seen), len(seen) - 1))
        events = parse_stream("".join(seen))
        check_stream(as_events(events))
        assert events[-1]["type"] == "response.completed"


async def test_an_end_without_a_warning_hands_over_as_well(
    database_url: str, backends: Backends
) -> None:
    async with replicas(database_url, backends) as start:
        settings = gateway_settings(database_url, backends.urls)
        async with (
            running_gateway(settings) as brief,
            http_client(brief.url, headers=brief.headers) as client,
        ):
            response_id = id_in(await taken(created(client, input=SLOW), is_delta))
            _, other = await start()
        assert (await ended(other, response_id))["status"] == "completed"
