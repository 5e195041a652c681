"""`/v1/conversations`: made, read, changed and erased by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

from gateway.protocol.conversation_bodies import unknown_conversation
from tests.integration.api.bodies import create

if TYPE_CHECKING:
    import httpx2

    from tests.fakes.gateway import RunningGateway

Json = dict[str, Any]
HELLO: Json = {"type": "message", "role": "user", "content": "Hello"}
UNKNOWN = "conv_" + "0" * 32


async def post(client: httpx2.AsyncClient, path: str, body: Any, status: int = 200) -> Json:
    answer = await client.post(f"/v1/conversations{path}", json=body)
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    error: Json = found.get("error", found)
    return error


async def get(client: httpx2.AsyncClient, path: str, status: int = 200, **params: Any) -> Json:
    answer = await client.get(f"/v1/conversations{path}", params=params)
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    error: Json = found.get("error", found)
    return error


async def items_of(client: httpx2.AsyncClient, conversation: Json) -> list[Json]:
    page = await get(client, f"/{conversation['id']}/items", order="asc", limit=100)
    listed: list[Json] = page["data"]
    return listed


def message(text: str) -> Json:
    return {"role": "user", "content": text}


def text_of(item: Json) -> str:
    return str(item["content"][0]["text"])


@pytest.mark.requirement("conversations.create")
@pytest.mark.requirement("conversations.retrieve")
@pytest.mark.requirement("conversations.update")
@pytest.mark.requirement("conversations.delete")
async def test_a_conversation_is_made_read_changed_and_deleted(client: httpx2.AsyncClient) -> None:
    made = await post(client, "", {"metadata": {"topic": "demo"}})
    assert made["id"].startswith("conv_")
    assert isinstance(made["created_at"], int)
    assert {**made, "id": 0, "created_at": 0} == {
        "id": 0,
        "object": "conversation",
        "created_at": 0,
        "metadata": {"topic": "demo"},
    }
    path = f"/{made['id']}"
    assert await get(client, path) == made
    changed = await post(client, path, {"metadata": {"other": "one"}})
    assert changed == {**made, "metadata": {"other": "one"}}
    assert (await post(client, path, {"metadata": None}))["metadata"] == {}
    answer = await client.delete(f"/v1/conversations{path}")
    gone = {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    assert answer.json() == gone
    await get(client, path, 404)


@pytest.mark.requirement("conversations.create")
@pytest.mark.parametrize("content", [b"", b"{}", b'{"items": null, "metadata": null}'])
async def test_an_empty_conversation_needs_no_body(
    client: httpx2.AsyncClient, content: bytes
) -> None:
    answer = await client.post("/v1/conversations", content=content)
    assert answer.json()["metadata"] == {}
    listed = await get(client, f"/{answer.json()['id']}/items")
    assert listed == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.requirement("conversations.items.create")
@pytest.mark.requirement("conversations.items.retrieve")
@pytest.mark.requirement("conversations.items.delete")
async def test_items_are_added_read_and_deleted(client: httpx2.AsyncClient) -> None:
    made = await post(client, "", {"items": [message("one")]})
    path = f"/{made['id']}/items"
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    new = [{**message("two"), "id": "msg_mine"}, call]
    added = await post(client, f"{path}?include[]=reasoning.encrypted_content", {"items": new})
    two, three = added["data"]
    assert (two["id"], two["status"], text_of(two)) == ("msg_mine", "completed", "two")
    assert three["id"].startswith("fc_")
    whole = {"first_id": two["id"], "last_id": three["id"], "has_more": False}
    assert added == {"object": "list", "data": [two, three], **whole}
    assert (await items_of(client, made))[1:] == [two, three]
    assert await get(client, f"{path}/{three['id']}") == three
    answer = await client.delete(f"/v1/conversations{path}/msg_mine")
    assert answer.json() == made
    assert [item["id"] for item in await items_of(client, made)][1:] == [three["id"]]
    error = await get(client, f"{path}/msg_mine", 404)
    assert made["id"] in error["message"]


async def test_an_id_that_is_taken_is_replaced(client: httpx2.AsyncClient) -> None:
    new = {**HELLO, "id": "msg_same"}
    made = await post(client, "", {"items": [new, new]})
    await post(client, f"/{made['id']}/items", {"items": [new]})
    found = [item["id"] for item in await items_of(client, made)]
    assert found[0] == "msg_same"
    assert len(set(found)) == 3
    assert all(each.startswith("msg_") for each in found)


@pytest.mark.requirement("conversations.items.list")
async def test_a_list_is_read_page_by_page(client: httpx2.AsyncClient) -> None:
    texts = [f"{number}" for number in range(5)]
    made = await post(client, "", {"items": [message(text) for text in texts]})
    path = f"/{made['id']}/items"
    orders: list[tuple[Json, list[str]]] = [({}, texts[::-1]), ({"order": "asc"}, texts)]
    for order, wanted in orders:
        walked: list[str] = []
        after: Json = {}
        has_more = True
        while has_more:
            page = await get(client, path, limit=2, **order, **after)
            walked += map(text_of, page["data"])
            has_more, after = page["has_more"], {"after": page["last_id"]}
        assert walked == wanted
        page = await get(client, path, limit=2, **order, before=page["last_id"])
        assert [*map(text_of, page["data"])] == wanted[2:4]
        assert page["has_more"]
        page = await get(client, path, limit=2, **order, before=page["first_id"])
        assert [*map(text_of, page["data"])] == wanted[:2]
        assert not page["has_more"]


@pytest.mark.requirement("conversations.parts")
@pytest.mark.requirement("parts.of-conversations")
async def test_parts_that_only_conversations_name_are_text(client: httpx2.AsyncClient) -> None:
    kinds = ("text", "summary_text", "reasoning_text", "input_text", "output_text")
    parts = [{"type": kind, "text": kind} for kind in kinds]
    screenshot = {"type": "computer_screenshot", "image_url": "https://x/y.png"}
    new = [
        {"role": "user", "content": [*parts, screenshot]},
        {"role": "assistant", "content": parts},
        {"type": "reasoning", "content": [parts[2]], "summary": [parts[1]]},
    ]
    made = await post(client, "", {"items": new})
    asked, said, thought = await items_of(client, made)
    assert [part["type"] for part in asked["content"]] == [*["input_text"] * 5, "input_image"]
    assert [part["type"] for part in said["content"]] == ["output_text"] * 5
    assert [part["text"] for part in said["content"]] == list(kinds)
    assert thought["content"] == [parts[2]]


@pytest.mark.requirement("conversations.delete")
async def test_a_reference_becomes_a_copy(
    client: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    response = await create(client, input="My name is Ines.")
    answer = response["output"][-1]
    reference = {"type": "item_reference", "id": answer["id"]}
    made = await post(client, "", {"items": [HELLO, reference]})
    assert (await items_of(client, made))[1] == answer
    again = await post(client, f"/{made['id']}/items", {"items": [reference]})
    assert again["data"] == []
    copied = await post(client, "", {"items": [{"id": answer["id"]}]})
    await client.delete(f"/v1/responses/{response['id']}")
    assert await items_of(client, copied) == [answer]
    error = await post(stranger, "", {"items": [reference]}, 404)
    assert (error["param"], error["code"]) == ("items", None)


@pytest.mark.requirement("conversations.create")
@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"items": [HELLO] * 21}, "array_above_max_length", "items"),
        ({"items": "Hello"}, "invalid_type", "items"),
        ({"items": ["Hello"]}, "invalid_type", "items[0]"),
        ({"items": [{"type": "nonsense"}]}, "invalid_value", "items[0]"),
        ({"items": [{"type": "configuration_update"}]}, "unsupported_parameter", "items[0].type"),
        ({"items": [{"type": "additional_tools"}]}, "missing_required_parameter", "items[0].tools"),
        ({"items": [{"type": "compaction_trigger"}]}, "unsupported_parameter", "items[0].type"),
        (
            {"items": [{"type": "reasoning", "encrypted_content": "x", "summary": []}]},
            "invalid_encrypted_content",
            "items[0].encrypted_content",
        ),
        ({"metadata": {"k" * 65: ""}}, "property_name_above_max_length", f"metadata.{'k' * 65}"),
        ({"metadata": {"k": "v" * 513}}, "string_above_max_length", "metadata.k"),
        ({"metadata": {f"{n}": "" for n in range(17)}}, "object_above_max_properties", "metadata"),
        ([], None, None),
    ],
)
async def test_what_cannot_be_kept_is_refused(
    client: httpx2.AsyncClient, body: Any, code: str | None, param: str | None
) -> None:
    error = await post(client, "", body, 400)
    assert (error["code"], error["param"]) == (code, param)


async def test_what_means_nothing_is_named_in_a_header(client: httpx2.AsyncClient) -> None:
    made = (await client.post("/v1/conversations", json={})).json()["id"]
    bodies: dict[str, Json] = {
        "": {"messages": [HELLO]},
        f"/{made}": {"metadata": {}, "messages": [HELLO]},
        f"/{made}/items": {"items": [HELLO], "messages": [HELLO]},
    }
    for path, body in bodies.items():
        answer = await client.post(f"/v1/conversations{path}", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ignored-parameters"] == "messages"


@pytest.mark.requirement("conversations.update")
@pytest.mark.requirement("conversations.items.create")
async def test_an_answer_to_an_approval_request_is_sent_to_a_response(
    client: httpx2.AsyncClient,
) -> None:
    asked = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "t"}
    items = [
        {**asked, "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
    ]
    made = (await client.post("/v1/conversations", json={})).json()["id"]
    for path in ("/v1/conversations", f"/v1/conversations/{made}/items"):
        answer = await client.post(path, json={"items": items})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "items")
        assert "/v1/responses" in error["message"]
    done = {"type": "message", "role": "assistant", "content": "It is done."}
    answer = await client.post("/v1/conversations", json={"items": [*items, done]})
    assert answer.status_code == 200, answer.text


async def test_what_is_added_or_set_must_be_there(client: httpx2.AsyncClient) -> None:
    made = await post(client, "", {})
    mistakes: list[tuple[str, Json, str, str]] = [
        ("/items", {}, "missing_required_parameter", "items"),
        ("/items", {"items": []}, "empty_array", "items"),
        ("", {}, "missing_required_parameter", "metadata"),
    ]
    for path, body, code, param in mistakes:
        error = await post(client, f"/{made['id']}{path}", body, 400)
        assert (error["code"], error["param"]) == (code, param)


@pytest.mark.requirement("conversations.items.list")
@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "msg_unknown"}, "after"),
        ({"include[]": "everything"}, "include[0]"),
    ],
)
async def test_a_query_is_checked(
    client: httpx2.AsyncClient, params: dict[str, Any], param: str
) -> None:
    made = await post(client, "", {"items": [HELLO]})
    error = await get(client, f"/{made['id']}/items", 400, **params)
    assert error["param"] == param


@pytest.mark.slow
@pytest.mark.requirement("tenants.walls")
async def test_unknown_and_another_tenants_look_the_same(
    client: httpx2.AsyncClient, stranger: httpx2.AsyncClient
) -> None:
    made = await post(client, "", {"items": [{**HELLO, "id": "msg_secret"}]})
    bodies: Json = {"": {"metadata": {}}, "/items": {"items": [HELLO]}}
    paths = ("", "/items", "/items/msg_secret")
    for conversation_id in (made["id"], UNKNOWN, "conv_nonsense", "resp_" + "0" * 32):
        for method, path in [(m, p) for p in paths for m in ("GET", "POST", "DELETE")]:
            if (method, path) in {("POST", "/items/msg_secret"), ("DELETE", "/items")}:
                continue
            url = f"/v1/conversations/{conversation_id}{path}"
            body = bodies.get(path) if method == "POST" else None
            answer = await stranger.request(method, url, json=body)
            assert answer.status_code == 404, (method, url)
            assert answer.json()["error"] == {
                "message": str(unknown_conversation(conversation_id)),
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }
    assert [item["id"] for item in await items_of(client, made)] == ["msg_secret"]


async def test_other_methods_are_named(client: httpx2.AsyncClient) -> None:
    made = await post(client, "", {"items": [{**HELLO, "id": "msg_1"}]})
    for path, methods in (
        ("", "POST"),
        (f"/{made['id']}", "DELETE, GET, HEAD, POST"),
        (f"/{made['id']}/items", "GET, HEAD, POST"),
        (f"/{made['id']}/items/msg_1", "DELETE, GET, HEAD"),
    ):
        answer = await client.put(f"/v1/conversations{path}")
        assert answer.status_code == 405
        assert sorted(answer.headers["allow"].split(", ")) == methods.split(", ")
        if path:
            head = await client.head(f"/v1/conversations{path}")
            assert (head.status_code, head.content) == (200, b"")


async def test_sealed_reasoning_is_opened_when_it_is_added(client: httpx2.AsyncClient) -> None:
    said = await create(client, input="Hello", store=False, include=["reasoning.encrypted_content"])
    thought = {**said["output"][0], "content": None}
    made = await post(client, "", {"items": [HELLO, thought]})
    kept = (await items_of(client, made))[1]
    assert kept["encrypted_content"] == thought["encrypted_content"]
    assert "content" not in kept


@pytest.mark.slow
async def test_openais_sdk_reads_all_of_it(gateway: RunningGateway) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key) as client:
        made = await client.conversations.create(
            items=[{"type": "message", "role": "user", "content": "one"}], metadata={"a": "b"}
        )
        assert (await client.conversations.retrieve(made.id)).metadata == {"a": "b"}
        changed = await client.conversations.update(made.id, metadata={"c": "d"})
        assert changed.metadata == {"c": "d"}
        added = await client.conversations.items.create(
            made.id, items=[{"role": "user", "content": f"{number}"} for number in range(3)]
        )
        assert [item.type for item in added.data] == ["message"] * 3
        pages = client.conversations.items.list(made.id, limit=1, order="asc")
        walked = [str(item.id) async for item in pages]
        assert len(walked) == 4
        one = await client.conversations.items.retrieve(walked[1], conversation_id=made.id)
        assert one.id == walked[1]
        left = await client.conversations.items.delete(walked[1], conversation_id=made.id)
        assert left.id == made.id
        response = await client.responses.create(
            model="gpt-oss-20b", input="My name is Hugo.", conversation=made.id
        )
        assert response.conversation is not None
        assert response.conversation.id == made.id
        second = await client.responses.create(
            model="gpt-oss-20b", input="What is my name?", conversation={"id": made.id}
        )
        assert "Hugo" in second.output_text
        deleted = await client.conversations.delete(made.id)
        assert (deleted.deleted, deleted.object) == (True, "conversation.deleted")
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(made.id)


async def test_what_the_agents_sdk_sends_is_taken(client: httpx2.AsyncClient) -> None:
    """`OpenAIConversationsSession`: messages of the assistant come without an id."""
    made = await post(client, "", {"items": []})
    said = {
        "role": "assistant",
        "type": "message",
        "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}],
        "status": "completed",
    }
    added = await post(client, f"/{made['id']}/items", {"items": [message("Hello"), said]})
    assert added["data"] == await items_of(client, made)
    assert added["last_id"].startswith("msg_")
