"""Laws of control: whatever a model says, and wherever it is cut off, its client gets what the
request allows, or is told that it does not.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.validation import Checker
from gateway.engine.failover import HopPolicy
from gateway.engine.output_guard import BODY_REGENERATED, BUDGET_TURNS_MAX, GuardLimits
from gateway.entries import Finished, Repair, Tokens
from gateway.generation import FinishReason
from gateway.models.harmony.call_arguments import Arguments
from gateway.protocol.call_items import call_fields
from tests.fakes import wayward_model
from tests.fakes.harmony_oracle import well_formed
from tests.fakes.staged_run import Stage, folds, run_spec
from tests.fakes.wayward_model import Manner, WaywardModel, manners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.constraints.output_rules import OutputRules
    from gateway.entries import Entry
    from gateway.protocol.stream_events import Event

laws = settings(deadline=None)
POLICY: Final = HopPolicy(hops_max=3, pause_s=0.0)
CALL_TYPES: Final = frozenset({"function_call", "local_shell_call"})


@dataclass(frozen=True)
class Case:
    """A request, and how its model takes it."""

    rules: OutputRules
    manners: tuple[Manner, ...]
    limits: GuardLimits
    budget: int | None
    max_tokens: int
    durable: bool

    def stage(self, said: Sequence[Entry] | None = None) -> Stage[WaywardModel]:
        spec = replace(
            run_spec(max_tokens=self.max_tokens),
            rules=self.rules,
            checker=Checker(self.rules, call_fields),
            reasoning_budget=self.budget,
            durable=self.durable,
        )
        tokens = WaywardModel(self.manners)
        return Stage(tokens, spec=spec, hops=POLICY, limits=self.limits, said=said)


cases = st.builds(
    Case,
    rules=wayward_model.rules(),
    manners=st.lists(manners, min_size=1, max_size=6).map(tuple),
    limits=st.builds(
        GuardLimits,
        repairs_max=st.integers(0, 3),
        header_tokens_max=st.integers(8, 64),
        repeated_tokens_max=st.sampled_from([0, 64]),
    ),
    budget=st.none() | st.integers(1, 20),
    max_tokens=st.integers(1, 60) | st.just(400),
    durable=st.booleans(),
)


def uphold(case: Case, stage: Stage[WaywardModel], events: list[Event]) -> None:
    """Everything that holds of every run that has ended."""
    fold, log = stage.live.fold, stage.journal.entries
    body: dict[str, Any] = fold.response()
    output: list[dict[str, Any]] = body["output"]
    calls = [item for item in output if item["type"] in CALL_TYPES]
    assert fold.shown.is_finished
    assert isinstance(log[-1], Finished)
    if body["status"] == "completed":
        assert any(item["type"] != "reasoning" for item in output)
        assert case.rules.calls != "required" or calls
        assert all(is_right(case.rules, item) for item in output)
    assert all(is_right(case.rules, item) for item in calls if item["status"] == "completed")
    began = [orjson.loads(e.data)["item"] for e in events if e.type.endswith("item.added")]
    assert all(is_allowed(case.rules, item) for item in began)
    if case.rules.one_call:
        assert len([item for item in began if item["type"] in CALL_TYPES]) <= 1
    if case.budget is not None:
        assert fold.usage.reasoning_tokens <= case.budget
    cuts = sum(turn.finish is FinishReason.CUT for turn in fold.turns)
    again = fold.recoveries.get(BODY_REGENERATED, 0)
    assert cuts + again <= case.limits.repairs_max + BUDGET_TURNS_MAX


def ask_well(stage: Stage[WaywardModel]) -> None:
    """What is asked behind earlier turns is well-formed up to the message that it opens."""
    opened: dict[str, list[int]] = {}
    for request in stage.tokens.requests:
        number = request.request_id.split("-")[1]
        ids = list(request.prompt_ids)
        prefill = stage.live.fold.turns[int(number) - 1].prefill
        behind = opened.setdefault(number, ids[: len(ids) - len(prefill)])
        assert ids[: len(behind)] == behind
        well_formed(behind)


def is_right(rules: OutputRules, item: dict[str, Any]) -> bool:
    """An item is what was asked for."""
    checker = Checker(rules, call_fields)
    if item["type"] == "message" and item["phase"] == "final_answer" and rules.answer is not None:
        texts = [part["text"] for part in item["content"] if part["type"] == "output_text"]
        return not texts or checker.answer_fault(texts[0]) is None
    if item["type"] == "function_call" and item["name"] in rules.tools:
        if not is_whole(item["arguments"]):
            return False
        return checker.call_fault(item["name"], item["arguments"]) is None
    return True


def is_whole(arguments: str) -> bool:
    """Arguments do not end in the middle of their JSON."""
    said = Arguments()
    said.feed(arguments)
    return not said.finish().is_broken


def is_allowed(rules: OutputRules, item: dict[str, Any]) -> bool:
    """The rules let an item begin."""
    if item["type"] not in CALL_TYPES:
        return True
    name = item.get("name", item["type"].removesuffix("_call"))
    return rules.calls != "none" and (
        name in rules.allowed or (rules.open_calls and name not in rules.tools)
    )


def recounted(log: Sequence[Entry]) -> int:
    """The ids that count."""
    said = sum(len(entry.ids) for entry in log if isinstance(entry, Tokens))
    return said - sum(entry.voided for entry in log if isinstance(entry, Repair))


@pytest.mark.slow
@laws
@given(cases)
def test_whatever_a_model_says_its_client_gets_what_the_request_allows(case: Case) -> None:
    async def play() -> None:
        stage = case.stage()
        events = await stage.play()
        uphold(case, stage, events)
        ask_well(stage)
        log = stage.journal.entries
        assert stage.live.fold.usage.output_tokens == recounted(log)
        again = folds(stage.spec.head, case.rules)()
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
        assert second.live.fold.usage.output_tokens == recounted(second.journal.entries)

    asyncio.run(play())


@pytest.mark.slow
@laws
@given(cases)
def test_a_durable_response_is_the_same_as_one_in_memory(case: Case) -> None:
    async def play() -> None:
        logs = []
        for durable in (True, False):
            stage = replace(case, durable=durable).stage()
            await stage.run()
            logs.append(stage.journal.entries[:-1])
        assert logs[0] == logs[1]

    asyncio.run(play())
