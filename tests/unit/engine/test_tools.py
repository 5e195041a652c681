"""A call that the gateway answers itself: two turns, and a result between them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from gateway.constraints.rules import OutputRules
from gateway.engine.tools import FAILED, INTERRUPTED
from gateway.entries import (
    Hop,
    Tokens,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    pack,
    portions,
    unpack,
)
from gateway.errors import ClaimLost
from gateway.generation import FinishReason
from gateway.models.harmony.framing import OPENING
from tests.fakes.event_grammar import check_stream
from tests.fakes.following import collected
from tests.fakes.harmony_script import script_ids
from tests.fakes.hosted_tools import CALL, Continuing, CountedTool, result_ids
from tests.fakes.staged_run import (
    ANSWER,
    LENGTH,
    STOP,
    ScriptedTokens,
    Stage,
    folds,
    run_spec,
    says,
)
from tests.fakes.steered import FREE, REQUIRED, repairs, staged, vouched

if TYPE_CHECKING:
    from gateway.entries import Entry


SECOND_CALL = CALL.replace("Bern", "Basel")
THOUGHT = "<|channel|>analysis<|message|>Hm<|return|>"
PROMPT = run_spec().prompt_ids
NO_RULES = OutputRules({}, frozenset())


def asked_behind(output: str, call: str = CALL) -> list[int]:
    """The prompt of the turn behind a result."""
    return [*PROMPT, *script_ids(call), *result_ids(output), *OPENING]


def types(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


async def test_the_model_is_asked_again_behind_its_call_and_the_result() -> None:
    tokens, tool = ScriptedTokens([says(CALL), says(ANSWER)]), CountedTool()
    stage = Stage(tokens, tools=tool)
    stream = check_stream(await stage.play())
    assert tool.ran == ['{"city": "Bern"}']
    assert [request.prompt_ids for request in tokens.requests] == [
        PROMPT,
        asked_behind(tool.output),
    ]
    call, result, answer = stream.items
    assert (call["type"], call["status"]) == ("function_call", "completed")
    assert result == {
        "id": result["id"],
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": tool.output,
        "status": "completed",
    }
    assert answer["content"][0]["text"] == "Hello there"
    assert stream.response["status"] == "completed"


async def test_a_result_is_input_and_no_output() -> None:
    stage = Stage(ScriptedTokens([says(CALL), says(ANSWER)]), tools=CountedTool())
    await stage.play()
    usage = stage.live.fold.usage
    assert usage.input_tokens == len(PROMPT) + len(asked_behind("12 degrees."))
    assert usage.output_tokens == len(script_ids(CALL)) + len(script_ids(ANSWER))
    assert usage.cached_tokens == 4


async def test_the_next_response_repeats_the_result_as_it_was() -> None:
    stage = Stage(ScriptedTokens([says(CALL), says(ANSWER)]), tools=CountedTool())
    await stage.play()
    answer = (*OPENING, *script_ids(ANSWER)[:-1], *script_ids("<|end|>"))
    assert [item.ids for item in stage.live.fold.items()[1:]] == [
        tuple(result_ids("12 degrees.")),
        answer,
    ]


async def test_every_event_can_be_resumed_from_live_and_from_the_log() -> None:
    stage = Stage(ScriptedTokens([says(CALL), says(ANSWER)]), tools=CountedTool())
    events = await stage.play()
    packed = pack(stage.journal.entries)
    assert unpack(packed) == stage.journal.entries
    for after in range(-1, len(events)):
        kept = events[after + 1 :]
        assert await collected(partial(stage.live.stream, after=after)) == kept
        fold = folds(stage.spec.head, NO_RULES)()
        replayed = [event for one in portions(packed) for event in fold.replay(one, after)]
        assert [event for event in replayed if event.sequence_number > after] == kept


async def test_calls_follow_each_other() -> None:
    tokens = ScriptedTokens([says(CALL), says(SECOND_CALL), says(ANSWER)])
    tool = CountedTool()
    stage = Stage(tokens, tools=tool)
    stream = check_stream(await stage.play())
    assert tool.ran == ['{"city": "Bern"}', '{"city": "Basel"}']
    assert types(stream.response) == [*["function_call", "function_call_output"] * 2, "message"]
    behind = [*script_ids(SECOND_CALL), *result_ids(tool.output), *OPENING]
    assert tokens.requests[2].prompt_ids == [*asked_behind(tool.output), *behind]


async def test_behind_the_result_of_a_call_that_was_required_none_is_required() -> None:
    tool = CountedTool(name="free")
    stage = staged(REQUIRED, vouched(FREE + "<|call|>"), vouched(ANSWER), tools=tool)
    stream = check_stream(await stage.play())
    assert types(stream.response) == ["function_call", "function_call_output", "message"]
    assert stream.response["status"] == "completed"
    bound, free = [request.constraint for request in stage.tokens.requests]
    assert bound is not None
    assert bound != free
    assert not repairs(stage)


async def test_a_call_of_another_tool_is_the_clients() -> None:
    tool = CountedTool(name="g")
    stage = Stage(ScriptedTokens([says(CALL)]), tools=tool)
    stream = check_stream(await stage.play())
    assert (types(stream.response), stream.response["status"]) == (["function_call"], "completed")
    assert not tool.ran


async def test_what_is_no_whole_call_is_not_run() -> None:
    tool = CountedTool()
    cut = CALL.removesuffix('"}<|call|>')
    stage = Stage(ScriptedTokens([says(cut, LENGTH)]), tools=tool)
    assert check_stream(await stage.play()).response["status"] == "incomplete"
    assert not tool.ran


async def test_a_tool_that_breaks_tells_the_model_so() -> None:
    tokens = ScriptedTokens([says(CALL), says(ANSWER)])
    stage = Stage(tokens, tools=CountedTool(failure=RuntimeError("defect")))
    stream = check_stream(await stage.play())
    assert stream.response["status"] == "completed"
    assert stream.items[1]["output"] == FAILED.output
    assert tokens.requests[1].prompt_ids == asked_behind(FAILED.output)
    [ended] = [entry for entry in stage.journal.entries if isinstance(entry, ToolEnded)]
    assert ended.error == "failed"


async def test_silence_behind_a_result_is_followed_by_one_more_turn() -> None:
    tokens = ScriptedTokens([says(CALL), says(THOUGHT), says("So.<|return|>")])
    stage = Stage(tokens, tools=CountedTool())
    stream = check_stream(await stage.play())
    assert types(stream.response)[2:] == ["reasoning", "message"]
    assert stage.live.fold.turns[2].input_tokens == 0, "the gateway asked once more by itself"


async def test_silence_behind_a_result_is_no_answer() -> None:
    tokens = ScriptedTokens([says(CALL), says(THOUGHT), says("<|return|>")])
    stream = check_stream(await Stage(tokens, tools=CountedTool()).play())
    assert stream.response["status"] == "failed"


async def test_a_result_takes_room_and_where_there_is_none_left_the_response_ends() -> None:
    size = len(script_ids(CALL)) + len(result_ids("12 degrees.")) + len(OPENING)
    for left in (0, 5):
        tokens = ScriptedTokens([says(CALL), says(ANSWER)])
        spec = run_spec(max_tokens=size + left)
        response = check_stream(await Stage(tokens, spec=spec, tools=CountedTool()).play()).response
        assert [request.sampling.max_tokens for request in tokens.requests[1:]] == [left][:left]
        assert response["status"] == ("completed" if left else "incomplete")


async def test_the_claim_is_lost_before_a_call_leaves() -> None:
    tool = CountedTool()
    spec = replace(run_spec(), durable=True)
    stage = Stage(ScriptedTokens([says(CALL)]), spec=spec, tools=tool)
    stage.journal.lost = ClaimLost()
    await stage.run()
    assert isinstance(stage.journal.entries[-1], ToolStarted)
    assert stage.live.handed_over
    assert not tool.ran


async def test_a_response_is_cancelled_while_a_tool_runs() -> None:
    tool = CountedTool(hangs=True)
    stage = Stage(ScriptedTokens([says(CALL)]), tools=tool)
    running = asyncio.create_task(stage.run())
    await tool.reached.wait()
    stage.run.cancel()
    await running
    stream = check_stream(await collected(stage.live.stream))
    assert stream.response["status"] == "cancelled"


async def whole_log(tool: CountedTool) -> tuple[Stage[Continuing], list[Entry]]:
    """Of a response that nothing befell, without its end."""
    stage = Stage(Continuing(), spec=replace(run_spec(), durable=True), tools=tool)
    await stage.run()
    return stage, stage.journal.entries[:-1]


@pytest.mark.parametrize("idempotent", [False, True])
async def test_another_replica_goes_on_wherever_the_first_one_died(*, idempotent: bool) -> None:
    first, log = await whole_log(CountedTool(idempotent=idempotent))
    whole = first.live.fold.response()
    for count in range(1, len(log) + 1):
        said = log[:count]
        effects = sum(isinstance(entry, ToolStarted) for entry in said)
        is_ended = any(isinstance(entry, ToolEnded) for entry in said)
        tool = CountedTool(idempotent=idempotent)
        stage = Stage(Continuing(), spec=first.spec, said=said, tools=tool)
        response = check_stream(await stage.play()).response
        is_lost = effects and not is_ended and not idempotent
        output = INTERRUPTED.output if is_lost else tool.output
        assert response["output"][1]["output"] == output
        assert len(tool.ran) == (not is_ended and not is_lost)
        if not idempotent:
            assert effects + len(tool.ran) == 1, "the effect is had once"
        if not is_lost:
            assert response["output"] == whole["output"]
        assert response["status"] == "completed"
        assert stage.live.fold.usage.output_tokens == whole["usage"]["output_tokens"]
        turns = [turn.input_tokens for turn in stage.live.fold.turns]
        assert turns == [len(PROMPT), len(asked_behind(output))]


async def test_a_call_is_interrupted_once_however_often_the_response_is_taken_over() -> None:
    first, log = await whole_log(CountedTool())
    started = next(at for at, entry in enumerate(log) if isinstance(entry, ToolStarted)) + 1
    second = Stage(Continuing(), spec=first.spec, said=log[:started], tools=CountedTool())
    await second.run()
    rest = second.journal.entries
    hop, ended = rest[:2]
    assert isinstance(hop, Hop)
    assert isinstance(ended, ToolEnded)
    assert ended.error == "interrupted"
    told = [*log[:started], hop, ended]
    third = Stage(Continuing(), spec=first.spec, said=told, tools=CountedTool())
    assert (await third.play())[-1].type == "response.completed"
    assert third.tokens.prompts == [asked_behind(INTERRUPTED.output)]


@pytest.mark.parametrize("tool", [None, CountedTool(name="g")])
async def test_a_call_that_began_is_no_clients_where_nobody_can_run_it(
    tool: CountedTool | None,
) -> None:
    """It may have had its effect: a client that ran it would repeat that."""
    first, log = await whole_log(CountedTool(idempotent=True))
    for end, output in ((ToolStarted, INTERRUPTED.output), (ToolEnded, "12 degrees.")):
        said = log[: [type(entry) for entry in log].index(end) + 1]
        stage = Stage(Continuing(), spec=first.spec, said=said, tools=tool)
        response = check_stream(await stage.play()).response
        assert types(response) == ["function_call", "function_call_output", "message"]
        assert response["output"][1]["output"] == output
        assert stage.tokens.prompts == [asked_behind(output)]


def turn(script: str = CALL, finish: FinishReason = STOP) -> list[Entry]:
    return [TurnStarted(3), Tokens(tuple(script_ids(script))), TurnEnded(finish)]


STARTED, ENDED = ToolStarted(0), ToolEnded(0, (1, 2), "One.")


@pytest.mark.parametrize(
    "log",
    [
        pytest.param([STARTED], id="no turn"),
        pytest.param([*turn()[:2], STARTED], id="an open turn"),
        pytest.param([*turn(ANSWER), STARTED], id="an answer"),
        pytest.param([*turn(CALL[:-8], LENGTH), STARTED], id="a call that was cut off"),
        pytest.param([*turn(), ToolStarted(1)], id="another ordinal"),
        pytest.param([*turn(), ENDED], id="no start"),
        pytest.param([*turn(), STARTED, ToolEnded(1, (1,), "")], id="the end of another one"),
        pytest.param([*turn(), STARTED, STARTED], id="twice"),
        pytest.param([*turn(), STARTED, ENDED, ENDED], id="two ends"),
        pytest.param([*turn(), STARTED, ENDED, ToolStarted(1)], id="a call that was answered"),
        pytest.param([*turn(), STARTED, *turn()[:1]], id="a turn while a tool runs"),
        pytest.param(
            [*turn(), STARTED, ENDED, *turn(THOUGHT), ToolStarted(1)], id="no call in the last turn"
        ),
    ],
)
def test_an_entry_of_a_tool_stands_behind_a_call(log: list[Entry]) -> None:
    fold = folds(run_spec().head, NO_RULES)()
    for entry in log[:-1]:
        fold.apply(entry)
    before = fold.response()
    with pytest.raises(ValueError, match=r"tool|call"):
        fold.apply(log[-1])
    assert fold.response() == before


def test_what_may_be_run_again_may_be_begun_twice() -> None:
    fold = folds(run_spec().head, NO_RULES)()
    again = ToolStarted(0, idempotent=True)
    for entry in (*turn(), again, again, ENDED):
        fold.apply(entry)
    assert fold.results == 1
    assert not fold.visible, "nothing was made of the result yet"
    assert not fold.called


def test_a_call_behind_which_another_broke_off_is_not_answered() -> None:
    broken = CALL.replace("functions.f", "functions.g").replace("}<|call|>", "<|call|>")
    both = CALL.replace("<|call|>", "<|end|><|start|>assistant") + broken
    fold = folds(run_spec().head, NO_RULES)()
    entries: list[Entry] = [
        TurnStarted(3),
        Tokens(tuple(script_ids(both))),
        TurnEnded(FinishReason.STOP),
    ]
    shown = [event for entry in entries for event in fold.apply(entry)]
    assert shown
    assert fold.unanswered_call is None


async def test_a_result_that_no_prompt_can_hold_is_mended_and_does_not_fail_the_response() -> None:
    tool = CountedTool(output="12\ud800 degrees.")
    stage = Stage(Continuing(), tools=tool)
    events = await stage.play()
    assert events[-1].type == "response.completed"
    outputs = [item for item in stage.live.fold.response()["output"] if "output" in item]
    assert outputs[0]["output"] == "12? degrees."
