"""Errors and headers over HTTP that are the same on every route."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import openai
import pytest

from gateway import errors
from gateway.api.error_responses import error_response
from gateway.server.http_protocol import HEAD_BOUNDS
from tests.fakes.http_client import http_client

if TYPE_CHECKING:
    import httpx2

    from tests.conformance.checking import Json
    from tests.fakes.gateway import RunningGateway

requirement = pytest.mark.requirement

MODEL = "gpt-oss-20b"
UNKNOWN = "resp_" + "0" * 32
INVALID = "invalid_request_error"
ROUTES = [
    ("POST", "/v1/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/responses/compact"),
    ("GET", f"/v1/responses/{UNKNOWN}"),
    ("DELETE", f"/v1/responses/{UNKNOWN}"),
    ("POST", f"/v1/responses/{UNKNOWN}/cancel"),
    ("GET", f"/v1/responses/{UNKNOWN}/input_items"),
    ("POST", "/v1/conversations/conv_0/items"),
    ("GET", "/v1/conversations/conv_0"),
    ("GET", "/v1/models/gpt-9"),
    ("GET", "/v1/nothing"),
    ("PATCH", "/v1/responses"),
]


def anybody(gateway: RunningGateway, **headers: str) -> httpx2.AsyncClient:
    return http_client(gateway.url, headers=headers)


@requirement("error.envelope")
@requirement("error.no-framework-shapes")
@requirement("error.no-409")
@requirement("error.no-422")
@requirement("header.request-id")
@requirement("header.version")
@requirement("header.processing-ms")
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_every_error_has_the_same_form(
    client: httpx2.AsyncClient, method: str, path: str
) -> None:
    answer = await client.request(method, path, content=b"{" if method == "POST" else None)
    assert answer.status_code in {400, 404, 405}
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], type(error["message"])) == (INVALID, str)
    assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])
    assert answer.headers["openai-version"] == "2020-10-01"
    assert int(answer.headers["openai-processing-ms"]) >= 0


@requirement("error.wrong-key")
@requirement("header.authorization")
async def test_a_wrong_key_is_told_so_and_not_shown(gateway: RunningGateway) -> None:
    key = "sk-1234567890abcdefghijklmnop"
    async with anybody(gateway, authorization=f"Bearer {key}") as stranger:
        for method, path in ROUTES:
            answer = await stranger.request(method, path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (401, "invalid_api_key")
            assert error["message"].startswith("Incorrect API key provided: ")
            assert key not in answer.text


@requirement("error.no-key")
@requirement("header.authorization")
@pytest.mark.parametrize("headers", [{}, {"authorization": "Basic eA=="}, {"authorization": "x"}])
async def test_a_request_without_a_key_is_told_how(
    gateway: RunningGateway, headers: dict[str, str]
) -> None:
    async with anybody(gateway, **headers) as nobody:
        answer = await nobody.get("/v1/models")
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (401, INVALID, None)
    assert "Authorization: Bearer" in error["message"]
    assert answer.headers["www-authenticate"] == "Bearer"


@requirement("error.quota")
@requirement("retry.should-retry")
def test_what_no_waiting_helps_with_is_not_tried_again() -> None:
    quota = errors.RateLimited("There is nothing left.", code="insufficient_quota")
    answer = error_response(quota)
    assert answer.status_code == 429
    assert b'"type":"insufficient_quota"' in bytes(answer.body)
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers


@requirement("header.size")
async def test_headers_may_have_as_much_as_openai_takes(client: httpx2.AsyncClient) -> None:
    assert HEAD_BOUNDS.bytes_max == 64 * 1024
    answer = await client.get("/v1/models", headers={"x-padding": "x" * 60_000})
    assert answer.status_code == 200


@requirement("error.param-paths")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"input": [{"role": "user", "content": "x"}, {"role": "user", "content": [{}]}]},
            "input[1].content[0].type",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"metadata": {"k": 1}}, "metadata.k"),
    ],
)
async def test_a_parameter_is_named_by_its_path(
    client: httpx2.AsyncClient, fields: Json, param: str
) -> None:
    body = {"model": MODEL, "input": "x", **fields}
    answer = await client.post("/v1/responses", json=body)
    assert answer.json()["error"]["param"] == param


@requirement("retry.classes")
@pytest.mark.parametrize(
    ("call", "kind", "code"),
    [
        ({"model": MODEL, "temperature": 3}, openai.BadRequestError, "decimal_above_max_value"),
        ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found"),
    ],
)
async def test_the_sdk_raises_its_own_class(
    gateway: RunningGateway, call: dict[str, Any], kind: type[openai.APIStatusError], code: str
) -> None:
    url = f"{gateway.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=gateway.key) as client:
        with pytest.raises(kind) as raised:
            await client.responses.create(input="x", **call)
    assert (raised.value.code, raised.value.request_id is not None) == (code, True)
    async with openai.AsyncOpenAI(base_url=url, api_key="wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
