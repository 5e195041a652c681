from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from tests.fakes.chat_streams import chunks_of
from tests.fakes.stream import parse_stream
from tests.integration.api.bodies import MODEL

if TYPE_CHECKING:
    import httpx2


HELLO = {"type": "message", "role": "user", "content": "Hello"}


async def document(client: httpx2.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/openapi.json", headers={"authorization": ""})
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def validator(made: dict[str, Any], name: str) -> jsonschema.Draft202012Validator:
    """Of one schema of the document."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": made["components"]}
    return jsonschema.Draft202012Validator(schema)


async def test_the_document_is_there_without_a_key(client: httpx2.AsyncClient) -> None:
    made = await document(client)
    assert made["openapi"].startswith("3.1")
    assert "/v1/responses" in made["paths"]


async def test_the_page_is_there_without_a_key_and_may_load_nothing(
    client: httpx2.AsyncClient,
) -> None:
    answer = await client.get("/docs", headers={"authorization": ""})
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "createResponse" in answer.text


@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_who_has_it_already_is_told_so(client: httpx2.AsyncClient, path: str) -> None:
    first = await client.get(path)
    tag = first.headers["etag"]
    for held in (tag, f"W/{tag}", f'"another", {tag}'):
        again = await client.get(path, headers={"if-none-match": held})
        assert (again.status_code, again.content) == (304, b"")


async def test_what_is_answered_is_as_documented(client: httpx2.AsyncClient) -> None:
    made = await document(client)
    asked = {"model": MODEL, "input": "[[sim think=3 say=ok]] go"}
    answer = await client.post("/v1/responses", json=asked)
    validator(made, "Response").validate(answer.json())
    listed = await client.get(f"/v1/responses/{answer.json()['id']}/input_items")
    validator(made, "ResponseItemList").validate(listed.json())
    refused = await client.post("/v1/responses", json={})
    validator(made, "Error").validate(refused.json())
    models = await client.get("/v1/models")
    validator(made, "ModelList").validate(models.json())


async def test_events_are_as_documented(client: httpx2.AsyncClient) -> None:
    made = await document(client)
    asked = {"model": MODEL, "input": "[[sim think=3 say=ok]] go", "stream": True}
    answer = await client.post("/v1/responses", json=asked)
    check = validator(made, "ResponseStreamEvent")
    for event in parse_stream(answer.text):
        check.validate(event)


@pytest.mark.parametrize(
    ("path", "asked", "name"),
    [
        ("/v1/chat/completions", {"messages": [HELLO]}, "ChatCompletion"),
        ("/v1/completions", {"prompt": "Hello"}, "Completion"),
        ("/v1/responses/input_tokens", {"input": "Hello"}, "InputTokens"),
        ("/v1/responses/compact", {"input": "Hello"}, "CompactedResponse"),
        ("/v1/conversations", {"items": [HELLO]}, "Conversation"),
    ],
)
async def test_other_answers_are_as_documented(
    client: httpx2.AsyncClient, path: str, asked: dict[str, Any], name: str
) -> None:
    made = await document(client)
    body = asked if name == "Conversation" else {"model": MODEL, **asked}
    answer = await client.post(path, json=body)
    assert answer.status_code == 200
    validator(made, name).validate(answer.json())


@pytest.mark.parametrize(
    ("path", "asked", "name"),
    [
        ("/v1/chat/completions", {"messages": [HELLO]}, "ChatCompletionChunk"),
        ("/v1/completions", {"prompt": "Hello"}, "Completion"),
    ],
)
async def test_chunks_are_as_documented(
    client: httpx2.AsyncClient, path: str, asked: dict[str, Any], name: str
) -> None:
    made = await document(client)
    answer = await client.post(path, json={"model": MODEL, "stream": True, **asked})
    check = validator(made, name)
    for chunk in chunks_of(answer.text):
        check.validate(chunk)


async def test_a_page_without_items_is_as_documented(client: httpx2.AsyncClient) -> None:
    made = await document(client)
    conversation = (await client.post("/v1/conversations", json={})).json()
    listed = await client.get(f"/v1/conversations/{conversation['id']}/items")
    assert listed.json()["data"] == []
    validator(made, "ConversationItemList").validate(listed.json())


async def test_what_needs_no_key_is_under_one_base_path_only(client: httpx2.AsyncClient) -> None:
    made = await document(client)
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            if operation.get("security") == []:
                (server,) = operation["servers"]
                answer = await client.request(method, path)
                assert answer.status_code == (200 if method == "get" else 400), path
                assert server["url"] == "/"
                elsewhere = await client.request(method, f"/openresponses{path}")
                assert elsewhere.status_code == 404
