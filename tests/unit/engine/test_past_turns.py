"""What stands behind a prompt of the turns of a response that are over."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeVar

import pytest

from gateway.engine.retold import INLINE_IDS, Retold
from gateway.eventlog.fold.fold import Turn
from gateway.generation import FinishReason
from gateway.models.harmony.framing import FINAL_HEADER, OPENING
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.vocabulary import END
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
    retold = Retold(harmony(), parsers.new_parser, Elsewhere())
    turns = [over(THOUGHT), last()]
    await retold.keep_up(turns[:-1])
    once = parsers.count
    assert once
    for _ in range(3):
        await retold.keep_up(turns[:-1])
        sent = [*script_ids(THOUGHT), END, *OPENING, *FINAL_HEADER]
        assert retold.before(turns[-1]) == sent
        assert retold.generated(turns[-1]) == len(sent)
    assert parsers.count == once
    turns.insert(1, over(THOUGHT))
    await retold.keep_up(turns[:-1])
    assert parsers.count == 2 * once
    assert retold.before(turns[-1]) == [*([*script_ids(THOUGHT), END, *OPENING] * 2), *FINAL_HEADER]


@pytest.mark.parametrize("is_long", [True, False])
async def test_a_long_turn_is_worked_off_in_a_thread(*, is_long: bool) -> None:
    threads = Elsewhere()
    retold = Retold(harmony(), Counted().new_parser, threads)
    size = len(script_ids(THOUGHT))
    await retold.keep_up([over(THOUGHT, INLINE_IDS // size + is_long)])
    assert threads.count == is_long


async def test_a_result_stands_between_the_call_and_what_is_said_to_it() -> None:
    retold = Retold(harmony(), Counted().new_parser, Elsewhere())
    call, result = over(CALL + "<|call|>"), script_ids(RESULT)
    call.finish, call.result = FinishReason.STOP, tuple(result)
    await retold.keep_up([call])
    told = script_ids(CALL + "<|call|>" + RESULT + "<|start|>assistant")
    assert retold.before(last()) == [*told, *FINAL_HEADER]
    assert len(retold.ids) == len(told)
    assert retold.behind(last()) == len(told) + len(FINAL_HEADER)
    assert retold.generated(last()) == retold.behind(last()) - len(result)
