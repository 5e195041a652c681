"""Requests in no order that make any sense: each has an answer, and none is a failure of ours."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.stream import parse_stream
from tests.integration.api.bodies import MODEL

if TYPE_CHECKING:
    import httpx2

REQUESTS = 120
AT_ONCE = 8
TEXTS = ["[[sim think=2 say=ok]] go", "[[sim tokens_per_s=300 tokens=30 think=none]] go"]
ODD: list[Any] = [None, True, 0, -1, 1e3, "x", "", [], {}, [1], {"a": 1}, 10**30, "\0", "é"]
USES = [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")]
METHODS = ["HEAD", "PUT", "PATCH", "OPTIONS"]
NO_BODIES = [b"", b"{", b"[]", b"null", b"\xff", b'{"model":1}']
QUERIES = {
    "stream": ["true", "false", "maybe", ""],
    "starting_after": ["0", "5", "100", "-1", "abc", "1e3", "9" * 30, ""],
    "include_obfuscation": ["true", "false", "x"],
    "limit": ["1", "100", "0", "101", "x"],
    "order": ["asc", "desc", "x"],
    "after": ["x", "", "\0"],
    "include[]": ["reasoning.encrypted_content", "x"],
}


class Visitor:
    """One client of many that share what they know, and do as `dice` say."""

    def __init__(self, clients: list[httpx2.AsyncClient], dice: random.Random) -> None:
        self.clients = clients
        self.dice = dice
        self.known = ["resp_x", "resp_" + "0" * 32, "%00", "x" * 300]

    async def visit(self) -> None:
        dice = self.dice
        client = dice.choice(self.clients)
        if dice.random() < 0.4:
            await self._create(client)
            return
        method, use = dice.choice(USES)
        if dice.random() < 0.1:
            method = dice.choice(METHODS)
        path = f"/v1/responses/{dice.choice(self.known[-24:])}{use}"
        names = dice.sample(list(QUERIES), dice.randrange(3))
        params = {name: dice.choice(QUERIES[name]) for name in names}
        self._check(await client.request(method, path, params=params))

    async def _create(self, client: httpx2.AsyncClient) -> None:
        dice = self.dice
        body: dict[str, Any] = {"model": MODEL, "input": dice.choice(TEXTS)}
        for name in ("background", "stream", "store"):
            if dice.random() < 0.5:
                body[name] = dice.random() < 0.8
        if dice.random() < 0.2:
            body["previous_response_id"] = dice.choice(self.known)
        if dice.random() < 0.2:
            body[dice.choice([*body, "metadata", "user", "stream_options"])] = dice.choice(ODD)
        content = json.dumps(body).encode()
        if dice.random() < 0.05:
            content = dice.choice(NO_BODIES)
        headers = {"idempotency-key": str(dice.randrange(20))} if dice.random() < 0.4 else {}
        answer = await client.post("/v1/responses", content=content, headers=headers)
        self._check(answer)
        if answer.status_code == 200:
            self.known.append(_created(answer)["id"])

    def _check(self, answer: httpx2.Response) -> None:
        assert answer.status_code in {200, 400, 404, 405, 429}, answer.text
        assert answer.headers["x-request-id"].startswith("req_")
        if answer.status_code != 200 and answer.request.method != "HEAD":
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        elif answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.request.method == "HEAD" or answer.text.endswith("data: [DONE]\n\n")


def _created(answer: httpx2.Response) -> dict[str, Any]:
    if answer.headers["content-type"].startswith("text/event-stream"):
        response: dict[str, Any] = parse_stream(answer.text)[0]["response"]
        return response
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_request_of_any_kind_makes_the_server_fail(
    client: httpx2.AsyncClient,
    second: httpx2.AsyncClient,
    stranger: httpx2.AsyncClient,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    visitor = Visitor([client, client, second, stranger], random.Random(seed))
    tickets = itertools.count()

    async def visits() -> None:
        while next(tickets) < REQUESTS:
            await visitor.visit()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(visits())
    assert "unexpected error" not in capsys.readouterr().out
