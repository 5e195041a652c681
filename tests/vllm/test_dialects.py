"""What a real model says, held against the document of Open Responses, in each dialect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from gateway.api.dialects import BASE_PATH
from tests.conformance.checking import Checker, Document, read_specification
from tests.fakes.stream import DONE
from tests.fakes.websocket import connected
from tests.vllm.asking import DEFAULTS, WEATHER, WEATHER_ASKED, calls_of, result_of
from tests.vllm.conftest import TIMEOUT_S
from tests.vllm.controls import ALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.gateway import RunningGateway

pytestmark = pytest.mark.vllm

Json = dict[str, Any]

SEALED = "reasoning.encrypted_content"
TOLD: Json = {"include": ["message.output_text.logprobs", SEALED], "top_logprobs": 2}
SHAPES: dict[str, Json] = {
    "plain": {"input": "naïve 東京 🎉?", "include": [SEALED]},
    "told": {"input": "naïve 東京 🎉?", **TOLD},
    "cut": {"input": "a long story", "max_output_tokens": 16},
    **{name: control.fields for name, control in ALL.items()},
}
HISTORY = [
    {"type": "message", "role": "user", "content": "My bicycle is red."},
    {"type": "message", "role": "assistant", "content": "Noted: a red bicycle."},
]


@pytest.fixture(scope="session")
def documents() -> dict[str, Document]:
    """What checks each dialect, by its base path; skips where the document is not at hand."""
    specification = read_specification()
    return {"": Checker(specification), BASE_PATH: Document(specification)}


@pytest.fixture(params=["", BASE_PATH], ids=["openai", "openresponses"])
def base_path(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return path


@pytest.fixture
def document(documents: dict[str, Document], base_path: str) -> Document:
    return documents[base_path]


@pytest.fixture
async def speaker(gateway: RunningGateway, base_path: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that speaks the dialect."""
    async with httpx2.AsyncClient(
        base_url=gateway.url + base_path,
        headers=gateway.headers,
        timeout=TIMEOUT_S,
        trust_env=False,
    ) as opened:
        yield opened


def events_of(text: str) -> list[Json]:
    """The events of a whole stream, comments left out."""
    *frames, done, rest = text.split("\n\n")
    assert (done, rest) == (f"data: {DONE}", "")
    return [_event_of(frame) for frame in frames if not frame.startswith(":")]


def _event_of(frame: str) -> Json:
    name, data = frame.split("\n")
    event: Json = json.loads(data.removeprefix("data: "))
    assert name == f"event: {event['type']}"
    return event


def is_in_both(fields: Json) -> bool:
    """The document knows what OpenAI's dialect echoes: functions, and no schemas of answers."""
    tools = {tool["type"] for tool in fields.get("tools", ())}
    answer = fields.get("text", {"format": {"type": "text"}})["format"]["type"]
    return tools <= {"function"} and answer != "json_schema"


CASES = [(BASE_PATH, shape) for shape in SHAPES]
CASES += [("", shape) for shape, fields in SHAPES.items() if is_in_both(fields)]


@pytest.mark.parametrize(("base_path", "shape"), CASES)
async def test_every_event_and_body_is_in_the_document(
    speaker: httpx2.AsyncClient, document: Document, model: str, shape: str
) -> None:
    """Sampled: whatever comes of it, it is spelled as it should be."""
    body = {**DEFAULTS, **SHAPES[shape], "model": model, "temperature": 1}
    whole = await speaker.post("/v1/responses", json=body)
    assert whole.status_code == 200, whole.text
    document.response(whole.json())
    streamed = await speaker.post("/v1/responses", json={**body, "stream": True})
    response = document.stream(events_of(streamed.text))
    path = f"/v1/responses/{response['id']}"
    assert (await speaker.get(path)).json() == response
    listed = (await speaker.get(f"{path}/input_items?order=asc&limit=100")).json()
    document.items(listed["data"])


async def test_a_tool_loop_over_a_connection(
    gateway: RunningGateway, base_path: str, document: Document, model: str
) -> None:
    asked: Json = {"model": model, "tools": [WEATHER], **DEFAULTS}
    async with connected(gateway.url + base_path, gateway.key) as peer:
        first = document.stream(await peer.answer(WEATHER_ASKED, **asked))
        outputs = [result_of(call) for call in calls_of(first)]
        assert outputs
        previous = {"input": outputs, "previous_response_id": first["id"]}
        document.stream(await peer.answer(**previous, **asked))
        frame = await peer.refusal(previous_response_id="resp_that_never_was", **asked)
        document.websocket_error(frame)


async def test_a_compaction(speaker: httpx2.AsyncClient, document: Document, model: str) -> None:
    body = {"model": model, "input": HISTORY}
    answer = await speaker.post("/v1/responses/compact", json=body)
    if answer.status_code == 200:
        document.compaction(answer.json())
    else:  # a small model may write nothing
        assert answer.status_code == 502, answer.text
        document.error(answer.json())


async def test_a_refusal(speaker: httpx2.AsyncClient, document: Document, model: str) -> None:
    long = {"model": model, "input": "word " * 140_000}
    for body in (long, {"model": model, "input": "x", "temperature": 9}, {"input": "x"}):
        answer = await speaker.post("/v1/responses", json=body)
        assert answer.status_code == 400
        document.error(answer.json())
