"""What stands behind a prompt of the turns of a response that are over."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeVar

import pytest

from gateway.engine.turn import INLINE_IDS, PastTurns
from gateway.eventlog.fold.turn_reader import Turn
from gateway.generation import FinishReason
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.tokenizer import END, FINAL_HEADER, OPENING
from tests.fakes.harmony_script import harmony, script_ids, vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
THOUGHT = "<|channel|>analysis<|message|>Hm."
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}'
RESULT = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>One.<|end|>"


class Elsewhere:
    """Works at once, and counts how often it was asked to."""

    count = 0

    async def run_accepted(self, work: Callable[[], T]) -> T:
        self.count += 1
        return work()


class Counted:
    """Counts the parsers that are made for a retelling."""

    count = 0

    def new_parser(self) -> Parser:
        self.count += 1
        return Parser(vocabulary(), frozenset())


def over(script: str, times: int = 1) -> Turn:
    said = array("I", script_ids(script) * times)
    return Turn(0, (), said, finish=FinishReason.CUT)


def last() -> Turn:
    return Turn(0, FINAL_HEADER)


async def test_a_turn_that_is_over_is_worked_off_once_however_often_it_is_sent() -> None:
    parsers = Counted()
    past_turns = PastTurns(harmony(), parsers.new_parser, Elsewhere())
    turns = [over(THOUGHT), last()]
    await past_turns.update(turns[:-1])
    once = parsers.count
    assert once
    for _ in range(3):
        await past_turns.update(turns[:-1])
        sent = [*script_ids(THOUGHT), END, *OPENING, *FINAL_HEADER]
        assert past_turns.ids_with(turns[-1]) == sent
        assert past_turns.generated_with(turns[-1]) == len(sent)
    assert parsers.count == once
    turns.insert(1, over(THOUGHT))
    await past_turns.update(turns[:-1])
    assert parsers.count == 2 * once
    assert past_turns.ids_with(turns[-1]) == [
        *([*script_ids(THOUGHT), END, *OPENING] * 2),
        *FINAL_HEADER,
    ]


@pytest.mark.parametrize("is_long", [True, False])
async def test_a_long_turn_is_worked_off_in_a_thread(*, is_long: bool) -> None:
    threads = Elsewhere()
    past_turns = PastTurns(harmony(), Counted().new_parser, threads)
    size = len(script_ids(THOUGHT))
    await past_turns.update([over(THOUGHT, INLINE_IDS // size + is_long)])
    assert threads.count == is_long


async def test_a_result_stands_between_the_call_and_what_is_said_to_it() -> None:
    past_turns = PastTurns(harmony(), Counted().new_parser, Elsewhere())
    call, result = over(CALL + "<|call|>"), script_ids(RESULT)
    call.finish, call.result = FinishReason.STOP, tuple(result)
    await past_turns.update([call])
    told = script_ids(CALL + "<|call|>" + RESULT + "<|start|>assistant")
    assert past_turns.ids_with(last()) == [*told, *FINAL_HEADER]
    assert len(past_turns.ids) == len(told)
    assert past_turns.size_with(last()) == len(told) + len(FINAL_HEADER)
    assert past_turns.generated_with(last()) == past_turns.size_with(last()) - len(result)
