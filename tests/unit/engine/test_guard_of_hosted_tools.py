"""What the output guard makes of turns with calls that the gateway runs itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway.constraints.output_rules import AnswerFormat, OutputRules
from gateway.engine.output_guard import REASONING_BUDGET, GuardLimits, OutputGuard, TurnEnding
from gateway.entries import Repair, Tokens, ToolEnded, ToolStarted, TurnEnded, TurnStarted
from gateway.eventlog.fold.fold import Fold
from gateway.generation import BROWSER_TOOLS, PYTHON_TOOL, FinishReason
from gateway.models.harmony.harmony_format import answer_header
from gateway.models.harmony.tokenizer import FINAL_HEADER
from gateway.protocol.grants import (
    BrowserGrant,
    Grants,
    McpTool,
    PythonGrant,
    ServerGrant,
    ToolBudget,
)
from gateway.protocol.responses.response_rules import rules_of
from tests.fakes.cases import each
from tests.fakes.harmony_script import harmony, script_ids
from tests.fakes.response_heads import ECHO, response_head

if TYPE_CHECKING:
    from gateway.entries import Entry, ToolOutcome

STOP, CUT = FinishReason.STOP, FinishReason.CUT
THOUGHT = "<|channel|>analysis<|message|>Hm<|end|>"
NEXT = "<|start|>assistant"
CODE = "<|channel|>analysis to=python code<|message|>1 + 1"
SEARCH = '<|channel|>analysis to=browser.search<|message|>{"query": "x"}'
ADD = "<|channel|>commentary to=functions.crm.add json<|message|>{}"
ASK = "<|channel|>commentary to=functions.crm.drop json<|message|>{}"
ANSWER = "<|channel|>final<|message|>It is 2."
JSON_ANSWER = '<|channel|>final json<|message|>{"n": 2}'
ANYTHING = McpTool("add", {"type": "object"}, needs_approval=False)
ASKED = McpTool("drop", {"type": "object"})
GRANTS = Grants(
    browser=BrowserGrant("web_search"),
    python=PythonGrant("cntr_1", "linux", 1 << 30),
    servers=(ServerGrant("crm", "https://crm.example", tools=(ANYTHING, ASKED)),),
)
OBJECT: dict[str, Any] = {
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


class Watched:
    """A response with hosted tools, and who watches it."""

    def __init__(
        self,
        grants: Grants = GRANTS,
        *,
        budget: int | None = None,
        limits: GuardLimits = GuardLimits(),  # noqa: B008 - immutable
        **echo: Any,
    ) -> None:
        fields = {**ECHO, "tools": [], **echo}
        self.rules = rules_of(fields, grants)
        format_ = harmony()
        self.fold = Fold(replace(response_head(), echo=fields, grants=grants), format_, self.rules)
        self.guard = OutputGuard(self.rules, limits, format_, reasoning_budget=budget)

    def tell(self, *entries: Entry) -> None:
        for entry in entries:
            self.fold.apply(entry)
        self.guard.hold_to(self.fold.rules)

    def says(self, script: str, prefill: tuple[int, ...] = ()) -> TurnEnding | None:
        """A turn is written as a run does it: up to where the guard ends it."""
        self.tell(TurnStarted(9, prefill))
        ids, at = script_ids(script), 0
        while at < len(ids):
            count = self.guard.writable(self.fold, ids, at)
            if not count:
                return self.guard.out_of_budget(self.fold)
            self.tell(Tokens(tuple(ids[at : at + count])))
            at += count
            ending = self.guard.inspect(self.fold, self.fold.place)
            if ending is not None:
                return ending
        return None

    def calls(self, script: str, outcome: ToolOutcome = "ok") -> None:
        """A whole turn with a call, and its result."""
        assert self.says(f"{script}<|call|>") is None
        self.tell(TurnEnded(STOP))
        call = self.fold.hosted.call
        assert call is not None
        ids = harmony().render_result(call.name, "2")
        self.tell(ToolStarted(call.ordinal), ToolEnded(call.ordinal, ids, outcome))

    def repaired(self, ending: TurnEnding | None) -> tuple[int, ...] | None:
        """What opens the next turn behind one that ended with a repair."""
        assert ending is not None
        assert ending.rule
        turn = self.fold.open_turn
        assert turn is not None
        size = len(turn.prefill) + len(turn.output_ids)
        voided = 0 if ending.start is None else size - ending.start
        self.tell(Repair(voided, ending.rule))
        assert self.guard.after_repair(self.fold, ending.rule) == TurnEnding(CUT)
        self.tell(TurnEnded(CUT))
        return self.guard.next_prefill(self.fold, ending.rule)


@each("call", [CODE, SEARCH, ADD])
@each("ending", ["<|end|>", "<|start|>", "<|channel|>"])
def test_a_call_ends_its_turn_whatever_it_was_closed_by(call: str, ending: str) -> None:
    watched = Watched()
    ended = watched.says(THOUGHT + NEXT + call + ending + "final<|message|>It is 3.")
    assert ended == TurnEnding(STOP)
    watched.tell(TurnEnded(STOP))
    assert watched.fold.hosted.call is not None


@each("call", [CODE, SEARCH, ADD, ADD + '{"a', ADD[:-2]])
@each("ending", ["<|call|>", "<|return|>"])
def test_a_call_that_the_model_closed_itself_is_ended_by_its_backend(
    call: str, ending: str
) -> None:
    """Whatever is wrong with its arguments, the tool says so."""
    watched = Watched()
    assert watched.says(call + ending) is None
    watched.tell(TurnEnded(STOP))
    assert watched.fold.hosted.call is not None
    assert watched.guard.shortcoming(watched.fold) is None


def test_an_unfinished_call_does_not_end_its_turn() -> None:
    assert Watched().says(THOUGHT + NEXT + CODE) is None


@pytest.mark.parametrize("choice", ["required", {"type": "code_interpreter"}])
def test_a_call_that_is_required_may_be_one_that_the_gateway_runs(choice: Any) -> None:
    watched = Watched(tool_choice=choice)
    assert watched.guard.lacks_call(watched.fold)
    watched.calls(CODE)
    assert not watched.guard.lacks_call(watched.fold)
    assert watched.says(f"{ANSWER}<|return|>") is None
    watched.tell(TurnEnded(STOP))
    assert watched.guard.next_prefill(watched.fold, None) is None
    assert watched.guard.shortcoming(watched.fold) is None


def test_a_call_that_is_required_is_opened() -> None:
    watched = Watched(tool_choice={"type": "web_search_preview"})
    assert watched.says(THOUGHT + NEXT + "<|return|>") is None
    watched.tell(TurnEnded(STOP))
    opening = harmony().call_opening(watched.rules)
    assert watched.guard.next_prefill(watched.fold, None) == opening
    assert list(opening) == script_ids(
        " to=browser.search<|channel|>analysis <|constrain|>json<|message|>"
    )
    assert watched.says('{"query": "x"}<|call|>', opening) is None
    watched.tell(TurnEnded(STOP))
    call = watched.fold.hosted.call
    assert call is not None
    assert (call.name, call.arguments) == (BROWSER_TOOLS[0], '{"query": "x"}')


@pytest.mark.parametrize("said", [ANSWER, CODE, SEARCH, ASK])
def test_another_message_than_the_call_that_is_required_makes_room_for_it(said: str) -> None:
    watched = Watched(tool_choice={"type": "mcp", "server_label": "crm", "name": "add"})
    opening = watched.repaired(watched.says(said))
    assert opening == harmony().call_opening(watched.rules)
    assert len(watched.fold.shown.output) == 0


def test_what_the_user_is_asked_is_a_call_too_and_ends_the_response() -> None:
    watched = Watched(tool_choice="required")
    assert watched.says(ASK + "<|call|>") is None
    watched.tell(TurnEnded(STOP))
    assert watched.fold.approval_request is not None
    assert watched.guard.next_prefill(watched.fold, None) is None
    assert watched.guard.shortcoming(watched.fold) is None


def test_tools_come_before_an_answer_in_a_format() -> None:
    watched = Watched(text={"format": OBJECT})
    watched.calls(THOUGHT + NEXT + CODE)
    watched.calls(SEARCH)
    assert watched.says(f"{JSON_ANSWER}<|return|>") is None
    assert [body.text for body in watched.fold.bodies] == ['{"n": 2}']


def test_an_answer_in_a_format_is_asked_for_behind_a_result_too() -> None:
    watched = Watched(text={"format": OBJECT})
    watched.calls(CODE)
    asked = AnswerFormat("json_schema", OBJECT["schema"], strict=True)
    opening = watched.repaired(watched.says(ANSWER))
    assert opening == answer_header(OutputRules({}, frozenset(), answer=asked), attempt=1)


@pytest.mark.parametrize("outcome", ["ok", "timeout"])
def test_tools_that_were_withdrawn_are_held_off(outcome: ToolOutcome) -> None:
    budget = ToolBudget(calls_max=2, failures_max=1)
    watched = Watched(replace(GRANTS, budget=budget))
    watched.calls(CODE, outcome)
    if outcome == "ok":
        watched.calls(SEARCH)
    assert watched.fold.rules is not watched.rules
    ending = watched.says(THOUGHT + NEXT + CODE)
    assert ending is not None
    assert ending.rule == "call_not_allowed"
    assert watched.repaired(ending) == FINAL_HEADER
    assert watched.says("It is 2.<|return|>", FINAL_HEADER) is None
    watched.tell(TurnEnded(STOP))
    assert watched.guard.next_prefill(watched.fold, None) is None


def test_text_is_looked_at_from_when_a_tool_was_withdrawn() -> None:
    watched = Watched(replace(GRANTS, servers=(), budget=ToolBudget(calls_max=1)))
    assert watched.guard.passes([1], 1)
    watched.calls(CODE)
    watched.says(THOUGHT)
    assert not watched.guard.passes([1], 1)


def test_another_replica_holds_to_the_rules_that_the_log_leads_to() -> None:
    watched = Watched(replace(GRANTS, budget=ToolBudget(calls_max=1)), tool_choice="required")
    watched.calls(CODE)
    other = OutputGuard(watched.rules, GuardLimits(), harmony(), reasoning_budget=None)
    watched.guard = other
    assert watched.says(ANSWER) is None
    assert other.restart_position(watched.fold) is None
    watched.tell(TurnEnded(STOP))
    assert other.next_prefill(watched.fold, None) is None


@pytest.mark.parametrize("last", [THOUGHT, ""])
def test_a_response_that_says_nothing_of_a_result_is_asked_for_its_answer(last: str) -> None:
    watched = Watched()
    watched.calls(THOUGHT + NEXT + CODE)
    watched.calls(ADD)
    assert watched.says(f"{last}{NEXT}<|return|>") is None
    watched.tell(TurnEnded(STOP))
    assert watched.guard.next_prefill(watched.fold, None) == FINAL_HEADER


def test_the_reasoning_budget_is_that_of_all_turns_together() -> None:
    thought = "<|channel|>analysis<|message|>" + "a b" * 5 + "<|end|>"
    size = len(script_ids("a b" * 5))
    watched = Watched(budget=2 * size + 3)
    watched.calls(thought + NEXT + CODE)
    watched.calls(thought + NEXT + SEARCH)
    assert watched.fold.reasoning_tokens == 2 * size, "neither code nor arguments are reasoning"
    ending = watched.says(thought)
    assert ending is not None
    assert ending.rule == REASONING_BUDGET
    assert watched.fold.reasoning_tokens == 2 * size + 3
    assert watched.repaired(ending) == (), "it may still call a tool, but not think"
    assert not watched.guard.may_think(watched.fold)
    assert watched.says(f"{CODE}<|call|>") is None
    watched.tell(TurnEnded(STOP))
    assert watched.fold.hosted.call is not None
    assert watched.fold.hosted.call.name == PYTHON_TOOL
    ids = harmony().render_result(PYTHON_TOOL, "2")
    watched.tell(ToolStarted(2), ToolEnded(2, ids))
    ending = watched.says(thought)
    assert ending is not None
    assert watched.repaired(ending) == FINAL_HEADER
