"""The tools of a request that the gateway runs: how they are read, refused, dropped and echoed."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from openai.types.responses import Tool
from pydantic import TypeAdapter

from gateway.protocol.grants import (
    NO_TOOL_STATE,
    REGISTERED,
    ServerGrant,
    ShownPage,
    ToolState,
    tool_state_of,
)
from gateway.protocol.hosted_tools import (
    FAMILIES,
    WEB_SEARCH_TYPES,
    AutoContainer,
    CodeInterpreterTool,
    HostedFamily,
    McpServerTool,
    ToolFilter,
    UserLocation,
    WebSearchTool,
    domain_of,
)
from gateway.protocol.responses.response_object import echo
from gateway.protocol.responses.response_rules import rules_of
from gateway.protocol.tool_types import HostedTool, named
from tests.fakes.cases import each
from tests.fakes.create_bodies import FUNCTION, NAMESPACE, parse, refusal

ALL: frozenset[HostedFamily] = frozenset({"web_search", "code_interpreter", "mcp"})
PYTHON: dict[str, Any] = {"type": "code_interpreter", "container": {"type": "auto"}}
SERVER: dict[str, Any] = {
    "type": "mcp",
    "server_label": "docs",
    "server_url": "https://a.example/k",
}
SEARCH: dict[str, Any] = {"type": "web_search"}
SDK_TOOL: TypeAdapter[Any] = TypeAdapter(Tool)


def one(tool: dict[str, Any]) -> Any:
    (read,) = parse(tools=[tool], served=ALL).tools
    return read


def echoed(*tools: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return echo(parse(tools=[*tools], served=ALL, **fields))


@pytest.mark.parametrize("kind", WEB_SEARCH_TYPES)
def test_every_name_of_web_search_is_one_tool(kind: str) -> None:
    tool = one({"type": kind, "filters": None, "user_location": None})
    assert tool == WebSearchTool(type=kind)  # type: ignore[arg-type]
    assert (tool.context_size, tool.allowed_domains) == ("medium", ())
    assert tool.external_web_access


def test_a_search_knows_where_it_may_look_and_for_whom() -> None:
    tool = one(
        {
            "type": "web_search_preview",
            "filters": {"allowed_domains": ["https://A.example/", "*.b.example", "a.example"]},
            "user_location": {
                "type": "approximate",
                "city": "Paris",
                "country": "fr",
                "region": None,
                "timezone": "Europe/Paris",
            },
            "search_context_size": "high",
            "search_content_types": ["text", "image"],
            "external_web_access": False,
        }
    )
    assert tool.allowed_domains == ("a.example", "b.example")
    assert tool.user_location.in_words == "Paris, fr, timezone Europe/Paris"
    assert UserLocation().in_words is None
    assert UserLocation(city=" \n ").in_words is None
    assert (tool.context_size, tool.external_web_access) == ("high", False)


@pytest.mark.parametrize("text", ["", "https://", "a b", "a/b", "http://a/b", "u@a", "a" * 254])
def test_what_is_no_domain_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a domain"):
        domain_of(text)


def test_domains_are_in_ascii() -> None:
    assert domain_of("https://B\u00fccher.example/") == "xn--bcher-kva.example"
    with pytest.raises(ValueError, match="label empty"):
        domain_of("a..b")


def test_containers_are_named_or_described() -> None:
    assert one({**PYTHON, "container": "cntr_1"}).container == "cntr_1"
    auto = {"type": "auto", "file_ids": ["file-1"], "memory_limit": "4g", "network_policy": None}
    assert one({**PYTHON, "container": auto}) == CodeInterpreterTool(
        container=AutoContainer(type="auto", file_ids=("file-1",), memory_limit="4g")
    )
    closed = {"type": "auto", "network_policy": {"type": "disabled"}}
    assert isinstance(one({**PYTHON, "container": closed}), CodeInterpreterTool)


@pytest.mark.parametrize(
    ("approval", "read"),
    [
        (None, None),
        ("never", "never"),
        ("always", "always"),
        ({"never": {"tool_names": ["a"]}}, {"never": {"tool_names": ("a",)}}),
        ({"always": {"read_only": False}, "never": None}, {"always": {"read_only": False}}),
    ],
)
def test_approvals_come_in_every_form(approval: object, read: object) -> None:
    asked = one({**SERVER, "require_approval": approval}).require_approval
    found = asked if isinstance(asked, str | None) else asked.model_dump(exclude_none=True)
    assert found == read


def test_a_list_of_allowed_tools_is_a_filter_by_name() -> None:
    by_name = ToolFilter(tool_names=("a", "b"))
    assert one({**SERVER, "allowed_tools": ["a", "b"]}).allowed_tools == by_name
    assert one({**SERVER, "allowed_tools": {"tool_names": ["a", "b"]}}).allowed_tools == by_name


def test_a_server_may_be_known_by_its_label_alone() -> None:
    tool = one({"type": "mcp", "server_label": "docs", "defer_loading": True})
    assert (tool.server_url, tool.shown_url) == (None, None)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@a.example:8443/secret?key=1", "https://a.example:8443/<redacted>"),
        ("http://[::1]/mcp", "http://[::1]/<redacted>"),
        ("https://a.example:port/", "<redacted>"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url: str, shown: str) -> None:
    assert one({**SERVER, "server_url": url}).shown_url == shown


REFUSED: list[tuple[list[Any], str | None, str, str]] = [
    (
        [{**SEARCH, "filters": {"allowed_domains": ["a.example/path"]}}],
        "invalid_value",
        "tools[0].filters.allowed_domains[0]",
        "is not a domain",
    ),
    (
        [{**SEARCH, "filters": {"allowed_domains": ["a.example"] * 101}}],
        "array_above_max_length",
        "tools[0].filters.allowed_domains",
        "maximum length 100",
    ),
    (
        [{**SEARCH, "search_context_size": "huge"}],
        "invalid_value",
        "tools[0].search_context_size",
        "",
    ),
    ([SEARCH, {"type": "web_search_preview"}], "invalid_value", "tools[1].type", "more than one"),
    ([{"type": "code_interpreter"}], "missing_required_parameter", "tools[0].container", ""),
    ([{**PYTHON, "container": 3}], "invalid_type", "tools[0].container", "a string or object"),
    ([{**PYTHON, "container": {}}], "missing_required_parameter", "tools[0].container.type", ""),
    (
        [{**PYTHON, "container": {"type": "auto", "memory_limit": "2g"}}],
        "invalid_value",
        "tools[0].container.memory_limit",
        "'1g', '4g', '16g', and '64g'",
    ),
    (
        [{**PYTHON, "container": {"type": "auto", "network_policy": {"type": "allowlist"}}}],
        "unsupported_parameter",
        "tools[0].container.network_policy.type",
        "no network",
    ),
    ([PYTHON, PYTHON], "invalid_value", "tools[1].type", "more than one"),
    ([{"type": "mcp"}], "missing_required_parameter", "tools[0].server_label", ""),
    ([{**SERVER, "server_label": "a b"}], "invalid_value", "tools[0].server_label", "pattern"),
    ([{**SERVER, "server_label": "a" * 65}], "invalid_value", "tools[0].server_label", "pattern"),
    ([SERVER, FUNCTION, SERVER], "invalid_value", "tools[2].server_label", "more than one tool"),
    (
        [NAMESPACE, {**SERVER, "server_label": "ns"}],
        "invalid_value",
        "tools[1].server_label",
        "more than one tool named 'ns'",
    ),
    (
        [{**SERVER, "connector_id": "connector_gmail"}],
        "mutually_exclusive_parameters",
        "tools[0].connector_id",
        "only providing one",
    ),
    (
        [{"type": "mcp", "server_label": "a", "connector_id": "connector_gmail"}],
        "unsupported_parameter",
        "tools[0].connector_id",
        "'server_url' of an MCP server",
    ),
    (
        [{"type": "mcp", "server_label": "a", "tunnel_id": "t"}],
        "unsupported_parameter",
        "tools[0].tunnel_id",
        "registered",
    ),
    ([{**SERVER, "headers": {"a": 1}}], "invalid_type", "tools[0].headers.a", "a string"),
    ([{**SERVER, "headers": {"a": "b" * 4_096}}], "invalid_value", "tools[0].headers", "4096"),
    (
        [{**SERVER, "headers": {"Authorization": "Bearer a"}, "authorization": "b"}],
        "invalid_value",
        "tools[0].headers",
        "beside 'authorization'",
    ),
    (
        [{**SERVER, "require_approval": "no"}],
        "invalid_value",
        "tools[0].require_approval",
        "'never'",
    ),
    (
        [{**SERVER, "require_approval": 3}],
        "invalid_type",
        "tools[0].require_approval",
        "an object or",
    ),
    (
        [{**SERVER, "allowed_tools": {"tool_names": "add"}}],
        "invalid_type",
        "tools[0].allowed_tools.tool_names",
        "an array of strings",
    ),
    ([{**SERVER, "allowed_tools": 3}], "invalid_type", "tools[0].allowed_tools", "an object"),
    (
        [{**SERVER, "require_approval": {"never": {"tool_names": "a"}}}],
        "invalid_type",
        "tools[0].require_approval.never.tool_names",
        "an array of strings",
    ),
    (
        [{**SERVER, "allowed_tools": ["a"] * 513}],
        "array_above_max_length",
        "tools[0].allowed_tools.tool_names",
        "512",
    ),
    (
        [{**SERVER, "server_description": "a" * 5_001}],
        "string_above_max_length",
        "tools[0].server_description",
        "5000",
    ),
]


@each(("tools", "code", "param", "words"), REFUSED)
def test_mistakes_are_told_at_their_place(
    tools: list[Any], code: str | None, param: str, words: str
) -> None:
    assert refusal(tools=tools, served=ALL)[:2] == (code, param)
    assert words in refusal(tools=tools, served=ALL)[2]


def test_a_tool_that_is_not_served_is_dropped_whatever_it_says() -> None:
    tools = [{"type": "mcp"}, FUNCTION, {"type": "web_search", "filters": 3}, {**PYTHON, "x": 1}]
    request = parse(tools=tools, served=frozenset({"code_interpreter"}))
    assert request.dropped_tools == ("mcp", "web_search")
    assert [type(tool) for tool in request.tools[::2]] == [HostedTool, HostedTool]
    assert isinstance(request.tools[3], CodeInterpreterTool)
    assert [tool.name for tool in named(request.tools)] == ["f"]


def test_types_that_are_served_are_named_to_who_misspells_one() -> None:
    served: frozenset[Any] = frozenset({"code_interpreter", "mcp"})
    words = refusal(tools=[{"type": "code_interpeter"}], served=served)[2]
    assert "'code_interpreter', and 'mcp'." in words
    assert "web_search" not in words
    assert "'code_interpreter'" not in refusal(tools=[{"type": "code_interpeter"}])[2]


def test_what_only_programs_may_call_is_dropped() -> None:
    callers = {"allowed_callers": ["programmatic"]}
    assert parse(tools=[{**SERVER, **callers}], served=ALL).dropped_tools == ("mcp",)
    both = {"allowed_callers": ["direct", "programmatic"]}
    assert parse(tools=[{**SERVER, **both}], served=ALL).dropped_tools == ()


@pytest.mark.parametrize("kind", ["functoin", "x\r\nset-cookie: a"])
def test_no_tool_of_an_unknown_type_is_dropped_whoever_may_call_it(kind: str) -> None:
    tool = {"type": kind, "name": "f", "allowed_callers": ["programmatic"]}
    space = {"type": "namespace", "name": "ns", "description": "", "tools": [tool]}
    added = {"type": "additional_tools", "role": "developer", "tools": [tool]}
    assert refusal(tools=[tool])[1] == "tools[0].type"
    assert refusal(tools=[space])[1] == "tools[0].tools[0].type"
    assert refusal(input=[added])[1] == "input[0].tools[0].type"


@pytest.mark.parametrize("kind", ["file_search", "image_generation", "computer_use_preview"])
def test_tools_of_no_family_stay_dropped(kind: str) -> None:
    assert parse(tools=[{"type": kind}, SEARCH], served=ALL).dropped_tools == (kind,)


CHOICES: list[Any] = [
    "required",
    {"type": "web_search_preview"},
    {"type": "code_interpreter"},
    {"type": "mcp", "server_label": "docs"},
    {"type": "mcp", "server_label": "docs", "name": "search"},
    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "docs"}]},
]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_tool_that_is_served_can_be_chosen_and_the_choice_is_repeated(choice: Any) -> None:
    assert echoed(SEARCH, PYTHON, SERVER, tool_choice=choice)["tool_choice"] == choice


@pytest.mark.parametrize(
    ("choice", "param", "words"),
    [
        ({"type": "mcp"}, "tool_choice.server_label", "Missing"),
        ({"type": "mcp", "server_label": "other"}, "tool_choice", "not found"),
        ({"type": "code_interpreter"}, "tool_choice", "does not run for this API key"),
        ({"type": "file_search"}, "tool_choice", "not found"),
        (
            {"type": "allowed_tools", "tools": [{"type": "mcp", "server_label": "other"}]},
            "tool_choice.tools[0]",
            "not found",
        ),
        (
            {"type": "allowed_tools", "tools": [{"type": "code_interpreter"}]},
            "tool_choice",
            "does not run for this API key",
        ),
    ],
    ids=str,
)
def test_a_choice_of_what_is_not_there_is_refused(choice: Any, param: str, words: str) -> None:
    served: frozenset[HostedFamily] = frozenset({"mcp", "web_search"})
    fields = {"tools": [PYTHON, SERVER], "tool_choice": choice, "served": served}
    assert refusal(**fields)[1] == param
    assert words in refusal(**fields)[2]


def test_of_allowed_tools_those_are_repeated_that_are_there() -> None:
    allowed = [
        {"type": "web_search"},
        {"type": "code_interpreter"},
        {"type": "function", "name": "f"},
    ]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": allowed}
    request = parse(
        tools=[SEARCH, PYTHON, FUNCTION], tool_choice=choice, served=frozenset({"web_search"})
    )
    assert echo(request)["tool_choice"] == {**choice, "tools": [allowed[0], allowed[2]]}
    assert [tool["type"] for tool in echo(request)["tools"]] == ["web_search", "function"]


def test_the_echo_of_a_search_says_what_is_in_effect() -> None:
    assert echoed(SEARCH)["tools"] == [
        {
            "type": "web_search",
            "filters": None,
            "user_location": None,
            "search_context_size": "medium",
        }
    ]
    given = {**SEARCH, "filters": {"allowed_domains": ["a.example"]}, "search_context_size": "low"}
    assert echoed(given)["tools"] == [{**given, "user_location": None}]


def test_no_secret_is_echoed() -> None:
    secrets = {"authorization": "canary-1", "headers": {"x-key": "canary-2"}}
    assert "canary" not in repr(one({**SERVER, **secrets}))
    told = echoed({**SERVER, **secrets, "server_url": "https://a.example/canary-3?k=canary-4"})
    assert "canary" not in str(told)
    assert told["tools"] == [
        {
            "type": "mcp",
            "server_label": "docs",
            "server_url": "https://a.example/<redacted>",
            "headers": None,
            "allowed_tools": None,
            "require_approval": "always",
            "server_description": None,
        }
    ]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["a"], ["a"]),
        ({"tool_names": ["a"]}, ["a"]),
        ({"read_only": True}, {"read_only": True}),
        ({"tool_names": ["a"], "read_only": True}, {"tool_names": ["a"], "read_only": True}),
        ({}, {}),
    ],
)
def test_allowed_tools_are_echoed(given: object, shown: object) -> None:
    assert echoed({**SERVER, "allowed_tools": given})["tools"][0]["allowed_tools"] == shown


FULL: list[dict[str, Any]] = [
    *(
        {"type": kind, "user_location": {"type": "approximate", "city": "Rome"}}
        for kind in WEB_SEARCH_TYPES
    ),
    PYTHON,
    {**PYTHON, "container": {"type": "auto", "file_ids": ["file-1"], "memory_limit": "1g"}},
    {**PYTHON, "container": "cntr_1"},
    SERVER,
    {**SERVER, "require_approval": {"never": {"read_only": True}}, "allowed_tools": ["a"]},
]


@each("tool", FULL)
def test_what_is_echoed_is_of_openai_s_types_and_is_read_back(tool: dict[str, Any]) -> None:
    told = echoed(tool, FUNCTION)
    SDK_TOOL.validate_python(told["tools"][0])
    assert rules_of(told).allowed == {"f"}
    again = echo(parse(tools=told["tools"], served=ALL))
    assert again["tools"][1] == told["tools"][1]


def test_families_have_all_types() -> None:
    assert set(FAMILIES.values()) == set(get_args(HostedFamily))
    assert McpServerTool(server_label="a").require_approval is None


def test_the_state_of_tools_is_read() -> None:
    page = {"cursor": 6, "key": "k", "kind": "page", "url": "https://a.example", "title": "A"}
    state = tool_state_of(
        b'{"pages":[%b],"container_id":"cntr_1"}' % str(page).replace("'", '"').encode()
    )
    shown = ShownPage(6, "k", "page", "https://a.example", "A")
    assert state == ToolState((shown,), "cntr_1")


@pytest.mark.parametrize("packed", [None, b"", b"{", b"[]", b'{"pages":3}'])
def test_state_that_cannot_be_read_is_none(packed: bytes | None) -> None:
    assert tool_state_of(packed) == NO_TOOL_STATE


@pytest.mark.parametrize(
    ("server", "has_secrets"),
    [
        (ServerGrant("a", f"{REGISTERED}1"), False),
        (ServerGrant("a", f"{REGISTERED}1", "digest"), True),
        (ServerGrant("a", "example.com digest"), True),
    ],
)
def test_what_a_request_says_of_a_server_may_be_secret(
    server: ServerGrant, has_secrets: bool
) -> None:
    assert server.has_secrets == has_secrets
