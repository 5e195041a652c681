"""What responses are granted, by what is served, what the tenant may, and what the request says.

The rooms of the tools stand behind `ToolSources`; the real ones are tested through the API.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from gateway import ids
from gateway.errors import ConnectorFailed, InvalidRequest
from gateway.protocol.context_item import ContextItem
from gateway.protocol.grants import (
    ApprovedCall,
    BrowserGrant,
    DomainRules,
    Grants,
    McpTool,
    PythonGrant,
    ServerGrant,
    ShownPage,
    ToolBudget,
    approval_digest,
    grants_json,
    grants_of,
)
from gateway.protocol.tool_types import declared
from gateway.services.runs.history_source import History
from gateway.services.runs.tool_grants import (
    NOTHING_GRANTED,
    URLS_MAX,
    Granted,
    ToolGrants,
    rule_key,
    server_tools,
    urls_of,
)
from gateway.tenancy import Principal, TenantId
from gateway.tenancy.policy import TenantPolicy
from gateway.tools.mcp.listing import Listing
from tests.fakes.create_bodies import FUNCTION, parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from gateway.protocol.hosted_tools import CodeInterpreterTool, HostedFamily, McpServerTool
    from gateway.tenancy.policy import McpServersAllowed

ALL: frozenset[HostedFamily] = frozenset({"web_search", "code_interpreter", "mcp"})
SEARCH: dict[str, Any] = {"type": "web_search"}
PYTHON: dict[str, Any] = {"type": "code_interpreter", "container": {"type": "auto"}}
SERVER: dict[str, Any] = {
    "type": "mcp",
    "server_label": "docs",
    "server_url": "https://a.example/k",
}
READ = McpTool("read", {"type": "object"}, "Reads.", "r", is_read_only=True, needs_approval=False)
DROP = McpTool("drop", {"type": "object"}, "Drops.", "d")
DOCS = ServerGrant("docs", "https://a.example/k", tools=(READ, DROP))
PAGE = ShownPage(4, "k", "page", "https://b.example", "B")
STATE = orjson.dumps({"pages": [PAGE], "container_id": "cntr_0"})
RESPONSE = ids.new_uuid()
BUDGET = ToolBudget(failures_max=7)


@dataclass
class Rooms:
    """Rooms in which everything is there; `asked` is what they were asked for."""

    listed: tuple[Listing, ...] = ()
    domains: DomainRules | None = None
    anew: bool | None = None
    asked: list[Any] = field(default_factory=list)
    offered: frozenset[HostedFamily] = ALL

    def families(self) -> frozenset[HostedFamily]:
        return self.offered

    async def container(
        self,
        principal: Principal,
        response: UUID,
        tool: CodeInterpreterTool,
        *,
        inherited: str | None,
        param: str,
    ) -> PythonGrant:
        self.asked.append((inherited, param))
        return PythonGrant("cntr_1", "linux", 1 << 30)

    async def servers(
        self,
        tenant_id: TenantId,
        tools: Sequence[tuple[str, McpServerTool]],
        allowed: McpServersAllowed,
        domains: DomainRules,
        *,
        anew: bool,
    ) -> Sequence[Listing]:
        self.anew = anew
        self.asked.append((*((param, tool.server_label) for param, tool in tools), allowed))
        self.domains = domains
        return self.listed


def shown(*tools: McpTool) -> list[dict[str, Any]]:
    return [
        {
            "name": tool.name,
            "input_schema": tool.parameters,
            "description": tool.description,
            "annotations": {"readOnlyHint": True},
        }
        for tool in tools
    ]


LISTED = Listing(DOCS, tuple(shown(READ, DROP)), secrets={"x-key": "canary"})
NOTHING = History(None, (), 1)
AFTER = History(ids.new_uuid(), (), 1, tool_state=STATE)


async def decide(
    rooms: Rooms | None = None,
    history: History = NOTHING,
    policy: TenantPolicy | None = None,
    stored: Mapping[str, ContextItem] | None = None,
    *,
    strict: bool = False,
    **fields: Any,
) -> Granted:
    given = Rooms((LISTED,)) if rooms is None else rooms
    grants = ToolGrants(given, BUDGET, needs_listings=strict)
    tenant = Principal(TenantId(ids.new_uuid()), "acme", ids.new_uuid(), policy or TenantPolicy())
    request = parse(served=grants.served(tenant.policy), **fields)
    return await grants.decide(tenant, request, history, stored or {}, RESPONSE)


def test_what_is_served_is_what_runs_here_and_the_tenant_may_use() -> None:
    assert ToolGrants(None, BUDGET).served(TenantPolicy()) == frozenset()
    assert ToolGrants(Rooms(), BUDGET).served(TenantPolicy()) == ALL
    only_mcp = TenantPolicy(web_search="refused", code_interpreter="refused")
    assert ToolGrants(Rooms(), BUDGET).served(only_mcp) == {"mcp"}
    web = Rooms(offered=frozenset({"web_search"}))
    assert ToolGrants(web, BUDGET).served(only_mcp) == frozenset()


NO_HOSTED: list[list[Any]] = [[], [FUNCTION], [{"type": "file_search"}]]


@pytest.mark.parametrize("tools", NO_HOSTED)
async def test_without_a_hosted_tool_nothing_is_granted(tools: list[Any]) -> None:
    rooms = Rooms((LISTED,))
    only_container = History(ids.new_uuid(), (), 1, tool_state=b'{"container_id":"cntr_0"}')
    for history in (NOTHING, only_container):
        assert await decide(rooms, history, tools=tools) is NOTHING_GRANTED
    assert rooms.asked == []


@pytest.mark.parametrize("tools", NO_HOSTED)
async def test_pages_of_the_chain_can_be_cited_without_a_hosted_tool(tools: list[Any]) -> None:
    linking = replace(PAGE, cursor=5, links=("https://c.example",), hits=((2, "C"),))
    results = replace(linking, cursor=6, kind="search", url="")
    state = orjson.dumps({"pages": [PAGE, linking, results]})
    rooms = Rooms((LISTED,))
    grants = (await decide(rooms, replace(AFTER, tool_state=state), tools=tools)).grants
    assert grants is not None
    assert not grants.has_tools
    # Of a page with an address that is all that a citation shows.
    assert grants.cited_pages == (PAGE, replace(PAGE, cursor=5), results)
    assert rooms.asked == []


@pytest.mark.parametrize(
    ("tool", "pages", "container"),
    [
        ({"type": "mcp", "server_label": "docs"}, [4], "cntr_old"),
        ({"type": "web_search"}, [], "cntr_old"),
        ({"type": "code_interpreter", "container": {"type": "auto"}}, [4], None),
    ],
)
async def test_pages_and_container_of_the_chain_go_on_where_no_tool_has_them(
    tool: Any, pages: list[int], container: str | None
) -> None:
    state = b'{"pages":[{"cursor":4,"key":"k","kind":"page","url":"u","title":"t"}],' + (
        b'"container_id":"cntr_old"}'
    )
    after = History(ids.new_uuid(), (), 1, tool_state=state)
    grants = (await decide(None, after, tools=[tool])).grants
    assert grants is not None
    assert [page.cursor for page in grants.unused_pages] == pages
    assert grants.unused_container == container
    assert [page.cursor for page in grants.cited_pages or ()] == [4]


async def test_a_search_is_granted_as_the_request_has_it_and_goes_on_with_its_cursors() -> None:
    place = {"type": "approximate", "city": "Paris", "country": "fr"}
    tool = {**SEARCH, "user_location": place, "search_context_size": "high"}
    tool |= {"filters": {"allowed_domains": ["https://a.example"]}, "external_web_access": False}
    granted = await decide(history=AFTER, tools=[tool])
    assert granted.grants is not None
    assert granted.grants.browser == BrowserGrant(
        type="web_search",
        context_size="high",
        allowed_domains=("a.example",),
        country="FR",
        location="Paris, fr",
        is_live=False,
        pages=(PAGE,),
    )
    assert (granted.grants.python, granted.grants.servers) == (None, ())
    odd = {**SEARCH, "user_location": {"country": "France"}}
    found = await decide(tools=[odd])
    assert found.grants is not None
    assert found.grants.browser == BrowserGrant("web_search", location="France")


async def test_a_container_is_asked_for_with_that_of_the_context() -> None:
    rooms = Rooms()
    granted = await decide(rooms, AFTER, tools=[FUNCTION, PYTHON])
    assert rooms.asked == [("cntr_0", "tools[1].container")]
    assert granted.grants is not None
    assert granted.grants.python == PythonGrant("cntr_1", "linux", 1 << 30)


async def test_a_container_goes_on_that_is_among_the_items_that_are_sent_again() -> None:
    rooms = Rooms()
    ran = {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "cntr_7"}
    await decide(rooms, tools=[PYTHON], input=[ran, {"role": "user", "content": "Go on."}])
    assert rooms.asked == [("cntr_7", "tools[0].container")]


async def test_a_program_that_the_history_has_brings_no_container_back() -> None:
    item_id = ids.output_item_id("ci_", RESPONSE, 0)
    ran = {"type": "code_interpreter_call", "id": item_id, "code": "1", "container_id": "cntr_7"}
    after = replace(AFTER, items=(stored_item(ran),))
    for history, container in ((after, "cntr_0"), (AFTER, "cntr_7")):
        rooms = Rooms()
        await decide(rooms, history, tools=[PYTHON], input=[ran])
        assert rooms.asked == [(container, "tools[0].container")]


async def test_a_server_is_granted_with_its_tools_its_list_and_its_secrets() -> None:
    rooms = Rooms((LISTED,))
    policy = TenantPolicy(mcp_servers="listed")
    granted = await decide(rooms, policy=policy, tools=[FUNCTION, SERVER])
    assert rooms.asked == [(("tools[1]", "docs"), "listed")]
    assert granted.grants is not None
    assert granted.grants.servers == (DOCS,)
    assert granted.listings == (LISTED.entry(),)
    assert granted.secrets == {"docs": {"x-key": "canary"}}
    assert "canary" not in repr(granted)


async def test_the_policy_can_demand_that_users_are_always_asked() -> None:
    granted = await decide(policy=TenantPolicy(mcp_approvals="always"), tools=[SERVER])
    assert granted.grants is not None
    assert [tool.needs_approval for tool in granted.grants.servers[0].tools] == [True, True]


@pytest.mark.parametrize(
    ("asked", "policy", "calls"),
    [(None, TenantPolicy(), 64), (3, TenantPolicy(), 3), (9, TenantPolicy(tool_calls_max=5), 5)],
)
async def test_the_budget_is_the_least_of_all(
    asked: int | None, policy: TenantPolicy, calls: int
) -> None:
    policy = replace(policy, tool_time_max_s=12, tool_result_ids_max=9, tool_result_bytes_max=8)
    granted = await decide(policy=policy, tools=[SEARCH], max_tool_calls=asked)
    assert granted.grants is not None
    assert granted.grants.budget == ToolBudget(calls, 7, 12.0, 9, 8)


async def test_where_tools_may_connect_to_is_decided_with_the_grants() -> None:
    rooms = Rooms((LISTED,))
    policy = TenantPolicy(
        egress_domains="a.example b.example", egress_denied_domains="no.a.example"
    )
    granted = await decide(rooms, policy=policy, tools=[SEARCH, SERVER])
    rules = DomainRules(("a.example", "b.example"), ("no.a.example",))
    assert rooms.domains == rules
    assert granted.grants is not None
    browser = granted.grants.browser
    assert browser is not None
    assert (browser.is_live, DomainRules(browser.tenant_domains, browser.denied_domains)) == (
        True,
        rules,
    )
    assert grants_of(grants_json(granted.grants)) == granted.grants

    closed = await decide(rooms, policy=TenantPolicy(egress="refused"), tools=[SEARCH, SERVER])
    assert rooms.asked[-1][-1] == "registry"
    assert closed.grants is not None
    assert closed.grants.browser is not None
    assert not closed.grants.browser.is_live


async def test_a_server_that_lists_nothing_costs_the_request_where_that_is_demanded() -> None:
    failed = Listing(ServerGrant("docs", "x"), error="It is down.", error_code="http_error")
    granted = await decide(Rooms((failed,)), tools=[SERVER])
    assert granted.grants is not None
    with pytest.raises(ConnectorFailed, match=r"It is down\. Mend the server") as raised:
        await decide(Rooms((failed,)), tools=[SERVER], strict=True)
    assert (raised.value.code, raised.value.param) == ("http_error", "tools")
    assert (await decide(tools=[SERVER], strict=True)).grants is not None
    unasked = await decide(Rooms((failed,)), tools=[SERVER], tool_choice="none", strict=True)
    assert unasked.grants is not None


async def test_what_hosted_tools_show_besides_is_kept() -> None:
    included = ["web_search_call.action.sources", "code_interpreter_call.outputs"]
    granted = await decide(tools=[SEARCH], include=[*included, "reasoning.encrypted_content"])
    assert granted.grants is not None
    assert granted.grants.include == tuple(included)


async def test_with_tool_choice_none_only_citations_are_resolved() -> None:
    rooms = Rooms((LISTED,))
    granted = await decide(rooms, AFTER, tools=[SEARCH, PYTHON, SERVER], tool_choice="none")
    assert rooms.asked == []
    assert granted.grants is not None
    assert granted.grants.browser is not None
    assert (granted.grants.python, granted.grants.servers) == (None, ())


def list_item(tools: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "type": "mcp_list_tools",
        "id": "mcpl_1",
        "server_label": "docs",
        "tools": tools,
    } | fields


def stored_item(item: dict[str, Any]) -> ContextItem:
    return ContextItem(item["type"], item["id"], orjson.dumps(item))


WITHOUT_HINTS = [{**tool, "annotations": None} for tool in shown(READ, DROP)]


@pytest.mark.parametrize(
    ("item", "is_listed"),
    [
        (list_item(shown(READ, DROP)), False),
        (list_item(WITHOUT_HINTS, error=None), False),
        (list_item(shown(READ)), True),
        (list_item(shown(READ, DROP), server_label="other"), True),
        (list_item(shown(READ, DROP), error="It failed."), True),
    ],
    ids=["same", "without hints", "other tools", "other server", "failed"],
)
@pytest.mark.parametrize("place", ["input", "history", "stored"])
async def test_a_list_that_the_context_has_is_not_told_again(
    item: dict[str, Any], is_listed: bool, place: str
) -> None:
    user = {"role": "user", "content": "hi"}
    if place == "input":
        granted = await decide(tools=[SERVER], input=[item, user])
    elif place == "history":
        history = History(ids.new_uuid(), (stored_item(item),), 1)
        granted = await decide(history=history, tools=[SERVER])
    else:
        reference = {"type": "item_reference", "id": "mcpl_1"}
        stored = {"mcpl_1": stored_item(item)}
        granted = await decide(stored=stored, tools=[SERVER], input=[reference, user])
    assert granted.grants is not None
    assert len(granted.listings) == is_listed


FAILED = Listing(ServerGrant("docs", "https://a.example/k"), error="It could not be listed.")


async def test_a_server_that_cannot_be_listed_costs_its_tools_alone() -> None:
    granted = await decide(Rooms((FAILED,)), tools=[SERVER, SEARCH])
    assert granted.grants is not None
    assert granted.grants.servers == (FAILED.grant,)
    assert granted.grants.browser is not None
    assert len(granted.listings) == 1


FORCED: list[Any] = [
    "required",
    {"type": "mcp", "server_label": "docs"},
    {"type": "mcp", "server_label": "docs", "name": "read"},
    {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "mcp", "server_label": "docs"}],
    },
]


@pytest.mark.parametrize("choice", FORCED, ids=str)
async def test_a_tool_that_must_be_called_has_to_be_there(choice: Any) -> None:
    assert (await decide(tools=[SERVER], tool_choice=choice)).grants is not None
    with pytest.raises(InvalidRequest, match="could not be listed") as caught:
        await decide(Rooms((FAILED,)), tools=[SERVER], tool_choice=choice)
    assert (caught.value.code, caught.value.param) == ("tool_not_available", "tool_choice")


async def test_so_has_a_tool_of_a_server_that_has_others() -> None:
    choice = {"type": "mcp", "server_label": "docs", "name": "write"}
    with pytest.raises(InvalidRequest, match="offers no such tool"):
        await decide(tools=[SERVER], tool_choice=choice)


@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        "required",
        {"type": "web_search"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "mcp", "server_label": "docs"}, {"type": "function", "name": "f"}],
        },
        {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "mcp", "server_label": "docs"}],
        },
    ],
    ids=str,
)
async def test_where_something_else_can_be_called_a_failure_is_none(choice: Any) -> None:
    tools = [SERVER, SEARCH, FUNCTION]
    granted = await decide(Rooms((FAILED,)), tools=tools, tool_choice=choice)
    assert granted.grants is not None


async def test_a_tool_of_a_server_must_not_have_the_name_of_a_function() -> None:
    with pytest.raises(InvalidRequest, match=r"named 'docs\.read'") as caught:
        await decide(tools=[FUNCTION, SERVER, {**FUNCTION, "name": "docs.read"}])
    assert (caught.value.code, caught.value.param) == ("invalid_value", "tools[1].server_label")


QUESTION = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs"} | {
    "name": "drop",
    "arguments": "{}",
}
YES = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
BOUND = ("mcpr_1", approval_digest(DOCS, DROP, "{}"))


@pytest.mark.parametrize("place", ["input", "history", "stored"])
async def test_an_approval_is_found_wherever_it_was_asked_for(place: str) -> None:
    if place == "input":
        granted = await decide(tools=[SERVER], input=[QUESTION, YES])
    elif place == "history":
        history = History(ids.new_uuid(), (stored_item(QUESTION),), 1)
        granted = await decide(history=history, tools=[SERVER], input=[YES])
    else:
        reference = {"type": "item_reference", "id": "mcpr_1"}
        stored = {"mcpr_1": stored_item(QUESTION)}
        granted = await decide(stored=stored, tools=[SERVER], input=[reference, YES])
    assert granted.grants is not None
    assert granted.grants.approved == ApprovedCall("mcpr_1", "docs.drop", "{}")
    assert granted.approvals == (BOUND,)
    unused = granted.without_approvals()
    assert unused.grants == replace(granted.grants, approved=None)
    assert unused.approvals == ()
    assert NOTHING_GRANTED.without_approvals() == NOTHING_GRANTED


async def test_an_answer_that_the_history_has_is_not_given_again() -> None:
    answer: dict[str, Any] = YES | {"id": ids.input_item_id("mcpa_", RESPONSE, 0)}
    there = History(ids.new_uuid(), (stored_item(QUESTION), stored_item(answer)), 1)
    asked = History(ids.new_uuid(), (stored_item(QUESTION),), 1)
    for history, approvals in ((there, ()), (asked, (BOUND,))):
        granted = await decide(history=history, tools=[SERVER], input=[answer])
        assert granted.approvals == approvals
    mine: dict[str, Any] = YES | {"id": "mcpa_mine"}
    before = History(ids.new_uuid(), (stored_item(QUESTION), stored_item(mine)), 1)
    assert (await decide(history=before, tools=[SERVER], input=[mine])).approvals == (BOUND,)


@pytest.mark.parametrize(("answer", "anew"), [(YES, True), ({**YES, "approve": False}, False)])
async def test_a_server_lists_its_tools_anew_for_what_was_approved(answer: Any, anew: bool) -> None:
    rooms = Rooms((LISTED,))
    await decide(rooms, tools=[SERVER])
    assert rooms.anew is False
    await decide(rooms, tools=[SERVER], input=[QUESTION, answer])
    assert rooms.anew is anew


async def test_an_approval_and_a_compaction_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="Send the answer first"):
        await decide(tools=[SERVER], input=[QUESTION, YES, {"type": "compaction_trigger"}])


async def test_a_refusal_is_used_up_and_calls_nothing() -> None:
    refused = [QUESTION, {**YES, "approve": False}]
    granted = await decide(tools=[SERVER], input=refused, tool_choice="none")
    assert granted.grants is not None
    assert granted.grants.approved is None
    assert granted.approvals == (BOUND,)


async def test_an_approval_needs_the_server_again() -> None:
    for tools in ([], [SEARCH]):
        with pytest.raises(InvalidRequest) as caught:
            await decide(tools=tools, input=[QUESTION, YES])
        assert caught.value.code == "approval_mismatch"


async def test_an_approval_of_a_server_that_is_away_is_not_taken_for_one_of_something_else() -> (
    None
):
    failed = Listing(ServerGrant("docs", "x"), error="It is down.", error_code="http_error")
    with pytest.raises(ConnectorFailed, match=r"It is down\."):
        await decide(Rooms((failed,)), tools=[SERVER], input=[QUESTION, YES])
    refused = [QUESTION, {**YES, "approve": False}]
    assert (await decide(Rooms((failed,)), tools=[SERVER], input=refused)).approvals == ()


async def test_where_no_server_is_served_an_approval_is_an_item_like_others() -> None:
    policy = TenantPolicy(mcp="refused")
    granted = await decide(policy=policy, tools=[SERVER], input=[QUESTION, YES])
    assert granted is NOTHING_GRANTED


async def test_a_refusal_without_a_server_is_told_to_the_model_alone() -> None:
    assert await decide(tools=[], input=[QUESTION, {**YES, "approve": False}]) is NOTHING_GRANTED


async def test_beside_other_tools_the_browser_opens_what_the_caller_names() -> None:
    said = "See https://a.example/x?y=1, (https://b.example/z)."
    earlier = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "http://c"}],
    }
    history = History(
        ids.new_uuid(),
        (
            ContextItem("message", "msg_1", orjson.dumps(earlier), role="user"),
            ContextItem("message", "msg_2", b"", role="user"),
            ContextItem("message", "msg_3", orjson.dumps(earlier), role="assistant"),
        ),
        1,
    )
    granted = await decide(
        history=history, tools=[SEARCH, PYTHON], input=said, instructions="https://d.example"
    )
    assert granted.grants is not None
    assert granted.grants.browser is not None
    assert granted.grants.browser.opens == "known"
    assert set(granted.grants.browser.urls) >= {
        "https://a.example/x?y=1",
        "https://b.example/z",
        "http://c",
        "https://d.example",
    }
    alone = await decide(tools=[SEARCH], input=said)
    assert alone.grants is not None
    assert alone.grants.browser is not None
    assert (alone.grants.browser.opens, alone.grants.browser.urls) == ("any", ())


def test_known_urls_are_bounded_and_of_those_who_ask() -> None:
    texts = " ".join(f"https://a.example/{number}" for number in range(2 * URLS_MAX))
    assert len(urls_of(texts, ())) == URLS_MAX
    request = parse(
        input=[
            {"role": "assistant", "content": "https://never.example"},
            {"type": "reasoning", "summary": []},
            {
                "role": "user",
                "content": [{"type": "input_image", "image_url": "https://i.example"}],
            },
        ]
    )
    assert urls_of(None, request.input) == ()


def test_tools_of_servers_are_functions_of_a_namespace() -> None:
    described = replace(DOCS, description="The library.")
    other = ServerGrant("z", "registry:1", tools=(READ,))
    tools = parse(tools=[FUNCTION, SERVER, {"type": "mcp", "server_label": "z"}], served=ALL).tools
    made = server_tools(tools, Grants(servers=(described, other)))
    assert made.paths == ("tools[1]", "tools[1]", "tools[2]")
    told = [(function.name, function.description) for function in made.functions]
    assert told == [
        ("docs.read", "Tools of `docs`: The library.\n\nReads."),
        ("docs.drop", "Drops."),
        ("z.read", "Reads."),
    ]
    assert declared(tools)[0].name == "f"


def test_rules_are_kept_by_all_that_they_depend_on() -> None:
    base = Grants(browser=BrowserGrant("web_search"), servers=(DOCS,))
    asks = replace(DOCS, tools=(replace(READ, needs_approval=True), DROP))
    others = [
        None,
        Grants(servers=(DOCS,)),
        replace(base, python=PythonGrant("cntr_1", "linux", 1)),
        replace(base, servers=(asks,)),
        replace(base, servers=(replace(DOCS, label="z"),)),
    ]
    keys = {orjson.dumps(rule_key(grants)) for grants in (base, *others)}
    assert len(keys) == 1 + len(others)
    pages = replace(base, browser=BrowserGrant("web_search", pages=(PAGE,)))
    assert rule_key(pages) == rule_key(base)
