"""Requests whose bodies come compressed, as those of coding agents do."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import zstandard

from tests.fakes.stream import parse_stream
from tests.integration.api.bodies import MODEL
from tests.integration.api.chat.bodies import asked

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

    from tests.fakes.gateway import RunningGateway

REQUEST: dict[str, Any] = {"model": MODEL, "input": "hi"}
PLACES: dict[str, dict[str, Any]] = {
    "/v1/responses": REQUEST,
    "/v1/responses/input_tokens": REQUEST,
    "/v1/responses/compact": {**REQUEST, "input": "Tell me of the sea. " * 20},
    "/v1/chat/completions": asked("hi"),
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/conversations": {"metadata": {"a": "b"}},
}
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstandard.compress}


async def send(
    client: httpx2.AsyncClient, content: bytes, coding: str | None, path: str = "/v1/responses"
) -> httpx2.Response:
    headers = {"content-type": "application/json"}
    if coding is not None:
        headers["content-encoding"] = coding
    return await client.post(path, content=content, headers=headers)


def error_of(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize("coding", COMPRESS)
@pytest.mark.parametrize("path", PLACES)
async def test_a_compressed_body_is_read_like_any_other(
    client: httpx2.AsyncClient, path: str, coding: str
) -> None:
    content = COMPRESS[coding](orjson.dumps(PLACES[path]))
    answer = await send(client, content, coding, path)
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"]


@pytest.mark.parametrize("coding", COMPRESS)
async def test_a_long_one_is_streamed(client: httpx2.AsyncClient, coding: str) -> None:
    body = {**REQUEST, "stream": True, "instructions": "Be brief. " * 10_000}
    answer = await send(client, COMPRESS[coding](orjson.dumps(body)), coding)
    assert parse_stream(answer.text)[-1]["response"]["status"] == "completed"


async def test_a_retry_may_be_compressed_otherwise(client: httpx2.AsyncClient) -> None:
    body, headers = orjson.dumps(REQUEST), {"idempotency-key": "compressed-or-not"}
    first = await client.post("/v1/responses", content=body, headers=headers)
    headers["content-encoding"] = "zstd"
    again = await client.post("/v1/responses", content=zstandard.compress(body), headers=headers)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, zstd", "exi"])
async def test_what_is_not_read_is_told_with_what_is(
    client: httpx2.AsyncClient, coding: str
) -> None:
    answer = await send(client, b"\x00" * 100, coding)
    assert error_of(answer, 415)["code"] == "unsupported_content_encoding"
    assert answer.headers["accept-encoding"] == "identity, gzip, zstd"


@pytest.mark.parametrize("coding", COMPRESS)
async def test_a_bad_body_is_told_what_is_wrong_with_it(
    client: httpx2.AsyncClient, coding: str
) -> None:
    compress, body = COMPRESS[coding], orjson.dumps(REQUEST)
    bad = [b"", body, compress(body)[:-1], compress(body) + b"x", compress(body) * 2]
    for content in bad:
        error = error_of(await send(client, content, coding), 400)
        assert error["code"] == "invalid_content_encoding"
    error_of(await send(client, compress(b"{"), coding), 400)
    assert (
        f"Content-Encoding: {coding}"
        in (error_of(await send(client, compress(body), None), 400)["message"])
    )


@pytest.mark.slow
@pytest.mark.parametrize("coding", COMPRESS)
async def test_a_bomb_is_a_body_that_is_too_large(
    client: httpx2.AsyncClient, gateway: RunningGateway, coding: str
) -> None:
    bomb = COMPRESS[coding](bytes(64 << 20))
    assert "once it is decoded" in error_of(await send(client, bomb, coding), 413)["message"]
    assert (await client.get("/healthz")).status_code == 200
