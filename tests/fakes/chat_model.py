"""A server of a model with a chat template, as a process of its own: `python -m
tests.fakes.chat_model PORT`. It writes as a Qwen3 does, and says what a few rules make of the text.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn

from tests.fakes.chat_server import ChatServer, called
from tests.fakes.processes import Child, reserved_port, stopped, until_healthy

if TYPE_CHECKING:
    from collections.abc import Iterator

WINDOW: Final = 131_072
"""What coding agents tell of themselves is long, and ids here are mostly bytes."""
THOUGHT: Final = "<think>\nI look at what was asked.\n</think>\n\n"
_TURN: Final = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_TOOLS: Final = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_RESULT: Final = re.compile(r"<tool_response>\n(.*)\n</tool_response>", re.DOTALL)
_WISH: Final = re.compile(r"Call (\S+) with (\{.*\})\.", re.DOTALL)
_NAME: Final = re.compile(r"[Mm]y name is (\w+)")
_SCHEMA: Final = re.compile(r"JSON Schema describes:\n(\{.*\})")
PLACE: Final = '{"location": "Paris"}'


def reply(before: str) -> str:
    """The turn behind a conversation: a thought, and a call or an answer.

    The result of a tool is quoted. A user who writes `Call NAME with {…}.` has that called, and one
    who asks for the weather `get_weather`, where there is such a tool.
    """
    turns = _TURN.findall(before)
    asked = turns[-1][1]
    if found := _RESULT.search(asked):
        return f"{THOUGHT}The tool says: {found[1]}"
    if found := _WISH.search(asked):
        return THOUGHT + called(found[1], found[2])
    if "weather" in asked and "get_weather" in tools_of(before):
        return THOUGHT + called("get_weather", PLACE)
    if found := _SCHEMA.search(turns[0][1]):
        return THOUGHT + json.dumps(instance_of(json.loads(found[1])))
    names = _NAME.findall(before)
    if "What is my name" in asked and names:
        return f"{THOUGHT}Your name is {names[-1]}."
    return f"{THOUGHT}You said: {asked}"


def tools_of(before: str) -> set[str]:
    """Names of the tools that the model is told of."""
    found = _TOOLS.search(before)
    listed = found[1].splitlines() if found else []
    return {json.loads(line)["function"]["name"] for line in listed}


def instance_of(schema: dict[str, Any]) -> Any:
    """Something that a plain schema describes: the first of whatever may be chosen."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return instance_of(schema["anyOf"][0])
    if schema["type"] == "object":
        return {name: instance_of(part) for name, part in schema["properties"].items()}
    plain = {"string": "Paris", "integer": 7, "number": 7, "boolean": True, "array": []}
    return plain[schema["type"]]


@contextmanager
def chat_model_process() -> Iterator[str]:
    """The URL of one that runs."""
    with (
        reserved_port() as port,
        stopped(Child([str(port)], {}, module="tests.fakes.chat_model")) as child,
    ):
        until_healthy(port, child)
        yield f"http://127.0.0.1:{port}"


def main() -> None:
    """Serve until it is told to end."""
    app = ChatServer(reply, window=WINDOW).app
    uvicorn.run(app, port=int(sys.argv[1]), log_level="critical", timeout_keep_alive=60)


if __name__ == "__main__":
    main()
