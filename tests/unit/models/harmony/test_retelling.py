"""Turns that are over, told again."""

from __future__ import annotations

import pytest

from gateway.generation import FinishReason
from gateway.models.harmony.parsing import Parser
from gateway.models.harmony.retelling import Retelling
from tests.fakes.harmony_script import TOOLS, script_ids, vocabulary

STOP, CUT = FinishReason.STOP, FinishReason.CUT
THOUGHT = "<|channel|>analysis<|message|>Hm<|end|>"
NEXT = "<|start|>assistant"
ANSWER = "<|channel|>final<|message|>hi<|end|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
OURS = " to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
ODD = vocabulary().encode("H") + vocabulary().encode("m")


def told(ids: list[int], finish: FinishReason | None = STOP) -> list[int]:
    return Retelling(vocabulary(), lambda: Parser(vocabulary(), TOOLS)).ids([(ids, finish)])


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", ""),
        ("<|return|>", ""),
        ("<|channel|>final<|message|><|return|>", ""),
        ("<|start|>assistant<|return|>", ""),
        (THOUGHT + NEXT + "<|return|>", THOUGHT),
        (THOUGHT + NEXT, THOUGHT),
        (THOUGHT + "<|start|>", THOUGHT),
        (THOUGHT + NEXT + "<|channel|>final<|return|>", THOUGHT),
        (THOUGHT + "<|start|>" + NEXT + ANSWER, THOUGHT + NEXT + ANSWER),
        ("<|channel|>analysis<|message|>Hm<|return|>", THOUGHT),
        ("<|channel|>analysis<|message|>Hm", THOUGHT),
        ("<|channel|>analysis<|message|>Hm<|start|>assistant" + ANSWER, THOUGHT + NEXT + ANSWER),
        (THOUGHT + ANSWER, THOUGHT + NEXT + ANSWER),
        (THOUGHT + "364" + NEXT + ANSWER, THOUGHT + NEXT + ANSWER),
        ("<|channel|>final hi<|return|>", ANSWER),
        ("<|channel|>final<|message|>h<|constrain|>i<|return|>", ANSWER),
        ("<|channel|>analysis to=python code<|message|>Hm<|call|>", THOUGHT),
        (CALL + "{}<|call|>", CALL + "{}<|call|>"),
        ("<|channel|>analysis to=functions.f<|message|>{}<|call|>", OURS + "{}<|call|>"),
        (THOUGHT + NEXT + CALL + '{"a<|end|>', THOUGHT),
        (ANSWER + "<|start|>user<|message|>And now?<|end|>", ANSWER),
    ],
)
def test_what_was_said_is_told_as_whole_messages(said: str, shown: str) -> None:
    wanted = script_ids(shown + NEXT) if shown else []

    assert told(script_ids(said)) == wanted
    assert told(wanted[:-2]) == wanted, "and so it stays"


def test_text_is_repeated_in_the_ids_that_the_model_took() -> None:
    odd = [*script_ids("<|channel|>analysis<|message|>"), *ODD]

    assert told(odd, CUT) == [*odd, *script_ids("<|end|>" + NEXT)]
    assert told([*odd, *script_ids("<|return|>")]) == [*odd, *script_ids("<|end|>" + NEXT)]


def test_a_call_that_was_cut_off_is_not_told() -> None:
    assert told(script_ids(THOUGHT + NEXT + CALL + '{"a'), CUT) == script_ids(THOUGHT + NEXT)
