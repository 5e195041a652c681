"""Grants of hosted tools, decided once, when a response is created.

An approval is used up when the response is recorded (`engine.archive`): a refused request can be
repeated. Clients that send all items send old answers again, so an answer counts only if no output
of the model follows it.

A page or a tool's result can tell the model to open a URL that carries away what it has seen. So
beside other tools, whose results may be private, the browser opens only URLs that the caller wrote
(`urls_of`) or a shown page has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

import orjson

from gateway.context.assembly import may_repeat
from gateway.errors import ConnectorFailed, InvalidRequest
from gateway.protocol.grants import (
    ApprovedCall,
    BrowserGrant,
    DomainRules,
    Grants,
    ToolBudget,
    approval_digest,
    tool_state_of,
)
from gateway.protocol.hosted_tools import (
    NO_FAMILIES,
    CodeInterpreterTool,
    McpServerTool,
    WebSearchTool,
)
from gateway.protocol.items import McpApprovalRequest, McpApprovalResponse, McpListTools, Message
from gateway.protocol.parameters import AllowedTools, ToolChoice
from gateway.protocol.request_errors import (
    duplicate_name,
    invalid,
    refused_approval,
    unknown_approval,
)
from gateway.protocol.tool_types import (
    FunctionTool,
    NamespaceTool,
    declared,
    flat_name,
    named,
    run_tools,
)
from gateway.services.runs.history_source import combines
from gateway.store.packing import items_of_kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from gateway.entries import ToolsListed
    from gateway.protocol.context_item import ContextItem
    from gateway.protocol.grants import McpTool, PythonGrant, ServerGrant, ToolState
    from gateway.protocol.hosted_tools import HostedFamily
    from gateway.protocol.items import AnyHostedItem, InputItem
    from gateway.protocol.parameters import ToolName
    from gateway.protocol.responses.create_request import CreateResponse
    from gateway.protocol.tool_types import Tool
    from gateway.services.runs.history_source import History
    from gateway.tenancy import Principal, TenantId
    from gateway.tenancy.policy import McpServersAllowed, TenantPolicy
    from gateway.tools.mcp.listing import Listing


_Hosted = TypeVar("_Hosted", bound="AnyHostedItem")

INCLUDED: Final = frozenset(
    {"web_search_call.action.sources", "web_search_call.results", "code_interpreter_call.outputs"}
)
_COUNTRY_CHARS: Final = 2
_OF_NOBODY: Final = frozenset({"item_reference", "compaction_trigger"})
_PARAM: Final = "input"
ASKING: Final = frozenset({"user", "system", "developer"})
URLS_MAX: Final = 256
"""URLs; the last ones are remembered."""
_URL: Final = re.compile(r"https?://[^\s<>\"'`|\\^{}]{1,2040}")
_BEHIND: Final = ".,;:!?*_)]}'\""
"""Characters that often follow a URL in a text."""


class ToolSources(Protocol):
    """Hosted tools; all methods raise `StoreUnavailable`."""

    def families(self) -> frozenset[HostedFamily]:
        """Return the families that this process can run now."""

    async def container(
        self,
        principal: Principal,
        response: UUID,
        tool: CodeInterpreterTool,
        *,
        inherited: str | None,
        param: str,
    ) -> PythonGrant:
        """Return the container of a response; `inherited` is the one of its context."""

    async def servers(
        self,
        tenant_id: TenantId,
        tools: Sequence[tuple[str, McpServerTool]],
        allowed: McpServersAllowed,
        domains: DomainRules,
        *,
        anew: bool,
    ) -> Sequence[Listing]:
        """List servers' tools; servers come with their paths in the request (`tools[0]`).

        `allowed` and `domains` are for servers named by URL. With `anew` cached lists are ignored.
        Raises `InvalidRequest` for a server that may not be used.
        """


@dataclass(frozen=True, slots=True)
class Granted:
    """Decisions about one response's tools.

    `secrets` are by server label; `approvals` are used up when the response begins.
    """

    grants: Grants | None = None
    listings: tuple[ToolsListed, ...] = ()
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    approvals: tuple[tuple[str, bytes], ...] = ()

    def without_approvals(self) -> Granted:
        """Return a copy for a response that calls nothing: the user's approvals stay unused."""
        grants = self.grants and replace(self.grants, approved=None)
        return replace(self, grants=grants, approvals=())


NOTHING_GRANTED: Final = Granted()


class ToolGrants:
    def __init__(
        self, sources: ToolSources | None, budget: ToolBudget, *, needs_listings: bool = False
    ) -> None:
        """Decide what happens if an MCP server does not list its tools.

        `needs_listings`: the request is refused, as by OpenAI; otherwise the response goes without
        them, unless a call is approved.
        """
        self._sources = sources
        self._budget = budget
        self._needs_listings = needs_listings

    def served(self, policy: TenantPolicy) -> frozenset[HostedFamily]:
        """Return the families that requests may offer, without I/O: parsing drops others."""
        families = NO_FAMILIES if self._sources is None else self._sources.families()
        return frozenset(one for one in families if getattr(policy, one) == "allowed")

    async def decide(
        self,
        principal: Principal,
        request: CreateResponse,
        history: History,
        stored: Mapping[str, ContextItem],
        response: UUID,
    ) -> Granted:
        """Decide what the response may use; `stored` are referenced items.

        Raises `InvalidRequest` for what is unavailable or cannot be approved, `ConnectorFailed`,
        `ResourceNotFound` for an unknown container.
        """
        sources, offered = self._sources, run_tools(request.tools) if request.tools else ()
        answers: Sequence[McpApprovalResponse] = ()
        unseen = () if sources is None else pending(request.input)
        if unseen and "mcp" in self.served(principal.policy):
            answers = _without_repeated(unseen, history)
        if not (offered or answers or history.tool_state):
            return NOTHING_GRANTED
        state = tool_state_of(history.tool_state)
        if sources is None or not (offered or answers):
            return _grant_citations(state)
        if answers and request.input[-1].type == "compaction_trigger":
            raise InvalidRequest(
                "Invalid 'input': an approval begins a call, and a compaction_trigger allows none. "
                "Send the answer first, and compact what comes of it.",
                code="invalid_value",
                param="input",
            )
        python = None
        if request.tool_choice != "none":
            python = await _grant_python(sources, principal, request, history, response)
        servers = NOTHING_GRANTED
        listings: Sequence[Listing] = ()
        if answers or any(isinstance(tool, McpServerTool) for tool in offered):
            servers, listings = await self._grant_servers(
                sources, principal, request, history, stored, answers
            )
        if not offered:
            return _grant_citations(state)
        browser = _browser(principal.policy, request, history, state)
        grants = replace(
            servers.grants or Grants(),
            browser=browser,
            python=python,
            budget=self._lesser(principal.policy, request.max_tool_calls),
            include=tuple(value for value in request.include if value in INCLUDED),
            unused_pages=state.pages if browser is None else (),
            unused_container=state.container_id if python is None else None,
            cites_unused=browser is None and bool(state.pages),
        )
        _check_forced(request, grants, listings)
        return replace(servers, grants=grants)

    async def _grant_servers(
        self,
        sources: ToolSources,
        principal: Principal,
        request: CreateResponse,
        history: History,
        stored: Mapping[str, ContextItem],
        answers: Sequence[McpApprovalResponse],
    ) -> tuple[Granted, Sequence[Listing]]:
        listings: Sequence[Listing] = ()
        if request.tool_choice != "none" or answers:
            # An approval applies to the tools that the server has now, not to a cached list.
            anew = any(answer.approve for answer in answers)
            listings = await _servers(sources, principal, request, anew=anew)
        questions = _questions(request, history, stored) if answers else {}
        _check_listed(listings if self._needs_listings else _approved(listings, answers, questions))
        servers = _with_required_approvals(principal.policy, listings)
        decided = decisions(answers, questions, servers)
        _check_names(request, servers)
        approved = next((one.call for one in decided if one.call is not None), None)
        shown = _shown_tool_lists(request, stored, history.items)
        granted = Granted(
            Grants(servers=servers, approved=approved),
            tuple(listing.entry() for listing in listings if _is_unshown(listing, shown)),
            {one.grant.label: one.secrets for one in listings if one.secrets},
            tuple((one.request_id, one.digest) for one in decided),
        )
        return granted, listings

    def _lesser(self, policy: TenantPolicy, calls_max: int | None) -> ToolBudget:
        calls = policy.tool_calls_max
        return replace(
            self._budget,
            calls_max=calls if calls_max is None else min(calls, calls_max),
            time_max_s=float(policy.tool_time_max_s),
            result_ids_max=policy.tool_result_ids_max,
            result_bytes_max=policy.tool_result_bytes_max,
        )


def _grant_citations(state: ToolState) -> Granted:
    # A response without tools may still cite: answers in its prompt cite pages with the model's own
    # markers. Pages with an address keep only that, as they cannot be opened here.
    if not state.pages:
        return NOTHING_GRANTED
    pages = (replace(page, links=(), hits=()) if page.url else page for page in state.pages)
    return Granted(Grants(unused_pages=tuple(pages), cites_unused=True))


async def _grant_python(
    sources: ToolSources,
    principal: Principal,
    request: CreateResponse,
    history: History,
    response: UUID,
) -> PythonGrant | None:
    for index, tool in enumerate(request.tools):
        if isinstance(tool, CodeInterpreterTool):
            # Programs that the history has were sent again.
            sent = [item for item in request.input if item.type == "code_interpreter_call"]
            programs = _without_repeated(sent, history)
            last = programs[-1].container_id if programs else None
            return await sources.container(
                principal,
                response,
                tool,
                inherited=last or tool_state_of(history.tool_state).container_id,
                param=f"tools[{index}].container",
            )
    return None


def _without_repeated(items: Sequence[_Hosted], history: History) -> Sequence[_Hosted]:
    if not (own := may_repeat(items)):
        return items
    own &= {one.item_id for one in items_of_kinds(history.items, {items[0].type})}
    return [item for item in items if item.id not in own]


async def _servers(
    sources: ToolSources, principal: Principal, request: CreateResponse, *, anew: bool
) -> Sequence[Listing]:
    declared = [
        (f"tools[{index}]", tool)
        for index, tool in enumerate(request.tools)
        if isinstance(tool, McpServerTool)
    ]
    if not declared:
        return ()
    policy = principal.policy
    allowed = "registry" if policy.egress == "refused" else policy.mcp_servers
    domains = DomainRules.from_policy(policy.egress_domains, policy.egress_denied_domains)
    return await sources.servers(principal.tenant_id, declared, allowed, domains, anew=anew)


def _browser(
    policy: TenantPolicy, request: CreateResponse, history: History, state: ToolState
) -> BrowserGrant | None:
    tool = next((one for one in request.tools if isinstance(one, WebSearchTool)), None)
    if tool is None:
        return None
    urls: tuple[str, ...] | None = None
    if combines(request):
        # The browser may open these and what its pages link to.
        earlier = (item.item() for item in history.items if item.role in ASKING and item.json)
        urls = urls_of(request.instructions, (*earlier, *request.input))
    place = tool.user_location
    country = place.country if place else None
    domains = DomainRules.from_policy(policy.egress_domains, policy.egress_denied_domains)
    return BrowserGrant(
        type=tool.type,
        context_size=tool.context_size,
        allowed_domains=tool.allowed_domains,
        country=country.upper() if country and len(country) == _COUNTRY_CHARS else None,
        location=place.in_words if place else None,
        is_live=tool.external_web_access and policy.egress == "allowed",
        pages=state.pages,
        opens="any" if urls is None else "known",
        urls=urls or (),
        tenant_domains=domains.allowed,
        denied_domains=domains.denied,
    )


def _with_required_approvals(
    policy: TenantPolicy, listings: Iterable[Listing]
) -> tuple[ServerGrant, ...]:
    granted = [listing.grant for listing in listings]
    if policy.mcp_approvals != "always":
        return tuple(granted)
    return tuple(
        replace(one, tools=tuple(replace(tool, needs_approval=True) for tool in one.tools))
        for one in granted
    )


def _questions(
    request: CreateResponse, history: History, stored: Mapping[str, ContextItem]
) -> dict[str, McpApprovalRequest]:
    brought = (item for item in request.input if isinstance(item, McpApprovalRequest))
    kinds = frozenset({"mcp_approval_request"})
    kept = (*items_of_kinds(history.items, kinds), *items_of_kinds(tuple(stored.values()), kinds))
    parsed = ((item.item_id, item.item()) for item in kept)
    return {
        **{item.id: item for item in brought if item.id is not None},
        **{name: item for name, item in parsed if isinstance(item, McpApprovalRequest)},
    }


def _shown_tool_lists(
    request: CreateResponse, stored: Mapping[str, ContextItem], history: Sequence[ContextItem]
) -> frozenset[bytes]:
    if not any(isinstance(tool, McpServerTool) for tool in request.tools):
        return frozenset()
    kinds = frozenset({"mcp_list_tools"})
    stored_lists = (*items_of_kinds(tuple(stored.values()), kinds), *items_of_kinds(history, kinds))
    items = (*request.input, *(item.item() for item in stored_lists))
    return frozenset(
        _list_identity(item.server_label or "", item.tools or ())
        for item in items
        if isinstance(item, McpListTools) and item.error is None
    )


def _is_unshown(listing: Listing, shown: frozenset[bytes]) -> bool:
    # A failed listing is always reported.
    return bool(listing.error) or _list_identity(listing.grant.label, listing.shown) not in shown


def _list_identity(label: str, tools: Iterable[Mapping[str, Any]]) -> bytes:
    # Without the annotations of the tools, which clients drop.
    described = [
        [tool.get(name) for name in ("name", "input_schema", "description")] for tool in tools
    ]
    return orjson.dumps([label, described], option=orjson.OPT_SORT_KEYS)


def rule_key(grants: Grants | None) -> object:
    """Return what output rules depend on in the grants, for JSON."""
    if grants is None:
        return None
    servers = [
        [server.label, tool.name, tool.parameters, tool.needs_approval]
        for server in grants.servers
        for tool in server.tools
    ]
    return [grants.browser is not None, grants.python is not None, servers]


class ServerTools(NamedTuple):
    """Tools of MCP servers as functions, and their servers' paths in the request."""

    functions: tuple[FunctionTool, ...] = ()
    paths: tuple[str, ...] = ()


def _server_paths(tools: Sequence[Tool]) -> dict[str, str]:
    return {
        tool.server_label: f"tools[{index}]"
        for index, tool in enumerate(tools)
        if isinstance(tool, McpServerTool)
    }


def server_tools(tools: Sequence[Tool], grants: Grants) -> ServerTools:
    where = _server_paths(tools)
    spaces = [
        NamespaceTool(
            name=server.label,
            description=server.description,
            tools=tuple(
                FunctionTool(
                    name=tool.name, description=tool.description, parameters=tool.parameters
                )
                for tool in server.tools
            ),
        )
        for server in grants.servers
    ]
    paths = [where[server.label] for server in grants.servers for _ in server.tools]
    return ServerTools(declared(spaces), tuple(paths))


def _approved(
    listings: Sequence[Listing],
    answers: Sequence[McpApprovalResponse],
    questions: Mapping[str, McpApprovalRequest],
) -> list[Listing]:
    # Servers with an approved call: without its tool it cannot be checked that the call is the
    # same.
    approved = (questions.get(one.approval_request_id) for one in answers if one.approve)
    labels = {one.server_label for one in approved if one is not None}
    return [listing for listing in listings if listing.grant.label in labels]


def _check_listed(listings: Sequence[Listing]) -> None:
    for listing in listings:
        if listing.error is not None:
            raise ConnectorFailed(
                f"{listing.error} Mend the server or what it is sent, or leave it out of 'tools'.",
                code=listing.error_code,
                param="tools",
            )


def _check_names(request: CreateResponse, servers: Iterable[ServerGrant]) -> None:
    # The model could not tell a tool of a server from a function of the same name.
    functions = {tool.name for tool in named(request.visible_tools)}
    where = _server_paths(request.tools)
    for server in servers:
        for tool in server.tools:
            name = flat_name(server.label, tool.name)
            if name in functions:
                raise duplicate_name(f"{where[server.label]}.server_label", name)


def _check_forced(request: CreateResponse, grants: Grants, listings: Sequence[Listing]) -> None:
    # A call that the request demands must be possible.
    match request.tool_choice:
        case ToolChoice() as choice:
            wanted: tuple[ToolName, ...] = (choice,)
        case AllowedTools(mode="required", tools=tools):
            wanted = tools
        case "required":
            wanted = ()
        case _:
            return
    of_servers = [one for one in wanted if one.type == "mcp"]
    if len(of_servers) < len(wanted):
        return  # something else can be called, which is known since the request was parsed
    if not wanted and (grants.browser or grants.python or any(named(request.visible_tools))):
        return
    if any(_is_one(server, tool, of_servers) for server in grants.servers for tool in server.tools):
        return
    failures = [listing.error for listing in listings if listing.error]
    why = failures[0] if failures else "The MCP server offers no such tool to this request."
    raise InvalidRequest(
        f"Invalid 'tool_choice': no tool that it asks for can be called. {why} Leave 'tool_choice' "
        "out, or choose a tool that is there.",
        code="tool_not_available",
        param="tool_choice",
    )


def _is_one(server: ServerGrant, tool: McpTool, wanted: Sequence[ToolName]) -> bool:
    # Without `wanted`, every tool matches.
    return not wanted or any(
        one.server_label in {None, server.label} and one.name in {None, tool.name} for one in wanted
    )


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """Decision about a request for approval; `call` None: refused."""

    request_id: str
    digest: bytes
    call: ApprovedCall | None


def pending(items: Sequence[InputItem], param: str = _PARAM) -> tuple[McpApprovalResponse, ...]:
    """Return the answers that the model has not seen yet, each once.

    Raises `InvalidRequest` for contradicting answers, and for two approved calls: a response asks
    for one.
    """
    answers: dict[str, McpApprovalResponse] = {}
    for item in reversed(items):
        if isinstance(item, McpApprovalResponse):
            first = answers.setdefault(item.approval_request_id, item)
            if first.approve != item.approve:
                raise invalid(
                    param,
                    f"the approval request '{item.approval_request_id}' is both approved and "
                    "refused. Send one answer.",
                    "approval_mismatch",
                )
        elif not _is_of_user(item):
            break
    if sum(answer.approve for answer in answers.values()) > 1:
        raise invalid(
            param,
            "it approves more than one call. Send the answer to the last approval request alone.",
            "approval_mismatch",
        )
    return tuple(reversed(answers.values()))


def _is_of_user(item: InputItem) -> bool:
    if isinstance(item, Message):
        return item.role != "assistant"
    return item.type in _OF_NOBODY or item.type.endswith("_output")


def decisions(
    answers: Sequence[McpApprovalResponse],
    requests: Mapping[str, McpApprovalRequest],
    servers: Sequence[ServerGrant],
) -> tuple[ApprovalDecision, ...]:
    """Bind answers to the tools that the request itself grants.

    A refusal needs no binding if its tool is not granted any more. Raises `InvalidRequest` for an
    unknown request, and for an approved call that has changed.
    """
    decided: list[ApprovalDecision] = []
    tools = {(one.label, tool.name): (one, tool) for one in servers for tool in one.tools}
    for answer in answers:
        request_id = answer.approval_request_id
        request = requests.get(request_id)
        if request is None:
            raise unknown_approval(request_id)
        granted = tools.get((request.server_label, request.name))
        if granted is not None:
            digest = approval_digest(*granted, request.arguments)
            name = flat_name(request.server_label, request.name)
            call = ApprovedCall(request_id, name, request.arguments) if answer.approve else None
            decided.append(ApprovalDecision(request_id, digest, call))
        elif answer.approve:
            raise refused_approval(request_id, "mismatch")
    return tuple(decided)


def urls_of(instructions: str | None, items: Iterable[object]) -> tuple[str, ...]:
    """Return the URLs in the instructions and in messages of user and operator."""
    urls: dict[str, None] = {}
    for text in _texts(instructions, items):
        for match in _URL.finditer(text):
            whole = match.group()
            # Only the reader could tell whether punctuation at its end belongs to it: keep both.
            urls |= dict.fromkeys((whole, whole.rstrip(_BEHIND)))
    return tuple(urls)[-URLS_MAX:]


def _texts(instructions: str | None, items: Iterable[object]) -> Iterator[str]:
    yield instructions or ""
    for item in items:
        if isinstance(item, Message) and item.role in ASKING:
            for part in item.content:
                if part.type == "input_text":
                    yield part.text
