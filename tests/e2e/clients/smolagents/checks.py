"""smolagents: an agent on a chat model, whose last answer is itself a call."""

from __future__ import annotations

from answering import API_KEY, BASE_URL, MODEL, answer
from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def get_weather(location: str) -> str:
    """Current weather of a place.

    Args:
        location: The place.
    """
    return f"17 degrees in {location}"


def model() -> OpenAIModel:
    return OpenAIModel(model_id=MODEL, api_base=BASE_URL, api_key=API_KEY)


def generate() -> str:
    return str(model().generate([{"role": "user", "content": "Hello there"}]).content)


def agent() -> str:
    calling = ToolCallingAgent(tools=[get_weather], model=model(), verbosity_level=0)
    return str(calling.run("Use get_weather for Paris, then give the final_answer.", max_steps=4))


answer(generate, agent)
