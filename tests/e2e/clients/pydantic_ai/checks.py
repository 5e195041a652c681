"""pydantic-ai: agents on its model of the Responses API, and on that of Chat Completions."""

from __future__ import annotations

from typing import Any

from answering import MODEL, SLOWLY, answer
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ThinkingPart
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIResponsesModel,
    OpenAIResponsesModelSettings,
)

MODELS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatModel}
OUTPUTS = {"native": NativeOutput, "tool": ToolOutput}


class ParserPosition(BaseModel):
    """A place on the map."""

    location: str


def get_weather(location: str) -> str:
    """Current weather of a place."""
    return f"17 degrees in {location}"


def agent(api: str, **options: Any) -> Agent[None, Any]:
    return Agent(MODELS[api](MODEL), instructions="Be brief.", **options)


async def run(*, api: str) -> dict[str, Any]:
    result = await agent(api).run("Hello there")
    return {"text": result.output, "tokens": result.usage.output_tokens}


async def stream(*, api: str) -> dict[str, Any]:
    async with agent(api).run_stream(SLOWLY) as result:
        seen = [text async for text in result.stream_text(debounce_by=None)]
    return {"text": seen[-1], "grew": len(seen) > 1}


async def tools(*, api: str) -> dict[str, Any]:
    result = await agent(api, tools=[get_weather]).run("What is the weather in Paris?")
    return {"text": result.output, "requests": result.usage.requests}


async def replayed(*, api: str) -> dict[str, Any]:
    talker = agent(api, tools=[get_weather])
    first = await talker.run("My name is Ada. What is the weather in Paris?")
    second = await talker.run("What is my name?", message_history=first.all_messages())
    return {"text": second.output}


async def stored() -> dict[str, Any]:
    settings = OpenAIResponsesModelSettings(openai_previous_response_id="auto")
    talker = agent("responses", tools=[get_weather], model_settings=settings)
    first = await talker.run("My name is Ada. What is the weather in Paris?")
    second = await talker.run("What is my name?", message_history=first.all_messages())
    return {"first": first.output, "second": second.output}


async def structured(*, api: str, by: str) -> dict[str, Any]:
    result = await agent(api, output_type=OUTPUTS[by](ParserPosition)).run(
        "The weather in Paris, please."
    )
    return result.output.model_dump()


async def thinking() -> dict[str, Any]:
    settings = OpenAIResponsesModelSettings(openai_reasoning_summary="detailed")
    result = await agent("responses", model_settings=settings).run("Hello there")
    parts = result.all_messages()[-1].parts
    return {"thoughts": [part.content for part in parts if isinstance(part, ThinkingPart)]}


async def refused() -> dict[str, Any]:
    try:
        await Agent(OpenAIResponsesModel("gpt-9")).run("Hello")
    except ModelHTTPError as error:
        return {"status": error.status_code, "code": error.body["code"]}
    return {}


answer(run, stream, tools, replayed, stored, structured, thinking, refused)
