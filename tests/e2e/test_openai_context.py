"""openai-python counts and compacts what a response would be given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from openai import BadRequestError

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

MODEL = "gpt-oss-20b"
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    "strict": False,
}
ASKED: Any = [{"role": "user", "content": "My name is Ada."}]


def _next(output: list[Any], text: str) -> Any:
    return [*(item.to_dict(warnings=False) for item in output), {"role": "user", "content": text}]


@pytest.mark.client("openai (Python)", "token counts")
def test_what_is_counted_is_what_a_response_uses(client: OpenAI) -> None:
    asked: Any = {"model": MODEL, "input": "Hello there", "instructions": "x", "tools": [TOOL]}
    counted = client.responses.input_tokens.count(**asked)
    response = client.responses.create(**asked)
    assert response.usage is not None
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == response.usage.input_tokens
    asked |= {"input": "And now?", "previous_response_id": response.id}
    longer = client.responses.input_tokens.count(**asked)
    assert longer.input_tokens > counted.input_tokens


@pytest.mark.client("openai (Python)", "token counts")
async def test_a_coroutine_counts(async_client: AsyncOpenAI) -> None:
    brief = await async_client.responses.input_tokens.count(model=MODEL, input="one")
    longer = await async_client.responses.input_tokens.count(model=MODEL, input="one two three")
    assert 0 < brief.input_tokens < longer.input_tokens


@pytest.mark.client("openai (Python)", "compaction")
def test_what_is_compacted_is_taken_as_input(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=ASKED)
    asked = [*ASKED, *_next(first.output, "Go on.")]
    compacted = client.responses.compact(model=MODEL, input=asked)
    kinds = [item.type for item in compacted.output]
    assert kinds == ["message", "message", "compaction"]
    assert compacted.object == "response.compaction"
    assert compacted.usage.output_tokens > 0
    second = client.responses.create(model=MODEL, input=_next(compacted.output, "What is my name?"))
    assert "Ada" in second.output_text


@pytest.mark.client("openai (Python)", "compaction")
async def test_a_coroutine_compacts_a_stored_response(async_client: AsyncOpenAI) -> None:
    first = await async_client.responses.create(model=MODEL, input=ASKED)
    compacted = await async_client.responses.compact(model=MODEL, previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    with pytest.raises(BadRequestError):
        await async_client.responses.compact(model=MODEL, previous_response_id="resp_unknown")
