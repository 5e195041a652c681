"""What openai-python can do with a response that there is: read, resume, list, cancel, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import APIStatusError, BadRequestError, NotFoundError

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI
    from openai.types.responses import ResponseStreamEvent

MODEL = "gpt-oss-20b"
BRIEF = "[[sim think=2 say=a b c d]] go"
SLOW = "[[sim tokens_per_s=100 tokens=400 think=none]] go"


def events_of(client: OpenAI, text: str) -> list[ResponseStreamEvent]:
    """Every event of a new background response."""
    with client.responses.create(model=MODEL, input=text, background=True, stream=True) as events:
        return list(events)


def id_of(events: list[ResponseStreamEvent]) -> str:
    (created, *_) = events
    assert created.type == "response.created"
    return created.response.id


@pytest.mark.requirement("accept.sdk")
@pytest.mark.client("openai (Python)", "background")
def test_a_stream_is_resumed_behind_every_one_of_its_events(client: OpenAI) -> None:
    events = events_of(client, BRIEF)
    told = [event.to_dict() for event in events]
    for number in range(len(told)):
        with client.responses.retrieve(
            id_of(events), stream=True, starting_after=number
        ) as resumed:
            assert [event.to_dict() for event in resumed] == told[number + 1 :]


@pytest.mark.requirement("replay.from-the-start")
@pytest.mark.client("openai (Python)", "background")
async def test_a_coroutine_resumes_a_stream_and_its_helper_does(
    client: OpenAI, async_client: AsyncOpenAI
) -> None:
    events = events_of(client, BRIEF)
    async with await async_client.responses.retrieve(
        id_of(events), stream=True, starting_after=2
    ) as resumed:
        assert [event.to_dict() async for event in resumed] == [
            event.to_dict() for event in events[3:]
        ]
    async with async_client.responses.stream(response_id=id_of(events), starting_after=2) as stream:
        assert (await stream.get_final_response()).output_text == "a b c d"


@pytest.mark.client("openai (Python)", "background")
async def test_a_coroutine_cancels(async_client: AsyncOpenAI) -> None:
    queued = await async_client.responses.create(model=MODEL, input=SLOW, background=True)
    assert (await async_client.responses.cancel(queued.id)).status == "cancelled"
    assert (await async_client.responses.retrieve(queued.id)).status == "cancelled"


@pytest.mark.client("openai (Python)", "background")
def test_a_response_that_was_not_streamed_cannot_be(client: OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input=BRIEF)
    with pytest.raises(BadRequestError, match="cannot be streamed") as caught:
        client.responses.retrieve(whole.id, stream=True)
    assert caught.value.param == "stream"


@pytest.mark.client("openai (Python)", "stored responses")
def test_what_is_included_is_asked_for_by_its_query(client: OpenAI) -> None:
    response = client.responses.create(
        model=MODEL, input="Hello there", include=["reasoning.encrypted_content"]
    )
    stored: Any = client.responses.retrieve(response.id, include=["reasoning.encrypted_content"])
    assert stored.output[0].encrypted_content is not None
    items: list[Any] = list(
        client.responses.input_items.list(response.id, include=["reasoning.encrypted_content"])
    )
    assert [item.role for item in items] == ["user"]


@pytest.mark.requirement("input-items.ids")
@pytest.mark.requirement("accept.sdk")
@pytest.mark.client("openai (Python)", "stored responses")
async def test_a_coroutine_pages_one_item_at_a_time_and_deletes(async_client: AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": f"text {number}"} for number in range(4)]
    response = await async_client.responses.create(model=MODEL, input=messages)
    pages = async_client.responses.input_items.list(response.id, limit=1)
    items: list[Any] = [item async for item in pages]
    assert [item.content[0].text for item in items] == ["text 3", "text 2", "text 1", "text 0"]
    await async_client.responses.delete(response.id)
    with pytest.raises(NotFoundError) as caught:
        await async_client.responses.retrieve(response.id)
    assert caught.value.request_id is not None


@pytest.mark.client("openai (Python)", "models")
async def test_a_coroutine_finds_a_model(async_client: AsyncOpenAI) -> None:
    assert (await async_client.models.retrieve(f"openai/{MODEL}")).id == MODEL


@pytest.mark.client("openai (Python)", "models")
async def test_no_model_can_be_deleted(client: OpenAI, async_client: AsyncOpenAI) -> None:
    with pytest.raises(APIStatusError) as caught:
        client.models.delete(MODEL)
    assert caught.value.status_code == 405
    with pytest.raises(APIStatusError, match="DELETE"):
        await async_client.models.delete(MODEL)
