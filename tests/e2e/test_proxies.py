"""Two replicas behind the proxies that deploy/proxies configures, each as a real process."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from tests.fakes import proxies
from tests.fakes.http_client import NO_TLS, http_client
from tests.fakes.processes import gateway_process
from tests.fakes.serving import serving
from tests.fakes.websocket import connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from starlette.requests import Request

    from tests.fakes.postgres import PostgresServer
    from tests.fakes.processes import GatewayProcess, SimulatorProcess

MODEL = "gpt-oss-20b"
BRIEF = "[[sim think=none say=ok]] go"
SOON = "[[sim think=none say=ok first_token_delay_s=0.1]] go"
"""The backend sets the pace of those who ask all the time: else they would take all cores."""
STALLED = "[[sim think=none tokens=100 stall_after=8]] go"
PACED = "[[sim think=none tokens_per_s=40 tokens=400]] go"
BODY_BYTES_MAX = 16 << 20
HEAD_BYTES = 60_000
AT_ONCE = 4
STREAMS = 4
NOTICE_S = {"nginx": 0}
"""Seconds of `server.drain_notice_s`; nginx looks at no /readyz."""
CLOSE_EARLY = {"caddy", "envoy"}
"""They close a connection on which a request is answered before it is whole."""
WITHIN_S = 60.0
CHECK_NOTHING = {"nginx"}
CHECKS_MAX = 2
"""Failed checks after which a proxy sends nothing more to a gateway."""

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("name", list(proxies.FILES))]
Json = dict[str, Any]


@pytest.fixture
def site(
    name: str, tmp_path: Path, replicas: tuple[GatewayProcess, GatewayProcess]
) -> Iterator[str]:
    """The URL of the proxy in front of replicas that stay."""
    with proxies.proxy(name, tmp_path, [replica.url for replica in replicas]) as url:
        yield url


@asynccontextmanager
async def client_of(url: str, key: str, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a proxy that has found a replica."""
    headers = {"authorization": f"Bearer {key}"}
    async with http_client(
        url, headers=headers, timeout=WITHIN_S, trust_env=False, **options
    ) as one:
        async with asyncio.timeout(WITHIN_S):
            while (await one.get("/version")).status_code != 200:
                pass
        yield one


def asked(text: str, **fields: Any) -> Json:
    return {"model": MODEL, "input": text, **fields}


async def events_of(answer: httpx2.Response) -> AsyncIterator[Json]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


async def until_delta(events: AsyncIterator[Json]) -> list[Json]:
    """The events up to the first text."""
    seen = []
    async for event in events:
        seen.append(event)
        if event["type"] == "response.output_text.delta":
            return seen
    raise AssertionError(f"the stream ended: {seen}")


async def until_stored(client: httpx2.AsyncClient, response_id: str) -> Json:
    """A response in the foreground, which is not found before its end."""
    async with asyncio.timeout(WITHIN_S):
        while (answer := await client.get(f"/v1/responses/{response_id}")).status_code == 404:
            pass
    stored: Json = answer.json()
    return stored


async def test_events_pass_while_the_backend_is_silent(site: str, key: str) -> None:
    body = asked(STALLED, stream=True, background=True)
    async with (
        client_of(site, key) as client,
        client.stream("POST", "/v1/responses", json=body) as answer,
    ):
        events = events_of(answer)
        seen = await until_delta(events)
        path = f"/v1/responses/{seen[0]['response']['id']}"
        assert (await client.get(path)).json()["status"] == "in_progress"
        assert (await client.post(f"{path}/cancel")).json()["status"] == "cancelled"
        seen += [event async for event in events]
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))


async def test_a_client_that_leaves_ends_its_response(site: str, key: str) -> None:
    async with client_of(site, key) as client:
        body = asked(STALLED, stream=True)
        async with client.stream("POST", "/v1/responses", json=body) as answer:
            seen = await until_delta(events_of(answer))
        ended = await until_stored(client, seen[0]["response"]["id"])
    assert ended["status"] == "cancelled"


async def test_a_websocket_is_upgraded(site: str, key: str) -> None:
    async with client_of(site, key), connected(site, key) as peer:
        assert (await peer.response(BRIEF))["status"] == "completed"


async def test_the_gateway_and_not_the_proxy_bounds_heads_and_bodies(
    name: str, site: str, key: str
) -> None:
    async with client_of(site, key) as client:
        headers = {"baggage": "x" * HEAD_BYTES}
        served = await client.post("/v1/responses", json=asked(BRIEF), headers=headers)
        assert served.status_code == 200, served.text
        try:
            refused = await client.post("/v1/responses", json=asked("x" * BODY_BYTES_MAX))
        except httpx2.TransportError:
            assert name in CLOSE_EARLY
            return
    assert refused.status_code == 413, refused.text
    assert refused.json()["error"]["type"] == "invalid_request_error"


async def test_what_is_for_operators_is_not_published(site: str, key: str) -> None:
    async with client_of(site, key) as client:
        for path in ("/metrics", "/readyz", "/healthz"):
            assert (await client.get(path)).status_code == 404


async def test_an_answer_that_is_late_is_an_error_of_the_api(
    name: str, tmp_path: Path, replicas: tuple[GatewayProcess, GatewayProcess], key: str
) -> None:
    urls = [replica.url for replica in replicas]
    with proxies.proxy(name, tmp_path, urls, patience="1s") as url:
        async with client_of(url, key) as client:
            answer = await client.post("/v1/responses", json=asked(STALLED, store=False))
    assert answer.status_code == 504, answer.text
    assert answer.json()["error"]["type"] == "server_error"


@dataclass(frozen=True)
class Site:
    """A proxy in front of replicas of this test alone, which trust its address."""

    url: str
    replicas: tuple[GatewayProcess, GatewayProcess]
    key: str


@pytest.fixture
def own_site(
    name: str, tmp_path: Path, database_url: str, own_key: str, simulator: SimulatorProcess
) -> Iterator[Site]:
    server = {
        "drain_notice_s": NOTICE_S.get(name, 5),
        "drain_grace_s": 30,
        "trusted_proxies": ["127.0.0.1/32"],
    }
    proxies.program(name)
    with ExitStack() as stack:
        folders = [tmp_path / part for part in ("first", "second", "proxy")]
        for folder in folders:
            folder.mkdir()
        first, second = (
            stack.enter_context(
                gateway_process(folder, database_url, [simulator.url], server=server)
            )
            for folder in folders[:2]
        )
        url = stack.enter_context(proxies.proxy(name, folders[2], [first.url, second.url]))
        yield Site(url, (first, second), own_key)
        for replica in (first, second):
            replica.child.kill()


async def keep_asking(client: httpx2.AsyncClient, over: asyncio.Event, failures: list[str]) -> int:
    """How many requests were answered, one after the other; those that failed are noted."""
    answered = 0
    while not over.is_set():
        try:
            answer = await client.post("/v1/responses", json=asked(SOON))
        except httpx2.TransportError as error:
            failures.append(repr(error))
            continue
        if answer.status_code == 200:
            answered += 1
        else:
            failures.append(answer.text)
    return answered


async def whole_stream(client: httpx2.AsyncClient, begun: asyncio.Semaphore) -> list[Json]:
    async with client.stream("POST", "/v1/responses", json=asked(PACED, stream=True)) as answer:
        events = events_of(answer)
        seen = await until_delta(events)
        begun.release()
        return seen + [event async for event in events]


async def begun_in_background(client: httpx2.AsyncClient) -> list[Json]:
    """The first events of a response that goes on."""
    body = asked(PACED, stream=True, background=True)
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        return await until_delta(events_of(answer))


async def resumed(client: httpx2.AsyncClient, seen: list[Json]) -> list[Json]:
    """All events of a response of which some were seen."""
    path = f"/v1/responses/{seen[0]['response']['id']}"
    after = {"stream": "true", "starting_after": seen[-1]["sequence_number"]}
    async with client.stream("GET", path, params=after) as answer:
        return seen + [event async for event in events_of(answer)]


async def test_a_replica_that_ends_fails_nothing(own_site: Site) -> None:
    failures: list[str] = []
    over, begun = asyncio.Event(), asyncio.Semaphore(0)
    first, second = own_site.replicas
    async with client_of(own_site.url, own_site.key) as client:
        background = [await begun_in_background(client) for _ in own_site.replicas]
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(keep_asking(client, over, failures)) for _ in range(AT_ONCE)
            ]
            streams = [group.create_task(whole_stream(client, begun)) for _ in range(STREAMS)]
            for _ in streams:
                await begun.acquire()
            first.child.terminate()
            assert await asyncio.to_thread(first.child.exit_code) == 0, first.child.output
            background = [await resumed(client, seen) for seen in background]
            over.set()
        assert failures == []
        assert sum(task.result() for task in asking) > AT_ONCE
        for events in [*background, *(stream.result() for stream in streams)]:
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            assert events[-1]["type"] == "response.completed"
        second.child.terminate()
        assert await asyncio.to_thread(second.child.exit_code) == 0, second.child.output
        unavailable = await client.post("/v1/responses", json=asked(BRIEF))
    assert unavailable.status_code == 503, unavailable.text
    assert unavailable.json()["error"]["type"] == "server_error"
    assert int(unavailable.headers["retry-after"]) > 0


async def test_the_gateway_knows_the_address_of_the_client(
    own_site: Site, postgres: PostgresServer, database_url: str
) -> None:
    await postgres.fetch("UPDATE api_keys SET allowed_cidrs = '{127.0.0.2/32}'", url=database_url)
    forged = {"x-forwarded-for": "127.0.0.2"}
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                client_of(own_site.url, own_site.key, transport=coming_from(address))
            )
            for address in ("127.0.0.2", "127.0.0.3")
        ]
        known, other = [
            await one.post("/v1/responses", json=asked(BRIEF), headers=forged) for one in clients
        ]
    assert known.status_code == 200, known.text
    assert other.json()["error"]["code"] == "ip_not_authorized"
    assert "(127.0.0.3)" in other.json()["error"]["message"]


def coming_from(address: str) -> httpx2.AsyncHTTPTransport:
    return httpx2.AsyncHTTPTransport(local_address=address, verify=NO_TLS)


def late_gateway(checks: asyncio.Semaphore) -> Starlette:
    """Answers whatever it is sent but checks of its readiness, which it counts."""

    async def readyz(request: Request) -> Response:
        checks.release()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        return Response()

    async def others(_: Request) -> Response:
        return Response()

    methods = ["GET", "POST"]
    return Starlette(
        routes=[Route("/readyz", readyz), Route("/{path:path}", others, methods=methods)]
    )


async def test_gateways_whose_checks_are_all_late_are_used(name: str, tmp_path: Path) -> None:
    if name == "caddy":
        pytest.skip("Caddy sends nothing to what fails its checks")
    checks = [asyncio.Semaphore(0) for _ in range(2)]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(late_gateway(one))) for one in checks]
        url = stack.enter_context(proxies.proxy(name, tmp_path, urls))
        client = await stack.enter_async_context(client_of(url, "unused"))
        for begun in checks if name not in CHECK_NOTHING else ():
            for _ in range(CHECKS_MAX + 1):
                await begun.acquire()
        answers = [await client.post("/v1/responses", json={}) for _ in checks]
    assert [answer.status_code for answer in answers] == [200, 200]
