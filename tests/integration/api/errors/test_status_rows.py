"""The table of statuses, types and codes, row by row, each by one request over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.api.bodies import MODEL, create
from tests.integration.api.errors.rows import Row, assert_row

if TYPE_CHECKING:
    import httpx2

UNKNOWN = "resp_" + "0" * 32
MISSING = (
    f"Response with id '{UNKNOWN}' not found. Responses are kept only when `store` is true, until "
    "they are deleted or expire; without `background` they are found once they have ended."
)


def _unsupported(param: str, remedy: str, value: str = "") -> Row:
    what = f"'{param}' with value '{value}'" if value else f"'{param}'"
    message = f"Unsupported parameter: {what} is not supported by this server. {remedy}"
    return Row(400, "unsupported_parameter", param, message)


BODIES: list[tuple[dict[str, Any], Row]] = [
    (
        {"model": None},
        Row(400, "missing_required_parameter", "model", "Missing required parameter: 'model'."),
    ),
    (
        {"input": None},
        Row(400, "missing_required_parameter", "input", "Missing required parameter: 'input'."),
    ),
    (
        {"prompt": {"id": "pmpt_1"}},
        _unsupported("prompt", "Send the text of the prompt in 'instructions' and 'input'."),
    ),
    (
        {"moderation": {"model": "m"}},
        _unsupported("moderation", "Moderate the text with a service of your own."),
    ),
    (
        {"background": True, "store": False},
        Row(
            400,
            "unsupported_parameter",
            "background",
            "Unsupported parameter: 'background' cannot be true when 'store' is false. Set 'store' "
            "to true, or leave 'background' out.",
        ),
    ),
    (
        {"reasoning": {"effort": "huge"}},
        Row(
            400,
            "unsupported_value",
            "reasoning.effort",
            "Unsupported value: 'reasoning.effort' does not support 'huge' with this model. "
            "Supported values are: 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', and 'max'.",
        ),
    ),
    (
        {"temperature": "hot"},
        Row(
            400,
            "invalid_type",
            "temperature",
            "Invalid type for 'temperature': expected a decimal, but got a string instead.",
        ),
    ),
    (
        {"stream": 1},
        Row(
            400,
            "invalid_type",
            "stream",
            "Invalid type for 'stream': expected a boolean, but got an integer instead.",
        ),
    ),
    (
        {"text": {"verbosity": "loud"}},
        Row(
            400,
            "invalid_value",
            "text.verbosity",
            "Invalid value: 'loud'. Supported values are: 'low', 'medium', and 'high'.",
        ),
    ),
    (
        {"max_output_tokens": 5},
        Row(
            400,
            "integer_below_min_value",
            "max_output_tokens",
            "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but "
            "got 5 instead.",
        ),
    ),
    (
        {"top_logprobs": 21},
        Row(
            400,
            "integer_above_max_value",
            "top_logprobs",
            "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got "
            "21 instead.",
        ),
    ),
    (
        {"temperature": -0.5},
        Row(
            400,
            "decimal_below_min_value",
            "temperature",
            "Invalid 'temperature': decimal below minimum value. Expected a value >= 0, but got "
            "-0.5 instead.",
        ),
    ),
    (
        {"top_p": 1.5},
        Row(
            400,
            "decimal_above_max_value",
            "top_p",
            "Invalid 'top_p': decimal above maximum value. Expected a value <= 1, but got 1.5 "
            "instead.",
        ),
    ),
    (
        {"metadata": {"k": "v" * 600}},
        Row(
            400,
            "string_above_max_length",
            "metadata.k",
            "Invalid 'metadata.k': string too long. Expected a string with maximum length 512, but "
            "got a string with length 600 instead.",
        ),
    ),
    (
        {"metadata": {"k" * 65: "v"}},
        Row(
            400,
            "property_name_above_max_length",
            f"metadata.{'k' * 65}",
            f"Invalid property name in 'metadata': '{'k' * 65}' is too long. Expected a string "
            "with maximum length 64, but got a string with length 65 instead.",
        ),
    ),
    (
        {"metadata": {f"k{number}": "v" for number in range(17)}},
        Row(
            400,
            "object_above_max_properties",
            "metadata",
            "Invalid 'metadata': too many properties. Expected an object with at most 16 "
            "properties, but got an object with 17 properties instead.",
        ),
    ),
    (
        {"stop": ["a"] * 5},
        Row(
            400,
            "array_above_max_length",
            "stop",
            "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an "
            "array with length 5 instead.",
        ),
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "tools": []}},
        Row(
            400,
            "empty_array",
            "tool_choice.tools",
            "Invalid 'tool_choice.tools': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead.",
        ),
    ),
    (
        {"input": [{"type": "function_call_output", "call_id": "", "output": "x"}]},
        Row(
            400,
            "empty_string",
            "input[0].call_id",
            "Invalid 'input[0].call_id': empty string. Expected a string with minimum length 1, "
            "but got an empty string instead.",
        ),
    ),
    (
        {"input": [{"role": "user", "id": "msg 1", "content": "x"}]},
        Row(
            400,
            "invalid_value",
            "input[0].id",
            "Invalid 'input[0].id': 'msg 1'. Expected an ID that contains letters, numbers, "
            "underscores, or dashes, but this value contained additional characters.",
        ),
    ),
    (
        {"conversation": "conv_1", "previous_response_id": UNKNOWN},
        Row(
            400,
            "mutually_exclusive_parameters",
            None,
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Ensure you "
            "are only providing one of them.",
        ),
    ),
    (
        {"previous_response_id": UNKNOWN},
        Row(
            400,
            "previous_response_not_found",
            "previous_response_id",
            f"Previous response with id '{UNKNOWN}' not found. It was not stored, or has been "
            "deleted: send the conversation so far in 'input' instead.",
        ),
    ),
    (
        {"model": "gpt-9"},
        Row(
            404,
            "model_not_found",
            "model",
            "The requested model 'gpt-9' does not exist. GET /v1/models lists the models.",
        ),
    ),
    (
        {"tool_choice": "required"},
        Row(
            400,
            "invalid_value",
            "tool_choice",
            "Tool choice 'required' must be specified with 'tools' parameter.",
        ),
    ),
    (
        {"tool_choice": {"type": "function", "name": "f"}},
        Row(
            400,
            "invalid_value",
            "tool_choice",
            "Tool choice 'function' not found in 'tools' parameter.",
        ),
    ),
    (
        {"stream_options": {"include_obfuscation": True}},
        Row(
            400,
            None,
            "stream_options",
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        ),
    ),
    (
        {"input": [{"type": "item_reference", "id": "rs_of_nobody"}]},
        Row(
            404,
            None,
            "input",
            "Item with id 'rs_of_nobody' not found. Items are not persisted when `store` is set to "
            "false. Try again with `store` set to true, or remove this item from your input.",
        ),
    ),
]


@pytest.mark.requirement("error.missing")
@pytest.mark.requirement("error.unsupported-parameter")
@pytest.mark.requirement("error.unsupported-value")
@pytest.mark.requirement("error.type")
@pytest.mark.requirement("error.model-of-a-request")
@pytest.mark.requirement("error.mutually-exclusive")
@pytest.mark.requirement("accept.errors")
@pytest.mark.parametrize(("fields", "row"), BODIES, ids=[row.message[:50] for _, row in BODIES])
async def test_what_a_body_gets_wrong_is_answered_with_its_row(
    client: httpx2.AsyncClient, fields: dict[str, Any], row: Row
) -> None:
    answer = await client.post("/v1/responses", json={"model": MODEL, "input": "x", **fields})
    assert_row(answer, row)


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_wrong_is_json_though_a_stream_was_asked_for(
    client: httpx2.AsyncClient, stream: bool
) -> None:
    body = {"model": MODEL, "input": "x", "temperature": 3, "stream": stream}
    answer = await client.post("/v1/responses", json=body, headers={"accept": "text/event-stream"})
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/json"


ROUTES: list[tuple[str, str, Row]] = [
    ("GET", f"/v1/responses/{UNKNOWN}", Row(404, None, None, MISSING)),
    ("GET", f"/v1/responses/{UNKNOWN}?stream=true", Row(404, None, None, MISSING)),
    ("DELETE", f"/v1/responses/{UNKNOWN}", Row(404, None, None, MISSING)),
    ("POST", f"/v1/responses/{UNKNOWN}/cancel", Row(404, None, None, MISSING)),
    ("GET", f"/v1/responses/{UNKNOWN}/input_items", Row(404, None, None, MISSING)),
    (
        "GET",
        "/v1/models/gpt-9",
        Row(
            404,
            "model_not_found",
            "model",
            "The requested model 'gpt-9' does not exist. GET /v1/models lists the models.",
        ),
    ),
    (
        "GET",
        "/v1/nothing",
        Row(
            404,
            None,
            None,
            "Invalid URL (GET /v1/nothing): it is not served here. Served are /v1/responses, "
            "/v1/responses/input_tokens, /v1/responses/compact, /v1/conversations, "
            "/v1/containers, /v1/files, /v1/chat/completions, /v1/completions, "
            "/v1/embeddings, /v1/rerank, /v1/codex/models, /v1/traces/ingest, /v1/key, /v1/models "
            "and what is below them; GET /openapi.json describes them.",
        ),
    ),
    (
        "PUT",
        "/v1/models",
        Row(
            405,
            "method_not_supported",
            None,
            "Not allowed: PUT /v1/models. Use one of the methods in the Allow header.",
        ),
    ),
]


@pytest.mark.requirement("delete.unknown")
@pytest.mark.requirement("cancel.unknown")
@pytest.mark.requirement("error.model-not-found")
@pytest.mark.parametrize(("method", "path", "row"), ROUTES)
async def test_what_is_not_there_is_answered_with_its_row(
    client: httpx2.AsyncClient, method: str, path: str, row: Row
) -> None:
    assert_row(await client.request(method, path), row)


@pytest.mark.slow
@pytest.mark.requirement("create.input.length")
async def test_a_text_beyond_the_bound_is_refused_with_its_length(
    client: httpx2.AsyncClient,
) -> None:
    length = 10 * 1024 * 1024 + 1
    row = Row(
        400,
        "string_above_max_length",
        "input",
        f"Invalid 'input': string too long. Expected a string with maximum length {length - 1}, "
        f"but got a string with length {length} instead.",
    )
    body = json.dumps({"model": MODEL, "input": "x" * length}).encode()
    assert_row(await client.post("/v1/responses", content=body), row)


async def test_a_body_of_too_many_bytes_is_413(client: httpx2.AsyncClient) -> None:
    row = Row(
        413,
        None,
        None,
        "The request body is larger than 16777216 bytes. Please send less input at once; earlier "
        "turns can be left out with `previous_response_id`.",
    )
    assert_row(await client.post("/v1/responses", content=b"x" * (16 * 1024 * 1024 + 1)), row)


@pytest.mark.requirement("error.unparsable")
@pytest.mark.parametrize("body", [b"{", b"", b'{"a": 1,}', b"\xff"])
async def test_unparsable_json_has_no_code(client: httpx2.AsyncClient, body: bytes) -> None:
    answer = await client.post("/v1/responses", content=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["code"], error["param"]) == (None, None)
    assert error["message"].startswith("We could not parse the JSON body of your request. ")
    assert error["message"].endswith(": send one JSON object, encoded as UTF-8.")


async def test_of_a_key_that_comes_twice_the_last_value_counts(client: httpx2.AsyncClient) -> None:
    body = f'{{"model": "nothing", "model": "{MODEL}", "input": 7, "input": "x"}}'.encode()
    answer = await client.post("/v1/responses", content=body)
    assert (answer.status_code, answer.json()["model"]) == (200, MODEL)


@pytest.mark.requirement("open-responses.request-is-json")
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_json_is_json_whatever_it_is_called(
    client: httpx2.AsyncClient, content_type: str
) -> None:
    body = json.dumps({"model": MODEL, "input": "x"}).encode()
    headers = {"content-type": content_type}
    answer = await client.post("/v1/responses", content=body, headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"max_output_tokens": 2**63},
        {"max_tool_calls": 2**63},
        {"reasoning": {"max_tokens": 2**63}},
        {"seed": -(2**63)},
        {"top_k": 2**31 - 1},
    ],
)
async def test_a_number_that_has_no_upper_bound_may_be_any(
    client: httpx2.AsyncClient, fields: dict[str, Any]
) -> None:
    response = await create(client, input="x", **fields)
    assert response["status"] == "completed"
    again = (await client.get(f"/v1/responses/{response['id']}")).json()
    assert again["max_output_tokens"] == fields.get("max_output_tokens")


async def test_what_a_message_repeats_of_the_request_is_short(client: httpx2.AsyncClient) -> None:
    long = "x" * 20_000
    for path in (f"/v1/models/{long}", f"/v1/responses/{long}", f"/v1/{long}"):
        answer = await client.get(path)
        assert answer.status_code == 404
        assert len(answer.content) < 600
