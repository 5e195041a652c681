"""What requests get of servers' tools: filtered, bounded, cleaned, kept for a while."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from gateway import ids
from gateway.errors import InvalidRequest
from gateway.protocol.grants import DomainRules, Grants, grants_json, grants_of
from gateway.protocol.hosted_tools import McpServerTool, ToolFilter
from gateway.tenancy import TenantId
from gateway.tools.mcp.failures import REQUEST_TIMEOUT, McpError
from gateway.tools.mcp.listing import (
    Listing,
    McpServers,
    RequestedServer,
    _parameters,
    matches,
    needs_approval,
)
from gateway.tools.mcp.servers import ServerPolicy, UrlTerms, named_identity, sealed_headers
from gateway.tools.mcp.session import McpLimits, ServerTool, ToolPages
from gateway.tools.mcp.session_pool import Networks, SessionPool
from gateway.tools.result_text import bounded, cut, plain
from tests.fakes.cases import each
from tests.fakes.mcp_peers import (
    IDENTITY_KEY,
    LOOPBACK,
    SEALER,
    TENANT,
    asked,
    pool,
    resolver_of,
    row,
    servers_of,
)
from tests.fakes.mcp_server import Process, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.protocol.grants import McpTool
    from gateway.tools.mcp.session_pool import Peer


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    with serving() as started:
        yield started


async def listed(servers: McpServers, *wanted: RequestedServer) -> Listing:
    (listing, *_) = await servers.list(TENANT, wanted)
    return listing


def by_name(listing: Listing) -> dict[str, McpTool]:
    return {tool.name: tool for tool in listing.grant.tools}


async def test_tools_of_a_server_are_granted_and_shown(server: Process) -> None:
    async with pool() as sessions:
        wanted = asked(
            "crm",
            server.url,
            server_description="Ours.\x1b[0m",
            headers={"X-A": "1"},
            authorization="t",
        )
        listing = await listed(servers_of(sessions), wanted)
    grant = listing.grant
    assert (grant.label, grant.server, grant.description) == (
        "crm",
        named_identity(server.url, IDENTITY_KEY),
        "Ours.[0m",
    )
    assert listing.secrets == {"x-a": "1", "authorization": "Bearer t", ":url": server.url}
    assert "Bearer" not in repr(listing)
    add = by_name(listing)["add"]
    assert add.description == "Add two numbers."
    assert add.needs_approval
    assert not add.is_read_only  # nobody trusts this server
    assert len(add.digest) == 64
    shown = {tool["name"]: tool for tool in listing.shown}
    assert shown["add"] == {
        "name": "add",
        "input_schema": add.parameters,
        "description": "Add two numbers.",
        "annotations": {"readOnlyHint": True},
    }
    entry = listing.entry()
    assert (entry.label, orjson.loads(entry.tools), entry.error) == (
        "crm",
        list(listing.shown),
        b"",
    )
    grants = Grants(servers=(grant,))
    assert grants_of(grants_json(grants)) == grants
    assert "Bearer" not in str(grants_json(grants))


@pytest.mark.slow
async def test_hints_count_where_the_operator_trusts_the_server(server: Process) -> None:
    secret = row(server.url, "theirs", trusted=True)
    async with pool() as sessions:
        servers = servers_of(sessions, secret)
        tools = by_name(
            await listed(servers, asked("theirs", require_approval={"never": {"read_only": True}}))
        )
        assert tools["add"].is_read_only
        assert not tools["add"].needs_approval
        assert tools["count"].is_idempotent
        assert tools["count"].needs_approval
        wary = asked("named", server.url, require_approval={"never": {"read_only": True}})
        assert by_name(await listed(servers, wary))["add"].needs_approval


@pytest.mark.slow
async def test_operator_decides_before_requests_do(server: Process) -> None:
    floor = row(server.url, "floor", always_asks=True, allowed_tools=b'["say","boom"]')
    async with pool() as sessions:
        servers = servers_of(sessions, floor)
        wanted = asked("floor", require_approval="never", allowed_tools=["say", "add"])
        tools = by_name(await listed(servers, wanted))
        assert list(tools) == ["say"]
        assert tools["say"].needs_approval
        with pytest.raises(InvalidRequest) as raised:
            await listed(servers, asked("unknown"))
        assert raised.value.param == "tools[0].server_label"


@pytest.mark.slow
async def test_credentials_of_the_registry_are_sent_and_not_replaced() -> None:
    with serving("denied") as denied:
        ours = row(denied.url, "ours")
        sealed = sealed_headers(SEALER, ours.tenant_id, ours.id, {"authorization": "Bearer good"})
        broken = replace(ours, id=ids.new_uuid(), label="broken", secret=sealed)
        async with pool() as sessions:
            servers = servers_of(sessions, replace(ours, secret=sealed), broken)
            listing = await listed(servers, asked("ours"))
            assert listing.error is None
            assert listing.secrets == {}
            assert listing.grant.credential == ""
            assert listing.grant.server == f"registry:{ours.id.hex}"
            with pytest.raises(InvalidRequest) as raised:
                await listed(servers, asked("ours", authorization="mine"))
            assert raised.value.param == "tools[0].headers"
            with pytest.raises(InvalidRequest):  # its seal is another server's
                await listed(servers, asked("broken"))


@pytest.mark.slow
async def test_server_that_cannot_be_listed_costs_its_tools_only(server: Process) -> None:
    with serving("denied") as denied, serving("circle") as circle:
        async with pool() as sessions:
            wanted = [
                asked("one", denied.url),
                asked("two", circle.url),
                asked("three", "http://127.0.0.1:9/mcp"),
                asked("four", server.url),
            ]
            one, two, three, four = await servers_of(sessions).list(TENANT, wanted)
    assert one.error == (
        "The tools of the MCP server 'one' could not be listed: the server answered 401."
    )
    assert two.error is not None
    assert "circle" in two.error
    assert three.error is not None
    assert "cannot be reached" in three.error
    assert orjson.loads(three.entry().error) == three.error
    assert [one.grant.tools, two.grant.tools, three.grant.tools] == [(), (), ()]
    assert four.error is None


@pytest.mark.slow
async def test_three_hundred_tools_come_in_pages_and_have_to_be_narrowed() -> None:
    with serving("paged") as paged:
        async with pool() as sessions:
            servers = servers_of(sessions)
            listing = await listed(servers, asked("many", paged.url))
            assert listing.error is not None
            assert "allowed_tools" in listing.error
            assert listing.grant.tools == ()
            some = [f"tool{number}" for number in range(0, 300, 2)]
            listing = await listed(servers, asked("many", paged.url, allowed_tools=some))
            assert sorted(by_name(listing)) == sorted(some)
            twice = [asked(label, paged.url, allowed_tools=some) for label in ("a", "b")]
            first, second = await servers.list(TENANT, twice)
            assert (len(first.grant.tools), len(second.grant.tools)) == (150, 0)
            assert second.error is not None
            few = McpLimits(schema_bytes_max=100)
            listing = await listed(servers_of(sessions, limits=few), asked("many", paged.url))
            assert listing.error is not None
            assert "100 at most" in listing.error
        small = McpLimits(connect_timeout_s=20, list_timeout_s=20, listing_bytes_max=2000)
        async with pool(limits=small) as sessions:
            listing = await listed(servers_of(sessions), asked("many", paged.url))
            assert listing.error is not None
            assert "too many tools" in listing.error


class Counted(SessionPool):
    """SessionPool that list what they are told to, and count how often."""

    def __init__(self, *pages: ToolPages) -> None:
        super().__init__(Networks(LOOPBACK, LOOPBACK), McpLimits())
        self.pages = list(pages)
        self.asked: list[Peer] = []

    @override
    async def list_tools(self, peer: Peer) -> ToolPages:
        self.asked.append(peer)
        await asyncio.sleep(0)
        return self.pages[min(len(self.asked), len(self.pages)) - 1]


def a_tool(name: str = "find", description: str = "", **schema: Any) -> ServerTool:
    return ServerTool(name, description, {"type": "object", **schema})


async def test_lists_are_kept_for_one_tenant_and_one_set_of_credentials() -> None:
    sessions = Counted(ToolPages((a_tool("old"),)), ToolPages((a_tool("new"),)))
    servers = servers_of(sessions)
    wanted = asked("a", "http://127.0.0.1:1/mcp")
    both = await asyncio.gather(
        listed(servers, wanted), listed(servers, asked("b", "http://127.0.0.1:1/mcp"))
    )
    assert [list(by_name(one)) for one in both] == [["old"], ["old"]]
    assert len(sessions.asked) == 1
    await listed(servers, asked("a", "http://127.0.0.1:1/mcp", authorization="other"))
    await servers.list(TenantId(ids.new_uuid()), [wanted])
    assert len(sessions.asked) == 3
    sessions.on_list_changed(sessions.asked[0])
    assert list(by_name(await listed(servers, wanted))) == ["new"]


class Slow(Counted):
    """Those whose answer comes when everybody else waits for it; without a tool it is an error."""

    def __init__(self, *pages: ToolPages) -> None:
        super().__init__(*pages)
        self.is_asked = asyncio.Event()

    @override
    async def list_tools(self, peer: Peer) -> ToolPages:
        pages = await super().list_tools(peer)
        self.is_asked.set()
        for _ in range(20):
            await asyncio.sleep(0)
        if not pages.tools:
            raise McpError("mcp_protocol_error", REQUEST_TIMEOUT, "no answer in 10 s")
        return pages


WANTED = asked("a", "http://127.0.0.1:1/mcp")


@pytest.mark.parametrize("is_anew", [False, True])
async def test_who_waits_for_a_server_is_told_how_it_failed(*, is_anew: bool) -> None:
    """Each would wait for as long again otherwise."""
    sessions = Slow(ToolPages(()), ToolPages((a_tool(),)))
    servers = servers_of(sessions)
    asking = [servers.list(TENANT, [WANTED], anew=is_anew) for _ in range(3)]
    told = [listing.error for (listing,) in await asyncio.gather(*asking)]
    assert told == ["The tools of the MCP server 'a' could not be listed: no answer in 10 s."] * 3
    assert len(sessions.asked) == 1
    assert (await listed(servers, WANTED)).error is None, "who comes later asks again"


async def test_who_waits_for_what_a_server_has_now_is_told_what_was_asked_since() -> None:
    sessions = Slow(ToolPages((a_tool("old"),)), ToolPages((a_tool("new"),)))
    servers = servers_of(sessions)
    asking = [servers.list(TENANT, [WANTED], anew=True) for _ in range(4)]
    told = [list(by_name(listing)) for (listing,) in await asyncio.gather(*asking)]
    assert told == [["old"], ["new"], ["new"], ["new"]]
    assert len(sessions.asked) == 2


async def test_who_stops_waiting_for_a_server_stops_nobody_else() -> None:
    sessions = Slow(ToolPages((a_tool(),)))
    servers = servers_of(sessions)
    first, second = (asyncio.create_task(listed(servers, WANTED)) for _ in range(2))
    await sessions.is_asked.wait()
    first.cancel()
    assert list(by_name(await second)) == ["find"]


async def test_a_list_that_is_kept_is_not_what_a_server_has_now() -> None:
    sessions = Counted(ToolPages((a_tool("old"),)), ToolPages((a_tool("new"),)))
    servers = servers_of(sessions)
    wanted = asked("a", "http://127.0.0.1:1/mcp")
    assert list(by_name(await listed(servers, wanted))) == ["old"]
    (listing,) = await servers.list(TENANT, [wanted], anew=True)
    assert list(by_name(listing)) == ["new"]
    assert list(by_name(await listed(servers, wanted))) == ["new"]


class Changing(Counted):
    """Those that change while they are listed, and say so before the answer is there."""

    @override
    async def list_tools(self, peer: Peer) -> ToolPages:
        pages = await super().list_tools(peer)
        self.on_list_changed(peer)
        return pages


async def test_a_list_that_changes_while_it_comes_is_not_kept() -> None:
    sessions = Changing(ToolPages((a_tool("old"),)), ToolPages((a_tool("new"),)))
    servers = servers_of(sessions)
    assert list(by_name(await listed(servers, WANTED))) == ["old"]
    assert list(by_name(await listed(servers, WANTED))) == ["new"]


async def test_lists_are_kept_by_the_memory_that_they_take() -> None:
    text = a_tool("text", description="x" * 20_000)
    brackets = a_tool("brackets", properties={str(n): {} for n in range(2000)})
    for tool, expected in ((text, 1), (brackets, 2)):
        sessions = Counted(ToolPages((tool,)))
        servers = servers_of(sessions, limits=McpLimits(cache_bytes_max=100_000))
        for _ in range(2):
            assert list(by_name(await listed(servers, WANTED))) == [tool.name]
        assert len(sessions.asked) == expected


async def test_lists_are_kept_as_long_as_the_server_says() -> None:
    for ttl_s, expected in ((1e-9, 2), (0.0, 1), (60.0, 1)):
        sessions = Counted(ToolPages((a_tool(),), ttl_s))
        servers = servers_of(sessions)
        for _ in range(2):
            await listed(servers, asked("a", "http://127.0.0.1:1/mcp"))
        assert len(sessions.asked) == expected


async def test_what_a_server_writes_is_cleaned_and_bounded() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}}
    sessions = Counted(
        ToolPages(
            (
                a_tool(description="\x1b[31mred\u202e\n" + "x" * 2000),
                a_tool("schema", properties={"a": {"description": "\x07beep", "default": "\x07"}}),
                a_tool("bad name"),
                a_tool("x" * 128),
                ServerTool("array", "", {"type": "array"}),
                ServerTool("deep", "", deep),
                ServerTool("huge", "", {"type": "object", "maximum": 2**70}),
                ServerTool("empty", "", {}),
            )
        )
    )
    listing = await listed(servers_of(sessions), asked("a", "http://127.0.0.1:1/mcp"))
    tools = by_name(listing)
    assert list(tools) == ["find", "schema", "empty"]
    assert tools["find"].description.startswith("[31mred\nxxx")
    assert len(tools["find"].description) == 1024
    assert tools["schema"].parameters["properties"] == {
        "a": {"description": "beep", "default": "\x07"}
    }
    assert tools["empty"].parameters == {"type": "object", "properties": {}}
    assert not any("annotations" in tool for tool in listing.shown)


async def test_digest_is_of_name_description_and_schema() -> None:
    variants = [
        a_tool(),
        a_tool("other"),
        a_tool(description="other"),
        a_tool(properties={"a": {}}),
        a_tool(properties={"a": {"type": "string"}}),
    ]
    digests = set()
    for variant in variants:
        servers = servers_of(Counted(ToolPages((variant,))))
        listing = await listed(servers, asked("a", "http://127.0.0.1:1/mcp"))
        digests.add(listing.grant.tools[0].digest)
    assert len(digests) == len(variants)


NEVER_A = {"never": {"tool_names": ["a"]}}


@each(
    ("rule", "name", "is_read_only", "asks"),
    [
        (None, "a", True, True),
        ("always", "a", True, True),
        ("never", "a", False, False),
        (NEVER_A, "a", False, False),
        (NEVER_A, "b", False, True),
        ({"always": {"tool_names": ["a"]}}, "a", False, True),
        ({"always": {"tool_names": ["a"]}}, "b", False, True),
        ({"always": {"tool_names": ["a"]}, **NEVER_A}, "a", False, True),
        ({"always": {"read_only": False}, "never": {"read_only": True}}, "a", True, False),
        ({"never": {"tool_names": ["a"], "read_only": True}}, "a", False, True),
        ({"never": {}}, "a", True, True),
        ({"never": None, "always": None}, "a", True, True),
    ],
)
def test_who_is_asked_about_what(rule: object, name: str, is_read_only: bool, asks: bool) -> None:
    made = needs_approval(asked("a", require_approval=rule).tool.require_approval)
    assert made(name, is_read_only) == asks


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"headers": {"cookie": "a"}}, "headers"), ({"authorization": "a b"}, "authorization")],
)
def test_requests_that_cannot_be_meant_are_refused(fields: dict[str, Any], param: str) -> None:
    tool = {"type": "mcp", "server_label": "a", "server_url": "https://mcp.example", **fields}
    with pytest.raises(InvalidRequest) as raised:
        RequestedServer.of(McpServerTool.model_validate(tool), "tools[2]")
    assert raised.value.param == f"tools[2].{param}"


def test_filters_take_names_and_what_is_only_read() -> None:
    given = matches(ToolFilter(tool_names=("a", "b"), read_only=True))
    assert given("a", True)
    assert not given("a", False)
    assert not given("c", True)
    assert matches(ToolFilter())("c", False)


async def test_urls_are_held_to_the_policies_of_operator_and_tenant() -> None:
    sessions = Counted(ToolPages(()))
    https = "https://mcp.example.org/mcp"
    for urls, hosts, theirs, is_allowed in (
        ("any", (), "any", True),
        ("any", (), "listed", False),
        ("any", (), "registry", False),
        ("listed", ("example.org",), "any", True),
        ("listed", ("ample.org",), "any", False),
        ("registry", ("example.org",), "any", False),
    ):
        policy = ServerPolicy(urls, hosts)  # type: ignore[arg-type]
        servers = McpServers(resolver_of(policy=policy), sessions, McpLimits())
        listing = servers.list(TENANT, [asked("a", https)], UrlTerms(theirs))  # type: ignore[arg-type]
        if is_allowed:
            assert len(await listing) == 1
            continue
        with pytest.raises(InvalidRequest) as raised:
            await listing
        assert raised.value.param == "tools[0].server_url"
    open_ = McpServers(resolver_of(policy=ServerPolicy("any")), sessions, McpLimits())
    for rules, is_allowed in (
        (DomainRules(("example.org",)), True),
        (DomainRules(("ample.org",)), False),
        (DomainRules((), ("mcp.example.org",)), False),
        (DomainRules(("mcp.example.org",), ("other.example.org",)), True),
    ):
        listing = open_.list(TENANT, [asked("a", https)], UrlTerms("any", rules))
        if is_allowed:
            assert len(await listing) == 1
            continue
        with pytest.raises(InvalidRequest, match="policy of your organisation"):
            await listing
    strict = McpServers(resolver_of(policy=ServerPolicy("any")), sessions, McpLimits())
    denied = UrlTerms("any", DomainRules((), ("mcp.example.org", "xn--bcher-kva.example")))
    for url in ("https://mcp\u3002example\uff0eorg/mcp", "https://b\u00fccher.example/"):
        with pytest.raises(InvalidRequest, match="policy of your organisation"):
            await open_.list(TENANT, [asked("a", url)], denied)
    with pytest.raises(InvalidRequest, match="malformed"):
        await open_.list(TENANT, [asked("a", "https://a\x01.example/")])
    for url in ("http://mcp.example.org/mcp", "ftp://a", "https://u:p@a/mcp", "https://a:22/", "x"):
        with pytest.raises(InvalidRequest):
            await strict.list(TENANT, [asked("a", url)])


@pytest.mark.slow
async def test_builtin_tools_have_a_server_where_one_is_registered_for_them(
    server: Process,
) -> None:
    browsing = row(server.url, "browsing", purposes="browser")
    async with pool() as sessions:
        servers = servers_of(sessions, browsing)
        registry = servers.resolver.registry
        found = await registry.for_purpose(TENANT, "browser")
        assert found is not None
        assert found.label == "browsing"
        assert await servers.instructions(TENANT, found) == "It helps with tests."
        assert await registry.for_purpose(TENANT, "python") is None
        with pytest.raises(InvalidRequest):  # its tools are not offered under its label
            await listed(servers, asked("browsing"))


def test_text_is_plain_and_has_an_end() -> None:
    assert plain("a\x00b\x1b[1mc\u202ed\u200fe\tf\ng\r") == "ab[1mcde\tf\ng"
    assert plain("héllo") == "héllo"
    assert plain("a\ud800b") == "a?b"
    assert bounded("abcdef", 3) == "ab…"
    assert cut("abc", 3) == "abc"
    text = "é" * 1000
    shortened = cut(text, 101)
    assert shortened.startswith("é" * 30)
    assert shortened.endswith("é" * 20)
    assert "1899 bytes left out" in shortened
    assert len(shortened.encode()) < 160


def test_schemas_of_objects_only() -> None:
    assert _parameters({"properties": {}}) == {"type": "object", "properties": {}}
    assert _parameters({"type": ["object", "null"]}) is None


HIDDEN = st.sampled_from(["\u202e", "\u200f", "\U000e0041", "\ufeff", "\u2066", "\x9b"])
SEEN_TEXT = st.text(st.sampled_from([*"ab é漢\n\r\t\x1b"]), max_size=4)
TEXT = st.builds("".join, st.lists(SEEN_TEXT | HIDDEN, max_size=3))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=5,
)
SCHEMAS = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer"]),
            "description": TEXT,
            "title": TEXT,
            "default": JSON,
            "examples": st.lists(JSON, max_size=2),
            "enum": st.lists(JSON, min_size=1, max_size=2),
            "const": JSON,
            "pattern": TEXT,
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "description": TEXT,
            "properties": st.dictionaries(
                TEXT | st.sampled_from(["default", "title", "enum"]), inner, max_size=2
            ),
            "required": st.lists(TEXT, max_size=2),
            "$defs": st.dictionaries(TEXT, inner, max_size=1),
            "items": inner,
        },
    ),
    max_leaves=4,
)
RAW = re.compile(
    "[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)


@pytest.mark.slow
@given(SCHEMAS.map(lambda schema: {**schema, "type": "object"}))
def test_nothing_in_a_schema_hides(schema: dict[str, Any]) -> None:
    """Neither the model nor a client is shown a character that it does not see."""
    made = _parameters(schema)
    if made is None:
        assert RAW.search(json.dumps(schema, ensure_ascii=False))
        return
    assert not RAW.search(json.dumps(made, ensure_ascii=False))
    if not RAW.search(json.dumps(schema, ensure_ascii=False)):
        assert made.keys() == schema.keys()
        assert made.get("properties", {}).keys() == schema.get("properties", {}).keys()
        assert made.get("enum") == schema.get("enum")


@each(
    ("schema", "is_offered"),
    [
        ({"properties": {"a\u202eb": {}}}, False),
        ({"properties": {"a": {"enum": ["x", "y\U000e0041"]}}}, False),
        ({"properties": {"a": {"const": {"description": "\u200f"}}}}, False),
        ({"required": ["\u2066"]}, False),
        ({"properties": {"a": {"pattern": "[\u202a]"}}}, False),
        ({"properties": {"a": {"enum": ["\n", "\r\n"]}}}, True),
        ({"properties": {"a": {"default": "x\u202e", "$comment": "\u202e"}}}, True),
        ({"properties": {"default": {"enum": ["\u202e"]}}}, False),
        ({"properties": {"a": {"description": "\u202ehidden\U000e0041"}}}, True),
    ],
)
def test_names_and_values_that_hide_cost_their_tool_and_texts_are_cleaned(
    schema: dict[str, Any], *, is_offered: bool
) -> None:
    made = _parameters(schema)
    assert (made is not None) == is_offered
    assert made is None or not RAW.search(json.dumps(made, ensure_ascii=False))
