"""The outermost frame: what escapes an application becomes an envelope, or a line of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from gateway import ids
from gateway.api.client_connection import ClientDisconnected
from gateway.api.request_context import RequestContext
from gateway.errors import StoreUnavailable
from gateway.telemetry.metrics import Metrics
from gateway.tenancy import Principal, TenantId
from gateway.tenancy.policy import ZERO_RETENTION
from tests.fakes.logs import captured_logs

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SIGNED = {"x-request-id", "openai-version", "openai-processing-ms"}


def client_of(app: ASGIApp) -> TestClient:
    return TestClient(RequestContext(app, Metrics()))


def raising(error: Exception, *, started: bool = False) -> ASGIApp:
    """An application that fails, at once or in the middle of its answer."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise error

    return app


@pytest.mark.requirement("error.server")
def test_a_bug_is_told_as_one_and_logged_under_its_id() -> None:
    with captured_logs() as logged:
        answer = client_of(raising(RuntimeError("secret"))).get("/v1/models")
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text
    assert {*answer.headers} >= SIGNED
    unexpected, request = logged
    assert (unexpected["event"], unexpected["level"]) == ("unexpected error", "error")
    assert (request["event"], request["status"]) == ("request", 500)


def test_what_was_foreseen_is_no_error_of_ours() -> None:
    with captured_logs() as logged:
        answer = client_of(raising(StoreUnavailable("secret"))).get("/v1/models")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert [line["event"] for line in logged] == ["request"]


def test_an_answer_that_has_begun_is_not_begun_again() -> None:
    with captured_logs() as logged:
        client_of(raising(RuntimeError("x"), started=True)).get("/v1/models")
    assert [(line["event"], line.get("status")) for line in logged] == [
        ("unexpected error", None),
        ("request", 200),
    ]


@pytest.mark.requirement("error.client-gone")
def test_nobody_is_answered_who_has_gone() -> None:
    with captured_logs() as logged, pytest.raises(AssertionError):
        client_of(raising(ClientDisconnected())).get("/v1/models")
    (request,) = logged
    assert (request["status"], request["reason"]) == (499, "the client left")


def test_whose_key_it_is_stands_in_the_answer_and_in_the_log() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["principal"] = Principal(TenantId(ids.new_uuid()), "acme", ids.new_uuid())
        await PlainTextResponse("hello")(scope, receive, send)

    headers = {"OpenAI-Organization": "another", "X-Client-Request-Id": "mine"}
    with captured_logs() as logged:
        answer = client_of(app).get("/v1/models", headers=headers)
    assert answer.headers["openai-organization"] == "acme"
    assert (logged[0]["tenant"], logged[0]["client_request_id"]) == ("acme", "mine")


def test_probes_are_not_counted_as_requests_of_the_api() -> None:
    metrics = Metrics()
    client = TestClient(RequestContext(PlainTextResponse("no", 503), metrics))
    with captured_logs() as logged:
        for path in ("/readyz", "/healthz", "/metrics", "/version", "/v1/models"):
            client.get(path)
    assert [line["path"] for line in logged if line["level"] == "info"] == ["/v1/models"]
    exposed = metrics.exposition().decode()
    assert 'gateway_requests_total{model="",status="503"} 1.0' in exposed
    assert "gateway_requests_in_flight 0.0" in exposed


async def keeping_nothing(scope: Scope, _receive: Receive, _send: Send) -> None:
    tenant = TenantId(ids.new_uuid())
    scope["principal"] = Principal(tenant, "acme", ids.new_uuid(), retention_type=ZERO_RETENTION)
    raise RuntimeError("x")


def test_a_bug_quotes_nobody_of_whom_nothing_is_kept() -> None:
    with captured_logs() as logged:
        client_of(keeping_nothing).get("/v1/responses/words")
    assert [line["event"] for line in logged] == ["unexpected error", "request"]
    assert "words" not in str([line["path"] for line in logged])


def test_of_a_path_the_words_of_routes_and_our_ids_are_logged() -> None:
    routes = [Route(f"/v1/{path}", keeping_nothing) for path in ("codex/models", "responses/{id}")]
    client = TestClient(RequestContext(keeping_nothing, Metrics(), routes))
    response_id = ids.response_id(ids.new_uuid())
    with captured_logs() as logged:
        for path in ("codex/models", "responses/words", f"responses/{response_id}"):
            client.get(f"/v1/{path}")
    assert [line["path"] for line in logged if line["event"] == "request"] == [
        *("/v1/codex/models", "/v1/responses/…", f"/v1/responses/{response_id}")
    ]
