"""The scripted model under the grammars of turns with hosted tools."""

from __future__ import annotations

import json
from typing import Any

from gateway.constraints.structural_tags import tag_of
from gateway.generation import BROWSER_TOOLS, PYTHON_TOOL, SegmentKind
from gateway.models.format import GrammarOptions
from gateway.protocol.grants import BrowserGrant, Grants, McpTool, PythonGrant, ServerGrant
from gateway.protocol.responses.response_rules import rules_of
from tests.fakes.cases import each
from tests.fakes.harmony_script import Segment, collect, harmony
from tests.fakes.response_heads import ECHO
from tests.fakes.simulated_conversation import obeyed, prompt_of, system, user

ADD = McpTool(
    "add",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    needs_approval=False,
)
GRANTS = Grants(
    browser=BrowserGrant("web_search"),
    python=PythonGrant("cntr_1", "linux", 1 << 30),
    servers=(ServerGrant("crm", "https://crm.example", tools=(ADD,)),),
)
FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "name": "n",
    "description": None,
    "schema": {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    },
    "strict": True,
}
WORDS = "Search the web for llamas, compute 6 * 7, and add 1."


def said(choice: Any, opening: tuple[int, ...] | None = None, **echo: Any) -> list[Segment]:
    """What is said in a turn whose rules follow from that, from its beginning or behind what opens
    the call that is demanded.
    """
    rules = rules_of({**ECHO, "tools": [], "tool_choice": choice, **echo}, GRANTS)
    format_ = harmony()
    front = format_.call_opening(rules) if opening is None else opening
    parser = format_.new_parser(rules)
    parser.feed(front)
    place, options = parser.place, GrammarOptions(refusals=False)
    message = front[place.start :]
    constraint = format_.turn_constraint(rules, place, message, options)
    assert constraint is not None
    prompt = [*prompt_of(system(browser=True, python=True), user(WORDS)), *front]
    held = obeyed(prompt, tag_of(constraint, max_whitespace=True))
    assert held.is_valid
    again = format_.new_parser(rules)
    return collect([*again.feed([*front, *held.ids]), *again.finish(None)])


@each("opened", [True, False])
@each(
    ("choice", "names"),
    [
        ({"type": "web_search"}, BROWSER_TOOLS),
        ({"type": "code_interpreter"}, (PYTHON_TOOL,)),
        ({"type": "mcp", "server_label": "crm"}, ("crm.add",)),
        ("required", (*BROWSER_TOOLS, PYTHON_TOOL, "crm.add")),
    ],
)
def test_a_tool_that_must_be_called_is_called(
    choice: Any, names: tuple[str, ...], *, opened: bool
) -> None:
    *before, call = said(choice, None if opened else ())
    assert call.name in names
    assert not any(segment.name for segment in before)
    if call.name == "crm.add":
        assert isinstance(json.loads(call.text)["a"], int)
    elif call.name != PYTHON_TOOL:
        assert isinstance(json.loads(call.text), dict)
    if opened and choice != "required":
        assert before == []


def test_an_answer_in_a_format_may_come_behind_a_call_only() -> None:
    segments = said("auto", (), text={"format": FORMAT})
    last = segments[-1]
    assert last.name or (last.kind is SegmentKind.FINAL and json.loads(last.text).keys() == {"n"})
