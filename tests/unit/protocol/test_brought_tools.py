"""How many tools the items of a context bring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway.protocol.brought_tools import BROUGHT_TOOLS_MAX, brought_before
from gateway.protocol.context_item import ContextItem
from gateway.protocol.responses.request_checks import check_none_dropped
from gateway.protocol.tool_types import FunctionTool, HostedTool, NamespaceTool, named
from tests.fakes.create_bodies import parse, refusal

if TYPE_CHECKING:
    from gateway.protocol.context_item import Kind

SIZE = 64
ITEMS = BROUGHT_TOOLS_MAX // SIZE
KINDS: list[Kind] = ["additional_tools", "tool_search_output"]


def items(kind: Kind, count: int) -> list[dict[str, Any]]:
    """Items, each with tools of its own."""
    return [
        {
            "type": kind,
            "tools": [{"type": "function", "name": f"f{at}_{each}"} for each in range(SIZE)],
            **({"role": "developer"} if kind == "additional_tools" else {}),
        }
        for at in range(count)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_whose_items_bring_too_many_tools_is_refused(kind: Kind) -> None:
    assert parse(input=items(kind, ITEMS)).brought
    code, param, message = refusal(input=items(kind, ITEMS + 1))
    assert (code, param) == ("array_above_max_length", f"input[{ITEMS}].tools")
    assert f"{BROUGHT_TOOLS_MAX} at most" in message


@pytest.mark.parametrize("kind", KINDS)
def test_of_what_stands_before_a_request_the_last_tools_count(kind: Kind) -> None:
    before = [
        ContextItem(kind=kind, item_id=f"i{at}", json=orjson.dumps({**item, "id": f"i{at}"}))
        for at, item in enumerate(items(kind, ITEMS + 2))
    ]
    names = [next(named(each.tools)).name for each in brought_before(before)]
    assert names == [f"f{at}_0" for at in range(2, ITEMS + 2)]


def test_what_brings_no_tools_before_a_request_counts_for_none() -> None:
    message = ContextItem(kind="message", item_id="m", json=b"{}")
    assert brought_before([message]) == ()


def test_a_tool_that_the_gateway_runs_has_no_name_within_a_namespace() -> None:
    space = NamespaceTool.model_construct(
        name="crm", tools=(HostedTool(type="web_search"), FunctionTool(name="add"))
    )
    assert [tool.name for tool in named([space])] == ["crm.add"]


def test_tools_that_clients_run_are_dropped_nowhere() -> None:
    check_none_dropped([FunctionTool(name="add")])
