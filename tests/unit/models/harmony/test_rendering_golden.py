"""Pinned prompts: `text` is for the reader, `ids` are what backends have cached."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from gateway.constraints.output_rules import AnswerFormat
from gateway.generation import Prompt, Span
from gateway.models.format import RenderOptions
from gateway.models.harmony.rendering import Renderer
from gateway.protocol.tool_types import AnyTool, Tool, declared
from tests.fakes.cases import each
from tests.fakes.contexts import from_wire
from tests.fakes.harmony_oracle import library_prompt, spelled, vocabulary
from tests.fakes.harmony_reference import prompt_messages

GOLDEN = Path(__file__).parents[3] / "data" / "golden"
CASES = {path.stem: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.json"))}
TYPES_LOST_IN_LIBRARY = {"pydantic_tools", "every_kind_of_call"}
"""The library writes `any` for `anyOf`, `$ref` and `const`, and no index signatures (see
test_typescript)."""

_TOOLS: TypeAdapter[list[Tool]] = TypeAdapter(list[AnyTool])


def options_of(case: dict[str, Any]) -> RenderOptions:
    chosen = {"answer": None, **case["options"]}
    tools = declared(_TOOLS.validate_python(chosen["tools"]))
    answer = chosen["answer"] and AnswerFormat(**chosen["answer"])
    return RenderOptions(**{**chosen, "tools": tools, "answer": answer})


@each("name", CASES)
def test_a_context_is_rendered_to_the_pinned_ids(name: str) -> None:
    case = CASES[name]
    items = [from_wire(item) for item in case["items"]]
    prompt = Renderer(vocabulary()).render(items, options_of(case))
    assert spelled(prompt.ids) == case["text"]
    assert prompt == Prompt(array("I", case["ids"]), tuple(Span(*span) for span in case["spans"]))


@each("name", sorted(CASES.keys() - TYPES_LOST_IN_LIBRARY))
def test_openai_harmony_agrees_with_the_pinned_ids(name: str) -> None:
    case = CASES[name]
    items = [from_wire(item) for item in case["items"]]
    assert library_prompt(prompt_messages(items, options_of(case))) == case["ids"]
