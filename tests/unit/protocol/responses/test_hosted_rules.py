"""The rules of hosted tools, read from the grants of a response."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.constraints.output_rules import CallMode, OutputRules, ToolRule
from gateway.generation import BROWSER_TOOLS, PYTHON_TOOL, SegmentKind
from gateway.protocol.grants import (
    BrowserGrant,
    Grants,
    McpTool,
    PythonGrant,
    ServerGrant,
    grants_json,
    grants_of,
)
from gateway.protocol.responses.response_object import echo
from gateway.protocol.responses.response_rules import rules_of
from tests.fakes.cases import each
from tests.fakes.create_bodies import SCHEMA, TOOLS, parse

ADD = McpTool("add", {"type": "object", "properties": {"a": {"type": "integer"}}})
DROP = McpTool("drop.all", {"type": "object"}, needs_approval=False)
BROWSER = Grants(browser=BrowserGrant("web_search"))
PYTHON = Grants(python=PythonGrant("cntr_1", "linux", 1 << 30))
SERVERS = Grants(
    servers=(
        ServerGrant("crm", "https://crm.example", tools=(ADD, DROP)),
        ServerGrant("wiki", "registry:1", tools=(DROP,)),
    )
)
ALL = Grants(browser=BROWSER.browser, python=PYTHON.python, servers=SERVERS.servers)
MCP = ("crm.add", "crm.drop.all", "wiki.drop.all")
NAMES = (*BROWSER_TOOLS, PYTHON_TOOL, *MCP)


def rules(grants: Grants | None = ALL, choice: Any = "auto", **fields: Any) -> OutputRules:
    return rules_of({**echo(parse(**fields)), "tool_choice": choice}, grants)


@pytest.mark.parametrize(
    ("grants", "names"),
    [(BROWSER, BROWSER_TOOLS), (PYTHON, (PYTHON_TOOL,)), (SERVERS, MCP), (ALL, NAMES)],
)
def test_what_was_granted_has_rules(grants: Grants, names: tuple[str, ...]) -> None:
    found = rules(grants)
    assert tuple(found.tools) == names
    assert found.allowed == found.hosted == set(names)
    assert all(tool.is_hosted and tool.name == name for name, tool in found.tools.items())
    assert found == rules(grants_of(grants_json(grants))), "as they are stored"


def test_without_grants_the_rules_are_those_of_the_request() -> None:
    assert rules(None) is rules(None)
    assert rules(None, tools=TOOLS) == rules_of(echo(parse(tools=TOOLS)))
    assert rules(Grants()) == rules(None)


def test_each_has_its_kind_and_its_names() -> None:
    tools = rules().tools
    assert {tools[name].kind for name in BROWSER_TOOLS} == {SegmentKind.WEB_SEARCH_CALL}
    assert tools[PYTHON_TOOL] == ToolRule(PYTHON_TOOL, SegmentKind.CODE_INTERPRETER_CALL, "python")
    asked, schema = SegmentKind.MCP_APPROVAL_REQUEST, ADD.parameters
    assert tools["crm.add"] == ToolRule(
        "crm.add", asked, "add", "crm", schema=schema, declared=schema
    )
    assert tools["wiki.drop.all"].kind is SegmentKind.MCP_CALL
    assert (tools["wiki.drop.all"].namespace, tools["wiki.drop.all"].shown_name) == (
        "wiki",
        "drop.all",
    )


def test_hosted_tools_alone_demand_no_more_than_what_servers_are_called_with() -> None:
    found = rules()
    checked = {name for name, tool in found.tools.items() if tool.is_checked}
    assert checked == {"crm.add", "crm.drop.all", "wiki.drop.all"}
    assert not found.calls_functions
    assert found.open_calls, "as without them"
    assert not rules(text={"format": SCHEMA}).open_calls


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "string"},
        {"type": "object", "properties": []},
        {"type": "object", "$ref": "https://elsewhere.example"},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"type": "object", "description": "x" * (17 << 10)},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "x" * 600}}},
    ],
)
def test_a_schema_that_no_grammar_can_be_made_of_binds_nothing(parameters: dict[str, Any]) -> None:
    server = ServerGrant("s", "https://s.example", tools=(McpTool("t", parameters),))
    assert rules(Grants(servers=(server,))).tools["s.t"].schema is None


@each(
    ("choice", "calls", "allowed"),
    [
        ("auto", "auto", NAMES),
        ("required", "required", NAMES),
        ({"type": "web_search"}, "required", BROWSER_TOOLS),
        ({"type": "web_search_preview"}, "required", BROWSER_TOOLS),
        ({"type": "web_search_2025_08_26"}, "required", BROWSER_TOOLS),
        ({"type": "code_interpreter"}, "required", (PYTHON_TOOL,)),
        ({"type": "mcp", "server_label": "crm"}, "required", MCP[:2]),
        ({"type": "mcp", "server_label": "crm", "name": "add"}, "required", MCP[:1]),
        ({"type": "mcp", "server_label": "crm", "name": None}, "required", MCP[:2]),
        ({"type": "mcp", "server_label": "wiki", "name": "add"}, "required", ()),
        ({"type": "mcp"}, "required", MCP),
        ({"type": "function", "name": "f"}, "required", ("f",)),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "wiki"}],
            },
            "auto",
            (*BROWSER_TOOLS, MCP[2]),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "code_interpreter"}, {"type": "function", "name": "f"}],
            },
            "required",
            (PYTHON_TOOL, "f"),
        ),
    ],
)
def test_a_choice_may_mean_hosted_tools(
    choice: Any, calls: CallMode, allowed: tuple[str, ...]
) -> None:
    function = {"type": "function", "name": "f"}
    found = rules(ALL, choice, tools=[function])
    assert found.calls == calls
    assert found.allowed - {"f"} == {*allowed} - {"f"}
    assert tuple(found.tools) == (*NAMES, "f"), "the model is told of all of them"


def test_none_forbids_hosted_tools_too() -> None:
    found = rules(ALL, "none")
    assert (found.tools, found.allowed, found.calls) == ({}, frozenset(), "none")


def test_a_function_of_the_client_is_meant_by_its_name() -> None:
    functions = [{"type": "function", "name": name} for name in ("python", "crm.add")]
    tools = rules(ALL, tools=functions).tools
    assert tools["crm.add"].kind is SegmentKind.FUNCTION_CALL
    assert tools["python"].kind is SegmentKind.FUNCTION_CALL
    assert tools[PYTHON_TOOL].kind is SegmentKind.CODE_INTERPRETER_CALL
