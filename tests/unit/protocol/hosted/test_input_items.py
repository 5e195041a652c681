"""Items of hosted tools that a request brings: what they need to be listed again."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocol.context_item import ContextItem
from gateway.protocol.items import McpListTools, ToolSearchOutput
from tests.fakes.cases import each
from tests.fakes.create_bodies import parse, refusal
from tests.fakes.hosted_items import HOSTED

Json = dict[str, Any]

SEARCH = {"type": "web_search_call", "status": "completed"}
LISTED = {"type": "mcp_list_tools", "server_label": "s", "tools": []}
FOUND = {"type": "tool_search_output", "tools": []}


def sources(value: object) -> Json:
    return {**SEARCH, "action": {"type": "search", "query": "x", "sources": value}}


@each(
    "raw",
    [
        *(raw for raw, _, _ in HOSTED),
        SEARCH,
        LISTED,
        {**FOUND, "tools": [{"type": "function", "name": "f"}]},
        *(sources(value) for value in (None, [], [{"type": "url", "url": "https://example.com"}])),
    ],
)
def test_what_openai_lists_is_accepted(raw: Json) -> None:
    (item,) = parse(input=[raw]).input
    assert item.type == raw["type"]


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ({**LISTED, "server_label": None}, "server_label"),
        ({**LISTED, "tools": None}, "tools"),
        ({"type": "mcp_list_tools"}, "server_label"),
        ({**FOUND, "tools": None}, "tools"),
        ({"type": "tool_search_output"}, "tools"),
    ],
)
def test_what_an_item_needs_is_missing(raw: Json, param: str) -> None:
    code, where, _ = refusal(input=[raw])
    assert (code, where) == ("missing_required_parameter", f"input[0].{param}")


@pytest.mark.parametrize(
    ("raw", "param", "expected"),
    [
        ({**FOUND, "tools": 5}, "tools", "an array of objects"),
        ({**FOUND, "tools": [{}, 5]}, "tools[1]", "an object"),
        ({**LISTED, "tools": [5]}, "tools[0]", "an object"),
        (sources(5), "action.sources", "an array of objects"),
        (sources([5]), "action.sources[0]", "an object"),
    ],
)
def test_members_that_are_no_objects_are_refused(raw: Json, param: str, expected: str) -> None:
    code, where, words = refusal(input=[raw])
    assert (code, where) == ("invalid_type", f"input[0].{param}")
    assert f"expected {expected}, but got an integer" in words


@pytest.mark.parametrize(
    ("json", "kind"),
    [
        (b'{"type":"mcp_list_tools"}', McpListTools),
        (b'{"type":"tool_search_output","tools":[5]}', ToolSearchOutput),
    ],
)
def test_what_was_stored_before_is_still_read(json: bytes, kind: type) -> None:
    stored = ContextItem(kind.model_fields["type"].default, "i", json)  # type: ignore[attr-defined]
    assert isinstance(stored.item(), kind)
