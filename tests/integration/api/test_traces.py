"""The Agents SDK's own exporter, pointed at the gateway; and what else may be sent there."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, function_tool
from agents.tracing.processors import BackendSpanExporter, BatchTraceProcessor
from agents.tracing.provider import DefaultTraceProvider
from openai import AsyncOpenAI

from gateway import ids
from gateway.store import traces
from tests.integration.api.bodies import MODEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.store.traces import StoredRecord
    from tests.fakes.gateway import RunningGateway

INGEST = "/v1/traces/ingest"
TRACE = {"object": "trace", "id": "trace_x", "workflow_name": "w"}


@function_tool
def get_weather(location: str) -> str:
    """Current weather of a place."""
    return f"17 degrees in {location}"


@pytest.fixture
async def processor(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BatchTraceProcessor]:
    """What exports this test's traces to the gateway."""
    exporter = BackendSpanExporter(api_key=gateway.key, endpoint=gateway.url + INGEST)
    processor = BatchTraceProcessor(exporter, schedule_delay=3600)
    provider = DefaultTraceProvider()
    provider.set_disabled(False)
    provider.set_processors([processor])
    monkeypatch.setattr("agents.tracing.setup.GLOBAL_TRACE_PROVIDER", provider)
    yield processor
    await asyncio.to_thread(processor.shutdown)
    exporter.close()  # type: ignore[no-untyped-call]


@pytest.fixture
async def agent(gateway: RunningGateway) -> AsyncIterator[Agent[None]]:
    async with AsyncOpenAI(api_key=gateway.key, base_url=f"{gateway.url}/v1") as client:
        model = OpenAIResponsesModel(MODEL, client)
        yield Agent("Helper", model=model, tools=[get_weather])


async def kept(gateway: RunningGateway, trace: str) -> list[StoredRecord]:
    """The records of a trace of the first tenant."""
    principal = await gateway.process.access.authenticate(gateway.key)
    database = gateway.process.foundation.database
    return await traces.read(database, principal.tenant_id, trace, rows_max=1000)


@pytest.mark.slow
@pytest.mark.client("openai-agents", "traces")
async def test_what_an_agent_did_is_kept_with_the_responses_it_had(
    gateway: RunningGateway,
    client: httpx2.AsyncClient,
    agent: Agent[None],
    processor: BatchTraceProcessor,
) -> None:
    name = "trace_" + ids.new_uuid().hex
    config = RunConfig(workflow_name="Weather", trace_id=name, trace_metadata={"seen": "yes"})
    result = await Runner.run(agent, "What is the weather in Paris?", run_config=config)
    await asyncio.to_thread(processor.force_flush)
    trace, *spans = await kept(gateway, name)
    assert json.loads(trace.json)["workflow_name"] == "Weather"
    assert {span.kind for span in spans} == {"span"}
    told = {span.response for span in spans if span.response is not None}
    assert {ids.response_id(uuid) for uuid in told} == {
        response.response_id for response in result.raw_responses
    }
    kinds = {json.loads(span.json)["span_data"]["type"] for span in spans}
    assert {"agent", "response", "function"} <= kinds


async def test_what_is_exported_again_is_kept_once(
    gateway: RunningGateway, client: httpx2.AsyncClient
) -> None:
    trace = {**TRACE, "id": "trace_" + ids.new_uuid().hex}
    for _ in range(2):
        answer = await client.post(INGEST, json={"data": [trace]})
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["x-request-id"].startswith("req_")
    assert len(await kept(gateway, trace["id"])) == 1


async def test_a_batch_is_kept_whole_or_not_at_all(
    gateway: RunningGateway, client: httpx2.AsyncClient
) -> None:
    trace = {**TRACE, "id": "trace_" + ids.new_uuid().hex}
    answer = await client.post(INGEST, json={"data": [trace, {"object": "metric", "id": "m"}]})
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "Invalid value: 'metric'. Supported values are: 'trace' and 'trace.span'.",
        "type": "invalid_request_error",
        "param": "data[1].object",
        "code": "invalid_value",
    }
    assert await kept(gateway, trace["id"]) == []


async def test_nothing_to_report_is_fine(client: httpx2.AsyncClient) -> None:
    assert (await client.post(INGEST, json={"data": []})).status_code == 204


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff"])
async def test_what_is_no_json_object_is_refused(client: httpx2.AsyncClient, body: bytes) -> None:
    answer = await client.post(INGEST, content=body)
    assert answer.status_code == 400
    assert "JSON" in answer.json()["error"]["message"]


async def test_traces_need_a_key_and_come_by_post(client: httpx2.AsyncClient) -> None:
    anybody = await client.post(INGEST, json={"data": []}, headers={"authorization": ""})
    assert anybody.status_code == 401
    got = await client.get(INGEST)
    assert (got.status_code, got.headers["allow"]) == (405, "POST")


async def test_the_text_of_an_agent_survives(
    gateway: RunningGateway, client: httpx2.AsyncClient
) -> None:
    name = "trace_" + ids.new_uuid().hex
    trace = {**TRACE, "id": name, "metadata": {"\0": "é\0\U0001f600"}}
    await client.post(INGEST, json={"data": [trace]})
    (record,) = await kept(gateway, name)
    assert json.loads(record.json) == trace
