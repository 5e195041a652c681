"""Laws of control where the gateway runs tools itself: whatever a model says, only what was granted
and demanded is run, and the response ends with something that its client can use.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.validation import Checker
from gateway.engine.failover import HopPolicy
from gateway.engine.output_guard import GuardLimits
from gateway.entries import Finished, ToolEnded, ToolStarted
from gateway.eventlog.fold.screen import is_object
from gateway.protocol.call_items import call_fields
from gateway.protocol.grants import (
    BrowserGrant,
    Grants,
    McpTool,
    PythonGrant,
    ServerGrant,
    ToolBudget,
)
from gateway.protocol.responses.response_rules import rules_of
from gateway.tools.tool_contract import ToolResult, ToolStart
from tests.fakes.event_grammar import check_stream
from tests.fakes.examples import examples
from tests.fakes.harmony_oracle import well_formed
from tests.fakes.response_heads import ECHO
from tests.fakes.staged_run import Stage, folds, run_spec
from tests.fakes.wayward_model import SCHEMA, Manner, WaywardModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.entries import Entry, ToolOutcome
    from gateway.protocol.stream_events import Event
    from gateway.tenancy import TenantId
    from gateway.tools.tool_contract import ToolCall, ToolScope

laws = settings(deadline=None, max_examples=examples(100))
POLICY: Final = HopPolicy(hops_max=3, pause_s=0.0)
HOSTED_TYPES: Final = frozenset({"web_search_call", "code_interpreter_call", "mcp_call"})
USEFUL_TYPES: Final = frozenset({"message", "function_call", "mcp_approval_request"})
SERVER: Final = ServerGrant(
    "srv",
    "https://mcp.example/mcp",
    tools=(
        McpTool("f", {"type": "object"}, needs_approval=False),
        McpTool("ask", {"type": "object"}, digest="1"),
    ),
)
FUNCTION: Final[dict[str, Any]] = {
    "type": "function",
    "name": "python",
    "description": None,
    "parameters": None,
    "strict": False,
}
CHOICES: Final[list[Any]] = [
    "auto",
    "auto",
    "required",
    {"type": "web_search"},
    {"type": "code_interpreter"},
    {"type": "mcp", "server_label": "srv"},
    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "code_interpreter"}]},
]
FORMAT: Final = {
    "type": "json_schema",
    "name": "n",
    "description": None,
    "schema": SCHEMA,
    "strict": True,
}
_NEXT: Final = "<|end|><|start|>assistant"
_HEADERS: Final = (
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
    "<|channel|>final <|constrain|>json<|message|>",
    "<|channel|>commentary<|message|>",
    "<|channel|>analysis to=python code<|message|>",
    "<|channel|>analysis to=browser.search <|constrain|>json<|message|>",
    " to=browser.open<|channel|>analysis code<|message|>",
    "<|channel|>commentary to=functions.srv.f <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.srv.ask json<|message|>",
    "<|channel|>commentary to=functions.python json<|message|>",
    "<|channel|>commentary to=functions.unknown json<|message|>",
    "<|channel|>analysis to=browser.find ",
    "<|channel|>analysis to=container.exec<|message|>",
    "<|start|>python to=assistant<|channel|>analysis<|message|>",
    "<|channel|>nonsense<|message|>",
)
_BODIES: Final = ('{"n": 1}', '{"n": "one"}', '{"n": 1', "print(1)", "It is so.", "", "no " * 20)
_ENDINGS: Final = (
    *(_NEXT, _NEXT, "<|call|>", "<|call|>", "<|call|>", "<|return|>"),
    *("<|end|>", "<|start|>assistant", "<|channel|>", "<|endoftext|>", ""),
)
_message: Final = st.tuples(
    st.sampled_from(_HEADERS), st.sampled_from(_BODIES), st.sampled_from(_ENDINGS)
).map("".join)
manners: Final = st.builds(
    Manner,
    st.lists(_message, min_size=1, max_size=3).map("".join),
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    st.none() | st.none() | st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)


@dataclass
class Tools:
    """Everything that is called ends so, one after the other. As those of servers do, tools refuse
    what is no JSON object.
    """

    outcomes: Sequence[ToolOutcome]
    ran: list[str] = field(default_factory=list)

    def __call__(self, scope: ToolScope) -> Tools:
        return self

    def start(self, call: ToolCall) -> ToolStart:
        return ToolStart(repeatable=False)

    async def run(self, call: ToolCall, on_handle: Callable[[bytes], None]) -> ToolResult:
        await asyncio.sleep(0)
        if call.name.startswith("srv.") and not is_object(call.arguments):
            return ToolResult("It cannot be called with this.", "refused")
        self.ran.append(call.name)
        outcome = self.outcomes[call.ordinal % len(self.outcomes)]
        return ToolResult(f"<|end|>{call.ordinal}", outcome)

    async def resume(self, call: ToolCall, handle: bytes) -> ToolResult | None:
        return None

    async def close(self) -> None:
        """Nothing is open."""


async def note_request(tenant_id: TenantId, request_id: str, digest: bytes) -> None:
    """Somebody may be asked."""


@dataclass(frozen=True)
class Case:
    """A request, what it is granted, and how its model takes it."""

    grants: Grants
    choice: Any
    in_json: bool
    has_function: bool
    manners: tuple[Manner, ...]
    outcomes: tuple[ToolOutcome, ...]
    repairs_max: int
    reasoning_budget: int | None
    max_tokens: int

    def stage(self, said: Sequence[Entry] | None = None) -> Stage[WaywardModel]:
        spec = run_spec(max_tokens=self.max_tokens)
        fields = {
            **ECHO,
            "tools": [FUNCTION] if self.has_function else [],
            "tool_choice": self.choice,
            "text": {"format": FORMAT if self.in_json else {"type": "text"}},
        }
        rules = rules_of(fields, self.grants)
        if rules.calls == "required" and not rules.allowed:
            fields["tool_choice"] = "auto"
            rules = rules_of(fields, self.grants)
        spec = replace(
            spec,
            head=replace(spec.head, echo=fields, grants=self.grants),
            rules=rules,
            checker=Checker(rules, call_fields),
            reasoning_budget=self.reasoning_budget,
        )
        return Stage(
            WaywardModel(self.manners),
            spec=spec,
            hops=POLICY,
            limits=GuardLimits(repairs_max=self.repairs_max),
            said=said,
            tools=Tools(self.outcomes),
            ask_approval=note_request,
        )


cases: Final = st.builds(
    Case,
    grants=st.builds(
        Grants,
        browser=st.sampled_from([None, BrowserGrant("web_search")]),
        python=st.sampled_from([None, PythonGrant("cntr_1", "linux", 1 << 30)]),
        servers=st.sampled_from([(), (SERVER,)]),
        budget=st.builds(ToolBudget, calls_max=st.integers(0, 4), failures_max=st.integers(1, 2)),
    ),
    choice=st.sampled_from(CHOICES),
    in_json=st.booleans(),
    has_function=st.booleans(),
    manners=st.lists(manners, min_size=1, max_size=6).map(tuple),
    outcomes=st.lists(
        st.sampled_from(["ok", "ok", "tool_error", "timeout"]), min_size=1, max_size=3
    ).map(tuple),
    repairs_max=st.integers(0, 3),
    reasoning_budget=st.none() | st.integers(1, 20),
    max_tokens=st.integers(1, 60) | st.just(400),
)


def uphold(case: Case, stage: Stage[WaywardModel], events: list[Event]) -> None:
    """Everything that holds of every run that has ended."""
    fold, log, rules = stage.live.fold, stage.journal.entries, stage.spec.rules
    body: dict[str, Any] = fold.response()
    types = [item["type"] for item in body["output"]]
    assert fold.shown.is_finished
    assert isinstance(log[-1], Finished)
    started = [entry for entry in log if isinstance(entry, ToolStarted)]
    assert len({entry.ordinal for entry in started}) == len(started), "none is run twice"
    assert len(started) <= max(0, case.grants.budget.calls_max)
    assert fold.hosted.results == sum(isinstance(entry, ToolEnded) for entry in log)
    assert isinstance(stage.tools, Tools)
    assert {*stage.tools.ran} <= rules.allowed & rules.hosted
    assert "srv.ask" not in stage.tools.ran, "nobody approved it"
    hosted = [item for item in body["output"] if item["type"] in HOSTED_TYPES]
    assert all(item["status"] in {"completed", "failed", "incomplete"} for item in hosted)
    assert "mcp_approval_request" not in types[:-1]
    if body["status"] == "completed":
        last = max((at for at, name in enumerate(types) if name in HOSTED_TYPES), default=-1)
        assert USEFUL_TYPES & {*types[last + 1 :]}, "something is made of the last result"
        is_owed = rules.calls == "required" and fold.rules.allowed
        assert not is_owed or hosted or {"function_call", "mcp_approval_request"} & {*types}
        assert all(is_right(case, item) for item in body["output"])
    if case.reasoning_budget is not None:
        assert fold.usage.reasoning_tokens <= case.reasoning_budget


def is_right(case: Case, item: dict[str, Any]) -> bool:
    """An answer is in the format that was asked for."""
    if not case.in_json or item["type"] != "message" or item["phase"] != "final_answer":
        return True
    texts = [part["text"] for part in item["content"] if part["type"] == "output_text"]
    return all(set(orjson.loads(text)) == {"n"} for text in texts)


def ask_well(stage: Stage[WaywardModel]) -> None:
    """Each turn is asked for behind the one before it and all that is told of that."""
    behind: dict[int, list[int]] = {}
    for request in stage.tokens.requests:
        number = int(request.request_id.split("-")[1])
        ids = list(request.prompt_ids)
        prefill = stage.live.fold.turns[number - 1].prefill
        base = behind.setdefault(number, ids[: len(ids) - len(prefill)])
        assert ids[: len(base)] == base
        well_formed(base)
    asked = [behind[number] for number in sorted(behind)]
    assert all(later[: len(base)] == base for base, later in pairwise(asked))


@pytest.mark.slow
@laws
@given(cases)
def test_whatever_a_model_says_only_what_was_granted_is_run(case: Case) -> None:
    async def play() -> None:
        stage = case.stage()
        events = await stage.play()
        check_stream(events)
        uphold(case, stage, events)
        ask_well(stage)
        again = folds(stage.spec.head, stage.spec.rules)()
        log = stage.journal.entries
        assert [event for entry in log for event in again.apply(entry)] == events

    asyncio.run(play())


@pytest.mark.slow
@laws
@given(cases, st.lists(manners, min_size=1, max_size=3).map(tuple), st.data())
def test_another_replica_goes_on_rightly_from_every_entry(
    case: Case, others: tuple[Manner, ...], data: st.DataObject
) -> None:
    async def play() -> None:
        first = case.stage()
        await first.run()
        log = first.journal.entries[:-1]
        said = log[: data.draw(st.integers(0, len(log)))]
        second = replace(case, manners=others).stage(said)
        events = await second.play()
        second.journal.entries[:0] = said
        uphold(case, second, events)

    asyncio.run(play())
