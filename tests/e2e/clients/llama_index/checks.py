"""llama-index-llms-openai: its model of the Responses API sends every unset field as null."""

from __future__ import annotations

from typing import Any

from answering import API_KEY, BASE_URL, MODEL, SLOWLY, answer
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses
from pydantic import BaseModel


class ParserPosition(BaseModel):
    """A place on the map."""

    location: str


def get_weather(location: str) -> str:
    """Current weather of a place."""
    return f"17 degrees in {location}"


TOOL = FunctionTool.from_defaults(get_weather)


def model() -> OpenAIResponses:
    return OpenAIResponses(
        model=MODEL, api_base=BASE_URL, api_key=API_KEY, context_window=131_072, max_retries=0
    )


def chat() -> str:
    return str(model().chat([ChatMessage("Hello there")]).message.content)


def stream() -> dict[str, Any]:
    parts = [part.delta for part in model().stream_chat([ChatMessage(SLOWLY)])]
    return {"text": "".join(part or "" for part in parts), "parts": len(parts)}


def tools() -> str:
    llm = model()
    messages = [ChatMessage("What is the weather in Paris?")]
    first = llm.chat_with_tools([TOOL], chat_history=messages)
    messages.append(first.message)
    for call in llm.get_tool_calls_from_response(first):
        said = str(TOOL(**call.tool_kwargs))
        messages.append(ChatMessage(said, role="tool", additional_kwargs={"call_id": call.tool_id}))
    return str(llm.chat_with_tools([TOOL], chat_history=messages).message.content)


def structured() -> dict[str, Any]:
    asked = model().as_structured_llm(ParserPosition)
    return asked.chat([ChatMessage("The weather in Paris, please.")]).raw.model_dump()


answer(chat, stream, tools, structured)
