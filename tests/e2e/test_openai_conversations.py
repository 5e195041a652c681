"""Conversations through openai-python: every method, and responses that go on in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import NotFoundError

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

MODEL = "gpt-oss-20b"
ADA: Any = [{"role": "user", "content": "My name is Ada."}]


@pytest.mark.client("openai (Python)", "conversations")
def test_a_conversation_is_made_read_changed_and_deleted(client: OpenAI) -> None:
    made = client.conversations.create(metadata={"a": "b"})
    assert client.conversations.retrieve(made.id).to_dict() == made.to_dict()
    changed = client.conversations.update(made.id, metadata={"c": "d"})
    assert (changed.id, changed.metadata) == (made.id, {"c": "d"})
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    with pytest.raises(NotFoundError):
        client.conversations.retrieve(made.id)


@pytest.mark.requirement("accept.sdk")
@pytest.mark.requirement("conversations.items.list")
@pytest.mark.client("openai (Python)", "conversations")
def test_items_are_added_paged_read_and_deleted(client: OpenAI) -> None:
    conversation = client.conversations.create(items=ADA)
    messages: Any = [{"role": "user", "content": f"text {number}"} for number in range(3)]
    added = client.conversations.items.create(conversation.id, items=messages)
    assert len(added.data) == 3
    pages = client.conversations.items.list(conversation.id, limit=1, order="asc")
    items: list[Any] = list(pages)
    texts = [item.content[0].text for item in items]
    assert texts == ["My name is Ada.", "text 0", "text 1", "text 2"]
    one: Any = client.conversations.items.retrieve(items[1].id, conversation_id=conversation.id)
    assert one.to_dict() == items[1].to_dict()
    left = client.conversations.items.delete(items[1].id, conversation_id=conversation.id)
    assert left.id == conversation.id
    assert len(list(client.conversations.items.list(conversation.id))) == 3
    with pytest.raises(NotFoundError):
        client.conversations.items.retrieve(items[1].id, conversation_id=conversation.id)


@pytest.mark.slow
@pytest.mark.client("openai (Python)", "conversations")
def test_responses_go_on_in_a_conversation(client: OpenAI) -> None:
    conversation = client.conversations.create()
    first = client.responses.create(model=MODEL, input=ADA, conversation=conversation.id)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    with client.responses.stream(
        model=MODEL, input="What is my name?", conversation=conversation.id
    ) as stream:
        second = stream.get_final_response()
    assert "Ada" in second.output_text
    kinds = [item.type for item in client.conversations.items.list(conversation.id, order="asc")]
    assert kinds == ["message", "reasoning", "message"] * 2


@pytest.mark.slow
@pytest.mark.client("openai (Python)", "conversations")
async def test_coroutines_do_the_same(async_client: AsyncOpenAI) -> None:
    conversation = await async_client.conversations.create(items=ADA)
    await async_client.conversations.update(conversation.id, metadata={"a": "b"})
    assert (await async_client.conversations.retrieve(conversation.id)).metadata == {"a": "b"}
    extra: Any = [{"role": "user", "content": "Be brief."}]
    added = await async_client.conversations.items.create(conversation.id, items=extra)
    (item,) = added.data
    read: Any = await async_client.conversations.items.retrieve(
        str(item.id), conversation_id=conversation.id
    )
    assert read.content[0].text == "Be brief."
    await async_client.conversations.items.delete(str(item.id), conversation_id=conversation.id)
    response = await async_client.responses.create(
        model=MODEL, input="What is my name?", conversation=conversation.id
    )
    assert "Ada" in response.output_text
    pages = async_client.conversations.items.list(conversation.id, limit=1)
    assert len([item async for item in pages]) == 4
    await async_client.conversations.delete(conversation.id)
