"""Calls that the gateway runs itself, and the rules after each.

A call exists once its turn has ended, or from the start if the user approved it before. It may
begin several times, and ends once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson
from pydantic import TypeAdapter

from gateway.constraints.output_rules import OutputRules
from gateway.eventlog.fold.citations import ContainerFiles, Pages
from gateway.generation import BUILTIN_PREFIX
from gateway.protocol.grants import Grants, ShownPage

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gateway.entries import ToolEnded, ToolHandle, ToolOutcome, ToolStarted

_PAGE: Final = TypeAdapter(ShownPage)
_FILES: Final = TypeAdapter(dict[str, str])
KEPT_PAGES_MAX: Final = 64
"""The last pages that a response leaves to those that continue it."""
NARROWED_MAX: Final = 8
SEARCH: Final = f"{BUILTIN_PREFIX}browser.search"
FAILURES: Final[frozenset[ToolOutcome]] = frozenset(
    {"tool_error", "transport_error", "timeout", "unknown"}
)
"""Outcomes that count as failures of a tool. Only "ok" resets the count; others say nothing about
it.
"""
NOTHING_RAN: Final[frozenset[ToolOutcome]] = frozenset({"refused", "over_budget", "cancelled"})
"""Possible for a call that never started."""

_NO_GRANTS: Final = Grants()

Withdrawal = Literal["calls", "failures"]
"""All tools after enough calls, or one family after failures."""


@dataclass(frozen=True, slots=True)
class UnansweredCall:
    """Call that the gateway has to answer.

    `ordinal` counts such calls of the response from 0. `arguments` are what the model wrote, JSON
    in most cases; for Python the code.
    """

    ordinal: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class UnapprovedCall:
    request_id: str
    name: str
    arguments: str


GATEWAY_TOOLS: Final = {
    f"{BUILTIN_PREFIX}browser": "web_search",
    f"{BUILTIN_PREFIX}python": "code_interpreter",
}
"""Type of tool of the gateway's own families; all others are of MCP servers."""


def family_of(name: str) -> str:
    """Return the tool or MCP server whose failures this tool shares."""
    return name.partition(".")[0]


class HostedCalls:
    """Calls of one response. `call` is the one that the gateway has to answer: before the first
    turn the one that the user approved, otherwise the one that the last turn ended with.

    An entry invalid at its position raises `ValueError` and changes nothing.
    """

    __slots__ = (
        "_budget", "_failures", "_grants", "_initial_rules", "_is_over", "attempts", "call",
        "files", "handle", "pages", "result_ids", "results", "rules", "searches", "started",
        "states", "tools",
    )  # fmt: skip

    def __init__(self, rules: OutputRules, grants: Grants = _NO_GRANTS) -> None:
        self._initial_rules = rules
        self._grants = grants
        self._budget = grants.budget
        self._failures: dict[str, int] = {}
        self._is_over = self._budget.calls_max <= 0
        approved = grants.approved
        self.call = UnansweredCall(0, approved.name, approved.arguments) if approved else None
        self.attempts = 0
        self.started: ToolStarted | None = None
        self.handle: bytes | None = None
        """Handle by which the executor finds that attempt."""
        self.results = 0
        self.result_ids = 0
        self.tools: Counter[str] = Counter()
        """Answered calls by type (`GATEWAY_TOOLS`)."""
        self.searches = 0
        self.states: list[dict[str, Any]] = []
        cited = grants.cited_pages
        self.pages = None if cited is None else Pages(cited)
        """Shown in this response and those before; None if it cites none."""
        self.files = None if grants.python is None else ContainerFiles()
        self.rules = rules
        if self._is_over:
            self.rules = self._narrow_rules()

    def expect(self, name: str, arguments: str) -> None:
        self.call = UnansweredCall(self.results, name, arguments)

    def start(self, entry: ToolStarted) -> tuple[UnansweredCall, dict[str, Any]]:
        """Start the call; return it with the fields that its item shows from now on."""
        call, shown = self._require_call(entry.ordinal), _json_object(entry.shown)
        if self.started is not None and not self.started.repeatable:
            raise ValueError("a call is run again that must not be")
        self.attempts += 1
        self.started = entry
        self.handle = None
        return call, shown

    def hold(self, entry: ToolHandle) -> None:
        self._require_call(entry.ordinal)
        if self.started is None:
            raise ValueError("a tool has a handle that was not started")
        self.handle = entry.handle

    def end(self, entry: ToolEnded) -> tuple[UnansweredCall, dict[str, Any]]:
        call, shown = self._require_call(entry.ordinal), _json_object(entry.shown)
        state = _json_object(entry.state)
        page = _PAGE.validate_python(state["page"]) if state.get("page") is not None else None
        files = _FILES.validate_python(state.get("files", {}))
        if self.started is None and entry.outcome not in NOTHING_RAN:
            raise ValueError("a tool ended that was not started")
        withdrawn = self.withdrawn_by(entry.outcome)
        self._count(call, entry)
        self._is_over = self._is_over or withdrawn == "calls"
        self.rules = self._narrow_rules()
        if state:
            self.states.append(state)
        if page is not None and self.pages is not None:
            self.pages.add(page)
        if files and self.files is not None and self._grants.python is not None:
            self.files.put(self._grants.python.container_id, files)
        self.call = self.started = self.handle = None
        self.attempts = 0
        return call, shown

    def withdrawn_by(self, outcome: ToolOutcome) -> Withdrawal | None:
        if outcome == "over_budget" or self.results + 1 >= self._budget.calls_max:
            return "calls"
        if self.call is None or outcome not in FAILURES:
            return None
        failures = self._failures.get(family_of(self.call.name), 0) + 1
        return "failures" if failures >= self._budget.failures_max else None

    def state_json(self) -> bytes | None:
        """Return `pages` and `container_id` for responses that continue this one, as JSON.

        None if there are none, and if this response had no tools: later ones use the state that it
        had.
        """
        if not self._grants.has_tools:
            return None
        unused = self._grants.unused_pages if self._grants.cited_pages is None else ()
        pages = [*unused, *(self.pages or ())][-KEPT_PAGES_MAX:]
        state: dict[str, Any] = {}
        if pages:
            dump = _PAGE.dump_python
            state["pages"] = [dump(page, mode="json", exclude_defaults=True) for page in pages]
        python = self._grants.python
        container_id = self._grants.unused_container if python is None else python.container_id
        if container_id is not None:
            state["container_id"] = container_id
        return orjson.dumps(state) if state else None

    def _require_call(self, ordinal: int) -> UnansweredCall:
        if self.call is None or self.call.ordinal != ordinal:
            raise ValueError("a tool runs that was not called")
        return self.call

    def _count(self, call: UnansweredCall, entry: ToolEnded) -> None:
        self.results += 1
        self.result_ids += len(entry.ids)
        self.searches += call.name == SEARCH and entry.outcome == "ok"
        family = family_of(call.name)
        self.tools[GATEWAY_TOOLS.get(family, "mcp")] += 1
        if entry.outcome in FAILURES:
            self._failures[family] = self._failures.get(family, 0) + 1
        elif entry.outcome == "ok":
            self._failures.pop(family, None)

    def _is_withdrawn(self, name: str) -> bool:
        failures = self._failures.get(family_of(name), 0)
        return self._is_over or failures >= self._budget.failures_max

    def _withdrawn_tools(self) -> frozenset[str]:
        tools = self._initial_rules.tools
        hosted = (
            name for name in self._initial_rules.allowed if name in tools and tools[name].is_hosted
        )
        return frozenset(name for name in hosted if self._is_withdrawn(name))

    def _narrow_rules(self) -> OutputRules:
        # The first few results are kept with the original rules: deriving grammars from rules is
        # slow.
        rules = self._initial_rules
        withdrawn = self._withdrawn_tools() if self._is_over or self._failures else frozenset()
        allowed = rules.allowed - withdrawn
        is_met = self.results > 0 or (bool(withdrawn) and not allowed)
        calls = "auto" if rules.calls == "required" and is_met else rules.calls
        if (calls, allowed) == (self.rules.calls, self.rules.allowed):
            return self.rules
        kept: dict[Hashable, OutputRules] = rules.derived.setdefault(HostedCalls, {})
        narrowed = kept.get((calls, withdrawn)) or replace(rules, allowed=allowed, calls=calls)
        if len(kept) < NARROWED_MAX:
            return kept.setdefault((calls, withdrawn), narrowed)
        return narrowed


def _json_object(content: bytes) -> dict[str, Any]:
    if content and content[:1] != b"{":
        raise ValueError("what a tool shows, or leaves behind, is no JSON object")
    value: dict[str, Any] = orjson.loads(content) if content else {}
    return value


NO_CALLS: Final = HostedCalls(OutputRules(tools={}, allowed=frozenset()))
