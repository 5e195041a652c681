"""litellm's SDK in front of a server that speaks as OpenAI does."""

from __future__ import annotations

from typing import Any

import litellm
from answering import API_KEY, BASE_URL, MODEL, answer

TO = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}


def responses() -> str:
    return litellm.responses(input="Hello there", **TO).output_text


def streamed() -> list[str]:
    return [str(event.type.value) for event in litellm.responses(input="Hi", stream=True, **TO)]


def continued() -> str:
    first = litellm.responses(input="My name is Ada.", **TO)
    second = litellm.responses(input="What is my name?", previous_response_id=first.id, **TO)
    return second.output_text


def tools() -> str:
    asked = "What is the weather in Paris?"
    first = litellm.responses(input=asked, tools=[WEATHER], **TO)
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "17 degrees"}
    return litellm.responses(
        input=[result], previous_response_id=first.id, tools=[WEATHER], **TO
    ).output_text


async def chat() -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello there"}]
    whole = litellm.completion(messages=messages, **TO)
    parts = [part async for part in await litellm.acompletion(messages=messages, stream=True, **TO)]
    said = "".join(part.choices[0].delta.content or "" for part in parts)
    return {"whole": whole.choices[0].message.content, "streamed": said}


answer(responses, streamed, continued, tools, chat)
