"""The WebSocket cases of the Open Responses compliance suite in each dialect, and compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.conftest import BASE_PATHS
from tests.fakes.websocket import MODEL, Peer, connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from gateway.tenancy import Dialect
    from tests.conformance.checking import Document, Json
    from tests.fakes.gateway import RunningGateway

HISTORY: list[Json] = [
    {"type": "message", "role": "user", "content": "My bicycle is red."},
    {"type": "message", "role": "assistant", "content": "Noted: a red bicycle."},
    {"type": "message", "role": "user", "content": "And it has a bell."},
]


@pytest.fixture(params=["openai", "openresponses"])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    named: Dialect = request.param
    return named


@pytest.fixture
def url(gateway: RunningGateway, dialect: Dialect) -> str:
    return gateway.url + BASE_PATHS[dialect]


@pytest.fixture
async def peer(url: str, gateway: RunningGateway) -> AsyncIterator[Peer]:
    async with connected(url, gateway.key) as opened:
        yield opened


async def answered(peer: Peer, checker: Document, text: str, **fields: Any) -> Json:
    """A turn that is valid and ends well."""
    response = checker.stream(await peer.answer(text, **fields))
    checker.completed(response)
    return response


async def refused(peer: Peer, checker: Document, text: str = "x", **fields: Any) -> str:
    """The code of a turn that is refused."""
    frame = await peer.refusal(text, **fields)
    checker.websocket_error(frame)
    code: str = frame["error"]["code"]
    return code


@pytest.mark.requirement("accept.suites")
@pytest.mark.requirement("open-responses.phases")
@pytest.mark.requirement("open-responses.websocket-response")
async def test_a_response(peer: Peer, checker: Document) -> None:
    asked = [{"type": "message", "role": "user", "content": "Count to three."}]
    await peer.say(type="response.create", model=MODEL, input=asked)
    frames = await peer.hear_until(lambda frame: frame["type"] == "response.completed")
    checker.completed(checker.stream(frames))


@pytest.mark.requirement("open-responses.websocket-sequential-responses")
async def test_two_responses_one_after_the_other(peer: Peer, checker: Document) -> None:
    for word in ("one", "two"):
        response = await answered(peer, checker, f"Say only: {word}")
        assert word in response["output"][-1]["content"][0]["text"]


@pytest.mark.requirement("open-responses.websocket-continuation")
async def test_a_continuation_of_what_is_not_stored(peer: Peer, checker: Document) -> None:
    first = await answered(peer, checker, "The word is nickel. Say OK.")
    second = await answered(peer, checker, "Which word?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]


@pytest.mark.requirement("open-responses.websocket-reconnect")
async def test_another_connection_does_not_know_it_and_goes_on(
    url: str, gateway: RunningGateway, peer: Peer, checker: Document
) -> None:
    first = await answered(peer, checker, "The word is zinc. Say OK.")
    async with connected(url, gateway.key) as other:
        code = await refused(other, checker, previous_response_id=first["id"])
        assert code == "previous_response_not_found"
        await answered(other, checker, "Something else, then.")


@pytest.mark.requirement("traps.one-error-frame")
@pytest.mark.requirement("open-responses.websocket-previous-response-not-found")
async def test_an_unknown_response_is_not_found(peer: Peer, checker: Document) -> None:
    code = await refused(peer, checker, previous_response_id="resp_that_never_was")
    assert code == "previous_response_not_found"


@pytest.mark.requirement("open-responses.websocket-failed-continuation")
async def test_a_continuation_that_fails_forgets_what_it_continued(
    peer: Peer, checker: Document
) -> None:
    first = await answered(peer, checker, "The word is lead. Say OK.")
    orphan = {"type": "function_call_output", "call_id": "call_of_nobody", "output": "Nothing."}
    previous = {"previous_response_id": first["id"]}
    assert await refused(peer, checker, input=[orphan], **previous)
    assert await refused(peer, checker, **previous) == "previous_response_not_found"


@pytest.mark.requirement("open-responses.phases")
@pytest.mark.requirement("open-responses.compact-response")
async def test_a_conversation_is_compacted(client: httpx2.AsyncClient, checker: Document) -> None:
    body = {"model": MODEL, "input": HISTORY, "prompt_cache_key": "compaction-of-a-test"}
    answer = await client.post("/v1/responses/compact", json=body)
    assert answer.status_code == 200, answer.text
    compacted = answer.json()
    checker.compaction(compacted)
    assert "compaction" in {item["type"] for item in compacted["output"]}


@pytest.mark.requirement("open-responses.compact-missing-model")
async def test_a_compaction_needs_a_model(client: httpx2.AsyncClient, checker: Document) -> None:
    answer = await client.post("/v1/responses/compact", json={"input": HISTORY})
    assert answer.status_code == 400
    checker.error(answer.json())


@pytest.mark.requirement("open-responses.websocket-compact-new-chain")
async def test_a_chain_begins_with_what_was_compacted(
    client: httpx2.AsyncClient, peer: Peer, checker: Document
) -> None:
    parts = [
        {**one, "content": [{"type": kind, "text": one["content"]}]}
        for one, kind in zip(HISTORY, ("input_text", "output_text", "input_text"), strict=True)
    ]
    answer = await client.post("/v1/responses/compact", json={"model": MODEL, "input": parts})
    question = {"type": "message", "role": "user", "content": "Go on. Say only: compacted"}
    items = [*answer.json()["output"], question]
    await answered(peer, checker, "", input=items, tools=[])


@pytest.mark.requirement("open-responses.compaction-in-a-stream")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_compaction_that_is_asked_for_in_a_response(
    client: httpx2.AsyncClient, peer: Peer, checker: Document, stream: bool
) -> None:
    asked = [*HISTORY, {"type": "compaction_trigger"}]
    if stream:
        response = await answered(peer, checker, "", input=asked)
    else:
        answer = await client.post("/v1/responses", json={"model": MODEL, "input": asked})
        response = answer.json()
        checker.completed(response)
    assert [item["type"] for item in response["output"]] == ["compaction"]


async def test_a_turn_that_asks_for_nothing(peer: Peer, checker: Document) -> None:
    response = checker.stream(await peer.answer("Remember this.", generate=False))
    assert (response["status"], response["output"]) == ("completed", [])
    await answered(peer, checker, "Go on.", previous_response_id=response["id"])


@pytest.mark.requirement("open-responses.other-calls-are-functions")
async def test_a_call_of_another_kind_is_one_of_a_function_here_too(
    gateway: RunningGateway, checkers: dict[Dialect, Document]
) -> None:
    document = checkers["openresponses"]
    note = {"type": "custom", "name": "note", "description": "Keeps a text."}
    fields = {"tools": [note], "tool_choice": {"type": "custom", "name": "note"}}
    async with connected(gateway.url + BASE_PATHS["openresponses"], gateway.key) as peer:
        response = document.stream(await peer.answer("Keep it.", **fields))
        call = response["output"][-1]
        assert (call["type"], call["name"]) == ("function_call", "note")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "kept"}
        previous = {"previous_response_id": response["id"], "tools": [note]}
        await answered(peer, document, "", input=[output], **previous)
