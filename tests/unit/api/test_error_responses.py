from __future__ import annotations

import inspect
import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from gateway import errors
from gateway.api.error_responses import (
    ERROR_STATUSES,
    ErrorStatus,
    error_response,
    routing_error_response,
    status_of,
)
from tests.fakes.cases import each

if TYPE_CHECKING:
    from starlette.requests import Request

LONGEST_WAIT_S = 120
"""What asks for longer is not tried again by OpenAI's SDKs."""
SECRET = "postgresql://gateway:hunter2@db"


def _classes() -> list[type[errors.GatewayError]]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.GatewayError)
    ]


def _error(response: Response) -> dict[str, Any]:
    body = json.loads(bytes(response.body))
    assert list(body) == ["error"]
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


@each("kind", _classes())
def test_every_class_of_error_has_a_row_of_its_own(kind: type[errors.GatewayError]) -> None:
    assert kind in ERROR_STATUSES


@pytest.mark.requirement("error.no-409")
@pytest.mark.requirement("error.no-422")
@pytest.mark.requirement("retry.statuses")
def test_no_status_is_one_that_sdks_misread() -> None:
    assert {answer.status for answer in ERROR_STATUSES.values()} <= {
        *(400, 401, 403, 404, 413, 415, 424, 429),
        *(500, 502, 503),
    }


def test_the_nearest_base_class_answers_for_a_new_one() -> None:
    class Novel(errors.UpstreamUnavailable):
        pass

    assert status_of(Novel("x", upstream="a")) is ERROR_STATUSES[errors.UpstreamUnavailable]
    assert status_of(ZeroDivisionError()) is ERROR_STATUSES[BaseException]


@pytest.mark.requirement("retry.delay")
@each("answer", ERROR_STATUSES.values())
def test_what_may_be_tried_again_says_when_and_soon(answer: ErrorStatus) -> None:
    if answer.status in {429, 503}:
        assert answer.retry_after_s is not None
    if answer.retry_after_s is not None:
        assert 1 <= answer.retry_after_s <= LONGEST_WAIT_S
        assert answer.retry


INVALID = "invalid_request_error"
REQUESTS: list[tuple[errors.RequestError, int, dict[str, Any]]] = [
    (
        errors.InvalidRequest("m", code="invalid_type", param="input[0]"),
        400,
        {"message": "m", "type": INVALID, "param": "input[0]", "code": "invalid_type"},
    ),
    (
        errors.InvalidRequest("We could not parse the JSON body of your request."),
        400,
        {
            "message": "We could not parse the JSON body of your request.",
            "type": INVALID,
            "param": None,
            "code": None,
        },
    ),
    (
        errors.ContextLengthExceeded("too long"),
        400,
        {
            "message": "too long",
            "type": INVALID,
            "param": "input",
            "code": "context_length_exceeded",
        },
    ),
    (
        errors.PreviousResponseNotFound("resp_1"),
        400,
        {
            "message": "Previous response with id 'resp_1' not found. It was not stored, or has "
            "been deleted: send the conversation so far in 'input' instead.",
            "type": INVALID,
            "param": "previous_response_id",
            "code": "previous_response_not_found",
        },
    ),
    (
        errors.ModelNotFound("x"),
        404,
        {
            "message": "The requested model 'x' does not exist. GET /v1/models lists the models.",
            "type": INVALID,
            "param": "model",
            "code": "model_not_found",
        },
    ),
    (
        errors.ResourceNotFound("Response with id 'resp_1' not found."),
        404,
        {
            "message": "Response with id 'resp_1' not found.",
            "type": INVALID,
            "param": None,
            "code": None,
        },
    ),
    (
        errors.PayloadTooLarge("too large"),
        413,
        {"message": "too large", "type": INVALID, "param": None, "code": None},
    ),
    (
        errors.AuthenticationError("Incorrect API key provided.", code="invalid_api_key"),
        401,
        {
            "message": "Incorrect API key provided.",
            "type": INVALID,
            "param": None,
            "code": "invalid_api_key",
        },
    ),
    (
        errors.AuthenticationError("You didn't provide an API key."),
        401,
        {"message": "You didn't provide an API key.", "type": INVALID, "param": None, "code": None},
    ),
    (
        errors.TokenRefused("expired"),
        401,
        {"message": "expired", "type": INVALID, "param": None, "code": "invalid_token"},
    ),
    (
        errors.DataHeld(),
        400,
        {
            "message": "What this organization has stored is held, and nothing of it can be "
            "deleted until whoever runs this server releases it.",
            "type": INVALID,
            "param": None,
            "code": "data_held",
        },
    ),
    (
        errors.PermissionDenied("no", code="insufficient_permissions"),
        403,
        {"message": "no", "type": INVALID, "param": None, "code": "insufficient_permissions"},
    ),
    (
        errors.RateLimited("slow down"),
        429,
        {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"},
    ),
    (
        errors.RateLimited("no money", code="insufficient_quota"),
        429,
        {
            "message": "no money",
            "type": "insufficient_quota",
            "param": None,
            "code": "insufficient_quota",
        },
    ),
    (errors.RequestError("m"), 400, {"message": "m", "type": INVALID, "param": None, "code": None}),
]


@pytest.mark.requirement("error.forbidden")
@each(("error", "status", "envelope"), REQUESTS)
def test_the_caller_s_mistake_is_told_as_it_is(
    error: errors.RequestError, status: int, envelope: dict[str, Any]
) -> None:
    response = error_response(error)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert _error(response) == envelope


SERVERS: list[tuple[BaseException, int, str | None]] = [
    (errors.UpstreamUnavailable(SECRET, upstream="gpu-1"), 503, "server_is_overloaded"),
    (errors.NoUpstreamAvailable("gpt-oss-20b", SECRET), 503, "server_is_overloaded"),
    (errors.UpstreamRejected(SECRET, upstream="gpu-1"), 502, None),
    (errors.UpstreamFailed(SECRET, upstream="gpu-1"), 502, None),
    (errors.UpstreamError(SECRET, upstream="gpu-1"), 502, None),
    (errors.StoreUnavailable(SECRET), 503, None),
    (errors.StoreConflict(SECRET), 500, None),
    (errors.StoreError(SECRET), 500, None),
    (errors.ConfigError(SECRET, where="x", remedy=SECRET), 500, None),
    (errors.Draining(), 503, None),
    (errors.GatewayError(SECRET), 500, None),
    (RuntimeError(SECRET), 500, None),
    (RecursionError(SECRET), 500, None),
    (HTTPException(418, SECRET), 500, None),
]


@pytest.mark.requirement("error.server")
@each(("error", "status", "code"), SERVERS)
def test_the_server_s_trouble_is_told_without_its_inside(
    error: BaseException, status: int, code: str | None
) -> None:
    response = error_response(error)
    shown = _error(response)
    assert response.status_code == status
    assert (shown["type"], shown["code"], shown["param"]) == ("server_error", code, None)
    assert "hunter2" not in str(shown)
    assert "gpu-1" not in str(shown)
    assert shown["message"].endswith(".")


@pytest.mark.requirement("retry.should-retry")
@each(
    ("error", "headers"),
    [
        (errors.RateLimited("x"), {"retry-after": "1"}),
        (errors.RateLimited("x", code="insufficient_quota"), {"x-should-retry": "false"}),
        (errors.UpstreamUnavailable("x", upstream="a"), {"retry-after": "1"}),
        (errors.NoUpstreamAvailable("m", "x"), {"retry-after": "2"}),
        (errors.NoUpstreamAvailable("m", "x", retry_after_s=4.1), {"retry-after": "5"}),
        (errors.NoUpstreamAvailable("m", "x", retry_after_s=math.inf), {"retry-after": "120"}),
        (errors.RateLimited("x", retry_after_s=0.2), {"retry-after": "1"}),
        (errors.RateLimited("x", retry_after_s=7200), {"retry-after": "60"}),
        (errors.TooManyConnections(), {"retry-after": "1"}),
        (errors.StoreUnavailable("x"), {"retry-after": "2"}),
        (errors.StoreUnavailable("x", retry_after_s=0.8), {"retry-after": "1"}),
        (errors.UpstreamUnavailable("x", upstream="a", retry_after_s=9), {"retry-after": "9"}),
        (errors.UpstreamRejected("x", upstream="a"), {"x-should-retry": "false"}),
        (errors.AuthenticationError("x"), {"www-authenticate": "Bearer"}),
        (errors.PermissionDenied("x"), {"x-should-retry": "false"}),
        (errors.InvalidRequest("x"), {}),
        (errors.UpstreamFailed("x", upstream="a"), {}),
    ],
)
def test_headers_steer_what_sdks_do_next(
    error: errors.GatewayError, headers: dict[str, str]
) -> None:
    steering = {"retry-after", "x-should-retry", "www-authenticate"}
    response = error_response(error)
    assert {name: response.headers[name] for name in steering & {*response.headers}} == headers


def _refuse(_: object) -> Response:
    raise HTTPException(418, SECRET)


async def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return routing_error_response(request.scope, error)


@pytest.fixture
def client() -> TestClient:
    app = Starlette(
        routes=[
            Route("/v1/models", Response(), methods=["GET"]),
            Route("/v1/models/{model_id}/tunes", Response(), methods=["GET"]),
            Route("/teapot", _refuse),
        ],
        exception_handlers={HTTPException: _routing_error},
    )
    app.router.redirect_slashes = False
    return TestClient(app)


@pytest.mark.requirement("error.no-framework-shapes")
def test_an_unknown_url_is_answered_with_an_envelope(client: TestClient) -> None:
    response = client.post("/v1/nothing")
    assert response.status_code == 404
    assert response.json() == {
        "error": {
            "message": "Invalid URL (POST /v1/nothing): it is not served here. Served are "
            "/v1/models and what is below them; GET /openapi.json describes them.",
            "type": INVALID,
            "param": None,
            "code": None,
        }
    }


@pytest.mark.requirement("error.unknown-urls")
@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/v1/moderations", "(GET /v1/moderations): it is not served here. Served are /v1/models"),
        ("/v1/model", "(GET /v1/model). Did you mean /v1/models?"),
        ("/v1/modles", "Did you mean /v1/models?"),
        (f"/v1/models/{'0' * 40}/tune", "Did you mean /v1/models/{model_id}/tunes?"),
        (f"/v1/models/{'0' * 40}/delete", "it is not served here"),
        (f"/v1/model{'s' * 300}", "it is not served here"),
        ("/v1/models/", "Leave out the slash at its end."),
        ("/v1/v1/models", "It has /v1 twice: the client adds it to a base URL that ends in it"),
        ("/v1/v1", "It has /v1 twice"),
        ("/models", "It lacks /v1: the base URL that clients are given ends in it."),
        ("/v1/v10/models", "it is not served here"),
        ("/", "it is not served here"),
    ],
)
def test_an_unknown_url_is_answered_with_what_was_meant(
    client: TestClient, path: str, hint: str
) -> None:
    response = client.get(path, follow_redirects=False)
    assert response.status_code == 404
    assert hint in response.json()["error"]["message"]


def test_a_wrong_method_is_answered_with_an_envelope_and_the_right_ones(client: TestClient) -> None:
    response = client.delete("/v1/models")
    assert response.status_code == 405
    assert "GET" in response.headers["allow"]
    assert response.json() == {
        "error": {
            "message": "Not allowed: DELETE /v1/models. Use one of the methods in the Allow "
            "header.",
            "type": INVALID,
            "param": None,
            "code": "method_not_supported",
        }
    }


def test_any_other_http_exception_is_a_server_error(client: TestClient) -> None:
    response = client.get("/teapot")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "hunter2" not in response.text
