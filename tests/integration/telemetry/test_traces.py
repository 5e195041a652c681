"""Spans at a collector: of a response with a tool and a hop, of background work, of a takeover."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest

from tests.fakes.collector import Collector, behind_a_real_one
from tests.fakes.gateway import gateway_settings, new_key
from tests.fakes.http_client import NO_TLS
from tests.fakes.mcp_server import serving
from tests.fakes.processes import gateway_process, reserved_port, simulator_process

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.fakes.collector import Span
    from tests.fakes.postgres import PostgresServer
    from tests.fakes.processes import GatewayProcess, SimulatorProcess

pytestmark = pytest.mark.slow

MODEL: Final = "gpt-oss-20b"
PROXY: Final = "127.0.0.2"
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
PARENT: Final = "b7ad6b7169203331"
LONG: Final = " ".join(map(str, range(46)))
"""91 ids, of which one backend sends 80 before it breaks off. What a cut loses of them is too few
for a second one to break off, too.
"""
SECRET: Final = "xylophone"
"""What the user says, which no span may hold."""
BRIEF: Final = {"lease_s": 1.0}
TOOLS: Final = {"mcp": {"enabled": True, "url_networks": ["127.0.0.0/8"], "url_plain_http": True}}


@pytest.fixture(scope="module")
def spans_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with behind_a_real_one(tmp_path_factory.mktemp("collector")) as running:
        yield running


@pytest.fixture(scope="module")
async def own_database_url(postgres: PostgresServer, template: str) -> AsyncIterator[str]:
    name = await postgres.create(template)
    yield postgres.database_url(name)
    await postgres.drop(name)


@pytest.fixture(scope="module")
async def key(own_database_url: str) -> str:
    return await new_key(gateway_settings(own_database_url, []), "acme")


@pytest.fixture(scope="module")
def backends() -> Iterator[list[SimulatorProcess]]:
    with ExitStack() as stack:
        ports = [stack.enter_context(reserved_port()) for _ in range(2)]
        yield [stack.enter_context(simulator_process(port)) for port in ports]


def _traced(ratio: float) -> dict[str, Any]:
    return {
        "telemetry": {"traces": True, "trace_share": ratio},
        "server": {"trusted_proxies": [PROXY], "drain_grace_s": 1},
        "tools": TOOLS,
        "background": BRIEF,
        "log": {"format": "json"},
    }


@pytest.fixture(scope="module")
def gateway(
    own_database_url: str,
    backends: list[SimulatorProcess],
    spans_at: Collector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayProcess]:
    """It records everything."""
    with gateway_process(
        tmp_path_factory.mktemp("traced"),
        own_database_url,
        [one.url for one in backends],
        environment=spans_at.environment,
        **_traced(1.0),
    ) as running:
        assert running.url
        yield running


def _post(
    gateway: GatewayProcess, key: str, body: dict[str, Any], *, via: str = "", **headers: str
) -> httpx2.Response:
    transport = httpx2.HTTPTransport(local_address=via or None, verify=NO_TLS)
    with httpx2.Client(transport=transport, timeout=60, trust_env=False) as client:
        answer = client.post(
            f"{gateway.base_url}/responses",
            json={"model": MODEL, **body},
            headers={"authorization": f"Bearer {key}", **headers},
        )
    assert answer.status_code == 200, answer.text
    return answer


def _request_span(spans: list[Span], request_id: str) -> Span | None:
    found = (one for one in spans if one["attributes"].get("harmony.request_id") == request_id)
    return next(found, None)


def _of_request(at: Collector, answer: httpx2.Response) -> tuple[Span, list[Span]]:
    """The span of a request, which ends last, and those of its trace."""
    request_id = answer.headers["x-request-id"]
    spans = at.until(lambda spans: _request_span(spans, request_id), request_id)
    root = _request_span(spans, request_id)
    assert root is not None
    return root, [one for one in spans if one["trace_id"] == root["trace_id"]]


def _named(spans: list[Span], name: str) -> list[Span]:
    return [one for one in spans if one["name"] == name]


def _log_lines(gateway: GatewayProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gateway.child.output.splitlines()]


def test_a_stream_with_a_tool_and_a_hop_is_one_trace(
    gateway: GatewayProcess, key: str, spans_at: Collector, backends: list[SimulatorProcess]
) -> None:
    with serving() as server:
        tool = {
            "type": "mcp",
            "server_label": "shop",
            "server_url": server.url,
            "require_approval": "never",
        }
        answer = _post(
            gateway,
            key,
            {
                "input": f"{SECRET} [[sim think=none die_after=80]] "
                f"[[sim steps=mcp shop.meta {{}}; mcp shop.headers {{}}; say {LONG}]]",
                "tools": [tool],
                "stream": True,
                "temperature": 0.5,
            },
            via=PROXY,
            traceparent=f"00-{TRACE}-{PARENT}-01",
            tracestate="vendor=one",
        )
    root, spans = _of_request(spans_at, answer)
    assert (root["name"], root["kind"]) == ("POST /v1/responses", "SERVER")
    assert (root["trace_id"], root["parent"]) == (TRACE, PARENT), "its proxy is trusted"
    assert not root["links"]
    below = [one for one in spans if one is not root]
    assert {one["parent"] for one in below} == {root["span_id"]}

    attempts = _named(spans, f"chat {MODEL}")
    assert [one["kind"] for one in attempts] == ["CLIENT"] * 4
    *others, lost, last = attempts
    assert lost["status"] == "STATUS_CODE_ERROR"
    assert lost["attributes"]["error.type"] == "UpstreamFailed"
    assert {one["status"] for one in (*others, last)} == {"STATUS_CODE_UNSET"}
    ports = {one["attributes"]["server.port"] for one in attempts}
    assert ports <= {one.port for one in backends}
    assert lost["attributes"]["server.port"] != last["attributes"]["server.port"]
    assert last["attributes"]["gen_ai.response.finish_reasons"] == ["stop"]
    assert last["attributes"]["gen_ai.usage.output_tokens"] > 0
    assert last["attributes"]["gen_ai.response.time_to_first_chunk"] > 0
    told = {row["traceparent"] for one in backends for row in one.requests()}
    assert told >= {f"00-{TRACE}-{one['span_id']}-01" for one in attempts}

    (meta,), (headers,) = (
        _named(spans, f"execute_tool shop.{name}") for name in ("meta", "headers")
    )
    assert (meta["kind"], headers["kind"]) == ("CLIENT", "CLIENT")
    assert headers["attributes"]["gen_ai.operation.name"] == "execute_tool"
    assert headers["attributes"]["harmony.outcome"] == "ok"
    results = [
        json.loads(item["output"])
        for item in _final(answer)["output"]
        if item["type"] == "mcp_call"
    ]
    assert results[0]["traceparent"] == f"00-{TRACE}-{meta['span_id']}-01"
    assert results[1]["traceparent"] == f"00-{TRACE}-{headers['span_id']}-01"
    assert not results[1].get("tracestate"), "a tenant's server learns nothing of our proxies"

    _check_response(root["attributes"], _final(answer))
    for said in (SECRET, LONG[:20], "user-agent"):
        assert all(said not in one["text"] for one in spans), "no content"
    assert not any(one["events"] for one in spans)
    assert root["resource"]["service.name"] == "harmony-gateway"


def _final(answer: httpx2.Response) -> dict[str, Any]:
    *_, line, _ = (one for one in answer.text.splitlines() if one.startswith("data: "))
    final: dict[str, Any] = json.loads(line.removeprefix("data: "))["response"]
    return final


def _check_response(attributes: dict[str, Any], final: dict[str, Any]) -> None:
    usage = final["usage"]
    expected = {
        "http.response.status_code": 200,
        "http.route": "/v1/responses",
        "openai.api.type": "responses",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "harmony",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.id": final["id"],
        "gen_ai.response.finish_reasons": ["completed"],
        "gen_ai.usage.input_tokens": usage["input_tokens"],
        "gen_ai.usage.output_tokens": usage["output_tokens"],
        "harmony.hops": 1,
        "harmony.tier": "default",
        "harmony.tenant": "acme",
    }
    assert {name: attributes.get(name) for name in expected} == expected
    assert attributes["harmony.recomputed_tokens"] > 0
    assert "error.type" not in attributes


def test_log_lines_name_the_span_that_they_are_of(
    gateway: GatewayProcess, key: str, spans_at: Collector
) -> None:
    root, _ = _of_request(spans_at, _post(gateway, key, {"input": "hi"}))
    lines = [one for one in _log_lines(gateway) if one.get("trace_id") == root["trace_id"]]
    assert {"request", "response ended"} <= {one["event"] for one in lines}
    assert {one["span_id"] for one in lines} == {root["span_id"]}


def test_a_client_that_nobody_trusts_decides_nothing(
    gateway: GatewayProcess, key: str, spans_at: Collector
) -> None:
    """It must neither have its requests recorded, nor keep them from being recorded."""
    for flags in ("01", "00"):
        answer = _post(gateway, key, {"input": "hi"}, traceparent=f"00-{TRACE}-{PARENT}-{flags}")
        root, _ = _of_request(spans_at, answer)
        assert (root["parent"], root["links"]) == ("", [TRACE + PARENT])
        assert root["trace_id"] != TRACE


def test_a_trusted_proxy_keeps_a_request_from_being_recorded(
    gateway: GatewayProcess, key: str, spans_at: Collector, backends: list[SimulatorProcess]
) -> None:
    trace = "1" * 32
    unrecorded = _post(
        gateway, key, {"input": "hi"}, via=PROXY, traceparent=f"00-{trace}-{PARENT}-00"
    )
    _of_request(spans_at, _post(gateway, key, {"input": "hi"}))
    assert _request_span(spans_at.spans(), unrecorded.headers["x-request-id"]) is None
    told = [row["traceparent"] or "" for one in backends for row in one.requests()]
    ours = [one for one in told if trace in one]
    assert [one[-2:] for one in ours] == ["00"], "backends are told so"


def test_a_refused_request_has_a_span(gateway: GatewayProcess, spans_at: Collector) -> None:
    with httpx2.Client(verify=NO_TLS, trust_env=False) as client:
        answer = client.get(f"{gateway.base_url}/models/{SECRET}")
    root, _ = _of_request(spans_at, answer)
    assert root["name"] == "GET"
    assert root["attributes"]["http.response.status_code"] == 401
    assert SECRET not in root["text"]


def test_background_work_has_a_trace_of_its_own_with_a_link(
    gateway: GatewayProcess, key: str, spans_at: Collector
) -> None:
    answer = _post(gateway, key, {"input": "hi", "background": True})
    root, spans = _of_request(spans_at, answer)
    assert [one["name"] for one in spans] == ["POST /v1/responses"]
    run = _run_of(spans_at, answer.json()["id"], "background")
    assert (run["kind"], run["parent"]) == ("CONSUMER", "")
    assert run["links"] == [root["trace_id"] + root["span_id"]]
    assert run["attributes"]["gen_ai.response.finish_reasons"] == ["completed"]
    (attempt,) = _named(spans_at.spans(), f"chat {MODEL}")[-1:]
    assert (attempt["trace_id"], attempt["parent"]) == (run["trace_id"], run["span_id"])


def _run_of(at: Collector, response_id: str, name: str) -> Span:
    def runs(spans: list[Span]) -> list[Span]:
        return [
            one
            for one in _named(spans, name)
            if one["attributes"].get("gen_ai.response.id") == response_id
        ]

    (run,) = runs(at.until(runs, f"{name} of {response_id}"))
    return run


def test_a_takeover_is_linked_to_the_trace_that_began_the_response(
    gateway: GatewayProcess,
    own_database_url: str,
    key: str,
    spans_at: Collector,
    backends: list[SimulatorProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        gateway_process(
            tmp_path_factory.mktemp("first"),
            own_database_url,
            [one.url for one in backends],
            environment=spans_at.environment,
            **_traced(1.0),
        ) as first,
        httpx2.Client(verify=NO_TLS, trust_env=False, timeout=60) as client,
        client.stream(
            "POST",
            f"{first.base_url}/responses",
            json={"model": MODEL, "input": "[[sim tokens=200 tokens_per_s=50]]", "stream": True},
            headers={
                "authorization": f"Bearer {key}",
                "idempotency-key": "taken-over",
                "traceparent": f"00-{TRACE}-{PARENT}-01",
            },
        ) as answer,
    ):
        begun = next(line for line in answer.iter_lines() if "output_text.delta" in line)
        assert begun
        request_id = answer.headers["x-request-id"]
        first.child.kill()
    spans = spans_at.until(
        lambda spans: _named(spans, "takeover"), f"a takeover of what {request_id} began"
    )
    (taken,) = _named(spans, "takeover")
    assert (taken["kind"], taken["parent"]) == ("CONSUMER", "")
    assert len(taken["links"]) == 1
    assert TRACE not in taken["links"][0], "it is the request's, and not that of its client"
    assert taken["attributes"]["gen_ai.response.finish_reasons"] == ["completed"]
    told = [row["traceparent"] or "" for one in backends for row in one.requests()]
    assert [one for one in told if taken["links"][0][:32] in one], "backends were told of it"


def test_each_request_over_a_websocket_has_a_trace(
    gateway: GatewayProcess, key: str, spans_at: Collector
) -> None:
    from websockets.sync.client import connect

    url = f"{gateway.base_url.replace('http', 'ws', 1)}/responses"
    said: list[dict[str, Any]] = []
    with connect(url, additional_headers={"authorization": f"Bearer {key}"}, proxy=None) as socket:
        for _ in range(2):
            socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "hi"}))
            while (event := json.loads(socket.recv()))["type"] != "response.completed":
                assert event["type"] != "error", event
            said.append(event["response"])

    def turns(spans: list[Span]) -> list[Span]:
        return [
            one
            for response in said
            for one in _named(spans, "WEBSOCKET /v1/responses")
            if one["attributes"].get("gen_ai.response.id") == response["id"]
        ]

    first, second = turns(spans_at.until(lambda spans: len(turns(spans)) == 2, "both turns"))
    assert first["trace_id"] != second["trace_id"]
    assert first["links"] == second["links"] != []
    assert (first["kind"], first["attributes"]["openai.api.type"]) == ("SERVER", "responses")


def test_chat_completions_have_the_same_spans(
    gateway: GatewayProcess, key: str, spans_at: Collector
) -> None:
    with httpx2.Client(verify=NO_TLS, trust_env=False, timeout=60) as client:
        answer = client.post(
            f"{gateway.base_url}/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
            headers={"authorization": f"Bearer {key}"},
        )
    assert answer.status_code == 200, answer.text
    root, spans = _of_request(spans_at, answer)
    assert root["name"] == "POST /v1/chat/completions"
    assert root["attributes"]["openai.api.type"] == "chat_completions"
    assert root["attributes"]["gen_ai.usage.output_tokens"] > 0
    assert [one["kind"] for one in _named(spans, f"chat {MODEL}")] == ["CLIENT"]


def test_exemplars_are_shown_to_who_asks_for_openmetrics(
    gateway: GatewayProcess, key: str, spans_at: Collector
) -> None:
    root, _ = _of_request(spans_at, _post(gateway, key, {"input": "hi"}))
    with httpx2.Client(verify=NO_TLS, trust_env=False) as client:
        plain = client.get(f"{gateway.url}/metrics")
        openmetrics = client.get(
            f"{gateway.url}/metrics", headers={"accept": "application/openmetrics-text"}
        )
    assert plain.headers["content-type"].startswith("text/plain")
    assert "trace_id" not in plain.text
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.text.endswith("# EOF\n")
    shown = [line for line in openmetrics.text.splitlines() if root["trace_id"] in line]
    names = {line.partition("{")[0].removesuffix("_bucket") for line in shown}
    assert names == {
        "gen_ai_server_request_duration_seconds",
        "gen_ai_server_time_to_first_token_seconds",
    }
