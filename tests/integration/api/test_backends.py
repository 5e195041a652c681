"""When clients leave and backends fail: what is aborted, retried, and told."""

from __future__ import annotations

import asyncio
import itertools
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from tests.fakes.gateway import gateway_settings, running_gateway
from tests.fakes.http_client import http_client
from tests.fakes.stream import parse_stream, stream, texts
from tests.integration.api.bodies import MODEL, create, refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx2

    from tests.fakes.gateway import RunningGateway
    from tests.fakes.observation import Backends


MARKERS = itertools.count(10_000)
"""Each test that looks for its request at a backend gives it an output limit of its own."""
CORPUS = Path(__file__).parents[2] / "data" / "harmony_corpus.jsonl"


async def hang_up(
    gateway: RunningGateway, body: dict[str, Any], *, when: Callable[[], Awaitable[Any]]
) -> None:
    """Send a request over a raw socket, and close it without another word once `when` returns."""
    host, port = gateway.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    payload = orjson.dumps({"model": MODEL, **body})
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.key}\r\n"
    writer.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    await writer.drain()
    await when()
    writer.close()
    await writer.wait_closed()


@pytest.mark.slow
@pytest.mark.requirement("disconnect.cancel")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("text", "sent_tokens"),
    [
        ("[[sim slow_accept_s=60]] before the headers", 0),
        ("[[sim first_token_delay_s=60]] before the first token", 0),
        ("[[sim stall_after=4]] in the middle", 4),
    ],
)
async def test_a_client_that_leaves_stops_the_backend(
    gateway: RunningGateway, backends: Backends, text: str, sent_tokens: int, streamed: bool
) -> None:
    marker = next(MARKERS)

    def mine(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if row["max_tokens"] == marker]

    async def generating() -> None:
        await backends.until(lambda rows: [r["sent_tokens"] for r in mine(rows)] == [sent_tokens])

    body = {"input": text, "stream": streamed, "max_output_tokens": marker}
    await hang_up(gateway, body, when=generating)
    await backends.until(lambda rows: [row["aborted"] for row in mine(rows)] == [True])


@pytest.mark.slow
async def test_what_a_client_left_behind_is_stored_as_cancelled(
    gateway: RunningGateway, client: httpx2.AsyncClient
) -> None:
    body = {"model": MODEL, "input": "[[sim stall_after=60]] go", "stream": True}
    async with client.stream("POST", "/v1/responses", json=body) as answer:
        lines = answer.aiter_lines()
        while not (line := await anext(lines)).startswith("data: "):
            pass
        response_id = orjson.loads(line.removeprefix("data: "))["response"]["id"]
        while "delta" not in await anext(lines):
            pass
    async with asyncio.timeout(30):
        kept = await client.get(f"/v1/responses/{response_id}")
        while kept.status_code != 200:
            kept = await client.get(f"/v1/responses/{response_id}")
    assert kept.json()["status"] == "cancelled"
    assert kept.json()["output"]
    again = await create(client, input="go on", previous_response_id=response_id)
    assert again["status"] == "completed"


@pytest.mark.parametrize("fault", ["status=503", "first_event_error=503", "die_after=0"])
async def test_a_failure_before_the_first_token_is_tried_elsewhere(
    client: httpx2.AsyncClient, backends: Backends, fault: str
) -> None:
    attempts = []
    for _ in range(4):  # some of them begin at the faulty backend, more likely than not
        response = await create(client, input=f"[[sim {fault} only=b0]] hello", store=False)
        assert response["status"] == "completed"
        attempts.append(len(await backends.of_response(response["id"])))
    assert max(attempts) <= 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_when_no_backend_takes_it_the_client_may_retry(
    client: httpx2.AsyncClient, streamed: bool
) -> None:
    body = {"model": MODEL, "input": "[[sim status=503]] hello", "stream": streamed}
    answer = await client.post("/v1/responses", json=body)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("fault", ["die_after", "abort_after", "error_after", "end_after"])
async def test_a_backend_that_breaks_off_is_noticed_by_nobody(
    client: httpx2.AsyncClient, backends: Backends, fault: str
) -> None:
    events = await stream(client, {"model": MODEL, "input": f"[[sim {fault}=50]] hello"})
    body = events[-1]["response"]
    assert body["status"] == "completed"
    requests = await backends.of_response(body["id"])
    assert len(requests) == 2
    assert body["usage"]["input_tokens"] == requests[0]["prompt_tokens"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (await client.get(f"/v1/responses/{body['id']}")).json() == body


@pytest.mark.requirement("error-code.backend")
@pytest.mark.requirement("stream-error.after")
@pytest.mark.parametrize("fault", ["die_after", "abort_after", "error_after", "end_after"])
async def test_backends_that_break_off_one_after_the_other_fail_the_response(
    client: httpx2.AsyncClient, fault: str
) -> None:
    events = await stream(client, {"model": MODEL, "input": f"[[sim {fault}=5]] hello"})
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    error = events[-2]
    assert error["error"]["code"] == error["code"] == "server_error"
    failed = events[-1]["response"]
    assert failed["status"] == "failed"
    assert failed["usage"]["output_tokens"] > 0
    stored = (await client.get(f"/v1/responses/{failed['id']}")).json()
    assert stored == failed


@pytest.mark.requirement("error-code.backend")
async def test_a_failure_without_a_stream_is_a_server_error(client: httpx2.AsyncClient) -> None:
    error = await refused(client, 502, input="[[sim die_after=5]] hello")
    assert error["type"] == "server_error"


async def test_silence_is_broken_by_events_that_clients_count(
    shared_database_url: str, backends: Backends
) -> None:
    settings = gateway_settings(
        shared_database_url, backends.urls, stream={"keepalive_event_s": 0.01, "start_grace_s": 0}
    )
    async with (
        running_gateway(settings) as quick,
        http_client(quick.url, headers=quick.headers) as client,
    ):
        events = await stream(
            client, {"model": MODEL, "input": "[[sim first_token_delay_s=0.3]] hello"}
        )
    repeats = [event for event in events if event["type"] == "response.in_progress"]
    assert len(repeats) >= 3
    assert events[-1]["type"] == "response.completed"


@pytest.mark.slow
async def test_a_response_started_at_one_replica_goes_on_at_another_at_once(
    shared_database_url: str,
    client: httpx2.AsyncClient,
    backends: Backends,
    gateway: RunningGateway,
) -> None:
    settings = gateway_settings(shared_database_url, backends.urls)
    async with (
        running_gateway(settings) as other,
        http_client(other.url, headers=gateway.headers) as elsewhere,
    ):
        for _ in range(50):
            body = {"model": MODEL, "input": "[[sim say=ok think=none]]"}
            first = (await stream(client, body))[-1]["response"]
            second = await create(elsewhere, input="more", previous_response_id=first["id"])
            assert second["status"] == "completed"


@pytest.mark.slow
async def test_the_gateway_starts_and_answers_without_backends(shared_database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    settings = gateway_settings(shared_database_url, [url], models=[{"id": "m"}])
    async with (
        running_gateway(settings) as lonely,
        http_client(lonely.url, headers=lonely.headers) as client,
    ):
        ready = await client.get("/readyz")
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.post("/v1/responses", json={"model": "m", "input": "x"})).is_error
    assert ready.status_code in {200, 503}


@pytest.mark.slow
async def test_the_whole_corpus_streams_stores_and_replays_alike(
    client: httpx2.AsyncClient,
) -> None:
    cases = [orjson.loads(line) for line in CORPUS.read_bytes().splitlines()]
    tools = [
        {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
        for name in ("get_weather", "create_event", "exec", "edit", "search", "shell", "grep", "f")
    ]
    for case in cases:
        body = {"model": MODEL, "input": f"corpus:{case['id']}", "tools": tools, "stream": True}
        answer = await client.post("/v1/responses", json=body)
        assert answer.status_code == 200, (case["id"], answer.text)
        last = parse_stream(answer.text)[-1]["response"]
        assert (await client.get(f"/v1/responses/{last['id']}")).json() == last
        assert "<|" not in orjson.dumps(last["output"]).decode(), case["id"]
        assert texts(last) or last["output"] or last["status"] != "completed", case["id"]
